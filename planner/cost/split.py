"""How a framework spreads layers over stages when nobody says: the stages of a plan that leaves them open."""

from __future__ import annotations

from itertools import accumulate
from typing import Literal

from planner.cost.parameters import layer_parameters
from planner.cost.stage import stage_order
from planner.spec.model import Model
from planner.spec.plan import Plan, StagePlan

Split = Literal["even", "cost"]


def default_stages(plan: Plan, model: Model, split: Split) -> tuple[StagePlan, ...]:
    """Return one ``StagePlan`` per pipeline rank for a plan that names none.

    Parameters
    ----------
    split
        ``even``: the same number of layers everywhere; where only the layers plus embedding and head divide,
        both count as a layer (Megatron's account-for-embedding and account-for-loss options); else earlier
        stages take the remainder. ``cost``: nanotron's rule, by the number of matrix elements.
    """
    stages = plan.pipeline_parallel * plan.virtual_stages
    counts = split_by_cost(model, stages) if split == "cost" else split_evenly(model.num_layers, stages)
    chunks = [[0] * plan.virtual_stages for _ in range(plan.pipeline_parallel)]
    order = stage_order(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)
    for count, (rank, chunk) in zip(counts, order, strict=True):
        chunks[rank][chunk] = count
    return tuple(
        StagePlan(chunk_layers=tuple(row), recompute_layers=0 if plan.recompute == "none" else sum(row))
        for row in chunks
    )


def split_evenly(num_layers: int, stages: int) -> list[int]:
    """Layers of every stage: even, or one fewer at both ends, or the remainder to the first stages."""
    base, extra = divmod(num_layers, stages)
    if extra and stages > 1 and (num_layers + 2) % stages == 0:
        middle = (num_layers + 2) // stages
        return [middle - 1, *[middle] * (stages - 2), middle - 1]
    return [base + (index < extra) for index in range(stages)]


def split_by_cost(model: Model, stages: int) -> list[int]:
    """Layers of every stage when blocks fill stages up to equal shares of the model's matrix elements.

    References
    ----------
    nanotron ``src/nanotron/models/base.py``: a stage takes blocks until their running cost passes its share;
    the LM head is a block, the embedding costs nothing.
    """
    blocks = [_matrix_elements(model, index) for index in range(model.num_layers)]
    blocks.append(float(model.vocab_size * model.hidden_size))
    running = list(accumulate(blocks))
    counts, stage = [0] * stages, 0
    for index in range(model.num_layers):
        counts[stage] += 1
        if stage < stages - 1 and running[index] > running[-1] * (stage + 1) / stages:
            stage += 1
    return counts


def _matrix_elements(model: Model, index: int) -> float:
    counts = layer_parameters(model, model.layer_kinds[index])
    return float(counts.total - counts.norms)
