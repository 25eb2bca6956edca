"""Why each setting of a plan has its value: what stands on both sides of it, and what it would cost.

Every sentence is derived from priced neighbours: the plan with one setting changed (the others following),
the rule it breaks or the bytes it lacks, and, when asked for, the best plan that the pinned neighbour allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.cost.words import plan_words, setting_words
from planner.errors import BadInput
from planner.explain.loss import loss_phrase, percent
from planner.explain.neighbours import changed, neighbour_values
from planner.explain.sentences import lower_first
from planner.spec import Pin, Plan, PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate

MEMORY_RULE = "every_stage_fits_in_memory"

NAMES = {
    "tensor_parallel": "tensor parallel",
    "pipeline_parallel": "pipeline parallel",
    "virtual_stages": "chunks per pipeline rank",
    "context_parallel": "context parallel",
    "expert_parallel": "expert parallel",
    "zero_stage": "ZeRO stage",
    "micro_batch": "sequences per micro-batch",
}


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
    best: Estimate, request: PlanRequest, *, resolve: bool = False, seconds: float = 10.0
) -> list[Reason]:
    """Explain every setting of a plan that could be different.

    Parameters
    ----------
    best
        The plan, priced.
    resolve
        Search the best plan for each neighbouring value (slower) instead of only pricing the neighbour.
    seconds
        Time limit of each search. [s]
    """
    found = []
    for field, values in alternatives(best.plan, request):
        sides = tuple(look(best, request, field, value, seconds if resolve else 0.0) for value in values)
        found.append(_reason(best, request, field, sides))
    found.insert(min(2, len(found)), _data_parallel(best, request))
    if best.plan.pipeline_parallel > 1:
        found.append(_without_pipeline(best, request))
    return found


def alternatives(plan: Plan, request: PlanRequest) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the fields worth explaining and the values to compare each with."""
    numeric = ["tensor_parallel", "pipeline_parallel"]
    if plan.pipeline_parallel > 1:
        numeric.append("virtual_stages")
    numeric.append("context_parallel")
    if request.model.is_moe:
        numeric.append("expert_parallel")
    numeric += ["zero_stage", "micro_batch"]
    found: list[tuple[str, tuple[Any, ...]]] = []
    for field in numeric:
        values = neighbour_values(plan, field, request)
        found.append((field, tuple(value for value in values if value is not None)))
    limits = request.framework.limits
    if plan.pipeline_parallel > 1:
        schedules = tuple(name for name in limits.schedules if name not in ("none", plan.schedule))
        found.append(("schedule", schedules))
    found.append(("recompute", tuple(kind for kind in limits.recompute if kind != plan.recompute)))
    if len(request.workload.precisions) > 1:
        found.append(
            ("precision", tuple(word for word in request.workload.precisions if word != plan.precision))
        )
    return [(field, values) for field, values in found if values]


def look(best: Estimate, request: PlanRequest, field: str, value: Any, seconds: float) -> Side:
    """Price the plan with one setting changed; with ``seconds``, search the best plan with that value."""
    from planner.solver.evaluate import evaluate

    searched, optimum = seconds > 0, None
    if searched:
        optimum = conditional_optimum(request, field, value, seconds)
    plan = changed(best.plan, field, value, request)
    if plan is None:
        return Side(value, searched=searched, optimum=optimum)
    try:
        estimate = evaluate(plan, request)
    except BadInput as error:
        return Side(value, plan, broken=(str(error),), searched=searched, optimum=optimum)
    broken = tuple(
        violation.sentence
        for violation in estimate.violations
        if violation.rule != MEMORY_RULE and not violation.rule.startswith("pin:")
    )
    memory = next((v.sentence for v in estimate.violations if v.rule == MEMORY_RULE), "")
    return Side(value, plan, estimate, broken, memory, searched, optimum)


