"""Why not this: a choice against the best plan; legal, fitting, how much slower, what would make it win."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from planner.cost.words import plan_words
from planner.explain.changes import DOMAIN_SIZE, PARAMETERS, Parameter
from planner.explain.loss import Difference, loss_phrase, percent, time_differences
from planner.explain.neighbours import adapted_price
from planner.explain.optimum import better_plan, preferred
from planner.explain.sentences import listed, lower_first
from planner.rules import check, pin_rules
from planner.solver.deadline import OutOfTime, ensure_time
from planner.solver.result import PlanResult
from planner.spec import FrameworkProfile, Pin, Plan, PlanRequest

if TYPE_CHECKING:
    from planner.explain.conflict import Conflict
    from planner.solver.result import Estimate

LIFTS: dict[str, dict[str, Any]] = {
    "tensor_ranks_stay_inside_the_fast_domain": {"allow_tensor_parallel_across_nodes": True},
    "bubble_stays_within_budget": {"max_bubble": None},
}
"""Rules that the user can lift, and the request field that lifts each."""

LIFT_OPTIONS = {
    "tensor_ranks_stay_inside_the_fast_domain": "--allow-tp-across-nodes",
    "bubble_stays_within_budget": "--max-bubble none",
}

INTERRUPTED = "The search was interrupted: this is what was known by then."
UNTRIED = "Not all changes that could make it the best were tried in the time given."
EQUAL_PCT = 0.05
"""Step times closer than this are called equal. [%]"""
FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Changes that are tried to make the choice win, in this order, each up and down."""


@dataclass(frozen=True, kw_only=True)
class WhyNot:
    """Verdict on a partial choice.

    ``completion`` is the best plan that keeps the choice; ``lifted`` names the options without which the
    choice would be refused and ``broken`` says by which rules; ``conflict`` says why nothing keeps it.
    ``settled`` is False where a search ended with its time before it was known whether anything keeps the
    choice; ``best_is_proven`` says whether the best plan is known to be the best, ``changes_are_tried``
    whether all changes that could make the choice the best were tried. After Ctrl-C (``interrupted``) the
    verdict says what was known by then.
    """

    request: PlanRequest
    choice: tuple[str, ...]
    best: Estimate | None
    completion: Estimate | None
    lifted: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    conflict: Conflict | None = None
    wins_with: tuple[str, ...] = ()
    settled: bool = True
    best_is_proven: bool = True
    changes_are_tried: bool = True
    interrupted: bool = False

    @property
    def loss_pct(self) -> float | None:
        """How much slower the completion is than the best plan. [%]."""
        if self.best is None or self.completion is None:
            return None
        return percent(self.best, self.completion)

    @property
    def terms(self) -> list[Difference]:
        """The loss, term by term, the largest first. [s]."""
        if self.best is None or self.completion is None:
            return []
        return time_differences(self.best.time, self.completion.time)

    @property
    def sentences(self) -> list[str]:
        """The verdict in words, and where it ends early."""
        if self.interrupted:
            return [*self._verdict, INTERRUPTED]
        return self._verdict if self.changes_are_tried else [*self._verdict, UNTRIED]

    @property
    def _verdict(self) -> list[str]:
        said = " ".join(self.choice) or "this plan"
        if self.completion is None and not self.settled:
            if self.interrupted:
                return [f"No plan with {said} was found so far."]
            return [f"No plan with {said} was found in the time given; give more with --time-limit."]
        if self.completion is None:
            return [f"No plan with {said} is legal and fits."]
        found = []
        if self.lifted:
            found.append(
                f"{said} is not allowed: {'; '.join(map(lower_first, self.broken))}. It is priced here as if "
                f"{listed(self.lifted)} were given."
            )
        words = plan_words(self.completion.plan)
        if self.best is None:
            only = "Nothing else fits" if self.best_is_proven else "No other plan was found"
            return [*found, f"{only}; the best plan with it is {words}."]
        loss = self.loss_pct or 0.0
        best = "the best plan" if self.best_is_proven else "the best plan found in the time given"
        if loss < -EQUAL_PCT:
            return [*found, f"Nothing is lost: {words} takes {-loss:.1f} % less time than {best}."]
        if loss <= EQUAL_PCT:
            return [*found, f"Nothing is lost: {words} is as fast as {best}."]
        phrase = loss_phrase(self.best, self.completion)
        found.append(
            f"{words} is {phrase} against {best}."
            if self.choice == (words,)
            else f"The best plan with {said} is {words}: {phrase} against {best}."
        )
        band = self.best.error_band_pct
        if loss < band:
            found.append(f"That is less than the error band of {band:g} %: measure both before deciding.")
        return [*found, *self.wins_with]


