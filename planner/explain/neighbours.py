"""Plans one step away: change one setting and let the plan follow, as a person would on paper."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.cost.words import setting_words
from planner.errors import BadInput
from planner.explain.sentences import lower_first
from planner.rules import TABULAR_RULES, mask
from planner.rules.rank_order import RANK_ORDER_RULES
from planner.spec import Plan, PlanRequest
from planner.spec.plan import DEFAULT_ORDER

if TYPE_CHECKING:
    from planner.solver.result import Estimate

V_SCHEDULES = frozenset({"zb-v", "dualpipe-v"})
"""Schedules whose ranks hold two chunks."""

LAYOUT_FIELDS = frozenset({"pipeline_parallel", "virtual_stages", "schedule"})
"""Fields whose change makes the old stages meaningless."""


ENDS = 2
"""Embedding and loss may take a stage each."""


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    low = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return low + [number // value for value in reversed(low) if value * value != number]


def neighbour_values(plan: Plan, field: str, request: PlanRequest) -> tuple[Any, Any]:
    """Return the next smaller and the next larger value of a numeric field (None at the end of its range).

    Values that a rule over this field alone refuses (heads that do not divide) are passed over, unless there
    is no other on that side: then the rule is what ends the range.
    """
    here = int(getattr(plan, field))
    values = candidates(plan, field, request)
    alone = [rule for rule in TABULAR_RULES if rule.scope == (field,)]
    admitted = set(np.asarray(values)[mask(alone, request, {field: np.asarray(values)})].tolist())
    below = [value for value in values if value < here]
    above = [value for value in values if value > here]
    lower = [value for value in below if value in admitted] or below
    higher = [value for value in above if value in admitted] or above
    return (lower[-1] if lower else None), (higher[0] if higher else None)


def candidates(plan: Plan, field: str, request: PlanRequest) -> list[int]:
    """Values of a numeric field that divide what they split, ascending; rules may refuse some of them."""
    if field == "zero_stage":
        return list(range(4))
    if field == "virtual_stages":
        return list(range(1, plan.virtual_stages + 2))
    if field == "shard_group_size":
        return divisors(plan.data_parallel * plan.context_parallel)
    if field == "micro_batch":
        return divisors(max(1, plan.global_batch // plan.data_parallel))
    if field == "expert_parallel":
        return divisors(max(1, request.model.num_experts))
    return divisors(request.cluster.num_gpus)


def changed(plan: Plan, field: str, value: Any, request: PlanRequest) -> Plan | None:
    """Return the plan with one setting changed and the dependent ones following.

    ``data_parallel`` refills the cluster, ``num_microbatches`` the batch, the schedule and the shard group
    adapt. None when no such plan exists (the degrees do not divide the cluster or the batch).
    """
    values = plan.model_dump()
    values[field] = value
    values["stages"] = () if field in LAYOUT_FIELDS else plan.stages
    if field == "recompute":
        again = value != "none"
        values["stages"] = [
            {"chunk_layers": stage.chunk_layers, "recompute_layers": stage.layers * again}
            for stage in plan.stages
        ]
    if field == "pipeline_parallel" and value > request.model.num_layers:
        return None
    if field != "data_parallel":
        gpus = plan.num_gpus if request.allow_idle else request.cluster.num_gpus
        ranks = values["tensor_parallel"] * values["pipeline_parallel"] * values["context_parallel"]
        values["data_parallel"], rest = divmod(gpus, ranks)
        if rest:
            return None
    _follow_schedule(values, field, request.model.num_layers)
    if not _follow_batch(values, _batch(plan, request), field):
        return None
    if field != "shard_group_size":
        _follow_state(values, plan)
    if field == "tensor_parallel" and value != plan.tensor_parallel:
        splits = plan.sequence_parallel or plan.tensor_parallel == 1
        values["sequence_parallel"] = value > 1 and splits and request.framework.limits.sequence_parallel
        if plan.expert_tensor_parallel == plan.tensor_parallel > 1:
            values["expert_tensor_parallel"] = value
    return _with_legal_order(Plan.model_validate(values), field, request)


def _with_legal_order(plan: Plan, field: str, request: PlanRequest) -> Plan:
    """The plan in the default rank order where it has none of its own with the new degrees."""
    if field == "rank_order" or all(rule.admits(plan, request) for rule in RANK_ORDER_RULES):
        return plan
    return plan.model_copy(update={"rank_order": DEFAULT_ORDER})


def why_unchanged(plan: Plan, field: str, value: Any, request: PlanRequest) -> str:
    """Say why ``changed`` finds no plan: the value itself, or what it leaves of the GPUs or of the batch."""
    name = setting_words(field, value)
    alone = plan.model_copy(update={field: value})
    for rule in TABULAR_RULES:
        if rule.scope == (field,) and not rule.admits(alone, request):
            return f"{name} is not allowed: {lower_first(rule.broken_sentence(alone, request))}"
    if field == "pipeline_parallel" and value > request.model.num_layers:
        return f"{name} is more than the {request.model.num_layers} layers of the model"
    degrees = {"tensor_parallel": "t", "pipeline_parallel": "p", "context_parallel": "c"}
    sizes = {key: value if key == field else getattr(plan, key) for key in degrees}
    gpus = plan.num_gpus if request.allow_idle else request.cluster.num_gpus
    replicas, rest = divmod(gpus, math.prod(sizes.values()))
    said = ", ".join(f"{degrees[key]}={size}" for key, size in sizes.items() if key != field)
    if replicas == 0:
        return f"{name} does not go with {said}: they need {math.prod(sizes.values())} GPUs, there are {gpus}"
    if rest:
        return f"{name} does not go with {said}: {gpus} GPUs do not divide by their product"
    batch = _batch(plan, request)
    if replicas > batch:
        return f"{name} leaves d={replicas} replicas, more than the {batch} sequences of a step"
    return f"{name} leaves d={replicas} replicas, over which {batch} sequences do not divide"


def adapted(plan: Plan, request: PlanRequest) -> Plan | None:
    """Return the plan with its replicas and micro-batches fitted to another cluster or batch."""
    return changed(plan, "tensor_parallel", plan.tensor_parallel, request)


def adapted_price(plan: Plan, request: PlanRequest) -> Estimate | None:
    """Price the plan under a changed request; None where it has no counterpart or cannot be scheduled."""
    from planner.solver.evaluate import evaluate

    ours = adapted(plan, request)
    if ours is None:
        return None
    try:
        return evaluate(ours, request)
    except BadInput:  # a schedule that cannot run so many micro-batches has no price
        return None


def _follow_schedule(values: dict[str, Any], field: str, num_layers: int) -> None:
    if values["pipeline_parallel"] == 1:
        values["schedule"], values["virtual_stages"] = "none", 1
        return
    if field == "pipeline_parallel" and values["schedule"] == "interleaved":
        most = (num_layers + ENDS) // values["pipeline_parallel"]
        values["virtual_stages"] = max(1, min(values["virtual_stages"], most))
        values["schedule"] = "interleaved" if values["virtual_stages"] > 1 else "1f1b"
    if field == "schedule":
        if values["schedule"] in V_SCHEDULES:
            values["virtual_stages"] = 2
        elif values["schedule"] == "interleaved":
            values["virtual_stages"] = max(2, values["virtual_stages"])
        else:
            values["virtual_stages"] = 1
    elif values["schedule"] == "none" or field == "virtual_stages":
        values["schedule"] = "interleaved" if values["virtual_stages"] > 1 else "1f1b"


def _batch(plan: Plan, request: PlanRequest) -> int:
    low, high = request.workload.global_batch, request.workload.global_batch_max
    return plan.global_batch if high is not None and low <= plan.global_batch <= high else low


def _follow_batch(values: dict[str, Any], batch: int, field: str) -> bool:
    if values["data_parallel"] == 0:
        return False
    replica, rest = divmod(batch, values["data_parallel"])
    if rest or replica == 0:
        return False
    if field == "num_microbatches":
        values["micro_batch"], rest = divmod(replica, values["num_microbatches"])
        return rest == 0 and bool(values["micro_batch"])
    if field != "micro_batch" and replica % values["micro_batch"]:
        values["micro_batch"] = 1
    values["num_microbatches"], rest = divmod(replica, values["micro_batch"])
    return rest == 0 and bool(values["num_microbatches"])


def _follow_state(values: dict[str, Any], plan: Plan) -> None:
    was_full = plan.shard_group_size == plan.data_parallel * plan.context_parallel or plan.zero_stage == 0
    full = values["data_parallel"] * values["context_parallel"]
    if values["zero_stage"] == 0:
        values["shard_group_size"] = 1
    elif was_full or full % values["shard_group_size"]:
        values["shard_group_size"] = full
