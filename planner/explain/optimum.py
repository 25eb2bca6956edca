"""The best plan with one setting fixed: searched, or what the ranking of an answer says of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
    from planner.solver.conditional import Choice, Found
    from planner.solver.result import Estimate

NEAR_PCT = 1.0
"""Plans this close are ordered by simplicity (``planner.solver.search``). [%]"""
NEARBY = (1.1, 1.3, 2.0)
"""Multiples of a known step time below which the best plan is looked for first."""
ROUND_OFF = 1e-6
"""A plan that is known counts as beaten by itself."""
LEANEST_S = 1.0
"""The leanest plan with a value that no legal plan has is looked for at least so long. [s]"""


RANKED_FIELDS = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
"""Degrees by which ranked plans differ: of all plans with a value, the first in the ranking is the best."""


@dataclass(frozen=True)
class Ranking:
    """The plans of the answer, best first, and whether no other plan is faster than the last (by 1 %)."""

    plans: tuple[Estimate, ...] = ()
    proven: bool = False

    def best_with(self, field: str, value: Any) -> Estimate | None:
        """The plan that the solver prefers with another value of one of ``RANKED_FIELDS``, if it is shown.

        The first ranked plan with the value is this one where it was the fastest left when it was chosen, not
        the simplest within 1 % of another: all after it are no faster, and one is slower by more than 1 %.
        """
        if not self.proven or field not in RANKED_FIELDS:
            return None
        for rank, each in enumerate(self.plans[1:], 1):
            if getattr(each.plan, field) == value:
                later = [percent(each, other) for other in self.plans[rank + 1 :]]
                return each if later and min(later) >= 0.0 and max(later) > NEAR_PCT else None
        return None

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


@dataclass
class Optima:
    """The best plans with one setting fixed, as far as they are known: what was found before Ctrl-C stays.

    Parameters
    ----------
    known
        The best plan without these values: near its step time the search begins.
    pool
        Other plans, legal or not, priced under this request: what they prove needs no further search.
    seconds
        Time limit of all searches together. [s]
    is_brief
        Leave out what is not known in time, and what the leanest plan with a value lacks where none fits.

    Notes
    -----
    Questions that share their space are searched together, at first below 1.1 times the known step time, then
    those left below more; a legal plan in the pool limits the search for what it has.
    """

    request: PlanRequest
    known: Estimate
    pool: Sequence[Estimate]
    seconds: float
    is_brief: bool = False
    found: dict[Asked, Optimum] = field(default_factory=dict)

    def ask(self, asked: Sequence[Asked]) -> None:
        """Find for each field and value the plan that the solver prefers, in place of the user's own pin.

        Raises
        ------
        KeyboardInterrupt
            Ctrl-C ended the search.
        """
        deadline = time.monotonic() + self.seconds
        if is_plain(self.request):
            for base, group in _by_space(self.request, asked):
                self._together(base, group, deadline)
        for each in asked:
            if each not in self.found and (time.monotonic() < deadline or not self.is_brief):
                self._enter(each, _alone(_pinned(self.request, *each), deadline, self.is_brief))

    def _together(self, request: PlanRequest, asked: Sequence[Asked], deadline: float) -> None:
        """What is found near the known step time."""
        from planner.solver.conditional import Choice, InterruptedSearch, best_of_each

        legal = _legal(self.pool, request)
        for factor in NEARBY:
            left, seconds = [each for each in asked if each not in self.found], deadline - time.monotonic()
            if not left or seconds <= 0:
                return
            most_s = factor * self.known.step_time_s
            choices = [Choice(field=name, value=value, limit_s=most_s) for name, value in left]
            try:
                results = best_of_each(request, [_limited(choice, legal) for choice in choices], seconds)
            except InterruptedSearch as interrupted:
                self._enter_all(left, interrupted.found)
                raise
            self._enter_all(left, results)

    def _enter_all(self, asked: Sequence[Asked], results: Sequence[Found]) -> None:
        for each, result in zip(asked, results, strict=True):
            if result.best is not None or not result.is_proven:
                self._enter(each, Optimum(result.best, result.is_proven))

    def _enter(self, asked: Asked, optimum: Optimum) -> None:
        if optimum.best is not None or optimum.is_proven or not self.is_brief:
            self.found[asked] = optimum


def _by_space(request: PlanRequest, asked: Sequence[Asked]) -> list[tuple[PlanRequest, list[Asked]]]:
    """Requests whose pins admit the values that are asked for, and which ones."""
    groups: dict[tuple[Pin, ...], list[Asked]] = {}
    for name, value in asked:
        is_open = all(pin.admits(value) for pin in request.pins if pin.field == name)
        if name == "micro_batch":
            is_open &= value in candidate_values(request)[name]
        pins = (request if is_open else _pinned(request, name, value)).pins
        groups.setdefault(pins, []).append((name, value))
    return [(request.model_copy(update={"pins": pins}), group) for pins, group in groups.items()]


def _pinned(request: PlanRequest, field: str, value: Any) -> PlanRequest:
    """The request with a field fixed, in place of the user's own pin on it, where that means something."""
    pins = [pin for pin in request.pins if pin.field != field]
    pins.append(Pin(field=field, allowed=(value,), option=setting_words(field, value)))
    if field in MEANT_WITHIN:
        pins.append(Pin(field=MEANT_WITHIN[field], minimum=2, option=f"more than one {MEANT_WITHIN[field]}"))
    return request.model_copy(update={"pins": tuple(pins)})


