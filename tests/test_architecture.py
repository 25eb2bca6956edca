"""The layers of docs/architecture.md: imports point left, heavy packages stay home, code is small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "planner"
FILES = sorted(PACKAGE.rglob("*.py"))

LAYERS = {
    "errors": -1, "units": 0, "output": 0,
    "spec": 1,
    "cost": 2,
    "catalog": 3,
    "rules": 4,
    "solver": 5,
    "explain": 6, "frameworks": 6, "report": 6, "practice": 6, "calibrate": 6,
    "validate": 7, "request": 7, "api": 8, "sweep": 8,
    "": 9,
    "cli": 10, "__main__": 11,
}  # fmt: skip
"""Folder or module of ``planner`` to its place; "" is ``planner/__init__.py``."""

MOST_FUNCTION_LINES = 40
MOST_FILE_LINES = 400
MOST_ARGUMENTS = 8


def layer_of(module: str) -> int:
    """Place of ``planner.solver.search`` and the like."""
    parts = module.split(".")
    return LAYERS[parts[1] if len(parts) > 1 else ""]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(tree: ast.AST) -> list[str]:
    """Absolute modules that the tree imports, those under ``if TYPE_CHECKING`` left out."""
    found = []
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide their layer"
            found += [f"{node.module}.{name.name}" for name in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_left(path: Path) -> None:
    own = layer_of(module_of(path))
    for name in imports(ast.parse(path.read_text())):
        if name.startswith("planner."):
            target = name.split(".")[1]
            layer = LAYERS.get(target, LAYERS[""])
            same_folder = module_of(path).split(".")[1:2] == [target]
            assert layer < own or same_folder, f"{module_of(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_heavy_packages_stay_in_their_folders(path: Path) -> None:
    module = module_of(path)
    packages = {name.split(".")[0] for name in imports(ast.parse(path.read_text()))}
    if "click" in packages:
        assert module.startswith("planner.cli")
    if "ortools" in packages:
        assert module.startswith("planner.solver") or module == "planner.rules.encode"


@pytest.mark.parametrize("command", ["import planner.cli", "import planner.cli.group"])
def test_importing_the_command_line_loads_neither_ortools_nor_numpy(command: str) -> None:
    probe = f"{command}, sys; print([m for m in ('numpy', 'ortools', 'pandas') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module", ["planner.rules", "planner.solver", "planner.solver.evaluate", "planner.frameworks"]
)
def test_pricing_a_plan_does_not_load_ortools(module: str) -> None:
    probe = f"import {module}, sys; print('ortools' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def over_budget(path: Path) -> list[str]:
    """Functions and files that are longer, or take more arguments, than the budget allows."""
    text = path.read_text()
    found = [f"{path.name}: {lines} lines"] if (lines := len(text.splitlines())) > MOST_FILE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
        arguments = len(node.args.args) + len(node.args.kwonlyargs) + len(node.args.posonlyargs)
        is_command = any("option" in ast.unparse(decorator) for decorator in node.decorator_list)
        if lines > MOST_FUNCTION_LINES:
            found.append(f"{path.name}: {node.name} has {lines} lines")
        if arguments > MOST_ARGUMENTS and not is_command:
            found.append(f"{path.name}: {node.name} takes {arguments} arguments")
    return found


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (first.end_lineno or first.lineno) - first.lineno + 1 if is_text else 0


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_functions_and_files_stay_within_budget(path: Path) -> None:
    assert over_budget(path) == []


def test_the_budget_script_sees_what_it_should(tmp_path: Path) -> None:
    long = tmp_path / "long.py"
    body = "\n".join("    x = 1" for _ in range(MOST_FUNCTION_LINES))
    long.write_text(f"def f(a, b, c, d, e, g, h, i, j):\n    '''Doc.'''\n{body}\n")
    assert over_budget(long) == ["long.py: f has 41 lines", "long.py: f takes 9 arguments"]
