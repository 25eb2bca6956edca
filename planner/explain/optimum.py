"""The best plan with one setting fixed: searched, or what the ranking of an answer says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.cost.words import setting_words
from planner.explain.loss import percent
from planner.solver.goals import is_series
from planner.spec import Pin, PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate

NEAR_PCT = 1.0
"""Plans this close are ordered by simplicity (``planner.solver.search``). [%]"""
NEARBY = (1.1, 1.3, 2.0)
"""Multiples of a known step time below which the best plan is looked for first."""


RANKED_FIELDS = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
"""Degrees by which ranked plans differ: of all plans with a value, the first in the ranking is the best."""


@dataclass(frozen=True)
class Ranking:
    """The plans of the answer, best first, and whether no other plan is faster than the last (by 1 %)."""

    plans: tuple[Estimate, ...] = ()
    proven: bool = False

    def first_with(self, field: str, value: Any) -> Estimate | None:
        """The best plan with another value of one of the degrees by which ranked plans differ, if shown."""
        if not self.proven or field not in RANKED_FIELDS:
            return None
        return next((each for each in self.plans[1:] if getattr(each.plan, field) == value), None)

    def least_pct(self, best: Estimate) -> float:
        """What plans lose that are not shown, nor variants of one shown; 0 where it is not known. [%]."""
        if not self.proven or not self.plans:
            return 0.0
        return (1.0 + percent(best, self.plans[-1]) / 100.0) / (1.0 + NEAR_PCT / 100.0) * 100.0 - 100.0


def conditional_optimum(
    request: PlanRequest, field: str, value: Any, seconds: float, best: Estimate | None = None
) -> Estimate | None:
    """Return the best plan with one field fixed (in place of the user's own pin on it), or None.

    Parameters
    ----------
    best
        The best plan without that value, where it is known: near its step time the search begins.
    """
    others = tuple(pin for pin in request.pins if pin.field != field)
    pin = Pin(field=field, allowed=(value,), option=setting_words(field, value))
    return near_plan(request.model_copy(update={"pins": (*others, pin)}), best, seconds)


def near_plan(request: PlanRequest, known: Estimate | None, seconds: float) -> Estimate | None:
    """Return the best plan, within 1 %, where one near the step time of a known plan is expected.

    Parameters
    ----------
    known
        A plan, legal or not, near whose step time the search begins.
    seconds
        Time limit of each search. [s]
    """
    from planner.explain.answer import find
    from planner.solver import uninterrupted
    from planner.solver.beside import best_below

    if known is not None and _is_plain(request):
        for factor in NEARBY:
            found = best_below(request, factor * known.step_time_s, seconds)
            if found is not None:
                return found
    return uninterrupted(find(request, 1, seconds)).best


def ranks_by_time(request: PlanRequest) -> bool:
    """Whether the plan that stands first is the fastest one (per token)."""
    return request.goal in ("step-time", "tokens-per-s")


def better_plan(
    known: Estimate,
    request: PlanRequest,
    seconds: float,
    by_pct: float = NEAR_PCT,
    near_pct: float = NEAR_PCT,
) -> Estimate | None:
    """Return a plan that beats a known one by more than some per cent, or None.

    Parameters
    ----------
    known
        A plan priced under this request.
    seconds
        Time limit of the search. [s]
    near_pct
        How much faster than the plan returned another may be; 100 takes the first one found. [%]
    """
    from planner.solver import solve, uninterrupted
    from planner.solver.beside import best_below

    factor = 1.0 - by_pct / 100.0
    if _is_plain(request):
        near = 1.0 - near_pct / 100.0
        return best_below(request, factor * known.step_time_s, seconds, near, enough=near_pct >= 100.0)
    other = uninterrupted(solve(request, top=1, time_limit_s=seconds)).best
    return other if other is not None and percent(known, other) < 100.0 * (factor - 1.0) else None


def _is_plain(request: PlanRequest) -> bool:
    """Whether the objective is the step time, found by one search."""
    return request.goal == "step-time" and not is_series(request)
