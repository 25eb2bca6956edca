"""Why not this: a choice against the best plan; legal, fitting, how much slower, what would make it win."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.cost.words import plan_words
from planner.explain.changes import DOMAIN_SIZE, PARAMETERS, Parameter
from planner.explain.loss import Difference, loss_phrase, percent, time_differences
from planner.explain.neighbours import adapted_price
from planner.explain.optimum import better_plan
from planner.explain.sentences import listed, lower_first
from planner.rules import check, pin_rules
from planner.spec import FrameworkProfile, Pin, Plan, PlanRequest

if TYPE_CHECKING:
    from planner.explain.conflict import Conflict
    from planner.solver.result import Estimate, PlanResult

LIFTS: dict[str, dict[str, Any]] = {
    "tensor_ranks_stay_inside_the_fast_domain": {"allow_tensor_parallel_across_nodes": True},
    "bubble_stays_within_budget": {"max_bubble": None},
}
"""Rules that the user can lift, and the request field that lifts each."""

LIFT_OPTIONS = {
    "tensor_ranks_stay_inside_the_fast_domain": "--allow-tp-across-nodes",
    "bubble_stays_within_budget": "--max-bubble none",
}

EQUAL_PCT = 0.05
"""Step times closer than this are called equal. [%]"""
FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Changes that are tried to make the choice win, in this order, each up and down."""
SEARCHES_S = 20.0
"""Time limit of each search for a plan that still beats the choice. [s]"""


@dataclass(frozen=True, kw_only=True)
class WhyNot:
    """Verdict on a partial choice.

    ``completion`` is the best plan that keeps the choice; ``lifted`` names the options without which the
    choice would be refused and ``broken`` says by which rules; ``conflict`` says why nothing keeps it.
    ``settled`` is False where a search ended
    with its time before it was known whether anything keeps the choice; ``best_is_proven`` says whether the
    best plan is known to be the best.
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
        """The verdict in words."""
        said = " ".join(self.choice) or "this plan"
        if self.completion is None and not self.settled:
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
            return [*found, f"Nothing else fits; the best plan with it is {words}."]
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
    best, kept = _find(free, seconds), _find(request, seconds)
    found = WhyNot(
        request=request,
        choice=tuple(pin.option for pin in request.pins),
        best=best.best,
        completion=kept.best,
        settled=kept.status != "time-limit",
        best_is_proven=best.status == "optimal",
    )
    if kept.best is None:
        found = _with_lifts(found, seconds)
    if found.completion is None and found.settled:
        from planner.explain.conflict import explain_conflict

        known = found.best if found.best_is_proven else None
        conflict = explain_conflict(request, seconds=seconds, frameworks=frameworks(), without_pins=known)
        return replace(found, conflict=conflict)
    return replace(found, wins_with=_winning_changes(found))


def why_not_plan(plan: Plan, request: PlanRequest, *, seconds: float = 20.0) -> WhyNot:
    """Compare one whole plan with the best one; its broken rules are in ``completion.violations``."""
    from planner.solver.evaluate import evaluate

    best = _find(request, seconds)
    found = WhyNot(
        request=request,
        choice=(plan_words(plan),),
        best=best.best,
        completion=evaluate(plan, request),
        best_is_proven=best.status == "optimal",
    )
    return replace(found, wins_with=_winning_changes(found))


def _find(request: PlanRequest, seconds: float) -> PlanResult:
    """The best plan; a verdict needs more than the best one before Ctrl-C."""
    from planner.explain.answer import find
    from planner.solver import uninterrupted

    return uninterrupted(find(request, 1, seconds))


def _with_lifts(found: WhyNot, seconds: float) -> WhyNot:
    """Lift the rules that a user can lift, one at a time and then all, until the choice has a completion."""
    sets = [(name,) for name in LIFTS] + [tuple(LIFTS)]
    for names in sets:
        update = {key: value for name in names for key, value in LIFTS[name].items()}
        request = found.request.model_copy(update=update)
        completion = _find(request, seconds).best
        if completion is not None:
            options = tuple(LIFT_OPTIONS[name] for name in names)
            broken = tuple(
                each.sentence for each in check(completion.plan, found.request) if each.rule in names
            )
            return replace(found, request=request, completion=completion, lifted=options, broken=broken)
    return found


def _winning_changes(found: WhyNot) -> tuple[str, ...]:
    """The smallest change of each parameter that makes the choice the best (of those tried)."""
    if found.best is None or found.completion is None or (found.loss_pct or 0.0) <= EQUAL_PCT:
        return ()
    turned = (*PARAMETERS, DOMAIN_SIZE)
    sentences = [sentence for parameter in turned if (sentence := _winning_change(found, parameter))]
    if sentences:
        return tuple(sentences)
    names = ", ".join(parameter.name for parameter in turned)
    return (f"No change by up to a factor of {FACTORS[-1]:g} was found to make it the best: {names}.",)


def _winning_change(found: WhyNot, parameter: Parameter) -> str:
    for upwards in (True, False):
        request = first_winning(found, parameter, upwards)
        if request is not None:
            return _winning_words(parameter, found.request, request)
    return ""


def first_winning(found: WhyNot, parameter: Parameter, upwards: bool) -> PlanRequest | None:
    """The smallest change one way at which the choice is best, of those where it beats today's best plan.

    If the largest of them is not enough, none is taken to be; below it the range is halved.
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
    if not hopeful or not _is_best(plan, hopeful[-1], pins):
        return None
    first, last = 0, len(hopeful) - 1
    while first < last:
        middle = (first + last) // 2
        if _is_best(plan, hopeful[middle], pins):
            last = middle
        else:
            first = middle + 1
    return hopeful[last]


def _winning_words(parameter: Parameter, now: PlanRequest, then: PlanRequest) -> str:
    value = parameter.value(then)
    change = f"on {value} GPUs" if parameter.name == "GPUs" else f"with {parameter.article} of {value}"
    return f"It would be the best {change} (now {parameter.value(now)})."


def _is_best(plan: Plan, request: PlanRequest, pins: tuple[Pin, ...]) -> bool:
    """Whether, under a changed request, no plan beats all those with the choice by more than 1 %.

    Parameters
    ----------
    plan
        A plan with the choice; it is fitted to the request.
    pins
        The choice; without pins the choice is the plan itself.
    """
    from planner.solver.evaluate import evaluate

    ours = adapted_price(plan, request)
    rival = None if ours is None else better_plan(ours, request, SEARCHES_S)
    if rival is None or not pins:
        return ours is not None and rival is None
    pinned = request.model_copy(update={"pins": pins})
    if all(rule.admits(rival.plan, request) for rule in pin_rules(pinned)):
        return True
    return better_plan(evaluate(rival.plan, request), pinned, SEARCHES_S, by_pct=0.0) is not None


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
