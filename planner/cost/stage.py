"""The load of a pipeline chunk: how many layers of each kind, and which ends of the model it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from planner.cost.terms import Quantity
from planner.spec.model import LayerKind, Model
from planner.spec.plan import Plan, Schedule, StagePlan

V_SHAPED: frozenset[Schedule] = frozenset({"zb-v", "dualpipe-v"})
"""Schedules whose second chunk runs back over the ranks: rank r holds stages r and 2p-1-r."""


@dataclass(frozen=True)
class ChunkLoad:
    """Contents of one chunk. Time and memory are linear in these counts, which may be arrays."""

    layers: Mapping[LayerKind, Quantity] = field(default_factory=dict)
    recompute_layers: Quantity = 0
    """Of the layers, how many are recomputed."""
    embedding: Quantity = 0
    """1 where the token embedding lives."""
    head: Quantity = 0
    """1 where the final norm, the LM head and the loss live."""
    mtp: Quantity = 0
    """Multi-token-prediction modules here."""

    @property
    def num_layers(self) -> Quantity:
        """Layers of all kinds."""
        return sum(self.layers.values(), 0)


def stage_order(schedule: Schedule, pipeline_parallel: int, virtual_stages: int) -> list[tuple[int, int]]:
    """Return (rank, chunk) of every stage in the order the data flows.

    Interleaved stages go round the ranks; V-shaped schedules turn back at the last rank.
    DualPipe feeds the pipe from both ends: each rank holds stage r and stage p-1-r of two model copies,
    and its chunks here are those of the first copy.
    """
    order = []
    for chunk in range(virtual_stages):
        ranks = range(pipeline_parallel)
        backwards = schedule in V_SHAPED and chunk % 2 == 1
        order += [(rank, chunk) for rank in (reversed(ranks) if backwards else ranks)]
    return order


def chunk_loads(plan: Plan, model: Model) -> list[list[ChunkLoad]]:
    """Return the load of every chunk as ``[pipeline rank][chunk]``.

    A plan without ``stages`` holds ``num_layers`` spread as evenly as possible, earlier stages first; where
    one or two layers are missing, the last stage (loss) and then the first (embedding) go without.
    Recomputed layers of a rank are spread over its chunks as ``spread_recomputed`` says.
    """
    counts = _layers_by_stage(plan, model)
    again = [spread_recomputed(stage.chunk_layers, stage.recompute_layers) for stage in plan.stages]
    loads: list[list[ChunkLoad]] = [
        [ChunkLoad()] * plan.virtual_stages for _ in range(plan.pipeline_parallel)
    ]
    order = stage_order(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)
    start = 0
    for index, (rank, chunk) in enumerate(order):
        kinds = Counter(model.layer_kinds[start : start + counts[index]])
        start += counts[index]
        loads[rank][chunk] = ChunkLoad(
            layers=dict(kinds),
            recompute_layers=again[rank][chunk] if again else counts[index] * (plan.recompute != "none"),
            embedding=int(index == 0),
            head=int(index == len(order) - 1),
            mtp=model.mtp_depth if index == len(order) - 1 else 0,
        )
    return loads


def with_stages(plan: Plan, model: Model) -> Plan:
    """Return the plan with its stages spelled out as ``chunk_loads`` places the layers."""
    if plan.stages:
        return plan
    stages = tuple(
        StagePlan(
            chunk_layers=tuple(int(chunk.num_layers) for chunk in chunks),
            recompute_layers=int(sum(chunk.recompute_layers for chunk in chunks)),
        )
        for chunks in chunk_loads(plan, model)
    )
    return plan.model_copy(update={"stages": stages})


def _layers_by_stage(plan: Plan, model: Model) -> list[int]:
    order = stage_order(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)
    if plan.stages:
        return [plan.stages[rank].chunk_layers[chunk] for rank, chunk in order]
    base, extra = divmod(model.num_layers, len(order))
    counts = [base + (index < extra) for index in range(len(order))]
    if base == 0 and len(order) - extra <= 2 < len(order):
        counts = [1] * len(order)
        counts[-1] = 0
        counts[0] = extra - (len(order) - 2)
    return counts


@lru_cache(maxsize=4096)
def spread_recomputed(chunk_layers: tuple[int, ...], recomputed: int) -> tuple[int, ...]:
    """Return the recomputed layers of each chunk of a rank: even, left-overs to the earlier chunks.

    A chunk that has fewer layers than its share recomputes all of them. Where nothing is left over, it is
    Megatron's "first n layers of every chunk" (``--recompute-num-layers``).
    """
    level = 0
    while level < max(chunk_layers) and sum(min(level + 1, layers) for layers in chunk_layers) <= recomputed:
        level += 1
    spread = [min(level, layers) for layers in chunk_layers]
    left = recomputed - sum(spread)
    for chunk, layers in enumerate(chunk_layers):
        if left > 0 and layers > level:
            spread[chunk] += 1
            left -= 1
    return tuple(spread)