def why_not(
    request: PlanRequest,
    *,
    seconds: float = 20.0,
    frameworks: Callable[[], Sequence[FrameworkProfile]] = tuple,
) -> WhyNot:
    """Compare the best plan that keeps the request's pins with the best plan without them.

    Parameters
    ----------
    request
        The pins are the choice in question.
    seconds
        Time limit of each search. [s]
    frameworks
        Frameworks that could be used instead, asked for where nothing keeps the choice.
    """
    free = request.model_copy(update={"pins": ()})
    best = _find(free, seconds)
    kept = PlanResult(status="time-limit", interrupted=True) if best.interrupted else _find(request, seconds)
    found = WhyNot(
        request=request,
        choice=tuple(pin.option for pin in request.pins),
        best=best.best,
        completion=kept.best,
        settled=kept.status != "time-limit",
        best_is_proven=best.status in ("optimal", "infeasible"),
        interrupted=kept.interrupted,
    )
    try:
        return found if found.interrupted else _explained(found, seconds, frameworks)
    except KeyboardInterrupt:
        return replace(found, interrupted=True)


def _explained(found: WhyNot, seconds: float, frameworks: Callable[[], Sequence[FrameworkProfile]]) -> WhyNot:
    """The verdict with what would make the choice possible, or the best."""
    if found.completion is None:
        found = _with_lifts(found, seconds)
    if found.completion is None and found.settled:
        from planner.explain.conflict import explain_conflict

        known = found.best if found.best_is_proven else None
        conflict = explain_conflict(
            found.request, seconds=seconds, frameworks=frameworks(), without_pins=known
        )
        return replace(found, conflict=conflict)
    return _with_changes(found, seconds)


def why_not_plan(plan: Plan, request: PlanRequest, *, seconds: float = 20.0) -> WhyNot:
    """Compare one whole plan with the best one; its broken rules are in ``completion.violations``."""
    from planner.solver.evaluate import evaluate

    best = _find(request, seconds)
    found = WhyNot(
        request=request,
        choice=(plan_words(plan),),
        best=best.best,
        completion=evaluate(plan, request),
        best_is_proven=best.status in ("optimal", "infeasible"),
        interrupted=best.interrupted,
    )
    return found if found.interrupted else _with_changes(found, seconds)


def _find(request: PlanRequest, seconds: float) -> PlanResult:
    """The best plan, on Ctrl-C the best so far."""
    from planner.explain.answer import find

    return find(request, 1, seconds)


def _with_lifts(found: WhyNot, seconds: float) -> WhyNot:
    """Lift the rules that a user can lift, one at a time and then all, until the choice has a completion."""
    from planner.solver import uninterrupted

    sets = [(name,) for name in LIFTS] + [tuple(LIFTS)]
    for names in sets:
        update = {key: value for name in names for key, value in LIFTS[name].items()}
        request = found.request.model_copy(update=update)
        completion = uninterrupted(_find(request, seconds)).best
        if completion is not None:
            options = tuple(LIFT_OPTIONS[name] for name in names)
            broken = tuple(
                each.sentence for each in check(completion.plan, found.request) if each.rule in names
            )
            return replace(found, request=request, completion=completion, lifted=options, broken=broken)
    return found


