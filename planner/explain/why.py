"""Why each setting of a plan has its value: what stands on both sides of it, and what it would cost.

Every sentence is derived from priced neighbours: the plan with one setting changed (the others following),
the rule it breaks or the bytes it lacks, and, when asked for, the best plan that the pinned neighbour allows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.cost.words import plan_words, setting_words
from planner.explain.ends import end_words
from planner.explain.loss import amount, percent
from planner.explain.optimum import (
    RANKED_FIELDS,
    Asked,
    Optima,
    Optimum,
    Ranking,
    is_plain,
    ranks_by_time,
)
from planner.explain.sentences import listed
from planner.explain.side_words import Wording
from planner.explain.sides import Side, alternatives, look, without_pipeline
from planner.rules import TABULAR_RULES
from planner.spec import Plan, PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate

NAMES = {
    "tensor_parallel": "tensor parallel",
    "pipeline_parallel": "pipeline parallel",
    "virtual_stages": "chunks per pipeline rank",
    "context_parallel": "context parallel",
    "expert_parallel": "expert parallel",
    "expert_tensor_parallel": "tensor parallel within experts",
    "zero_stage": "ZeRO stage",
    "shard_group_size": "replicas that share the state",
    "micro_batch": "sequences per micro-batch",
}
FURTHER = (
    "Where no best plan with a value is named, only the plan with that setting alone changed is priced; "
    "plan-parallel why, with the same options, finds the best plan with each value and what each limit costs."
)
"""Where to find what the main answer has no time for."""
LATE = "The time given ended before every neighbour of the plan was priced: the settings left are not told."
LOOK_S = 2.0
"""Neighbours are priced for at least so long. [s]"""
INTERRUPTED = (
    "The search for the best plans with other values was interrupted: what it found by then is told, and "
    "where no best plan with a value is named, only the plan with that setting alone changed is priced."
)


@dataclass(frozen=True)
class Reason:
    """Why one field has its value."""

    field: str
    value: Any
    sides: tuple[Side, ...]
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"field": self.field, "value": self.value, "sentence": self.sentence}


def reasons(
    best: Estimate,
    request: PlanRequest,
    *,
    ranked: Sequence[Estimate] = (),
    proven: bool = False,
    resolve: bool = False,
    seconds: float = 10.0,
) -> list[Reason]:
    """Explain every setting of a plan that could be different.

    Parameters
    ----------
    best
        The plan, priced.
    ranked
        The plans of the answer, best first: the best ones with other degrees need no further search.
    proven
        Whether the ranking is proven: no other plan is faster than its last one (or nearly as fast).
    resolve
        Search the best plan for each neighbouring value (slower), not only of the degrees by which ranked
        plans differ.
    seconds
        Time limit of the neighbours' prices, for which there is some time in any case, and of these searches,
        all together. [s]
    """
    ranking, start = Ranking(tuple(ranked), proven), time.monotonic()
    priced, is_whole = _priced(best, request, start + max(seconds, LOOK_S))
    left_s = max(start + seconds - time.monotonic(), 0.0)
    optima, is_cut = _optima(best, request, priced, ranking, resolve, left_s)
    wording, found = Wording(best, request, tuple(ranked)), []
    for field, sides in priced.items():
        sides = [replace(side, optimum=optima.get((field, side.value))) for side in sides]
        found.append(_reason(wording, field, sides, ranking))
    place = next((n + 1 for n, reason in enumerate(found) if reason.field == "pipeline_parallel"), 0)
    found.insert(place, _data_parallel(best, request))
    if best.plan.pipeline_parallel > 1:
        found.append(_without_pipeline(wording))
    found += _closer_than_the_band(best, ranked, found, request) if ranks_by_time(request) else []
    found += [] if is_whole else [Reason("", None, (), LATE)]
    if is_cut:
        return [*found, Reason("", None, (), INTERRUPTED)]
    return found if resolve or not priced else [*found, Reason("", None, (), FURTHER)]


def _priced(best: Estimate, request: PlanRequest, deadline: float) -> tuple[dict[str, list[Side]], bool]:
    """The neighbours of a plan by field, as far as there is time, and whether these are all.

    The price of a pipeline of many ranks and micro-batches takes a second.
    """
    priced: dict[str, list[Side]] = {}
    for field, values in alternatives(best.plan, request):
        for value in values:
            if time.monotonic() > deadline:
                return priced, False
            priced.setdefault(field, []).append(look(best, request, field, value))
    return priced, True


def was_interrupted(found: Sequence[Reason]) -> bool:
    """Whether Ctrl-C ended the searches of ``reasons``."""
    return bool(found) and found[-1].sentence == INTERRUPTED


def _optima(
    best: Estimate,
    request: PlanRequest,
    priced: dict[str, list[Side]],
    ranking: Ranking,
    resolve: bool,
    seconds: float,
) -> tuple[dict[Asked, Optimum], bool]:
    """The best plan with each value that is worth a search, as far as it is known; whether Ctrl-C came."""
    pool = [side.estimate for sides in priced.values() for side in sides if side.estimate is not None]
    pool += [] if request.robust else ranking.plans
    optima = Optima(request, best, pool, seconds, is_brief=not resolve)
    asked: list[Asked] = []
    for each in ((field, side.value) for field, sides in priced.items() for side in sides):
        known = ranking.best_with(*each) if ranks_by_time(request) else None
        if known is not None and resolve:
            optima.found[each] = Optimum(known)
        elif resolve or (known is None and _is_worth_a_search(*each, ranking, request)):
            asked.append(each)
    try:
        optima.ask(asked)
    except KeyboardInterrupt:
        return optima.found, True
    return optima.found, False


def _is_worth_a_search(field: str, value: Any, ranking: Ranking, request: PlanRequest) -> bool:
    """Whether the main answer searches the best plan with a value: a degree by which ranked plans differ.

    Where that takes a search for each value, only of the tensor-parallel degree: people ask for it first.
    """
    searched = RANKED_FIELDS if is_plain(request) else RANKED_FIELDS[:1]
    is_ranked = ranking.proven and len(ranking.plans) > 1 and ranks_by_time(request)
    if field not in searched or not is_ranked:
        return False
    alone = ranking.plans[0].plan.model_copy(update={field: value})
    return all(rule.admits(alone, request) for rule in TABULAR_RULES if rule.scope == (field,))


def _reason(wording: Wording, field: str, sides: list[Side], ranking: Ranking) -> Reason:
    best, request = wording.best, wording.request
    value = getattr(best.plan, field)
    head = setting_words(field, value)
    if field in NAMES:
        head += f" ({NAMES[field]})"
    pinned = next((pin.option for pin in request.pins if pin.field == field), "")
    if pinned:
        head += f", pinned by {pinned}"
    known = ranking if field in RANKED_FIELDS and ranks_by_time(request) else Ranking()
    parts = [wording.side(side, field, known) for side in sides]
    end = end_words(best.plan, field, sides, request)
    return Reason(field, value, tuple(sides), f"{head}: {'; '.join([*parts, *end])}.")


def _closer_than_the_band(
    best: Estimate, ranked: Sequence[Estimate], found: Sequence[Reason], request: PlanRequest
) -> list[Reason]:
    """Which other plans are closer to the first one than the estimate's own error."""
    band = best.error_band_pct
    ranks = [str(rank) for rank, other in enumerate(ranked, 1) if rank > 1 and percent(best, other) < band]
    near: dict[Plan, str] = {}
    pinned = {pin.field for pin in request.pins}
    for reason in found:
        for side in reason.sides if reason.field in RANKED_FIELDS and reason.field not in pinned else ():
            other = side.optimum.best if side.optimum is not None else None
            known = [best.plan, *near, *(each.plan for each in ranked)]
            if other is not None and percent(best, other) < band and other.plan not in known:
                name = setting_words(reason.field, side.value)
                near[other.plan] = f"the best with {name} ({amount(best, other)})"
    plans = [f"plan{'s' if len(ranks) > 1 else ''} {listed(ranks)}"] if ranks else []
    if not plans and not near:
        return []
    verb = "are" if len(ranks) + len(near) > 1 else "is"
    sentence = (
        f"Error band {band:g} %: {listed([*plans, *near.values()])} {verb} closer than that; measure before "
        "relying on the order."
    )
    return [Reason("error_band_pct", band, (), sentence)]


