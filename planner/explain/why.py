"""Why each setting of a plan has its value: what stands on both sides of it, and what it would cost.

Every sentence is derived from priced neighbours: the plan with one setting changed (the others following),
the rule it breaks or the bytes it lacks, and, when asked for, the best plan that the pinned neighbour allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.cost.activations import selective_modules
from planner.cost.layer_comm import orders_cost_the_same
from planner.cost.words import plan_words, setting_words
from planner.errors import BadInput
from planner.explain.loss import amount, loss_phrase, percent
from planner.explain.neighbours import LAYOUT_FIELDS, changed, neighbour_values, why_unchanged
from planner.explain.optimum import (
    NEAR_PCT,
    RANKED_FIELDS,
    Ranking,
    conditional_optimum,
    ranks_by_time,
)
from planner.explain.sentences import listed, lower_first
from planner.rules import TABULAR_RULES, valid_values
from planner.spec import Plan, PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate

MEMORY_RULE = "every_stage_fits_in_memory"

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

EQUAL_PCT = 0.05
"""Step times closer than this are called equal. [%]"""
NEARLY_FITS = 0.2
"""A plan that needs this much more than there is may fit with another layout."""
NOTABLE_END = 0.02
"""Embedding and loss on the rank that sets the pace are worth a better layout from this share of the step."""


@dataclass(frozen=True)
class Side:
    """One alternative value of a setting.

    ``plan`` is None where the degrees do not divide; ``broken`` are sentences of broken rules other than
    memory; ``optimum`` is the best plan with this value, when it was searched for (``searched``).
    """

    value: Any
    plan: Plan | None = None
    estimate: Estimate | None = None
    broken: tuple[str, ...] = ()
    memory: str = ""
    missing: str = ""
    """Why there is no plan to price."""
    searched: bool = False
    optimum: Estimate | None = None


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
        Search the best plan for each neighbouring value (slower) instead of only pricing the neighbour.
    seconds
        Time limit of each search. [s]
    """
    found, ranking = [], Ranking(tuple(ranked), proven)
    for field, values in alternatives(best.plan, request):
        sides = []
        for value in values:
            known = ranking.first_with(field, value) if resolve and ranks_by_time(request) else None
            again = resolve or (proven and _is_worth_a_search(field, value, ranked, request))
            side = look(best, request, field, value, seconds if again and known is None else 0.0)
            sides.append(side if known is None else replace(side, searched=True, optimum=known))
        found.append(_reason(best, request, field, tuple(sides), ranking))
    found.insert(min(2, len(found)), _data_parallel(best, request))
    if best.plan.pipeline_parallel > 1:
        found.append(_without_pipeline(best, request, ranked))
    return [*found, *(_closer_than_the_band(best, ranked, found) if ranks_by_time(request) else [])]


def _is_worth_a_search(field: str, value: Any, ranked: Sequence[Estimate], request: PlanRequest) -> bool:
    """Whether the best plan with another tensor-parallel degree, unless the ranking shows it, is searched.

    Of all degrees this is the one that people ask for first, and a search takes a tenth of the answer's time.
    """
    if field != "tensor_parallel" or len(ranked) < 2 or not ranks_by_time(request):
        return False
    alone = ranked[0].plan.model_copy(update={field: value})
    legal = all(rule.admits(alone, request) for rule in TABULAR_RULES if rule.scope == (field,))
    return legal and all(other.plan.tensor_parallel != value for other in ranked)


