"""Time limits and Ctrl-C give the best plan so far with its gap; the answer does not depend on threads."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from toys import tiny_moe

from planner.solver import solve
from planner.solver.scan import Scan
from planner.solver.search import Search

BIG = (
    "--model", "deepseek-v3", "--hardware", "h100-sxm-80gb", "--gpus", "8192", "--global-batch", "15360",
    "--time-limit", "120", "--json",
)  # fmt: skip
COMMAND = (sys.executable, "-m", "planner", "plan")


class Clock:
    """Time that goes on by a second at every look: a limit ends a search where it always did."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic(self) -> float:
        """The looks so far. [s]."""
        self.looks += 1
        return float(self.looks)


def test_a_time_limit_gives_the_best_plan_so_far_with_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    request, clock = tiny_moe(), Clock()
    for module in ("search", "deadline"):
        monkeypatch.setattr(f"planner.solver.{module}.time", clock)
    best = solve(request, top=1, time_limit_s=1e9, workers=1)
    assert best.status == "optimal"
    looks, statuses = clock.looks, []
    for limit in sorted({0, 1, *(looks * part // 8 for part in range(1, 8)), looks - 3}):
        answer = solve(request, top=1, time_limit_s=limit, workers=1)
        statuses.append(answer.status)
        if answer.status == "time-limit":
            assert answer.plans == ()
            assert answer.gap_pct is None
            continue
        assert answer.gap_pct is not None
        bound_s = answer.plans[0].step_time_s * (1 - answer.gap_pct / 100)
        assert bound_s <= best.plans[0].step_time_s * (1 + 1e-9), "the gap covers the optimum"
    assert statuses[0] == "time-limit"
    assert statuses.count("feasible") > len(statuses) // 2


def interrupted(function: Callable[..., Any], call: int) -> Callable[..., Any]:
    """``function``, with a Ctrl-C between the work of that call and what is done with its result."""
    calls = itertools.count(1)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if next(calls) == call:
            raise KeyboardInterrupt
        return result

    return wrapper


@pytest.mark.parametrize("owner, name", [(Scan, "expand"), (Search, "_price"), (Search, "_accept")])
def test_wherever_a_search_is_interrupted_the_gap_covers_the_optimum(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = tiny_moe()
    best = solve(request, top=1, workers=1)
    statuses = []
    for call in (1, 2, 3, 4, 6):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, interrupted(getattr(owner, name), call))
            answer = solve(request, top=1, workers=1)
        statuses.append(answer.status)
        if answer.plans and answer.status == "feasible":
            assert answer.gap_pct is not None
            bound_s = answer.plans[0].step_time_s * (1 - answer.gap_pct / 100)
            assert bound_s <= best.plans[0].step_time_s * (1 + 1e-9)
    assert "feasible" in statuses


def test_ctrl_c_prints_the_best_plan_so_far() -> None:
    process = subprocess.Popen((*COMMAND, *BIG), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(12)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    report: dict[str, Any] = json.loads(out)
    if report["plans"]:
        assert process.returncode == 0
        assert report["status"] in {"feasible", "optimal"}
        known = report["gap_pct"] is not None
        assert report["gap_pct"] >= 0 if known else "a few plans that fit" in out
    else:
        assert process.returncode == 4
        assert report["status"] == "time-limit"


def test_one_and_two_workers_print_the_same_but_for_the_time() -> None:
    words = ("--model", "llama-3-8b", "--hardware", "h100-sxm-80gb", "--gpus", "8", "--global-batch", "64")
    shown = []
    for workers in ("1", "2"):
        command = (*COMMAND, *words, "--top", "2", "--workers", workers, "--json")
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = [line for line in ran.stdout.splitlines() if '"solve_s"' not in line]
        shown.append("\n".join(lines))
    assert shown[0] == shown[1]
    assert '"step_time_s"' in shown[0]
