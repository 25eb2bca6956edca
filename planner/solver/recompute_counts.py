"""How many layers each rank of a layout has to recompute so that all fit, as a framework can say it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from planner.cost.memory import DOUBLE_MODEL, stage_memory
from planner.cost.stage import ChunkLoad
from planner.solver.layout_passes import may_skip_recompute
from planner.solver.price import Layout, SettingPrice, merged
from planner.spec.model import LayerKind

Fits = list[list[int]]
"""Counts of recomputed layers with which each rank's load fits, ascending."""


def least_recomputed(price: SettingPrice, layers: tuple[int, ...]) -> tuple[int, ...] | None:
    """Fewest recomputed layers with which every rank fits, as the framework can say it; None if none do.

    A setting without recompute recomputes nothing, and one with it something: what fits without belongs
    to the setting without. Where the user rules that one out, every layer is recomputed.
    """
    ranks = [merged(chunks) for chunks in price.loads(Layout(layers, (0,) * price.p))]
    fitting = _fitting_in_pairs(price, ranks) if price.schedule in DOUBLE_MODEL else _fitting(price, ranks)
    if not all(fitting):
        return None
    if price.values["recompute"] == "none":
        return (0,) * price.p
    if not may_skip_recompute(price.request):
        held = tuple(int(load.num_layers) for load in ranks)
        return held if all(count in fits for count, fits in zip(held, fitting, strict=True)) else None
    if all(0 in fits for fits in fitting):
        return None
    return _expressible(price, fitting, layers)


def _expressible(price: SettingPrice, fitting: Fits, layers: tuple[int, ...]) -> tuple[int, ...] | None:
    """Fewest recomputed layers of every rank that the framework can say, of those with which it fits.

    Rank by rank; or the first n layers of every chunk; or, where no part of a chunk is possible, all.
    """
    if price.request.framework.limits.recompute_per_stage:
        return tuple(fits[0] for fits in fitting)
    chunks = price.chunk_layers(layers)
    most = max(max(held) for held in chunks)
    for first in range(1 if _is_partial(price) else most, most + 1):
        counts = tuple(sum(min(first, layers) for layers in held) for held in chunks)
        if all(count in fits for count, fits in zip(counts, fitting, strict=True)):
            return counts
    return None


def _is_partial(price: SettingPrice) -> bool:
    return price.request.framework.limits.recomputes_partially(price.values["recompute"])


def _fitting(price: SettingPrice, ranks: list[ChunkLoad]) -> Fits:
    """Counts that fit where every rank holds its own stages alone."""
    fits: Fits = [[] for _ in ranks]
    groups: dict[frozenset[LayerKind], list[int]] = {}
    for rank, load in enumerate(ranks):
        groups.setdefault(frozenset(load.layers), []).append(rank)
    for kinds, members in groups.items():
        loads = [ranks[rank] for rank in members]
        held = np.array([[load.num_layers] for load in loads])
        most = int(held.max(initial=0)) if price.values["recompute"] != "none" else 0
        tried = np.arange(most + 1)[None, :]
        total = _bytes(price, kinds, loads, tried, np.array(members)[:, None])
        allowed = (total <= price.request.cluster.usable_hbm_bytes) & (tried <= held)
        if not _is_partial(price):
            allowed &= (tried == 0) | (tried == held)
        for rank, row in zip(members, allowed, strict=True):
            fits[rank] = np.flatnonzero(row).tolist()
    return fits


def _fitting_in_pairs(price: SettingPrice, ranks: list[ChunkLoad]) -> Fits:
    """The same where a rank holds the stage of rank p-1-r as well, which recomputes as many layers."""
    held = [int(load.num_layers) for load in ranks]
    most = max(held) if price.values["recompute"] != "none" else 0
    tried = np.arange(most + 1)
    counts = [np.minimum(tried, layers) for layers in held]
    loads = [replace(load, recompute_layers=count) for load, count in zip(ranks, counts, strict=True)]
    fits = np.array(
        [
            stage_memory(load, price.setting, price.request, rank, mirror).total
            <= price.request.cluster.usable_hbm_bytes
            for rank, (load, mirror) in enumerate(zip(loads, reversed(loads), strict=True))
        ]
    )
    fits = fits & fits[::-1]
    if not _is_partial(price):
        fits[:, 1:most] = False
    return [np.unique(count[row]).tolist() for count, row in zip(counts, fits, strict=True)]


def _bytes(
    price: SettingPrice, kinds: frozenset[LayerKind], loads: list[ChunkLoad], tried: Any, ranks: Any
) -> Any:
    """Peak memory as [load, recomputed layers]. [byte]."""

    def column(values: list[Any]) -> Any:
        return np.array(values)[:, None]

    load = ChunkLoad(
        {kind: column([load.layers[kind] for load in loads]) for kind in kinds},
        tried,
        column([load.embedding for load in loads]),
        column([load.head for load in loads]),
        column([load.mtp for load in loads]),
    )
    total = stage_memory(load, price.setting, price.request, ranks).total
    return np.broadcast_to(total, (len(loads), tried.shape[1]))
