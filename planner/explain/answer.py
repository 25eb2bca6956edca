"""The whole answer of the main job: plans, the reasons for the first, what binds, or why nothing fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.explain.binds import binding, price_of_limits
from planner.explain.why import Reason, reasons, was_interrupted
from planner.spec import FrameworkProfile, Plan, PlanRequest

if TYPE_CHECKING:
    from planner.explain.conflict import Conflict
    from planner.explain.sensitivity import Sensitivity
    from planner.solver.result import Estimate, PlanResult

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


FIRST_LOOK_S = 20.0
"""Most time in which bounds of memory may settle that nothing fits, before the search. [s]"""
FIRST_LOOK_SHARE = 0.5
"""And the most of the time limit."""
INTERRUPTED_NOTE = "The explanation was interrupted: these are the plans alone."
NOT_SEARCHED_NOTE = "The search was interrupted, so that nothing was searched again to explain its plans."
NOT_SEARCHED_ON_NOTE = "The explanation was interrupted: what it would have searched next is left out."
WITNESS_NOTE = "The search found no plan in its time: this is the fastest of a few plans that fit."

SEARCH_S = 10.0
"""Time limit of what an explanation searches, where none is given. [s]"""
ASIDE_S = 1.0
"""The reasons of the main answer may take so long, or as long as a search that came to its end. [s]"""
QUICK_S = 1.0
"""So long is looked for a fast plan where the search found none, and for bounds that save searches. [s]"""


def find(request: PlanRequest, top: int, time_limit_s: float, workers: int | None = None) -> PlanResult:
    """Search the best plans; where bounds of memory prove within moments that nothing fits, say so at once.

    A search that ends without a plan although one is known to fit hands back that one, with no gap.

    Parameters
    ----------
    top, time_limit_s, workers
        As for ``planner.solver.solve``.
    """
    from planner.explain.leanest import any_plan
    from planner.solver import solve
    from planner.solver.result import PlanResult

    start = time.monotonic()
    verdict = any_plan(request, min(FIRST_LOOK_S, FIRST_LOOK_SHARE * time_limit_s), search=False)
    if verdict.is_impossible:
        seconds = time.monotonic() - start
        return PlanResult(status="infeasible", solve_s=seconds, num_settings=verdict.num_settings)
    looked_s = time.monotonic() - start
    left = max(time_limit_s - looked_s, FIRST_LOOK_SHARE * time_limit_s)
    result = solve(request, top=top, time_limit_s=left, workers=workers, narrow=_narrowed)
    if result.status != "time-limit" or verdict.witness is None:
        return result
    is_late = result.interrupted or looked_s > QUICK_S  # so wide a question that a look takes long
    quick = _quick(verdict.witness, request, 0.0 if is_late else QUICK_S)
    return replace(result, status="feasible", plans=(quick,), notes=(*result.notes, WITNESS_NOTE))


def _narrowed(request: PlanRequest) -> PlanRequest | None:
    """The request without settings that surely do not fit, as far as that is seen within a moment."""
    from planner.explain.leanest import narrowed

    return narrowed(request, QUICK_S)


def _quick(plan: Plan, request: PlanRequest, seconds: float) -> Estimate:
    """The faster one of a plan and one that is found in some seconds."""
    from planner.explain.leanest import quick_plan
    from planner.solver.evaluate import evaluate

    witness, quick = evaluate(plan, request), quick_plan(request, seconds) if seconds else None
    return witness if quick is None or quick.step_time_s > witness.step_time_s else quick


def answer(
    request: PlanRequest,
    result: PlanResult,
    *,
    full: bool = False,
    what_if: bool = False,
    seconds: float = SEARCH_S,
    frameworks: Callable[[], Sequence[FrameworkProfile]] = tuple,
) -> Answer:
    """Explain a result.

    Parameters
    ----------
    full
        Re-solve around every setting and without every limit, instead of only pricing the neighbours.
    what_if
        Add the sensitivity table.
    seconds
        Time limit of the searches for the reasons, again of those for the limits, and of each search that is
        made for the table. [s]
    frameworks
        Frameworks that could be used instead, asked for where nothing fits.

    Ctrl-C gives the plans without their explanation.
    """
    if result.interrupted and (full or what_if):
        full, what_if = False, False
        result = replace(result, notes=(*result.notes, NOT_SEARCHED_NOTE))
    try:
        if result.best is None:
            return _without_plans(request, result, seconds, frameworks)
        return _explained(request, result, result.best, full, what_if, seconds)
    except KeyboardInterrupt:
        return Answer(request=request, result=replace(result, notes=(*result.notes, INTERRUPTED_NOTE)))


def _without_plans(
    request: PlanRequest,
    result: PlanResult,
    seconds: float,
    frameworks: Callable[[], Sequence[FrameworkProfile]],
) -> Answer:
    conflict = None
    if result.status == "infeasible":
        from planner.explain.conflict import explain_conflict

        conflict = explain_conflict(request, seconds=seconds, frameworks=frameworks())
    return Answer(request=request, result=result, conflict=conflict)


def _explained(
    request: PlanRequest, result: PlanResult, best: Estimate, full: bool, what_if: bool, seconds: float
) -> Answer:
    is_proven = result.status == "optimal"
    aside_s = max(ASIDE_S, result.solve_s) if is_proven else ASIDE_S
    why_s = seconds if full else aside_s
    why = reasons(best, request, ranked=result.plans, proven=is_proven, resolve=full, seconds=why_s)
    sensitivity: Sensitivity | None = None
    binds = binding(best, request)
    try:
        if was_interrupted(why):
            raise KeyboardInterrupt
        if what_if:
            from planner.explain.sensitivity import sensitivity_of

            sensitivity = sensitivity_of(best, request, ranked=result.plans, seconds=seconds)
        for sentence in price_of_limits(best, request, seconds) if full else ():
            binds.append(sentence)
    except KeyboardInterrupt:
        if full or what_if:
            result = replace(result, notes=(*result.notes, NOT_SEARCHED_ON_NOTE))
    return Answer(
        request=request, result=result, reasons=tuple(why), binds=tuple(binds), sensitivity=sensitivity
    )
