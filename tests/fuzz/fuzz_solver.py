"""Questions to the solver, by seed: contradictory pins, short limits, Ctrl-C; a checker of its own judges."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

TESTS = Path(__file__).parent.parent
for name in ("solver", "."):
    if str(TESTS / name) not in sys.path:
        sys.path.append(str(TESTS / name))

from checker import faults, price_faults  # noqa: E402
from fuzz_oracle import assert_figures  # noqa: E402
from fuzz_questions import some_pins  # noqa: E402
from small import small_request  # noqa: E402

from planner.catalog.pins import PIN_OPTIONS, parse_pin  # noqa: E402
from planner.frameworks import FRAMEWORKS  # noqa: E402
from planner.report.json import dumps, estimate_report  # noqa: E402
from planner.request import Question  # noqa: E402
from planner.solver import PlanResult, solve  # noqa: E402
from planner.solver.search import Search  # noqa: E402
from planner.spec import PlanRequest  # noqa: E402

GOALS = ("step-time", "step-time", "memory", "cost", "tokens-per-s")


def assert_sound(result: PlanResult, request: PlanRequest) -> None:
    """Status, gap, legality, price and order of an answer."""
    assert bool(result.plans) == (result.status in ("optimal", "feasible")), result.status
    assert (result.gap_pct is None) == (not result.plans)
    assert result.gap_pct is None or 0 <= result.gap_pct <= 100
    for estimate in result.plans:
        assert not faults(estimate.plan, request), faults(estimate.plan, request)
        wrong = price_faults(estimate.plan, request, estimate.step_time_s, estimate.peak_memory_bytes)
        assert not wrong, wrong
        assert_figures(json.loads(dumps(estimate_report(estimate))))
    if request.goal == "step-time" and not request.robust:
        seconds = [estimate.step_time_s for estimate in result.plans]
        assert not seconds or seconds[0] <= min(seconds) * 1.0101, "a later plan is faster"


def solve_tiny(rng: random.Random, _folder: Path) -> None:
    """Toy requests of every kind with pins, any goal, short time limits and Ctrl-C at any step."""
    request = small_request(rng.randrange(10**6))
    options = {option.field: option for option in PIN_OPTIONS}
    pins = tuple(parse_pin(options[field], text) for field, text in some_pins(rng, 0.0).items())
    request = request.model_copy(
        update={"pins": pins, "goal": rng.choice(GOALS), "robust": rng.random() < 0.1,
                "allow_idle": rng.random() < 0.2, "prefer_simple": rng.random() < 0.5}
    )  # fmt: skip
    limit_s = rng.choice((8.0, 8.0, 0.0, 1e-3, 0.02, 0.1))
    if rng.random() < 0.7:
        assert_sound(solve(request, top=rng.choice((1, 3, 50)), time_limit_s=limit_s, workers=1), request)
        return
    step = rng.choice(("_consider", "_price", "_raise", "_sift", "_add", "_accept", "_rank", "_refine"))
    left, function = [rng.randrange(1, 9)], getattr(Search, step)

    def interrupted(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return function(*arguments)

    with patch.object(Search, step, interrupted):
        result = solve(request, top=3, time_limit_s=8.0, workers=1)
    assert_sound(result, request)
    assert left[0] > 0 or result.status in ("feasible", "time-limit"), "interrupted, yet proven"


def solve_small(rng: random.Random, folder: Path) -> None:
    """Small questions to the solver, with pins that may contradict; the independent checker judges."""
    said: dict[str, Any] = {
        "model": rng.choice(("350m", "1b", "7b", "mixtral-8x7b")),
        "gpus": rng.choice(("1", "2", "3", "8", "16", "24")),
        "hardware": rng.choice(("h100", "a100", "mi300x", "b200")), "framework": rng.choice(list(FRAMEWORKS)),
        "global_batch": rng.choice(("1", "8", "16", "30", "16:32")),
        "seq_length": rng.choice(("128", "2048", "8192")),
        "goal": rng.choice(("step-time", "step-time", "memory", "cost", "tokens-per-s")),
        "max_bubble": rng.choice(("0.25", "none", "1e-9")), "hbm": rng.choice((None, "16GB", "1GB", "200GB")),
    }  # fmt: skip
    request = Question(pins=some_pins(rng, 0.0), **said, allow_idle=rng.random() < 0.3).request()
    result = solve(request, top=rng.choice((1, 3)), time_limit_s=8.0, workers=1)
    assert_sound(result, request)