def _with_changes(found: WhyNot, seconds: float) -> WhyNot:
    """The smallest change of each parameter that makes the choice the best, of those tried in time."""
    if found.best is None or found.completion is None or (found.loss_pct or 0.0) <= EQUAL_PCT:
        return found
    turned, deadline = (*PARAMETERS, DOMAIN_SIZE), time.monotonic() + seconds
    sentences: list[str] = []
    try:
        for parameter in turned:
            sentence = _winning_change(found, parameter, deadline)
            sentences += [sentence] if sentence else []
    except OutOfTime:
        return replace(found, wins_with=tuple(sentences), changes_are_tried=False)
    except KeyboardInterrupt:
        return replace(found, wins_with=tuple(sentences), interrupted=True)
    names = ", ".join(parameter.name for parameter in turned)
    none = f"No change by up to a factor of {FACTORS[-1]:g} was found to make it the best: {names}."
    return replace(found, wins_with=tuple(sentences) or (none,))


def _winning_change(found: WhyNot, parameter: Parameter, deadline: float) -> str:
    for upwards in (True, False):
        request = first_winning(found, parameter, upwards, deadline)
        if request is not None:
            return _winning_words(parameter, found.request, request)
    return ""


def first_winning(
    found: WhyNot, parameter: Parameter, upwards: bool, deadline: float = inf
) -> PlanRequest | None:
    """The smallest change one way at which the choice is best, of those where it beats today's best plan.

    If the largest of them is not enough, none is taken to be; below it the range is halved.

    Raises
    ------
    OutOfTime
        The deadline passed, on the monotonic clock. [s]
    """
    assert found.best is not None
    assert found.completion is not None
    plan, pins = found.completion.plan, found.request.pins
    free = found.request.model_copy(update={"pins": ()})
    hopeful = [
        request
        for factor in FACTORS
        if (request := parameter.scaled(free, factor if upwards else 1.0 / factor)) is not None
        and race(found.best.plan, plan, request) != "loses"
    ]
    if not hopeful or not _is_best(plan, hopeful[-1], pins, deadline):
        return None
    first, last = 0, len(hopeful) - 1
    while first < last:
        middle = (first + last) // 2
        if _is_best(plan, hopeful[middle], pins, deadline):
            last = middle
        else:
            first = middle + 1
    return hopeful[last]


def _winning_words(parameter: Parameter, now: PlanRequest, then: PlanRequest) -> str:
    value = parameter.value(then)
    change = f"on {value} GPUs" if parameter.name == "GPUs" else f"with {parameter.article} of {value}"
    best = "the best" if now.pins else "the best, within 1 %,"
    return f"It would be {best} {change} (now {parameter.value(now)})."


def _is_best(plan: Plan, request: PlanRequest, pins: tuple[Pin, ...], deadline: float) -> bool:
    """Whether, under a changed request, the plan that the solver prefers keeps the choice.

    Parameters
    ----------
    plan
        A plan with the choice; it is fitted to the request.
    pins
        The choice; without pins the choice is the plan itself, and none may beat it by more than 1 %.
    """
    ours = adapted_price(plan, request)
    if ours is None:
        return False
    ensure_time(deadline)
    left_s = deadline - time.monotonic()
    if not pins:
        is_best = better_plan(ours, request, left_s) is None
    else:
        best = preferred(ours, request, left_s)
        pinned = request.model_copy(update={"pins": pins})
        is_best = all(rule.admits(best.plan, request) for rule in pin_rules(pinned))
    ensure_time(deadline)
    return is_best


def race(best: Plan, other: Plan, request: PlanRequest) -> str:
    """How the second plan fares against the first under a changed request.

    Returns
    -------
    str
        ``wins`` (no slower), ``alone`` (the first breaks a rule or does not fit), or ``loses``, also where
        one of them has no counterpart.
    """
    challenger, champion = adapted_price(other, request), adapted_price(best, request)
    if challenger is None or champion is None or not challenger.is_legal:
        return "loses"
    if not champion.is_legal:
        return "alone"
    return "wins" if percent(champion, challenger) <= 0 else "loses"