def conditional_optimum(request: PlanRequest, field: str, value: Any, seconds: float) -> Estimate | None:
    """Return the best plan with one field fixed (in place of the user's own pin on it), or None."""
    from planner.solver import solve

    others = tuple(pin for pin in request.pins if pin.field != field)
    pin = Pin(field=field, allowed=(value,), option=setting_words(field, value))
    pinned = request.model_copy(update={"pins": (*others, pin)})
    return solve(pinned, top=1, time_limit_s=seconds).best


def _reason(best: Estimate, request: PlanRequest, field: str, sides: tuple[Side, ...]) -> Reason:
    value = getattr(best.plan, field)
    head = setting_words(field, value)
    if field in NAMES:
        head += f" ({NAMES[field]})"
    pinned = next((pin.option for pin in request.pins if pin.field == field), "")
    if pinned:
        head += f", pinned by {pinned}"
    parts = [_side_words(best, field, side) for side in sides]
    return Reason(field, value, sides, f"{head}: {'; '.join(parts)}.")


def _side_words(best: Estimate, field: str, side: Side) -> str:
    name = setting_words(field, side.value)
    words = _lone_words(best, name, side)
    if not side.searched:
        return words
    if side.optimum is None:
        return f"{words}; no legal plan with {name} fits"
    if side.estimate is not None and not side.broken and not side.memory and side.optimum.plan == side.plan:
        return words
    loss = loss_phrase(best, side.optimum)
    return f"{words}; the best plan with {name} is {plan_words(side.optimum.plan)}: {loss}"


def _lone_words(best: Estimate, name: str, side: Side) -> str:
    if side.plan is not None and side.estimate is None:
        return f"{name} cannot run: {lower_first(side.broken[0])}"
    if side.plan is None or side.estimate is None:
        return f"{name} leaves degrees that do not divide the GPUs or the batch"
    if side.broken:
        price = (
            f"; it would be {loss_phrase(best, side.estimate)}" if percent(best, side.estimate) > 0 else ""
        )
        return f"{name} is not allowed: {lower_first(side.broken[0])}{price}"
    if side.memory:
        return f"{name} does not fit: {lower_first(side.memory)}"
    return f"{name} is {loss_phrase(best, side.estimate)}"


def _without_pipeline(best: Estimate, request: PlanRequest) -> Reason:
    """Why not the textbook plan: tensor ranks fill the fast domain, replicas do the rest."""
    from planner.solver.evaluate import evaluate

    wide = changed(best.plan, "tensor_parallel", request.cluster.nvlink_domain, request)
    plan = changed(wide or best.plan, "pipeline_parallel", 1, request) or wide or best.plan
    parts = []
    for stage in (stage for stage in request.framework.limits.zero_stages if stage >= best.plan.zero_stage):
        sharded = changed(plan, "zero_stage", stage, request)
        if sharded is None:
            continue
        estimate = evaluate(sharded, request)
        memory = next((v.sentence for v in estimate.violations if v.rule == MEMORY_RULE), "")
        broken = tuple(v.sentence for v in estimate.violations if v.rule != MEMORY_RULE)
        parts.append(_lone_words(best, plan_words(sharded), Side(stage, sharded, estimate, broken, memory)))
    return Reason(
        "pipeline_parallel", best.plan.pipeline_parallel, (), f"Without a pipeline: {'; '.join(parts)}."
    )


def _data_parallel(best: Estimate, request: PlanRequest) -> Reason:
    plan = best.plan
    batch = plan.global_batch // plan.data_parallel
    sentence = (
        f"d={plan.data_parallel} (data parallel): the {plan.num_gpus} GPUs that are left after "
        f"t={plan.tensor_parallel}, p={plan.pipeline_parallel}, c={plan.context_parallel}; each replica "
        f"trains {batch} of the {plan.global_batch} sequences as {plan.num_microbatches} "
        f"micro-batch{'es' if plan.num_microbatches > 1 else ''} of {plan.micro_batch}."
    )
    return Reason("data_parallel", plan.data_parallel, (), sentence)
