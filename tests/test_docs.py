"""The documentation says what the code does: commands, options, keys, examples, links and figures."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from planner.catalog.hardware import load_cluster
from planner.catalog.models import load_model
from planner.cli.group import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
QUICK = re.compile(r"<!-- quick -->\n```sh\n(.*?)\n```", re.DOTALL)
KEYS = re.compile(r"<!-- keys: ([\w-]+) -->\n((?:\|.*\n)+)")
FAMILIES_TO_QUOTE = (
    "all",
    "dense bf16 on A100 and H100",
    "dense bf16 on A100 and H100, sweep rows left out",
    "tier A pre-training",
    "low precision",
    "mixture of experts",
    "sequence-parallel paper",
)
"""Families of ``accuracy.md`` that the README quotes."""


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}[^\n]*\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {heading!r}"
    return found[1]


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


# ---------------------------------------------------------------------------------------------- README


def test_the_first_two_shell_blocks_install_run_and_test() -> None:
    blocks = [body.strip() for kind, body in FENCE.findall(text(README)) if kind == "sh"]
    assert blocks == [
        "pip install . && plan-parallel --model 100b --gpus 512",
        "pip install -e '.[test]' && python -m pytest -q -n auto --dist loadfile",
    ]
    assert text(README).index("```sh") < text(README).index("\n## ")


def figures(report: str, heading: str) -> dict[str, list[str]]:
    """Rows of a table of the accuracy report by family."""
    lines = [line.strip() for line in section(report, heading).splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def readme_accuracy(report: str) -> str:
    """The README's table, from the report that ``tests/benchmarks/accuracy.py`` writes."""
    fitted, memory = figures(report, "Step time by family [%]"), figures(report, "Peak memory by family [%]")
    held = figures(report, "Held out by sources: step time by family [%]")
    lines = [
        "| error, % of measured | runs | median | p90 | mean signed | held out: median | p90 | mean signed "
        "| memory: runs | median | p90 |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES_TO_QUOTE:
        cells = fitted[family][:4] + held[family][1:4] + memory[family][:3]
        lines.append(f"| {family} | " + " | ".join(cell or "-" for cell in cells) + " |")
    return "\n".join(lines)


def test_the_readme_quotes_the_accuracy_report() -> None:
    wanted = readme_accuracy(text(ROOT / "tests/benchmarks/accuracy.md"))
    assert wanted in text(README), f"README.md should hold this table:\n{wanted}"


def test_the_screenshot_is_a_small_png() -> None:
    picture = (ROOT / "docs/images/report.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) <= 300_000


# ---------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_and_its_own_options_are_described(name: str) -> None:
    page = text(ROOT / "docs/commands.md")
    heading = next(line for line in page.splitlines() if re.match(rf"## (.*, )?{name}(,|$)", line))
    options = [option for option in command(name).params if isinstance(option, click.Option)]
    described = section(page, heading.removeprefix("## ")) + section(page, "Option groups")
    missing = [option.opts[0] for option in options if not set(option.opts) & set(words(described))]
    assert not missing
    assert f"`{name}" in text(README)


def words(page: str) -> list[str]:
    return re.findall(r"--[a-z][a-z-]*", page)


def test_no_option_is_described_that_does_not_exist() -> None:
    known = {name for each in COMMANDS for option in command(each).params for name in option.opts}
    known |= {name for each in COMMANDS for option in command(each).params for name in option.secondary_opts}
    known |= {"--help", "--version"}
    assert set(words(text(ROOT / "docs/commands.md"))) <= known


def test_the_rules_can_be_looked_up() -> None:
    assert "plan-parallel rules" in text(README)
    assert "plan-parallel rules" in text(ROOT / "docs/commands.md")


def quick_examples() -> list[str]:
    return [line for page in PAGES for block in QUICK.findall(text(page)) for line in block.splitlines()]


def test_there_are_quick_examples() -> None:
    assert len(quick_examples()) >= 5


@pytest.mark.parametrize("line", quick_examples())
def test_quick_examples_run(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(line)
    assert program == "plan-parallel"
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output


# ---------------------------------------------------------------------------------------------- JSON


def documented() -> dict[str, set[str]]:
    page = text(ROOT / "docs/json.md")
    tables = {}
    for name, table in KEYS.findall(page):
        first_cells = [line.split("|")[1] for line in table.splitlines()[2:]]
        tables[name] = set(re.findall(r"`(\w+)`", " ".join(first_cells)))
    return tables


def printed(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    answer = json.loads(result.stdout)
    assert isinstance(answer, dict)
    return answer


SMALL = ("--model", "llama-3-8b", "--gpus", "8")
NARROW = ("--tp", "2", "--pp", "1", "--cp", "1", "--zero", "1", "--micro-batch", "1", "--no-recompute")


def test_keys_of_plan_and_estimate() -> None:
    keys = documented()
    found = printed("plan", *SMALL, *NARROW)
    best = found["plans"][0]
    assert set(found) == keys["plan"]
    assert set(found["request"]) == keys["request"]
    assert set(best) - {"rank"} == keys["estimate"] - {"request", "assumptions"}
    assert set(best["stages"][0]) == keys["stage"]
    assert set(best["time_s"]) == keys["time"]
    assert set(best["memory_bytes"]) == keys["memory"]
    assert sum(best["time_s"].values()) == pytest.approx(best["step_time_s"])
    assert set(printed("estimate", *SMALL, "--tp", "2", "--zero", "1")) == keys["estimate"]


def test_keys_of_check(tmp_path: Path) -> None:
    keys = documented()
    launch = tmp_path / "args.sh"
    launch.write_text("torchrun pretrain_gpt.py --tensor-model-parallel-size 3 --global-batch-size 512\n")
    found = printed("check", str(launch), *SMALL, "--no-search", code=3)
    assert set(found) == keys["check"]
    assert set(found["findings"][0]) == keys["finding"]
    assert found["estimate"] is found["better"] is None


def test_keys_of_why_not_and_compare(tmp_path: Path) -> None:
    keys = documented()
    two = printed("plan", *SMALL, *NARROW, "--dp", "4", "--top", "2")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(two))
    compared = printed("compare", str(path), str(path), *SMALL)
    assert set(compared) == keys["compare"]
    assert set(compared["first"]) == keys["estimate"] - {"request", "assumptions"}
    refused = printed("why-not", *SMALL, "--tp", "3", code=3)
    assert set(refused) == keys["why-not"]


def test_every_number_of_the_table_is_in_the_json() -> None:
    """Free memory is what is usable less the peak; the rest stands there as it is printed."""
    words = ("estimate", *SMALL, "--pp", "2", "--zero", "1")
    found = printed(*words)
    cells = CliRunner().invoke(main, list(words)).stdout.splitlines()[4].split()
    free_gb = found["request"]["usable_memory_gb"] - found["peak_memory_gb"]
    assert [f"{found['peak_memory_gb']:.1f}", f"{free_gb:.1f}", f"{found['bubble_pct']:.0f}%"] == [
        cells[-5], cells[-3], cells[-1],
    ]  # fmt: skip
    assert f"{found['tokens_per_s_per_gpu']:.0f}" in cells
    assert f"{100 * found['mfu']:.1f}%" in cells


def test_keys_of_validate() -> None:
    keys = documented()
    found = printed("validate", str(ROOT / "tests/data/measured/sequence_parallel_paper.jsonl"))
    assert set(found) == keys["validate"]
    assert set(found["rows"][0]) == keys["validate-row"]


def test_keys_of_sweep() -> None:
    keys = documented()
    found = printed("sweep", *SMALL, *NARROW, "--tokens", "1T", "--processes", "1")
    assert set(found) == keys["sweep"]
    assert set(found["rows"][0]) == keys["sweep-row"]


# ---------------------------------------------------------------------------------------------- examples


def example(page: str, marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", text(ROOT / page), re.DOTALL)
    assert found
    return found[1]


def test_the_example_files_load(tmp_path: Path) -> None:
    model, hardware = tmp_path / "model.toml", tmp_path / "hardware.toml"
    model.write_text(example("docs/extending.md", "model"))
    hardware.write_text(example("docs/extending.md", "hardware"))
    assert load_model(str(model)).num_layers == tomllib.loads(text(model))["num_layers"]
    cluster = load_cluster(str(hardware))
    assert cluster.num_gpus == 128
    assert cluster.links[1].bytes_per_s == 25e9


def test_the_python_example_runs() -> None:
    code = next(body for kind, body in FENCE.findall(text(README)) if kind == "python")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "optimal" in result.stdout


def test_the_functions_of_the_architecture_exist() -> None:
    named = set(
        re.findall(r"\b([A-Za-z_]{4,})\(", section(text(ROOT / "docs/architecture.md"), "Functions other"))
    )
    code = "".join(text(path) for path in (ROOT / "planner").rglob("*.py"))
    assert [name for name in sorted(named) if not re.search(rf"(def|class) {name}\b", code)] == []
    assert len(named) > 30


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_resolve(page: Path) -> None:
    targets = [link.split("#")[0] for link in LINK.findall(text(page)) if "://" not in link]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_named_in_the_text_exist(page: Path) -> None:
    named = set(re.findall(r"`((?:planner|tests|docs|models|hardware|examples|\.ci)/[\w./-]+)`", text(page)))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def sessions() -> list[tuple[str, list[str]]]:
    """Commands of the console blocks of ``commands.md`` with the lines that they are said to print."""
    found: list[tuple[str, list[str]]] = []
    for kind, body in FENCE.findall(text(ROOT / "docs/commands.md")):
        for line in body.splitlines() if kind == "console" and "plan-parallel " in body else ():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return [(command, lines) for command, lines in found if command.startswith("plan-parallel ")]


def is_printed(line: str, output: str) -> bool:
    """Whether a line stands in an output; one that ends in dots may go on."""
    start = line.removesuffix("...").rstrip() if line.endswith("...") else line + "\n"
    return f"\n{start}" in f"\n{output}"


@pytest.mark.slow
def test_console_examples_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in the order of need: ``check`` reads what ``launch`` writes."""
    monkeypatch.chdir(tmp_path)
    ordered = sorted(sessions(), key=lambda session: session[0].startswith("plan-parallel check"))
    assert len(ordered) >= 9
    for command_line, lines in ordered:
        words, _, target = command_line.partition(" > ")
        output = CliRunner().invoke(main, shlex.split(words)[1:]).stdout
        if target:
            Path(target).write_text(output)
        missing = [line for line in lines if line != "..." and not is_printed(line, output)]
        assert not missing, f"{command_line}: {missing}\n{output}"