def _legal(pool: Sequence[Estimate], request: PlanRequest) -> list[Estimate]:
    """Plans of a pool that are legal under a request's pins, whatever pins they were priced under."""
    rules = pin_rules(request)
    return [
        each
        for each in pool
        if all(violation.rule.startswith(PIN_PREFIX) for violation in each.violations)
        and all(rule.admits(each.plan, request) for rule in rules)
    ]


def _limited(choice: Choice, legal: Sequence[Estimate]) -> Choice:
    """The choice with no larger limit than the fastest of some legal plans with it sets."""
    least = min((each.step_time_s for each in legal if choice.is_answered_by(each.plan)), default=inf)
    return replace(choice, limit_s=min(choice.limit_s, least * (1 + ROUND_OFF)))


def _alone(request: PlanRequest, deadline: float, is_brief: bool = False) -> Optimum:
    """The solver's answer to one pinned request; a brief one does not say what the leanest plan lacks."""
    from planner.explain.answer import find
    from planner.solver import uninterrupted

    if time.monotonic() > deadline:
        return Optimum(None, is_proven=False)
    result = uninterrupted(find(request, 1, deadline - time.monotonic()))
    if result.best is not None:
        return Optimum(result.best, result.status == "optimal")
    if result.status != "infeasible":
        return Optimum(None, is_proven=False)
    left_s = max(deadline - time.monotonic(), LEANEST_S)
    return Optimum(None, why_none="" if is_brief else _why_nothing(request, left_s))


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
    """Return the plan that the solver prefers, where one near the step time of a known plan is expected.

    Parameters
    ----------
    known
        A plan, legal or not, near whose step time the search begins.
    seconds
        Time limit of each search. [s]
    """
    from planner.explain.answer import find
    from planner.solver import uninterrupted
    from planner.solver.conditional import Part, best_of_each

    limits_s = [] if known is None else [factor * known.step_time_s for factor in NEARBY]
    for limit_s in limits_s if is_plain(request) else ():
        found = best_of_each(request, [Part(limit_s=limit_s)], seconds)[0].best
        if found is not None:
            return found
    return uninterrupted(find(request, 1, seconds)).best


def preferred(known: Estimate, request: PlanRequest, seconds: float) -> Estimate:
    """Return the plan that the solver prefers, given a legal one that it does not fall behind.

    Parameters
    ----------
    known
        A plan that is legal under this request; returned where nothing as good is found in time.
    seconds
        Time limit of the search. [s]
    """
    from planner.solver import solve, uninterrupted
    from planner.solver.conditional import Part, best_of_each

    if is_plain(request):
        part = Part(limit_s=known.step_time_s * (1 + ROUND_OFF))
        return best_of_each(request, [part], seconds)[0].best or known
    return uninterrupted(solve(request, top=1, time_limit_s=seconds)).best or known


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
    if is_plain(request):
        near = 1.0 - near_pct / 100.0
        return best_below(request, factor * known.step_time_s, seconds, near, enough=near_pct >= 100.0)
    other = uninterrupted(solve(request, top=1, time_limit_s=seconds)).best
    return other if other is not None and percent(known, other) < 100.0 * (factor - 1.0) else None


def better_answer(
    known: Estimate, request: PlanRequest, seconds: float, lifted: tuple[Rule, PlanRequest] | None = None
) -> Optimum:
    """Return the solver's plan for a request where it beats a known plan by more than 1 %, else none.

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

    if is_plain(request):
        limit_s = (1.0 - NEAR_PCT / 100.0) * known.step_time_s
        broken = None if lifted is None else Breaking(limit_s=limit_s, rule=lifted[0], request=lifted[1])
        [found] = best_of_each(request, [broken or Part(limit_s=limit_s)], seconds)
        return Optimum(found.best, found.is_proven)
    result = uninterrupted(solve(request, top=1, time_limit_s=seconds))
    other, is_proven = result.best, result.status in ("optimal", "infeasible")
    if other is None or not _is_better(known, other, request):
        return Optimum(None, is_proven or request.goal == "memory")
    return Optimum(other, is_proven)


def _is_better(known: Estimate, other: Estimate, request: PlanRequest) -> bool:
    """Whether a plan beats a known one by more than 1 % of what the goal counts."""
    if request.goal == "memory":
        return other.peak_memory_bytes < known.peak_memory_bytes * (1.0 - NEAR_PCT / 100.0)
    return percent(known, other) < -NEAR_PCT


def is_plain(request: PlanRequest) -> bool:
    """Whether the objective is the step time, found by one search."""
    return request.goal == "step-time" and not is_series(request)