def alternatives(plan: Plan, request: PlanRequest) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the fields worth explaining and the values to compare each with."""
    limits, piped, moe = request.framework.limits, plan.pipeline_parallel > 1, request.model.is_moe
    numeric = {
        "tensor_parallel": True,
        "pipeline_parallel": True,
        "virtual_stages": piped,
        "context_parallel": True,
        "expert_parallel": moe,
        "expert_tensor_parallel": moe and limits.expert_tensor_parallel,
        "zero_stage": True,
        "shard_group_size": limits.hybrid_sharding and plan.zero_stage > 0,
        "micro_batch": True,
    }
    found: list[tuple[str, tuple[Any, ...]]] = []
    for field in (name for name, matters in numeric.items() if matters):
        values = neighbour_values(plan, field, request)
        found.append((field, tuple(value for value in values if value is not None)))
    words = {
        "schedule": tuple(name for name in limits.schedules if name != "none") if piped else (),
        "recompute": limits.recompute,
        "offload": limits.offloads,
        "sequence_parallel": (False, True) if plan.tensor_parallel > 1 else (),
        "context_parallel_kind": limits.context_parallel_kinds if plan.context_parallel > 1 else (),
        "precision": request.workload.precisions,
        "rank_order": _other_orders(plan, request),
    }
    for field, choices in words.items():
        found.append((field, tuple(value for value in choices if value != getattr(plan, field))))
    return [(field, values) for field, values in found if values]


def _other_orders(plan: Plan, request: PlanRequest) -> tuple[str, ...]:
    """Rank orders that the plan could have instead, where that changes what its groups share."""
    if orders_cost_the_same(plan, request.cluster):
        return ()
    unpinned = request.model_copy(update={"pins": ()})
    return tuple(str(order) for order in valid_values("rank_order", plan, unpinned))


def look(
    best: Estimate, request: PlanRequest, field: str, value: Any, seconds: float, plan: Plan | None = None
) -> Side:
    """Price the plan with one setting changed; with ``seconds``, search the best plan with that value.

    Parameters
    ----------
    plan
        The plan to price, where it is not the best one with that setting changed.
    """
    from planner.solver.evaluate import evaluate

    searched, optimum = seconds > 0, None
    if searched:
        optimum = conditional_optimum(request, field, value, seconds, best)
    plan = plan or changed(best.plan, field, value, request)
    if plan is None:
        missing = why_unchanged(best.plan, field, value, request)
        return Side(value, missing=missing, searched=searched, optimum=optimum)
    try:
        estimate = _with_best_layout(evaluate(plan, request), field, request)
    except BadInput as error:
        return Side(value, plan, broken=(str(error),), searched=searched, optimum=optimum)
    broken = tuple(
        violation.sentence
        for violation in estimate.violations
        if violation.rule != MEMORY_RULE and not violation.rule.startswith("pin:")
    )
    memory = next((v.sentence for v in estimate.violations if v.rule == MEMORY_RULE), "")
    return Side(value, estimate.plan, estimate, broken, memory, "", searched, optimum)


def _with_best_layout(estimate: Estimate, field: str, request: PlanRequest) -> Estimate:
    """The plan with its layers spread as well as they can be, where that could matter.

    A plan whose layout was dropped stands with the framework's plain split. It matters where a rank with an
    end of the model sets the pace, where the plain split does not fit, and where layers are recomputed.
    """
    plan = estimate.plan
    if field not in LAYOUT_FIELDS or plan.pipeline_parallel == 1:
        return estimate
    at_an_end = float(estimate.time.embedding_and_loss_s) > NOTABLE_END * estimate.step_time_s
    if any(rule.rule != MEMORY_RULE for rule in estimate.violations):
        return estimate
    missing = estimate.peak_memory_bytes / request.cluster.usable_hbm_bytes - 1
    if missing > NEARLY_FITS or (missing <= 0 and not at_an_end and plan.recompute == "none"):
        return estimate
    from planner.explain.balance import balanced
    from planner.solver.evaluate import evaluate

    other = balanced(plan, request)
    return estimate if other is None else evaluate(other, request)


def _reason(
    best: Estimate, request: PlanRequest, field: str, sides: tuple[Side, ...], ranking: Ranking
) -> Reason:
    value = getattr(best.plan, field)
    head = setting_words(field, value)
    if field in NAMES:
        head += f" ({NAMES[field]})"
    pinned = next((pin.option for pin in request.pins if pin.field == field), "")
    if pinned:
        head += f", pinned by {pinned}"
    known = ranking if field in RANKED_FIELDS and ranks_by_time(request) else Ranking()
    parts = [
        _side_words(best, request, side, field) + _ranked_words(best, field, side, known) for side in sides
    ]
    return Reason(field, value, sides, f"{head}: {'; '.join(parts)}.")


def _side_words(best: Estimate, request: PlanRequest, side: Side, field: str) -> str:
    name = setting_words(field, side.value)
    if side.value == "selective" and side.plan is not None:
        name += f" ({', '.join(selective_modules(side.plan, request))})"
    words = _lone_words(best, name, side, request.goal)
    if not side.searched:
        return words
    if side.optimum is None:
        return f"{words}; no legal plan with {name} fits"
    if side.estimate is not None and not side.broken and not side.memory and side.optimum.plan == side.plan:
        return f"{words}; nothing with {name} is {'leaner' if request.goal == 'memory' else 'faster'}"
    loss = loss_phrase(best, side.optimum, request.goal)
    return f"{words}; the best plan with {name} is {plan_words(side.optimum.plan)}: {loss}"


def _ranked_words(best: Estimate, field: str, side: Side, ranking: Ranking) -> str:
    """What the ranking already knows about the best plan with another degree."""
    name, ranked = setting_words(field, side.value), ranking.plans
    if side.searched or side.broken or "not allowed" in side.missing or len(ranked) < 2:
        return ""
    for rank, other in enumerate(ranked[1:], 2):
        if getattr(other.plan, field) == side.value:
            same = other.plan == side.plan
            return (
                f" (plan {rank})"
                if same
                else f"; the best with {name} is plan {rank} ({amount(best, other)})"
            )
    least = ranking.least_pct(best)
    bound = f", so the best with it is at least {least:+.1f} %" if least > EQUAL_PCT else ""
    return f"; none of the first {len(ranked)} plans has it{bound}"


def _closer_than_the_band(
    best: Estimate, ranked: Sequence[Estimate], found: Sequence[Reason]
) -> list[Reason]:
    """Which other plans are closer to the first one than the estimate's own error."""
    band = best.error_band_pct
    ranks = [str(rank) for rank, other in enumerate(ranked, 1) if rank > 1 and percent(best, other) < band]
    near: dict[Plan, str] = {}
    for reason in found:
        for side in reason.sides if reason.field in RANKED_FIELDS else ():
            known = [best.plan, *near, *(other.plan for other in ranked)]
            if side.optimum and percent(best, side.optimum) < band and side.optimum.plan not in known:
                name = setting_words(reason.field, side.value)
                near[side.optimum.plan] = f"the best with {name} ({amount(best, side.optimum)})"
    plans = [f"plan{'s' if len(ranks) > 1 else ''} {listed(ranks)}"] if ranks else []
    if not plans and not near:
        return []
    verb = "are" if len(ranks) + len(near) > 1 else "is"
    sentence = (
        f"Error band {band:g} %: {listed([*plans, *near.values()])} {verb} closer than that; measure before "
        "relying on the order."
    )
    return [Reason("error_band_pct", band, (), sentence)]


