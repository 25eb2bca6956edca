"""Ctrl-C in every command that takes long: an orderly end within moments, nothing left, no half answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from toys import tiny_dense

from planner.cli import main
from planner.explain.answer import NOT_SEARCHED_NOTE, answer
from planner.solver import PlanResult, solve, uninterrupted
from planner.sweep.execute import read_state

LARGE = ["--model", "deepseek-v3", "--gpus", "2048", "--global-batch", "15360", "--precision", "bf16,fp8",
         "--framework", "any", "--time-limit", "120"]  # fmt: skip
"""A question that takes much longer than the interruptions below."""
SWEEP = ["sweep", "--model", "llama-3-70b", "--gpus", "64:8192", "--state", "state.jsonl", "--csv", "out.csv"]
SCRIPT = (
    "torchrun --nproc_per_node 8 --nnodes 256 pretrain_gpt.py --tensor-model-parallel-size 8 "
    "--pipeline-model-parallel-size 16 --micro-batch-size 1 --global-batch-size 15360 "
    "--use-distributed-optimizer --sequence-parallel --bf16\n"
)
MEASURED = Path(__file__).parent.parent / "data" / "measured"
SOON_S = 20.0
"""An interrupted command ends within this time on a busy machine."""
COMMANDS: dict[str, list[str]] = {
    "sweep of one process": [*SWEEP, "--processes", "1"],
    "sweep of two processes": [*SWEEP, "--processes", "2"],
    "validate": ["validate", *map(str, sorted(MEASURED.glob("*.jsonl"))[:1])],
    "what-if": ["plan", "--model", "7b", "--gpus", "64", "--what-if"],
    "explain": ["plan", "--model", "7b", "--gpus", "64", "--explain"],
    "page": ["plan", *LARGE, "--html", "page.html", "--trace", "trace.json"],
    "report": ["report", *LARGE, "--out", "page.html"],
    "why-not": ["why-not", *LARGE, "--tp", "16"],
    "compare": ["compare", "1", "2", *LARGE],
    "launch": ["launch", *LARGE, "--out", "launched"],
    "check and fix": ["check", "run.sh", "--fix", "fixed", *LARGE],
    "practice": ["practice", "--no-progress"],
}
ABORTED = {"sweep of one process", "sweep of two processes", "validate", "why-not", "compare", "launch",
           "practice"}  # fmt: skip
"""Commands to which half an answer is none."""
STOPPED = {130, -signal.SIGINT}
"""What shells report as 130: its own exit code, or ended by the signal while it still loads."""
BEST_SO_FAR = {0, 2, 3, 4, *STOPPED}
"""Exit codes of the others: plans, no better plan to write, nothing fits, none in time, none so far."""


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [1.0, 5.0])
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_every_command_in_order(name: str, after_s: float, tmp_path: Path) -> None:
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    work.mkdir()
    scratch.mkdir()
    (work / "run.sh").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", *COMMANDS[name]], cwd=work, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch)},
    )  # fmt: skip
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)  # a terminal tells every process of the command
    try:
        _, said = process.communicate(timeout=SOON_S)
    finally:
        process.kill()
    assert "Traceback" not in said, said
    assert "leaked" not in said, said
    if name in ABORTED:
        assert process.returncode in STOPPED, said
        assert said.rstrip().endswith("Interrupted.")
        assert {path.name for path in work.iterdir()} <= {"run.sh", "state.jsonl"}
    assert process.returncode in BEST_SO_FAR, said
    for outcome in read_state(work / "state.jsonl"):
        assert outcome.status in {"optimal", "infeasible"}, "an interrupted answer is remembered"
    assert not list(scratch.iterdir())
    assert not [path for path in work.rglob("*") if path.name.startswith(".")], "half a file is left"


def test_an_interrupted_search_says_so_and_is_no_answer_to_a_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from planner.solver.search import Search

    assert not solve(tiny_dense(), top=1, workers=1).interrupted

    def interrupted(_search: Search) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_refine", interrupted)
    result = solve(tiny_dense(), top=1, workers=1)
    assert result.interrupted and result.plans
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(result)


def test_after_ctrl_c_nothing_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    request = tiny_dense()
    whole = solve(request, top=1, workers=1)
    half = PlanResult(status="feasible", plans=whole.plans, gap_pct=3.0, interrupted=True)

    def searched(*_arguments: object, **_named: object) -> PlanResult:
        raise AssertionError("a search after Ctrl-C")

    monkeypatch.setattr("planner.solver.solve", searched)
    found = answer(request, half, full=True, what_if=True)
    assert found.reasons and found.sensitivity is None
    assert found.result.notes[-1] == NOT_SEARCHED_NOTE
    assert NOT_SEARCHED_NOTE not in answer(request, half).result.notes


@pytest.mark.parametrize("is_interrupt", [True, False])
def test_ctrl_c_while_a_compiled_module_loads(monkeypatch: pytest.MonkeyPatch, is_interrupt: bool) -> None:
    def load(*_arguments: object, **_named: object) -> None:
        try:
            raise KeyboardInterrupt if is_interrupt else OSError("no such library")
        except (KeyboardInterrupt, OSError) as error:
            raise ImportError("initialization failed") from error

    monkeypatch.setattr("planner.explain.answer.find", load)
    ran = CliRunner().invoke(main, ["plan", "--model", "350m", "--gpus", "8"])
    assert ran.exit_code == (130 if is_interrupt else 1)
    assert isinstance(ran.exception, SystemExit if is_interrupt else ImportError)


def test_a_sweep_refuses_files_that_exist_before_it_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(*_arguments: object, **_named: object) -> None:
        raise AssertionError("a search before the refusal")

    monkeypatch.setattr("planner.sweep.run", searched)
    for option in ("--csv", "--html"):
        ran = CliRunner().invoke(
            main, ["sweep", "--model", "350m", "--gpus", "8", option, str(tmp_path / "there")]
        )
        assert isinstance(ran.exception, AssertionError)
        (tmp_path / "there").touch()
        ran = CliRunner().invoke(
            main, ["sweep", "--model", "350m", "--gpus", "8", option, str(tmp_path / "there")]
        )
        assert ran.exit_code == 2 and "--force" in ran.stderr
        (tmp_path / "there").unlink()
