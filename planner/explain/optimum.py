"""The best plan with one setting fixed: searched, or what the ranking of an answer says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from planner.cost.words import plan_words, setting_words
from planner.explain.loss import percent
from planner.rules import Rule, pin_rules
from planner.rules.user import PIN_PREFIX
from planner.solver.goals import is_series
from planner.solver.space import MEANT_WITHIN, candidate_values
from planner.spec import Pin, PlanRequest
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.solver.conditional import Choice
    from planner.solver.result import Estimate

NEAR_PCT = 1.0
"""Plans this close are ordered by simplicity (``planner.solver.search``). [%]"""
NEARBY = (1.1, 1.3, 2.0)
"""Multiples of a known step time below which the best plan is looked for first."""
ROUND_OFF = 1e-6
"""A plan that is known counts as beaten by itself."""


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


@dataclass(frozen=True)
class Optimum:
    """The best plan with one setting fixed, as far as it is known.

    ``best`` is None where there is none: proven, or not found in the time given. ``why_none`` says in a
    clause why nothing is legal or fits.
    """

    best: Estimate | None
    is_proven: bool = True
    why_none: str = ""


Asked = tuple[str, Any]
"""A field, and the value that is fixed."""


def conditional_optima(
    request: PlanRequest, asked: Sequence[Asked], known: Estimate, pool: Sequence[Estimate], seconds: float
) -> dict[Asked, Optimum]:
    """Find for each field and value the plan that the solver prefers with it, in place of the user's own pin.

    Parameters
    ----------
    known
        The best plan without these values: near its step time the search begins.
    pool
        Other plans, legal or not, priced under this request: what they prove needs no further search.
    seconds
        Time limit of each search. [s]

    Notes
    -----
    Questions that share their space are searched together, at first below 1.1 times the known step time, then
    those left below more; a legal plan in the pool limits the search for what it has.
    """
    found: dict[Asked, Optimum] = {}
    if _is_plain(request):
        for base, group in _by_space(request, asked):
            found |= _together(base, group, known, pool, seconds)
    for each in asked:
        if each not in found:
            found[each] = _alone(_pinned(request, *each), seconds)
    return found


def nearly_optimal(request: PlanRequest, asked: Asked, known: Estimate, seconds: float) -> Optimum:
    """Find a plan with one setting fixed that no other beats by more than 1 %, in less time.

    Parameters
    ----------
    known, seconds
        As for ``conditional_optima``.
    """
    pinned = _pinned(request, *asked)
    found = _near(pinned, known, seconds)
    return _alone(pinned, seconds, is_brief=True) if found is None else Optimum(found)


def _by_space(request: PlanRequest, asked: Sequence[Asked]) -> list[tuple[PlanRequest, list[Asked]]]:
    """Requests whose pins admit the values that are asked for, and which ones."""
    groups: dict[tuple[Pin, ...], list[Asked]] = {}
    for field, value in asked:
        is_open = all(pin.admits(value) for pin in request.pins if pin.field == field)
        if field == "micro_batch":
            is_open &= value in candidate_values(request)[field]
        pins = (request if is_open else _pinned(request, field, value)).pins
        groups.setdefault(pins, []).append((field, value))
    return [(request.model_copy(update={"pins": pins}), group) for pins, group in groups.items()]


def _pinned(request: PlanRequest, field: str, value: Any) -> PlanRequest:
    """The request with a field fixed, in place of the user's own pin on it, where that means something."""
    pins = [pin for pin in request.pins if pin.field != field]
    pins.append(Pin(field=field, allowed=(value,), option=setting_words(field, value)))
    if field in MEANT_WITHIN:
        pins.append(Pin(field=MEANT_WITHIN[field], minimum=2, option=f"more than one {MEANT_WITHIN[field]}"))
    return request.model_copy(update={"pins": tuple(pins)})


