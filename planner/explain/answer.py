"""The whole answer of the main job: plans, the reasons for the first, what binds, or why nothing fits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.explain.binds import binding, price_of_limits
from planner.explain.why import Reason, reasons
from planner.spec import PlanRequest

if TYPE_CHECKING:
    from planner.explain.conflict import Conflict
    from planner.explain.sensitivity import Sensitivity
    from planner.solver.result import PlanResult

EXIT_CODES = {"optimal": 0, "feasible": 0, "infeasible": 3, "time-limit": 4}
"""Exit code of the command line by status."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the main job found, ready to be shown."""

    request: PlanRequest
    result: PlanResult
    reasons: tuple[Reason, ...] = ()
    binds: tuple[str, ...] = ()
    conflict: Conflict | None = None
    sensitivity: Sensitivity | None = None

    @property
    def exit_code(self) -> int:
        """Exit code of the command line."""
        return EXIT_CODES[self.result.status]

    @property
    def explanation(self) -> list[str]:
        """Every sentence about the first plan."""
        return [reason.sentence for reason in self.reasons] + list(self.binds)


FIRST_LOOK_S = 2.0
"""Time in which bounds of memory may settle that nothing fits, before the search. [s]"""


def find(request: PlanRequest, top: int, time_limit_s: float, workers: int | None = None) -> PlanResult:
    """Search the best plans; where bounds of memory prove within moments that nothing fits, say so at once.

    Parameters
    ----------
    top, time_limit_s, workers
        As for ``planner.solver.solve``.
    """
    from planner.explain.leanest import any_plan
    from planner.solver import solve
    from planner.solver.result import PlanResult

    start = time.monotonic()
    verdict = any_plan(request, min(FIRST_LOOK_S, time_limit_s), search=False)
    if verdict.is_impossible:
        seconds = time.monotonic() - start
        return PlanResult(status="infeasible", solve_s=seconds, num_settings=verdict.num_settings)
    return solve(request, top=top, time_limit_s=time_limit_s, workers=workers)


def answer(
    request: PlanRequest,
    result: PlanResult,
    *,
    full: bool = False,
    what_if: bool = False,
    seconds: float = 10.0,
) -> Answer:
    """Explain a result.

    Parameters
    ----------
    full
        Re-solve around every setting and without every limit, instead of only pricing the neighbours.
    what_if
        Add the sensitivity table.
    seconds
        Time limit of each further search. [s]
    """
    if result.best is None:
        conflict = None
        if result.status == "infeasible":
            from planner.explain.conflict import explain_conflict

            conflict = explain_conflict(request, seconds=seconds)
        return Answer(request=request, result=result, conflict=conflict)
    sensitivity = None
    if what_if:
        from planner.explain.sensitivity import sensitivity_of

        sensitivity = sensitivity_of(result.best, request, seconds=seconds)
    limits = price_of_limits(result.best, request, seconds) if full else []
    return Answer(
        request=request,
        result=result,
        reasons=tuple(reasons(result.best, request, resolve=full, seconds=seconds)),
        binds=(*binding(result.best, request), *limits),
        sensitivity=sensitivity,
    )
