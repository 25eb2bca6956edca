"""A plan in one sentence that leaves nothing out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from planner.cost.activations import selective_modules
from planner.cost.words import plan_words, setting_words
from planner.spec import Plan, PlanRequest
from planner.spec.plan import DEFAULT_ORDER, FAR_REPLICAS
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.solver.result import Estimate

ROOMY_SHARES = (0.1, 0.05)
"""Shares of free memory: enough not to be called tight (``planner.solver.evaluate``), and half of it."""


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


def roomier_words(plans: Sequence[Estimate], usable_bytes: float) -> list[str]:
    """The fastest ranked plan with a tenth of the memory free, or a twentieth, where the first has less."""
    shares = [1 - plan.peak_memory_bytes / usable_bytes for plan in plans]
    for enough in ROOMY_SHARES:
        roomy = [rank for rank, share in enumerate(shares) if share >= enough]
        if roomy:
            rank = min(roomy, key=lambda rank: plans[rank].step_time_s)
            loss = 100 * (plans[rank].step_time_s / plans[0].step_time_s - 1)
            free = format_bytes(shares[rank] * usable_bytes)
            words = f"Plan {rank + 1} leaves {free} free for {loss:+.1f} % of step time."
            return [] if 0 in roomy else [words]
    return []


def _ranks_words(ranks: Sequence[int]) -> str:
    *first, last = map(str, ranks)
    return f"plans {', '.join(first)} and {last}" if first else f"plan {last}"


def _layers_words(plan: Plan) -> str:
    """Layers of every pipeline rank, equal neighbours together, and of its chunks: ``20 layers a rank``."""
    words = _runs_words([stage.layers for stage in plan.stages])
    if plan.virtual_stages == 1:
        return words
    chunks = [layers for stage in plan.stages for layers in stage.chunk_layers]
    low, high = min(chunks), max(chunks)
    return f"{words} in chunks of {low if low == high else f'{low} to {high}'}"


def _runs_words(layers: Sequence[int]) -> str:
    """Layers by rank: ``7 layers on rank 0, 8 on ranks 1 to 14, 7 on rank 15``."""
    if len(set(layers)) == 1:
        return f"{layers[0]} layers a rank"
    parts, first = [], 0
    for count, run in groupby(layers):
        last = first + len(list(run)) - 1
        where = f"rank {first}" if first == last else f"ranks {first} to {last}"
        parts.append(f"{count} on {where}")
        first = last + 1
    return ", ".join(parts).replace(" on ", " layer on " if layers[0] == 1 else " layers on ", 1)
