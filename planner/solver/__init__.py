"""``solve`` finds and proves the best plans, ``evaluate`` prices one; ortools loads inside ``solve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.solver.evaluate import evaluate
from planner.solver.result import Estimate, PlanResult, uninterrupted

if TYPE_CHECKING:
    from planner.solver.goals import Narrow
    from planner.solver.search import OnPlan
    from planner.spec.request import PlanRequest


def solve(
    request: PlanRequest,
    top: int = 5,
    time_limit_s: float = 60.0,
    workers: int | None = None,
    on_plan: OnPlan | None = None,
    narrow: Narrow | None = None,
) -> PlanResult:
    """Find the best plans of a request, best first, and prove that none is better.

    Parameters
    ----------
    top
        Plans to return; each differs from those before it in what a person would call a different plan.
    time_limit_s
        Search time after which the best plans so far are returned with their gap, as on Ctrl-C. [s]
    workers
        Threads of CP-SAT; the machine's cores when None. The answer does not depend on it.
    on_plan
        Called with each improved best plan and the seconds since the start.
    narrow
        Gives a request with the same plans that fit and fewer settings, or None where none fits; the goal of
        least memory asks.
    """
    import os
    import time
    from dataclasses import replace

    from planner.solver.goals import is_series, solve_series
    from planner.solver.search import Search

    threads = workers or os.cpu_count() or 1
    deadline, interrupted = time.monotonic() + time_limit_s, False

    def search(request: PlanRequest, enough: bool = False) -> PlanResult:
        nonlocal deadline, interrupted
        try:
            one = Search(request, top, max(deadline - time.monotonic(), 0.0), threads, on_plan, enough)
        except KeyboardInterrupt:
            deadline, interrupted = 0.0, True
            return PlanResult(status="time-limit")
        found = one.run()
        if one.was_interrupted:
            deadline, interrupted = 0.0, True
        return found

    result = solve_series(request, search, narrow) if is_series(request) else search(request)
    return replace(result, interrupted=interrupted)


__all__ = ["Estimate", "PlanResult", "evaluate", "solve", "uninterrupted"]
