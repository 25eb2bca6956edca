"""No number that is none gets past the command line: every numeric option refuses NaN and infinity."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from planner.cli import main
from planner.cli.group import COMMANDS

WORDS = ("nan", "-inf", "1e999")
MODEL = ["--model", "350m", "--gpus", "8"]
NUMERIC_METAVARS = {
    "N", "N|LO:HI", "SIZE", "GB/s", "X", "X|none", "SECONDS", "USD", "TIME", "15T", "N|A,B|LO:HI|!N",
}  # fmt: skip
"""What the help calls a number."""
TEXT_METAVARS = {
    "NAME|FILE", "LIST", "NAME", "full|lora|qlora", "whole|chunked", "GOAL", "FILE", "FILE.html", "FILE.json",
    "FILE.toml", "DIR", "ADDRESS", "text|json|github", "TOPIC", "LEVEL", "ID", "TEXT", "on|off",
    "NAME=VALUE",
}  # fmt: skip


def options_of(command: str) -> list[click.Option]:
    context = click.Context(main)
    found = main.get_command(context, command)
    assert found is not None
    return [
        option
        for option in found.params
        if isinstance(option, click.Option) and not option.is_flag and option.name != "help"
    ]


def is_number(option: click.Option) -> bool:
    """Whether an option takes a number; every metavar has to be known, so that no new one is missed."""
    if isinstance(option.type, click.types.FloatParamType | click.types.IntParamType):
        return True
    words = option.metavar or ""
    named = any(
        "|" in words and word in words for word in ("ring", "gpipe", "selective", "optimizer|", "tp-cp")
    )
    assert words in NUMERIC_METAVARS | TEXT_METAVARS or named, f"{option.opts}: {words!r} is not known"
    return words in NUMERIC_METAVARS


CASES = [
    (command, option.opts[0]) for command in COMMANDS for option in options_of(command) if is_number(option)
]


def test_there_are_numbers_to_refuse() -> None:
    assert {("sweep", "--price"), ("plan", "--time-limit"), ("estimate", "--tp")} <= set(CASES)
    assert len(CASES) > 100


@pytest.mark.parametrize(("command", "option"), CASES)
def test_a_number_that_is_none_is_refused(
    command: str, option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def searched(*_arguments: object, **_named: object) -> None:
        raise AssertionError("a search for a number that is none")

    monkeypatch.setattr("planner.explain.answer.find", searched)
    monkeypatch.setattr("planner.solver.solve", searched)
    monkeypatch.setattr("planner.sweep.run", searched)
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --bf16\n")
    given = {
        "compare": ["1", "2", *MODEL], "check": [str(script), *MODEL], "report": ["--out", "x.html", *MODEL],
        "why-not": [*MODEL, "--tp", "2"], "practice": ["--no-progress", "--json"],
    }  # fmt: skip
    for word in WORDS:
        ran = CliRunner().invoke(main, [command, *given.get(command, MODEL), option, word])
        assert not isinstance(ran.exception, AssertionError), (word, ran.exception)
        assert ran.exit_code == 2, (word, ran.exit_code, ran.output)
        assert option in ran.stderr or word in ran.stderr, ran.stderr
        assert "Traceback" not in ran.output
