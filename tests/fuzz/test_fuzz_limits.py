"""Limits of a search: time, Ctrl-C, memory, absurd sizes; and the same answer every time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from checker import faults
from fuzz_oracle import assert_sentence, no_longer_than
from toys import tiny_dense

from planner.api import question
from planner.cost.orders import rank_orders
from planner.cost.schedule import simulate
from planner.errors import BadInput
from planner.explain.answer import answer, find
from planner.report import table
from planner.report.json import dumps, estimate_report
from planner.solver import solve
from planner.spec import PlanRequest
from planner.spec.plan import SCHEDULES

LARGE = ["--model", "deepseek-v3", "--gpus", "2048", "--hardware", "h100", "--global-batch", "15360",
         "--precision", "bf16,fp8", "--framework", "any"]  # fmt: skip
"""A question that takes much longer than the interruptions below."""
MOST_BYTES = 1_000_000_000
EXIT_CODES = {0, 3, 4, 130}


def start(words: list[str], scratch: Path) -> subprocess.Popen[str]:
    """The program in a process of its own, with its temporary files in ``scratch``."""
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONWARNINGS": "error::ResourceWarning"}
    return subprocess.Popen(
        [sys.executable, "-m", "planner", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.3, 1.5, 3.0, 6.0, 10.0])
def test_ctrl_c_at_any_moment_gives_the_best_plan_so_far_or_says_there_is_none(
    after_s: float, tmp_path: Path
) -> None:
    process = start(["plan", *LARGE, "--json", "--workers", "1", "--time-limit", "120"], tmp_path)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in EXIT_CODES, err
    assert "Traceback" not in err
    if out.strip():
        answer = json.loads(out)
        assert answer["status"] in {"optimal", "feasible", "time-limit"}
        assert bool(answer["plans"]) == (answer["status"] != "time-limit")
        if answer["plans"]:
            no_bound_yet = answer["gap_pct"] is None and "a few plans that fit" in out
            assert no_bound_yet or answer["gap_pct"] >= 0
    else:
        assert process.returncode == 130 and err.strip()
    assert not list(tmp_path.iterdir()), "temporary files are left"


def test_ctrl_c_inside_the_search_returns_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.solver.search import Search

    request = tiny_dense()

    price, calls = Search._price, [0]

    def interrupted(self: Search, entry: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        price(self, entry)

    monkeypatch.setattr(Search, "_price", interrupted)
    result = solve(request, top=3, workers=1)
    assert result.status == "feasible" and result.plans
    assert result.gap_pct is not None and result.gap_pct >= 0
    assert not faults(result.plans[0].plan, request)


@pytest.mark.parametrize("limit_s", [1e-6, 0.05])
def test_a_short_time_limit_returns_what_there_is(limit_s: float) -> None:
    request = question({"model": "llama-3-70b", "gpus": 64})
    with no_longer_than(20):
        result = solve(request, top=2, time_limit_s=limit_s, workers=1)
    assert result.status in {"feasible", "time-limit", "optimal"}
    assert bool(result.plans) == (result.status != "time-limit")
    if result.status == "feasible":
        assert result.gap_pct is not None and result.gap_pct >= 0
    for estimate in result.plans:
        assert not faults(estimate.plan, request)


def answer_text(request: PlanRequest, workers: int) -> str:
    """Everything of an answer but the time it took, as JSON."""
    result = solve(request, top=3, workers=workers)
    plans = [estimate_report(estimate) for estimate in result.plans]
    return dumps({"status": result.status, "gap": result.gap_pct, "n": result.num_settings, "plans": plans})


def assert_same_on_any_workers(request: PlanRequest) -> None:
    first = answer_text(request, 1)
    ended = "feasible" if request.goal == "memory" else "optimal"
    assert json.loads(first)["status"] == ended
    assert first == answer_text(request, 2)


def test_the_same_question_has_byte_identical_answers_on_one_and_two_workers() -> None:
    assert_same_on_any_workers(tiny_dense())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"model": "1b", "gpus": 16, "global_batch": 32},
        {"model": "7b", "gpus": 12, "global_batch": 24, "goal": "memory", "framework": "torchtitan"},
        {"model": "mixtral-8x7b", "gpus": 16, "global_batch": 16, "pp": "1:2", "zero": "1", "ep": "8"},
    ],
)
def test_larger_questions_have_byte_identical_answers_on_one_and_two_workers(options: dict[str, Any]) -> None:
    assert_same_on_any_workers(question(options))


@pytest.mark.slow
def test_another_hash_seed_changes_nothing(tmp_path: Path) -> None:
    words = ["plan", "--model", "350m", "--gpus", "8", "--global-batch", "16", "--json"]
    texts = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-m", "planner", *words]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        answer = json.loads(shown.stdout)
        del answer["solve_s"]
        texts.add(json.dumps(answer))
    assert len(texts) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"model": "7b", "gpus": 1_000_000, "global_batch": "4Mtok"},
        {"model": "7b", "gpus": 1_000_000, "global_batch": 10_000_000},
        {"model": "1b", "gpus": 8, "seq_length": 10_000_000, "global_batch": 8},
        {"model": "350m", "gpus": 1, "global_batch": 1, "seq_length": 1},
        {"model": "7b", "gpus": 999_983, "global_batch": 999_983},
    ],
)  # fmt: skip
def test_huge_and_tiny_questions_end_in_time(options: dict[str, Any]) -> None:
    with no_longer_than(60):
        try:
            result = solve(question(options), top=1, time_limit_s=10.0, workers=1)
        except BadInput as error:
            assert_sentence(error)
            return
    assert bool(result.plans) == (result.status in {"optimal", "feasible"})
    for estimate in result.plans:
        dumps(estimate_report(estimate))


@pytest.mark.slow
def test_ten_thousand_layers_end_in_time_within_memory(tmp_path: Path) -> None:
    model = tmp_path / "deep.toml"
    model.write_text('name = "deep"\nnum_layers = 10000\nhidden_size = 1024\nnum_heads = 8\n'
                     "num_kv_heads = 8\n"
                     "head_dim = 128\nffn_hidden_size = 4096\nvocab_size = 32000\n")  # fmt: skip
    watched = (
        "import resource, sys; from planner.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    sys.stderr.write('PEAK %d' % resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    words = [
        "plan",
        "--model",
        str(model),
        "--gpus",
        "1024",
        "--global-batch",
        "1024",
        "--time-limit",
        "30",
        "--json",
    ]
    shown = subprocess.run(
        [sys.executable, "-c", watched, *words], capture_output=True, text=True, timeout=200, check=False
    )
    assert shown.returncode in EXIT_CODES, shown.stderr
    assert int(shown.stderr.rsplit("PEAK ", 1)[1]) * 1024 < MOST_BYTES


def test_no_temporary_files_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    solve(tiny_dense(), top=1, workers=2)
    assert not list(tmp_path.iterdir())


def test_a_range_of_too_many_batches_is_refused_with_one_that_is_not() -> None:
    with pytest.raises(BadInput, match=r"1000000 batches; at most 2048 .* such as 1:2048") as caught:
        question({"model": "7b", "gpus": 8, "global_batch": "1:1000000"})
    assert_sentence(caught.value)
    assert question({"model": "7b", "gpus": 8, "global_batch": "1:2048"}).workload.global_batch_max == 2048


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"model": "7b", "gpus": 999_983, "allow_idle": True}, marks=pytest.mark.slow),
        {"model": "deepseek-v3", "gpus": 1000, "framework": "any"},
        {"model": "7b", "gpus": 64, "allow_idle": True, "global_batch": "64:256"},
    ],
)
def test_wide_questions_have_an_explained_answer_in_time(options: dict[str, Any]) -> None:
    request = question(options)
    with no_longer_than(60):
        found = answer(request, find(request, 2, 1.0, 1), seconds=1.0)
    assert found.result.plans and found.reasons
    assert found.result.plans[0].plan.num_gpus > 0 and "Why plan 1" in table.answer_text(found)


def test_no_schedule_breaks_on_any_number_of_microbatches() -> None:
    ran = 0
    for schedule, p, v, m in product(SCHEDULES, (1, 2, 3, 4, 6), (1, 2, 3), range(1, 14)):
        times = [[1.0] * v for _ in range(p)]
        try:
            timeline = simulate(schedule, times, times, times, m)
        except BadInput as error:
            assert_sentence(error)
            continue
        ran += 1
        assert timeline.makespan_s > 0 and min(timeline.busy_s) > 0
        for rank in rank_orders(schedule, p, v, m):
            kinds = Counter(kind for kind, _, _ in rank)
            passes = m if schedule == "dualpipe" else m * v
            assert kinds["F"] == passes and kinds["B"] + kinds["D"] == passes, "a pass was dropped"
            assert kinds["D"] == kinds["W"]
    assert ran > 300
