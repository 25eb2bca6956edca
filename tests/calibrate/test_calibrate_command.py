"""The ``calibrate`` command where there is nothing to measure."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.calibrate import command as calibration
from planner.cli import main
from planner.errors import BadInput


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["calibrate", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr


def test_without_a_gpu_it_says_so_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("torch") is not None:
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "ours.toml"
    code, said = run("--out", str(out))
    assert code == 2
    assert said.startswith("Error: calibrate needs ") and said.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [("ours.txt", "must end in .toml"), ("none/ours.toml", "does not exist"), ("old.toml", "exists")],
)
def test_a_bad_target_is_refused_before_anything_is_measured(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "old.toml").write_text("mine")
    code, said = run("--out", str(tmp_path / name))
    assert code == 2 and told in said
    assert (tmp_path / "old.toml").read_text() == "mine"


def test_an_unknown_gpu_asks_for_a_base() -> None:
    assert calibration.base_of("NVIDIA H100 80GB HBM3") == "h100-sxm-80gb"
    with pytest.raises(BadInput, match="--base"):
        calibration.base_of("Abacus 3000")