def _without_pipeline(wording: Wording) -> Reason:
    """Why not the textbook plan: tensor ranks fill the fast domain, replicas do the rest.

    Where a ranked plan has no pipeline it speaks for them, after it only the textbook's at the plan's stage.
    """
    best, request = wording.best, wording.request
    known = next((other for other in wording.ranked if other.plan.pipeline_parallel == 1), None)
    parts = [] if known is None else [f"the best is {wording.named(known)}"]
    stages = [stage for stage in request.framework.limits.zero_stages if stage >= best.plan.zero_stage]
    parts += [
        wording.alone(side, "" if side.plan is None else plan_words(side.plan))
        for side in without_pipeline(best, request, stages if known is None else stages[:1])
        if known is None or (side.plan is not None and side.plan != known.plan)
    ]
    return Reason(
        "pipeline_parallel", best.plan.pipeline_parallel, (), f"Without a pipeline: {'; '.join(parts)}."
    )


def _data_parallel(best: Estimate, request: PlanRequest) -> Reason:
    plan = best.plan
    batch = plan.global_batch // plan.data_parallel
    gpus = f"the {plan.num_gpus} GPUs" if plan.num_gpus > 1 else "the one GPU"
    sequences = f"{batch} of the {plan.global_batch}" if plan.data_parallel > 1 else f"all {batch}"
    sentence = (
        f"d={plan.data_parallel} (data parallel): what t={plan.tensor_parallel}, p={plan.pipeline_parallel}, "
        f"c={plan.context_parallel} leave of {gpus}; each replica trains {sequences} sequences "
        f"as {plan.num_microbatches} micro-batch{'es' if plan.num_microbatches > 1 else ''} "
        f"of {plan.micro_batch}."
    )
    return Reason("data_parallel", plan.data_parallel, (), sentence)