def _lone_words(best: Estimate, name: str, side: Side, goal: str) -> str:
    if side.plan is not None and side.estimate is None:
        return f"{name} cannot run: {lower_first(side.broken[0])}"
    if side.plan is None or side.estimate is None:
        return side.missing or f"{name} leaves no plan to compare with"
    if side.broken:
        return f"{name} is not allowed: {lower_first(side.broken[0])}{_price_of_broken(best, side, goal)}"
    if side.memory:
        return f"{name} does not fit: {lower_first(side.memory)}"
    words = f"{name} is {loss_phrase(best, side.estimate, goal)}"
    slightly = goal != "memory" and -NEAR_PCT <= percent(best, side.estimate) < -EQUAL_PCT
    return f"{words}, too little to give up a simpler plan" if slightly else words


def _price_of_broken(best: Estimate, side: Side, goal: str) -> str:
    """What a plan that breaks a rule would cost, where that speaks against it as well."""
    if side.estimate is None or percent(best, side.estimate) <= 0:
        return "; it would not fit either" if side.memory else ""
    price = f"; it would be {loss_phrase(best, side.estimate, goal)}"
    return f"{price} and not fit" if side.memory else price


def _without_pipeline(best: Estimate, request: PlanRequest, ranked: Sequence[Estimate]) -> Reason:
    """Why not the textbook plan: tensor ranks fill the fast domain, replicas do the rest.

    Where a ranked plan has no pipeline it speaks for them, after it only the textbook's at the plan's stage.
    """
    flat = ((rank, other) for rank, other in enumerate(ranked, 1) if other.plan.pipeline_parallel == 1)
    known = next(flat, None)
    parts = (
        [] if known is None else [f"the best is plan {known[0]}: {loss_phrase(best, known[1], request.goal)}"]
    )
    wide = (
        None
        if request.model.is_moe
        else changed(best.plan, "tensor_parallel", request.cluster.nvlink_domain, request)
    )
    plan = changed(wide or best.plan, "pipeline_parallel", 1, request)
    if plan is None and known is None:
        parts = [why_unchanged(wide or best.plan, "pipeline_parallel", 1, request)]
    stages = [stage for stage in request.framework.limits.zero_stages if stage >= best.plan.zero_stage]
    for stage in stages if known is None else stages[:1]:
        sharded = None if plan is None else changed(plan, "zero_stage", stage, request)
        if sharded is None:
            continue
        side = _largest_cut(look(best, request, "zero_stage", stage, 0.0, sharded), best, request)
        if known is None or side.plan != known[1].plan:
            parts.append(_lone_words(best, plan_words(side.plan or sharded), side, request.goal))
    return Reason(
        "pipeline_parallel", best.plan.pipeline_parallel, (), f"Without a pipeline: {'; '.join(parts)}."
    )


def _largest_cut(side: Side, best: Estimate, request: PlanRequest) -> Side:
    """The same plan with larger micro-batches, as long as that makes it faster and it fits."""
    while side.plan is not None and side.estimate is not None and not (side.broken or side.memory):
        plan = changed(side.plan, "micro_batch", 2 * side.plan.micro_batch, request)
        if plan is None:
            break
        larger = look(best, request, "zero_stage", side.value, 0.0, plan)
        faster = larger.estimate and larger.estimate.step_time_s < side.estimate.step_time_s
        if larger.broken or larger.memory or not faster:
            break
        side = larger
    return side


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
