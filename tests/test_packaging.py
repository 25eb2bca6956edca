"""The wheel carries the catalogs and every subpackage."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _tracked(pattern: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}


def test_version_is_the_one_of_the_project() -> None:
    from importlib.metadata import version

    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{version("plan-parallel")}"' in text


@pytest.mark.slow
def test_wheel_holds_catalogs_and_subpackages(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for kind in ("models", "hardware"):
        assert {f"planner/{name}" for name in _tracked(f"{kind}/*.toml")} <= names
    assert _tracked("planner/**/*.py") <= names
