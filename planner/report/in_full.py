"""A plan in one sentence that leaves nothing out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from planner.cost.activations import selective_modules
from planner.cost.words import plan_words, setting_words
from planner.spec import Plan, PlanRequest
from planner.spec.plan import DEFAULT_ORDER, FAR_REPLICAS


def full_words(plan: Plan, request: PlanRequest) -> str:
    """Everything that a row of the ranking leaves out: sharding, sequence parallelism, layers by rank."""
    words = [plan_words(plan)]
    replicas = plan.data_parallel * plan.context_parallel
    if plan.zero_stage and plan.shard_group_size not in (1, replicas):
        words.append(f"state shared by groups of {plan.shard_group_size} of the {replicas} replicas")
    if plan.tensor_parallel > 1:
        words.append(f"{'with' if plan.sequence_parallel else 'without'} sequence parallelism")
    if plan.context_parallel > 1:
        words.append(f"context parallel by {plan.context_parallel_kind.replace('_', '-')}")
    if plan.rank_order == FAR_REPLICAS:
        words.append("pipeline neighbours near each other and data-parallel replicas far apart")
    if plan.recompute == "selective":
        words.append(f"recomputing {', '.join(selective_modules(plan, request))}")
    if plan.pipeline_parallel > 1 and plan.stages:
        words.append(_layers_words(plan))
    return ", ".join(words)


def unseen_settings(plans: Sequence[Plan]) -> list[str]:
    """What sets ranked plans apart but has no column, such as ``Optimizer offload: plans 1 and 4``."""
    found: dict[str, list[int]] = {}
    for rank, plan in enumerate(plans, 1):
        if plan.offload != "none":
            found.setdefault(f"{plan.offload.capitalize()} offload", []).append(rank)
        if plan.expert_tensor_parallel > 1:
            name = setting_words("expert_tensor_parallel", plan.expert_tensor_parallel)
            found.setdefault(f"Experts split over {name}", []).append(rank)
        if plan.rank_order != DEFAULT_ORDER:
            name = setting_words("rank_order", plan.rank_order).capitalize()
            found.setdefault(name, []).append(rank)
        if plan.precision != plans[0].precision:
            found.setdefault(f"In {plan.precision}", []).append(rank)
    return [f"{name}: {_ranks_words(ranks)}." for name, ranks in found.items()]


def _ranks_words(ranks: Sequence[int]) -> str:
    *first, last = map(str, ranks)
    return f"plans {', '.join(first)} and {last}" if first else f"plan {last}"


def _layers_words(plan: Plan) -> str:
    """Layers of every pipeline rank, equal neighbours together, and of its chunks: ``20 layers a rank``."""
    runs = [(layers, len(list(run))) for layers, run in groupby(stage.layers for stage in plan.stages)]
    listed = ", ".join(f"{count} x {layers}" if count > 1 else f"{layers}" for layers, count in runs)
    words = f"layers by rank {listed}" if len(runs) > 1 else f"{runs[0][0]} layers a rank"
    if plan.virtual_stages == 1:
        return words
    chunks = [layers for stage in plan.stages for layers in stage.chunk_layers]
    low, high = min(chunks), max(chunks)
    return f"{words} in chunks of {low if low == high else f'{low} to {high}'}"
