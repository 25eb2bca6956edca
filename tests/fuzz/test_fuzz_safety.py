"""Files are data: nothing in ``planner`` executes them or uses the network; no name becomes a command."""

from __future__ import annotations

import ast
import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from fuzz_files import legal_plans

from planner.frameworks.files import WRITERS, write
from planner.spec import Model, PlanRequest

PACKAGE = Path(__file__).parent.parent.parent / "planner"
SOURCES = sorted(PACKAGE.rglob("*.py"))

FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.execv", "os.spawnv", "os.startfile",
    "pickle.load", "pickle.loads", "marshal.loads", "shelve.open", "yaml.load", "yaml.unsafe_load",
    "yaml.full_load", "yaml.load_all", "yaml.Loader", "yaml.UnsafeLoader", "yaml.FullLoader", "input.eval",
}  # fmt: skip
FORBIDDEN_MODULES = {
    "socket", "urllib", "http", "ftplib", "smtplib", "telnetlib", "ssl", "requests", "httpx", "aiohttp",
    "pickle", "marshal", "shelve", "subprocess", "pty", "ctypes", "webbrowser", "xmlrpc",
}  # fmt: skip
DYNAMIC_IMPORT = {"planner/cli/group.py", "planner/frameworks/__init__.py", "planner/frameworks/files.py",
                  "planner/frameworks/expressible.py", "planner/practice/bank.py", "planner/solver/cp_sat.py",
                  "planner/__init__.py", "planner/frameworks/dialects/__init__.py"}  # fmt: skip
"""May import modules by a name that stands in a constant of their own."""


def dotted(node: ast.expr) -> str:
    """``os.path.join`` of an expression, empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def faults(source: str, name: str = "x.py") -> list[str]:
    """Everything in a module that could execute data or reach outside."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            found += [module for module in modules if module.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.Call):
            called = dotted(node.func)
            if called in FORBIDDEN_CALLS or any(k.arg == "shell" for k in node.keywords):
                found.append(called)
            if called.endswith("import_module") and name not in DYNAMIC_IMPORT:
                found.append(called)
        elif isinstance(node, ast.Attribute) and dotted(node) in FORBIDDEN_CALLS:
            found.append(dotted(node))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_executes_data_or_reaches_the_network(path: Path) -> None:
    assert faults(path.read_text(), str(path.relative_to(PACKAGE.parent))) == []


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')", "import os\nos.system('x')", "import subprocess", "from urllib.request import urlopen",
        "import yaml\nyaml.load(x, Loader=yaml.Loader)", "f(shell=True)",
        "import importlib\nimportlib.import_module(x)",
    ],
)  # fmt: skip
def test_the_search_for_danger_finds_it(source: str) -> None:
    assert faults(source)


# ---------------------------------------------------------------- what is written


HOSTILE = (
    "two words",
    "it's",
    'say "x"',
    "$(touch owned)",
    "`touch owned`",
    "a; touch owned; #",
    "line\ntouch owned\n",
    "back\\slash\\",
    "${HOME}",
    "'\"; touch owned; \"'",
    "-rf",
    "../../owned",
    "&& touch owned",
    "\x1b[31m\x00",
    "{model}%s{0}",
    "!!python/object/apply:os.system ['touch owned']",
)
"""Names that try to become commands, paths or objects."""
EXECUTED = tuple(name for name in HOSTILE if "touch" in name)


def hostile(framework: str, name: str) -> tuple[dict[str, str], PlanRequest]:
    """Launch files of a small plan for a model and machine with a hostile name."""
    plan, request = min(legal_plans(framework, 12), key=lambda pair: pair[1].model.num_layers)
    model: Model = request.model.model_copy(update={"name": name, "source": name, "notes": name})
    accelerator = request.cluster.accelerator.model_copy(update={"name": name})
    cluster = request.cluster.model_copy(update={"accelerator": accelerator})
    asked = request.model_copy(update={"model": model, "cluster": cluster})
    return write(plan, asked), asked


@pytest.mark.parametrize("framework", WRITERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_data(framework: str, name: str, tmp_path: Path) -> None:
    files, _ = hostile(framework, name)
    for file, text in files.items():
        assert Path(file).name == file, "a file name with a folder"
        if file.endswith((".sh", ".txt", ".env")):
            assert "\ntouch owned\n" not in text
        if file.endswith(".sh"):
            assert_parses_as_bash(text)
        elif file.endswith(".py"):
            ast.parse(text)
        elif file.endswith(".json"):
            json.loads(text)
        elif file.endswith((".yaml", ".yml")):
            yaml.safe_load(text)
        elif file.endswith(".csv"):
            assert len({len(row) for row in csv.reader(io.StringIO(text))}) == 1


def assert_parses_as_bash(text: str) -> None:
    if shutil.which("bash"):
        shown = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False)
        assert shown.returncode == 0, shown.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize("framework", WRITERS)
def test_running_the_scripts_runs_only_the_launcher(framework: str, tmp_path: Path) -> None:
    """The emitted scripts are executed with stand-ins for everything that they call."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("torchrun", "python", "python3", "deepspeed", "accelerate", "srun", "scontrol", "sbatch"):
        (tools / tool).write_text('#!/bin/bash\nprintf "%s\\n" "$0" "$@" >> "$RECORD"\n')
        (tools / tool).chmod(0o755)
    for index, name in enumerate(EXECUTED):
        folder = tmp_path / f"run {index}"
        folder.mkdir()
        files, _ = hostile(framework, name)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "RECORD": str(tmp_path / "record"),
                       "HOME": str(folder), "SLURM_SUBMIT_DIR": str(folder), "SLURM_PROCID": "0",
                       "SLURM_JOB_NODELIST": "node"}  # fmt: skip
        for script in sorted(folder.glob("*.sh")):
            subprocess.run(
                ["bash", str(script)],
                cwd=folder,
                env=environment,
                capture_output=True,
                timeout=20,
                check=False,
            )
        written = {path.name for path in folder.rglob("*")}
        assert "owned" not in written, f"{name!r} ran a command"
    assert not list(tmp_path.rglob("owned"))
    assert "torchrun" in (tmp_path / "record").read_text() or framework not in {"megatron", "pytorch"}
