"""What the framework can express: ZeRO stages, sharding groups, degrees, offload, number formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.cost.offload import OF_ACTIVATIONS, OF_PARAMETERS
from planner.rules.rule import Column, divides, implies, is_in, rule
from planner.rules.words import ranks_words
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(str(value) for value in values) or "none"


def _zero_limits(_plan: Plan, request: PlanRequest) -> dict[str, Any]:
    limits = request.framework.limits
    return {
        "stages": _listed(limits.zero_stages),
        "kinds": _listed(limits.context_parallel_kinds),
    }


@rule(source="framework limit", numbers=_zero_limits)
def framework_has_the_zero_stage(request: PlanRequest, zero_stage: Column) -> Column:
    """{request.framework.name} has no ZeRO-{zero_stage}, it has {stages}."""
    return is_in(zero_stage, request.framework.limits.zero_stages)


def _zero_with_pipeline(_plan: Plan, request: PlanRequest) -> dict[str, Any]:
    stages = request.framework.limits.zero_stages_with_pipeline
    if not stages:
        return {"with_a_pipeline": "it has no pipeline parallelism"}
    return {"with_a_pipeline": f"with a pipeline: {_listed(stages)}"}


@rule(
    source="DeepSpeed pipe/engine.py (ZeRO-2/3 refused); Megatron-LM arguments.py; transformers (none)",
    numbers=_zero_with_pipeline,
)
def zero_stage_goes_with_the_pipeline(
    request: PlanRequest, zero_stage: Column, pipeline_parallel: Column
) -> Column:
    """ZeRO-{zero_stage} does not go with {pipeline_parallel} pipeline ranks in {request.framework.name}
    ({with_a_pipeline}).
    """
    allowed = request.framework.limits.zero_stages_with_pipeline
    return implies(np.asarray(pipeline_parallel) > 1, is_in(zero_stage, allowed))


@rule(source="DeepSpeed engine.py: its own expert layers with ZeRO-3 refused; experts kept whole go")
def zero_stage_goes_with_experts(request: PlanRequest, zero_stage: Column, expert_parallel: Column) -> Column:
    """{request.framework.name} refuses ZeRO-{zero_stage} with {expert_parallel} expert ranks; without
    expert parallelism it shards them like any other layer.
    """
    parted = np.logical_and(request.model.is_moe, np.asarray(expert_parallel) > 1)
    refused = np.logical_and(parted, not request.framework.limits.zero3_with_experts)
    return implies(refused, np.asarray(zero_stage) < 3)


@rule(
    source="DeepSpeed auto_ep_folding.py: experts beside tensor ranks need pp = 1", field="pipeline_parallel"
)
def experts_and_tensor_ranks_go_with_the_pipeline(
    request: PlanRequest, pipeline_parallel: Column, expert_parallel: Column, tensor_parallel: Column
) -> Column:
    """{request.framework.name} does not run {expert_parallel} expert beside {tensor_parallel} tensor ranks in
    {pipeline_parallel} pipeline ranks.
    """
    folded = np.logical_and(np.asarray(expert_parallel) > 1, np.asarray(tensor_parallel) > 1)
    refused = np.logical_and(request.framework.limits.experts_with_tensor_exclude_pipeline, folded)
    return implies(refused, np.asarray(pipeline_parallel) == 1)


def _beside_replicas(plan: Plan, _request: PlanRequest) -> dict[str, Any]:
    return {
        "other_ranks": ranks_words(
            tensor=plan.tensor_parallel,
            context=plan.context_parallel,
            pipeline=plan.pipeline_parallel,
            expert=plan.expert_parallel,
        ),
        "replica_ranks": ranks_words(data=plan.data_parallel, context=plan.context_parallel),
        "expert_ranks": ranks_words(expert=plan.expert_parallel, expert_tensor=plan.expert_tensor_parallel),
        "context_and_expert_ranks": ranks_words(context=plan.context_parallel, expert=plan.expert_parallel),
        "times_tensor_ranks": f" times {plan.tensor_parallel} tensor ranks"
        if plan.tensor_parallel > 1
        else "",
    }


@rule(
    source="torchtitan parallelize.py (DDP alone), parallel_dims.py (experts); accelerate ParallelismConfig",
    numbers=_beside_replicas,
)
def plain_replicas_stand_alone(
    request: PlanRequest,
    zero_stage: Column,
    data_parallel: Column,
    tensor_parallel: Column,
    context_parallel: Column,
    pipeline_parallel: Column,
    expert_parallel: Column,
) -> Column:
    """{request.framework.name} does not combine {data_parallel} unsharded replicas (ZeRO-{zero_stage}) with
    {other_ranks}.
    """
    others = np.asarray(tensor_parallel) * context_parallel * pipeline_parallel * expert_parallel
    mixed = np.logical_and(np.asarray(data_parallel) > 1, others > 1)
    plain = np.logical_and(
        np.asarray(zero_stage) == 0, not request.framework.limits.plain_replication_combines
    )
    return np.logical_not(np.logical_and(mixed, plain))


@rule(source="accelerate FSDP plugin: dp_shard x cp > 1", numbers=_beside_replicas)
def sharding_has_more_than_one_rank(
    request: PlanRequest, zero_stage: Column, data_parallel: Column, context_parallel: Column
) -> Column:
    """ZeRO-{zero_stage} has nothing to shard over {replica_ranks}."""
    shards = np.logical_and(request.framework.limits.sharding_needs_replicas, np.asarray(zero_stage) > 0)
    return implies(shards, np.asarray(data_parallel) * context_parallel > 1)


@rule(source="ZeRO (arXiv 1910.02054): without sharding there is no shard group")
def unsharded_state_has_no_shard_group(
    request: PlanRequest, shard_group_size: Column, zero_stage: Column
) -> Column:
    """ZeRO-{zero_stage} shards nothing, so its shard group is 1, not {shard_group_size}."""
    return implies(np.asarray(zero_stage) == 0, np.asarray(shard_group_size) == 1)


def _hybrid(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    hybrid = request.framework.limits.hybrid_sharding
    groups = "all of them or a divisor (HSDP)" if hybrid else "all of them"
    return {**_beside_replicas(plan, request), "groups": groups}


@rule(
    source="HSDP: PyTorch FSDP HYBRID_SHARD; Megatron-LM (dp cp) % num_distributed_optimizer_instances",
    numbers=_hybrid,
)
def shard_group_divides_the_replicas(
    request: PlanRequest,
    shard_group_size: Column,
    zero_stage: Column,
    data_parallel: Column,
    context_parallel: Column,
) -> Column:
    """A shard group of {shard_group_size} does not suit {replica_ranks} with ZeRO-{zero_stage}: in
    {request.framework.name} it is {groups}.
    """
    replicas, group = np.asarray(data_parallel) * context_parallel, np.asarray(shard_group_size)
    suits = group == replicas
    if request.framework.limits.hybrid_sharding:
        suits = np.logical_or(suits, np.logical_and(group > 1, divides(group, replicas)))
    return implies(np.asarray(zero_stage) > 0, suits)


@rule(
    source="Megatron-LM parallel_state.py: expert replicas % instances; torchtitan: (dp_shard cp tp) % ep",
    numbers=_beside_replicas,
)
def shard_groups_divide_the_expert_replicas(
    request: PlanRequest,
    shard_group_size: Column,
    zero_stage: Column,
    tensor_parallel: Column,
    context_parallel: Column,
    data_parallel: Column,
    expert_parallel: Column,
    expert_tensor_parallel: Column,
) -> Column:
    """Shard groups of {shard_group_size} do not hold whole sets of experts: {expert_ranks} have to divide a
    group{times_tensor_ranks}.
    """
    replicas = np.asarray(data_parallel) * context_parallel
    group, experts = np.asarray(shard_group_size), np.asarray(expert_parallel) * expert_tensor_parallel
    whole = np.logical_and(divides(group, replicas), divides(experts, group * tensor_parallel))
    sharded = np.logical_and(np.asarray(zero_stage) > 0, request.model.is_moe)
    return implies(np.logical_and(sharded, group < replicas), whole)


def _maximum(limit: int | None) -> float:
    return np.inf if limit is None else limit


def _at_most(axis: str, most: int | None) -> dict[str, Any]:
    return {"at_most": f"no {axis} parallelism" if most == 1 else f"at most {most} {axis} ranks"}


def _most_tensor(_plan: Plan, request: PlanRequest) -> dict[str, Any]:
    return _at_most("tensor", request.framework.limits.max_tensor_parallel)


def _most_pipeline(_plan: Plan, request: PlanRequest) -> dict[str, Any]:
    return _at_most("pipeline", request.framework.limits.max_pipeline_parallel)


def _most_context(_plan: Plan, request: PlanRequest) -> dict[str, Any]:
    return _at_most("context", request.framework.limits.max_context_parallel)


@rule(source="framework limit", numbers=_most_tensor)
def tensor_ranks_within_framework_limit(request: PlanRequest, tensor_parallel: Column) -> Column:
    """{request.framework.name} runs {at_most}, and the plan has {tensor_parallel} tensor ranks."""
    return np.asarray(tensor_parallel) <= _maximum(request.framework.limits.max_tensor_parallel)


@rule(source="framework limit", numbers=_most_pipeline)
def pipeline_ranks_within_framework_limit(request: PlanRequest, pipeline_parallel: Column) -> Column:
    """{request.framework.name} runs {at_most}, and the plan has {pipeline_parallel} pipeline ranks."""
    return np.asarray(pipeline_parallel) <= _maximum(request.framework.limits.max_pipeline_parallel)


@rule(source="framework limit", numbers=_most_context)
def context_ranks_within_framework_limit(request: PlanRequest, context_parallel: Column) -> Column:
    """{request.framework.name} runs {at_most}, and the plan has {context_parallel} context ranks."""
    return np.asarray(context_parallel) <= _maximum(request.framework.limits.max_context_parallel)


@rule(source="framework limit", numbers=_zero_limits)
def framework_has_the_context_parallelism(
    request: PlanRequest, context_parallel_kind: Column, context_parallel: Column
) -> Column:
    """{request.framework.name} has no {context_parallel_kind} context parallelism for {context_parallel}
    ranks, it has: {kinds}.
    """
    known = is_in(context_parallel_kind, request.framework.limits.context_parallel_kinds)
    return implies(np.asarray(context_parallel) > 1, known)


@rule(source="framework limit: DeepSpeed, accelerate and MaxText's tensor axis have none")
def framework_has_sequence_parallelism(request: PlanRequest, sequence_parallel: Column) -> Column:
    """{request.framework.name} has no sequence parallelism over tensor ranks."""
    has = request.framework.limits.sequence_parallel
    return implies(not has, np.logical_not(sequence_parallel))


@rule(source="DeepSpeed pipe/engine.py: Ulysses runs outside the pipeline engine", field="pipeline_parallel")
def context_ranks_go_with_the_pipeline(
    request: PlanRequest, context_parallel: Column, pipeline_parallel: Column
) -> Column:
    """{request.framework.name} does not run {context_parallel} context ranks in {pipeline_parallel} pipeline
    ranks.
    """
    refused = np.logical_and(
        request.framework.limits.context_excludes_pipeline, np.asarray(context_parallel) > 1
    )
    return implies(refused, np.asarray(pipeline_parallel) == 1)


@rule(source="torchtitan parallel_dims.py and accelerate: FSDP over dp_shard x cp", field="shard_group_size")
def shard_groups_hold_the_context_ranks(
    request: PlanRequest, context_parallel: Column, shard_group_size: Column
) -> Column:
    """{request.framework.name} shards over its {context_parallel} context ranks too: a shard group is a
    multiple of them, not {shard_group_size}.
    """
    applies = np.logical_and(request.framework.limits.context_is_sharded, np.asarray(context_parallel) > 1)
    return implies(applies, divides(context_parallel, shard_group_size))


@rule(source="accelerate ParallelismConfig: dp_replicate > 1 needs dp_shard > 1", field="shard_group_size")
def shard_groups_hold_more_than_one_replica(
    request: PlanRequest,
    zero_stage: Column,
    data_parallel: Column,
    context_parallel: Column,
    shard_group_size: Column,
) -> Column:
    """{request.framework.name} does not replicate {data_parallel} times what ZeRO-{zero_stage} shards over
    {context_parallel} context ranks alone: shard groups are larger parts of all replicas than
    {shard_group_size} ranks.
    """
    sharded = np.logical_and(request.framework.limits.shard_groups_hold_replicas, np.asarray(zero_stage) > 0)
    replicated = np.logical_and(sharded, np.asarray(data_parallel) > 1)
    part = divides(shard_group_size, np.asarray(data_parallel) * context_parallel)
    return implies(replicated, np.logical_and(part, np.asarray(shard_group_size) > context_parallel))


@rule(
    source="MaxText base.yml: weights are spread over fsdp, context and expert axes",
    field="zero_stage",
    numbers=_beside_replicas,
)
def context_and_expert_ranks_shard_the_weights(
    request: PlanRequest,
    context_parallel: Column,
    expert_parallel: Column,
    zero_stage: Column,
    shard_group_size: Column,
) -> Column:
    """{request.framework.name} shards weights over its {context_and_expert_ranks}: that is ZeRO-3 with a
    shard group that is a multiple of them, not ZeRO-{zero_stage} over {shard_group_size}.
    """
    ranks = np.asarray(context_parallel) * expert_parallel
    whole = np.logical_and(np.asarray(zero_stage) == 3, divides(ranks, shard_group_size))
    return implies(np.logical_and(request.framework.limits.context_and_experts_need_zero3, ranks > 1), whole)


@rule(source="torchtitan 0.3: weight tying with a pipeline refused")
def tied_embeddings_go_with_the_pipeline(request: PlanRequest, pipeline_parallel: Column) -> Column:
    """{request.model.name} ties its embedding to its head, and {request.framework.name} does not split
    that over {pipeline_parallel} pipeline ranks.
    """
    refused = request.model.tied_embeddings and not request.framework.limits.tied_embeddings_with_pipeline
    return implies(refused, np.asarray(pipeline_parallel) == 1)


@rule(source="framework limit")
def framework_has_the_offload(request: PlanRequest, offload: Column) -> Column:
    """{request.framework.name} does not offload {offload}."""
    return is_in(offload, ("none", *request.framework.limits.offloads))


@rule(
    source="Megatron-LM optimizer_config.py: CPU optimizer needs the distributed one; ZeRO-Offload",
    field="zero_stage",
)
def optimizer_offload_needs_sharding(request: PlanRequest, offload: Column, zero_stage: Column) -> Column:
    """Optimizer offload works on a sharded optimizer (ZeRO-1 or more), not on ZeRO-{zero_stage}."""
    return implies(offload == "optimizer", np.asarray(zero_stage) > 0)


@rule(
    source="DeepSpeed config.py: offload_param with ZeRO-3 only; FSDP's CPUOffloadPolicy moves any shards",
    field="zero_stage",
)
def parameter_offload_needs_sharded_weights(
    request: PlanRequest, offload: Column, zero_stage: Column
) -> Column:
    """{request.framework.name} offloads parameters that are sharded, not under ZeRO-{zero_stage}."""
    stages = request.framework.limits.parameter_offload_zero_stages
    return implies(is_in(offload, OF_PARAMETERS), is_in(zero_stage, stages))


def _beside_offload(plan: Plan, request: PlanRequest) -> dict[str, str]:
    limits = request.framework.limits
    kinds = " or ".join(f"'{kind}'" for kind in limits.activation_offload_recompute)
    where = " without a pipeline" if limits.activation_offload_excludes_pipeline else ""
    return {"kinds": kinds, "where": where}


@rule(
    source="Megatron-LM transformer_config.py: CPU offloading needs pp = 1 and no recompute; transformers' "
    "gradient_checkpointing_kwargs, torchtune and MaxText offload the inputs of recomputed layers",
    numbers=_beside_offload,
)
def activation_offload_stands_alone(
    request: PlanRequest, offload: Column, pipeline_parallel: Column, recompute: Column
) -> Column:
    """{request.framework.name} offloads activations{where} with recompute {kinds}, not with
    {pipeline_parallel} pipeline ranks and recompute '{recompute}'.
    """
    limits = request.framework.limits
    alone = is_in(recompute, limits.activation_offload_recompute)
    if limits.activation_offload_excludes_pipeline:
        alone = np.logical_and(alone, np.asarray(pipeline_parallel) == 1)
    return implies(is_in(offload, OF_ACTIVATIONS), alone)


@rule(source="framework limit: number formats that it trains in")
def framework_has_the_precision(request: PlanRequest, precision: Column) -> Column:
    """{request.framework.name} does not train in {precision}."""
    return is_in(precision, request.framework.limits.precisions)


FRAMEWORK_RULES = (
    framework_has_the_zero_stage,
    pipeline_ranks_within_framework_limit,
    zero_stage_goes_with_the_pipeline,
    zero_stage_goes_with_experts,
    experts_and_tensor_ranks_go_with_the_pipeline,
    plain_replicas_stand_alone,
    sharding_has_more_than_one_rank,
    unsharded_state_has_no_shard_group,
    shard_group_divides_the_replicas,
    shard_groups_divide_the_expert_replicas,
    tensor_ranks_within_framework_limit,
    context_ranks_within_framework_limit,
    framework_has_the_context_parallelism,
    framework_has_sequence_parallelism,
    context_ranks_go_with_the_pipeline,
    shard_groups_hold_the_context_ranks,
    shard_groups_hold_more_than_one_replica,
    context_and_expert_ranks_shard_the_weights,
    tied_embeddings_go_with_the_pipeline,
    framework_has_the_offload,
    optimizer_offload_needs_sharding,
    parameter_offload_needs_sharded_weights,
    activation_offload_stands_alone,
    framework_has_the_precision,
)
