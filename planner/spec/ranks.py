"""Which global rank is which coordinate, in the order that the plan names.

``tp-cp-ep-dp-pp`` is Megatron's default and what torchtitan (``pp, dp_replicate, dp_shard, cp, tp``),
DeepSpeed (``pipe, data, model``) and nanotron (``pp, dp, cp, tp``) do: tensor ranks fastest, then context,
data and pipeline ranks. In ``tp-cp-ep-pp-dp`` (Megatron's ``--use-tp-pp-dp-mapping``) the last two change
places. Experts are laid over the ranks of one pipeline rank in a grid of their own: expert-tensor fastest,
then expert, then expert-data (``parallel_state.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.spec.plan import FAR_REPLICAS, Plan


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Place of one global rank in every group and on the cluster."""

    rank: int
    node: int
    local_rank: int
    tensor: int
    context: int
    data: int
    pipeline: int
    expert: int
    expert_tensor: int
    expert_data: int


def coordinates(plan: Plan, gpus_per_node: int) -> Iterator[Coordinate]:
    """Yield every rank's coordinate, in order of rank."""
    t, c, d, p = plan.tensor_parallel, plan.context_parallel, plan.data_parallel, plan.pipeline_parallel
    etp, ep, near = plan.expert_tensor_parallel, plan.expert_parallel, t * c
    for rank in range(plan.num_gpus):
        if plan.rank_order == FAR_REPLICAS:
            data, pipeline = divmod(rank // near, p)
        else:
            pipeline, data = divmod(rank // near, d)
        within = rank % near + near * data
        yield Coordinate(
            rank=rank,
            node=rank // gpus_per_node,
            local_rank=rank % gpus_per_node,
            tensor=rank % t,
            context=rank // t % c,
            data=data,
            pipeline=pipeline,
            expert=within // etp % ep,
            expert_tensor=within % etp,
            expert_data=within // (etp * ep),
        )


def groups(plan: Plan, dimension: str) -> list[list[int]]:
    """Return the ranks of every group along one dimension of ``Coordinate``, in order of first rank.

    ``tensor``, ``context``, ``data`` and ``pipeline`` vary alone; ``expert``, ``expert_tensor`` and
    ``expert_data`` vary alone within the expert grid.
    """
    dense = ("tensor", "context", "data", "pipeline")
    experts = ("expert", "expert_tensor", "expert_data", "pipeline")
    others = [name for name in (dense if dimension in dense else experts) if name != dimension]
    found: dict[tuple[int, ...], list[int]] = {}
    for coordinate in coordinates(plan, 1):
        found.setdefault(tuple(getattr(coordinate, name) for name in others), []).append(coordinate.rank)
    return list(found.values())
