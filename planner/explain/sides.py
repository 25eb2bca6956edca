"""The alternatives of a setting: the plan with another value, priced, and the best plan with that value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.cost.layer_comm import orders_cost_the_same
from planner.errors import BadInput
from planner.explain.neighbours import LAYOUT_FIELDS, changed, neighbour_values, why_unchanged
from planner.explain.optimum import Optimum
from planner.rules import valid_values
from planner.rules.user import PIN_PREFIX
from planner.spec import Plan, PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate

MEMORY_RULE = "every_stage_fits_in_memory"
NEARLY_FITS = 0.2
"""A plan that needs this much more than there is may fit with another layout."""
NOTABLE_END = 0.02
"""Embedding and loss on the rank that sets the pace are worth a better layout from this share of the step."""


@dataclass(frozen=True)
class Side:
    """One alternative value of a setting.

    ``plan`` is None where the degrees do not divide; ``broken`` are sentences of broken rules other than
    memory; ``optimum`` is the best plan with this value, None where it was not searched for.
    """

    value: Any
    plan: Plan | None = None
    estimate: Estimate | None = None
    broken: tuple[str, ...] = ()
    memory: str = ""
    missing: str = ""
    """Why there is no plan to price."""
    optimum: Optimum | None = None

    @property
    def is_legal(self) -> bool:
        """Whether the plan could run."""
        return self.estimate is not None and not self.broken and not self.memory


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


def look(best: Estimate, request: PlanRequest, field: str, value: Any, plan: Plan | None = None) -> Side:
    """Price the plan with one setting changed.

    Parameters
    ----------
    plan
        The plan to price, where it is not the best one with that setting changed.
    """
    from planner.solver.evaluate import evaluate

    plan = plan or changed(best.plan, field, value, request)
    if plan is None:
        return Side(value, missing=why_unchanged(best.plan, field, value, request))
    try:
        estimate = _with_best_layout(evaluate(plan, request), field, request)
    except BadInput as error:
        return Side(value, plan, broken=(str(error),))
    broken = tuple(
        violation.sentence
        for violation in estimate.violations
        if violation.rule != MEMORY_RULE and not violation.rule.startswith(PIN_PREFIX)
    )
    memory = next((v.sentence for v in estimate.violations if v.rule == MEMORY_RULE), "")
    return Side(value, estimate.plan, estimate, broken, memory)


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


def without_pipeline(best: Estimate, request: PlanRequest, stages: Sequence[int]) -> list[Side]:
    """The textbook's plans: tensor ranks fill the fast domain, replicas do the rest, at some ZeRO stages.

    Each with the largest micro-batch that makes it faster and fits; one side that says why where there is no
    plan without a pipeline.
    """
    wide = (
        None
        if request.model.is_moe
        else changed(best.plan, "tensor_parallel", request.cluster.nvlink_domain, request)
    )
    plan = changed(wide or best.plan, "pipeline_parallel", 1, request)
    if plan is None:
        return [Side(1, missing=why_unchanged(wide or best.plan, "pipeline_parallel", 1, request))]
    sharded = [changed(plan, "zero_stage", stage, request) for stage in stages]
    sides = [look(best, request, "zero_stage", each.zero_stage, each) for each in sharded if each is not None]
    return [_largest_cut(side, best, request) for side in sides]


def _largest_cut(side: Side, best: Estimate, request: PlanRequest) -> Side:
    """The same plan with larger micro-batches, as long as that makes it faster and it fits."""
    while side.plan is not None and side.estimate is not None and side.is_legal:
        plan = changed(side.plan, "micro_batch", 2 * side.plan.micro_batch, request)
        if plan is None:
            break
        larger = look(best, request, "zero_stage", side.value, plan)
        faster = larger.estimate and larger.estimate.step_time_s < side.estimate.step_time_s
        if larger.broken or larger.memory or not faster:
            break
        side = larger
    return side
