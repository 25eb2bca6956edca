"""Time limits and Ctrl-C give the best plan so far with its gap; the answer does not depend on threads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import Any

from toys import tiny_moe

from planner.solver import solve

BIG = (
    "--model", "deepseek-v3", "--hardware", "h100-sxm-80gb", "--gpus", "8192", "--global-batch", "15360",
    "--time-limit", "120", "--json",
)  # fmt: skip
COMMAND = (sys.executable, "-m", "planner", "plan")


def test_a_time_limit_gives_the_best_plan_so_far_with_its_gap() -> None:
    limits = (0.0, 0.02, 0.05, 0.1, 0.3, 1.0)
    request = tiny_moe()
    answers = [solve(request, top=1, time_limit_s=limit, workers=1) for limit in limits]
    best = solve(request, top=1, workers=1)
    assert best.status == "optimal"
    for answer in answers:
        if answer.status == "time-limit":
            assert answer.plans == ()
            assert answer.gap_pct is None
            continue
        assert answer.gap_pct is not None
        found = answer.plans[0].step_time_s
        least = best.plans[0].step_time_s / 1.01
        assert found * (1 - answer.gap_pct / 100) <= least * 1.01 * (1 + 1e-6), "the gap covers the optimum"
    assert answers[0].status == "time-limit"


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
