"""The case studies of ``examples/``: the priced configurations of every script and their key facts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from planner.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def commands(name: str) -> list[list[str]]:
    """Words of every ``plan-parallel`` line of a script, its ``problem`` filled in."""
    text = (EXAMPLES / name).read_text().replace("\\\n", " ")
    lines = text.splitlines()
    problem = next(line.split('"')[1] for line in lines if line.startswith("problem="))
    found = [line.removeprefix("plan-parallel ") for line in lines if line.startswith("plan-parallel ")]
    return [
        shlex.split(line.replace("$problem", problem).replace('"$@"', ""), comments=True) for line in found
    ]


def estimates(name: str) -> list[dict[str, Any]]:
    """Reports of the script's ``estimate`` lines, in order."""
    words = [line for line in commands(name) if line[0] == "estimate"]
    return [json.loads(CliRunner().invoke(main, [*line, "--json"]).stdout) for line in words]


def runs(report: dict[str, Any]) -> bool:
    return bool(report["legal"] and report["fits"])


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("70b-on-256.sh", [True]),
        ("100b-on-512.sh", [False, True]),
        ("405b-on-16384.sh", [True]),
        ("1t-dense-on-4096.sh", [False, True]),
        ("128k-context.sh", [False, True]),
        ("deepseek-v3-on-2048.sh", [False, True]),
        ("gemma-2-on-tpu.sh", [True]),
        ("13b-on-8-a100.sh", [False, True]),
    ],
)
def test_verdicts(name: str, verdicts: list[bool]) -> None:
    assert [runs(report) for report in estimates(name)] == verdicts


def test_every_example_is_here_and_ends_in_a_plan() -> None:
    names = sorted(path.name for path in EXAMPLES.glob("*.sh"))
    assert len(names) >= 8
    for name in names:
        assert commands(name)[-1][0] == "--model"


def test_llama_405b_takes_the_published_time() -> None:
    # 400 TFLOP/s a GPU (arXiv:2407.21783, table 4) and 2,524 GFLOP a token are 158.5 tokens/s a GPU,
    # 16.8 M tokens over 16,384 GPUs: 6.46 s
    (report,) = estimates("405b-on-16384.sh")
    assert report["step_time_s"] == pytest.approx(6.46, rel=0.15)


def test_deepseek_v3_takes_the_published_time() -> None:
    # 180K H800 hours a trillion tokens (arXiv:2412.19437, section 1): 1,543 tokens/s a GPU;
    # 15,360 x 4,096 tokens over 2,048 GPUs: 19.9 s
    published, _ = estimates("deepseek-v3-on-2048.sh")
    assert published["step_time_s"] == pytest.approx(19.9, rel=0.15)


def test_the_bubble_budget_refuses_a_trillion_parameters_in_32_plain_stages() -> None:
    refused, _ = estimates("1t-dense-on-4096.sh")
    assert "bubble_stays_within_budget" in [violation["rule"] for violation in refused["violations"]]
