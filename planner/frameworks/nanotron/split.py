"""How nanotron itself places layers on pipeline ranks: by cost, cumulatively."""

from __future__ import annotations

from planner.spec.model import Model


def split_layers(model: Model, pipeline_parallel: int) -> list[int]:
    """Return layers per rank.

    Notes
    -----
    Blocks in order (embedding, layers, final norm, head, loss) carry a cost: a layer the size of its
    matrices, the head its own, the rest nothing. A rank takes blocks until their running sum passes its
    share of the total (nanotron ``models/base.py: build_model``, ``get_block_compute_costs``).
    """
    return _placed(model, pipeline_parallel)[0]


def head_rank(model: Model, pipeline_parallel: int) -> int:
    """Return the rank that holds the head: a large one may stand before the last, which is then empty."""
    return _placed(model, pipeline_parallel)[1]


def _placed(model: Model, pipeline_parallel: int) -> tuple[list[int], int]:
    width = model.num_heads * model.head_dim
    layer = 4 * width * model.hidden_size + 3 * model.ffn_hidden_size * model.hidden_size
    total = layer * model.num_layers + model.vocab_size * model.hidden_size
    counts, rank, done = [0] * pipeline_parallel, 0, 0
    for block in range(model.num_layers + 1):  # the last is the final norm, which costs nothing
        if block < model.num_layers:
            counts[rank] += 1
            done += layer
        if done > total * (rank + 1) / pipeline_parallel and rank < pipeline_parallel - 1:
            rank += 1
    return counts, rank
