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
        both count as a layer (Megatron's account-for-embedding and account-for-loss options); else the
        remainder goes where the work is least, head and MTP counted by their FLOPs (a written layout).
        DualPipe is no exception: one rank holds both ends, but their work as well.
        ``cost``: nanotron's rule, by the number of matrix elements.
    """
    stages = plan.pipeline_parallel * plan.virtual_stages
    if split == "cost":
        counts = split_by_cost(model, stages)
    elif _is_even(model.num_layers, stages):
        counts = split_evenly(model.num_layers, stages)
    else:
        counts = split_by_load(model, plan)
    chunks = [[0] * plan.virtual_stages for _ in range(plan.pipeline_parallel)]
    order = stage_order(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)
    for count, (rank, chunk) in zip(counts, order, strict=True):
        chunks[rank][chunk] = count
    return tuple(
        StagePlan(chunk_layers=tuple(row), recompute_layers=0 if plan.recompute == "none" else sum(row))
        for row in chunks
    )


def _is_even(num_layers: int, stages: int) -> bool:
    """Whether the layers divide, with or without both ends counted as one, or do not even suffice."""
    return num_layers % stages == 0 or (num_layers + 2) % stages == 0 or num_layers < stages


def split_evenly(num_layers: int, stages: int) -> list[int]:
    """Layers of every stage: even, or one fewer at both ends, or the remainder to the first stages."""
    base, extra = divmod(num_layers, stages)
    if extra and stages > 1 and (num_layers + 2) % stages == 0:
        middle = (num_layers + 2) // stages
        return [middle - 1, *[middle] * (stages - 2), middle - 1]
    return [base + (index < extra) for index in range(stages)]


def split_by_load(model: Model, plan: Plan) -> list[int]:
    """Layers of every stage when head and multi-token prediction count as so many layers of the last one.

    Their work in layers is taken by FLOPs (an MTP module is a layer and the head again). The last stage gets
    what is left of an equal share, but a layer at least, the others the same number each; the rest goes
    where a rank has least.
    """
    order = stage_order(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)
    stages, layers = len(order), model.num_layers
    if stages == 1:
        return [layers]
    head = model.vocab_size * model.hidden_size / _active_elements(model)
    ends = head + model.mtp_depth * (1.0 + head)
    last = round((layers + ends) / stages - ends)
    last = min(max(last, 1), layers // stages)
    base, free = divmod(layers - last, stages - 1)
    counts = [base] * (stages - 1) + [last]
    work = [0.0] * plan.pipeline_parallel
    for (rank, _), count in zip(order, counts, strict=True):
        work[rank] += count
    work[order[-1][0]] += ends
    for _ in range(free):
        stage = min(range(stages - 1), key=lambda i: (counts[i], work[order[i][0]], i))
        counts[stage] += 1
        work[order[stage][0]] += 1.0
    return counts


def _active_elements(model: Model) -> float:
    """Matrix elements that a token meets in a typical layer: the last one, in a pattern of kinds the mean."""
    kinds = model.layer_kinds if model.layer_pattern else model.layer_kinds[-1:]
    elements = 0.0
    for kind in kinds:
        counts = layer_parameters(model, kind)
        routed = counts.routed_experts * model.experts_per_token / max(model.num_experts, 1)
        elements += counts.attention + counts.linear_mixer + counts.dense_mlp + counts.shared_experts + routed
    return elements / len(kinds)


def split_by_cost(model: Model, stages: int) -> list[int]:
    """Layers of every stage when blocks fill stages up to equal shares of the model's matrix elements.

    References
    ----------
    nanotron ``src/nanotron/models/base.py``: a stage takes blocks until their running cost reaches its share;
    the LM head is a block, the embedding costs nothing.
    """
    blocks = [_matrix_elements(model, index) for index in range(model.num_layers)]
    blocks.append(float(model.vocab_size * model.hidden_size))
    running = list(accumulate(blocks))
    counts, stage = [0] * stages, 0
    for index in range(model.num_layers):
        counts[stage] += 1
        if stage < stages - 1 and running[index] >= running[-1] * (stage + 1) / stages * (1 - 1e-9):
            stage += 1
    return counts


def _matrix_elements(model: Model, index: int) -> float:
    counts = layer_parameters(model, model.layer_kinds[index])
    return float(counts.total - counts.norms)