def _together(
    request: PlanRequest,
    asked: Sequence[Asked],
    known: Estimate,
    pool: Sequence[Estimate],
    seconds: float,
) -> dict[Asked, Optimum]:
    """What is found near the known step time."""
    from planner.solver.conditional import Choice, best_of_each

    rules = pin_rules(request)
    legal = [
        each
        for each in pool
        if all(violation.rule.startswith(PIN_PREFIX) for violation in each.violations)
        and all(rule.admits(each.plan, request) for rule in rules)
    ]
    found: dict[Asked, Optimum] = {}
    for factor in NEARBY:
        left = [each for each in asked if each not in found]
        most_s = factor * known.step_time_s
        choices = [_limited(Choice(field=field, value=value, limit_s=most_s), legal) for field, value in left]
        results = best_of_each(request, choices, seconds * len(left)) if left else []
        for each, result in zip(left, results, strict=True):
            if result.best is not None or not result.is_proven:
                found[each] = Optimum(result.best, result.is_proven)
    return found


def _limited(choice: Choice, legal: Sequence[Estimate]) -> Choice:
    """The choice with no larger limit than the fastest of some legal plans with it sets."""
    least = min((each.step_time_s for each in legal if choice.is_answered_by(each.plan)), default=inf)
    return replace(choice, limit_s=min(choice.limit_s, least * (1 + ROUND_OFF)))


def _alone(request: PlanRequest, seconds: float, is_brief: bool = False) -> Optimum:
    """The solver's answer to one pinned request; a brief one does not say what the leanest plan lacks."""
    from planner.explain.answer import find
    from planner.solver import uninterrupted

    result = uninterrupted(find(request, 1, seconds))
    if result.best is not None:
        return Optimum(result.best, result.status == "optimal")
    if result.status != "infeasible":
        return Optimum(None, is_proven=False)
    return Optimum(None, why_none="" if is_brief else _why_nothing(request, seconds))


def _why_nothing(request: PlanRequest, seconds: float) -> str:
    """The memory that the leanest plan lacks, or that the rules leave no setting."""
    from planner.explain.leanest import leanest

    lean = leanest(request, seconds).plan
    if lean is None:
        return "the rules leave none"
    usable = request.cluster.usable_hbm_bytes
    return (
        f"the leanest, {plan_words(lean.plan)}, needs {format_bytes(lean.peak_memory_bytes)} of "
        f"{format_bytes(usable)}"
    )


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

    near = None if known is None else _near(request, known, seconds)
    return uninterrupted(find(request, 1, seconds)).best if near is None else near


def _near(request: PlanRequest, known: Estimate, seconds: float) -> Estimate | None:
    """The best plan, within 1 %, if it is not much slower than a known one."""
    from planner.solver.beside import best_below

    if _is_plain(request):
        for factor in NEARBY:
            found = best_below(request, factor * known.step_time_s, seconds)
            if found is not None:
                return found
    return None


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


def better_answer(
    known: Estimate, request: PlanRequest, seconds: float, lifted: tuple[Rule, PlanRequest] | None = None
) -> Estimate | None:
    """Return the solver's plan for a request where it beats a known plan by more than 1 %, else None.

    Parameters
    ----------
    known
        A plan that is legal under this request.
    seconds
        Time limit of the search. [s]
    lifted
        The rule, in the form of another request, without which nothing else than here would be legal, if that
        is known: the known plan being the best of those that keep it, only others can beat it.
    """
    from planner.solver import solve, uninterrupted
    from planner.solver.conditional import Breaking, Part, best_of_each

    if _is_plain(request):
        limit_s = (1.0 - NEAR_PCT / 100.0) * known.step_time_s
        broken = None if lifted is None else Breaking(limit_s=limit_s, rule=lifted[0], request=lifted[1])
        return best_of_each(request, [broken or Part(limit_s=limit_s)], seconds)[0].best
    other = uninterrupted(solve(request, top=1, time_limit_s=seconds)).best
    if other is None:
        return None
    if request.goal == "memory":
        return other if other.peak_memory_bytes < known.peak_memory_bytes * (1.0 - NEAR_PCT / 100.0) else None
    return other if percent(known, other) < -NEAR_PCT else None


def _is_plain(request: PlanRequest) -> bool:
    """Whether the objective is the step time, found by one search."""
    return request.goal == "step-time" and not is_series(request)
