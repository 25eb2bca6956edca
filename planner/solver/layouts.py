"""Which layouts of a setting's layers the solver looks at, as arrays [layout, stage] in the data's order.

One chunk a rank may hold any number of layers. With several chunks, every stage but the first and the last
holds q or q + 1 layers, q = layers / stages rounded down (at least 1), and these two at most q + 1. Where
that leaves more layouts than can be priced one by one, ranks are loaded alike: in each round of chunks all
hold the same number of layers, the larger rounds stand together, and only the first and the last stage may
hold fewer (relief for embedding and loss). Uneven chunks elsewhere make ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from planner.catalog.defaults import MOST_SPREAD, NEAR_EVEN
from planner.solver.price import SettingPrice

Counts = npt.NDArray[np.int64]
MOST_STAGES = 512
"""Stages of the longest pipeline whose layouts are counted."""
MOST_LAYOUTS = 64
"""Up to so many layouts of one setting are all priced."""


def counts_allowed(price: SettingPrice, stage: int) -> tuple[int, int]:
    """Fewest and most layers of a stage (in the order of the data flow)."""
    stages, layers = len(price.order), price.request.model.num_layers
    if price.v == 1:
        return 1, layers - stages + 1
    least = layers // stages
    if stage in (0, stages - 1):
        return _least_at_ends(price), least + 1
    return max(least, 1), least + 1


def _least_at_ends(price: SettingPrice) -> int:
    return 1 if price.request.framework.limits.uneven_stages != "any" else 0


def every_layout(price: SettingPrice) -> Counts | None:
    """Every layout of the solver's space, None where one chunk a rank leaves too many to list."""
    layers, p, v = price.request.model.num_layers, price.p, price.v
    if p == 1:
        return np.array([[layers]])
    uneven = price.request.framework.limits.uneven_stages
    if uneven != "any":
        return _even_or_ends(layers, p, v, uneven == "ends", tuple(rank for rank, _ in price.order))
    listed = _listed(tuple(counts_allowed(price, stage) for stage in range(len(price.order))), layers)
    if listed is None and v > 1:
        rounds = equal_rounds(layers, p, v, _least_at_ends(price))
        return _with_layers_on_every_rank(rounds, price) if len(rounds) else None
    return listed if listed is None else _with_layers_on_every_rank(listed, price)


def _with_layers_on_every_rank(layouts: Counts, price: SettingPrice) -> Counts:
    ranks = np.array([rank for rank, _ in price.order])
    return layouts[np.all(layouts @ (ranks[:, None] == np.arange(price.p)) > 0, axis=1)]


@lru_cache(maxsize=512)
def _listed(ranges: tuple[tuple[int, int], ...], layers: int) -> Counts | None:
    """Every way to choose one count in each range with the sum ``layers``, None beyond ``MOST_LAYOUTS``."""
    if len(ranges) > MOST_STAGES or _number(ranges, layers) > MOST_LAYOUTS:
        return None
    return _array(_fill(ranges, layers), len(ranges))


def _number(ranges: tuple[tuple[int, int], ...], layers: int) -> int:
    """Ways to choose one count in each range with the sum ``layers``, at most one above ``MOST_LAYOUTS``."""
    ways, totals = np.zeros(layers + 1, dtype=np.int64), np.arange(layers + 1)
    ways[0] = 1
    for least, highest in ranges:
        below = np.concatenate(([0], np.cumsum(ways)))
        stop, start = (np.clip(totals - count, 0, layers + 1) for count in (least - 1, highest))
        ways = np.clip(below[stop] - below[start], 0, MOST_LAYOUTS + 1)
    return int(ways[layers])


def _fill(ranges: tuple[tuple[int, int], ...], layers: int) -> Iterator[tuple[int, ...]]:
    if not ranges:
        if layers == 0:
            yield ()
        return
    (least, highest), rest = ranges[0], ranges[1:]
    fewest, most = sum(low for low, _ in rest), sum(high for _, high in rest)
    for count in range(max(least, layers - most), min(highest, layers - fewest) + 1):
        for counts in _fill(rest, layers - count):
            yield (count, *counts)


@lru_cache(maxsize=512)
def equal_rounds(layers: int, p: int, v: int, least_at_ends: int) -> Counts:
    """Layouts whose ranks hold equal chunks, but for fewer layers in the first and the last stage.

    Parameters
    ----------
    least_at_ends
        Fewest layers of these two.
    """
    return _array(_rounds(layers, p, v, least_at_ends), p * v)


def _rounds(layers: int, p: int, v: int, least_at_ends: int) -> Iterator[tuple[int, ...]]:
    per_rank = max(-(-layers // p), v)
    while p * per_rank - layers <= 2 * (per_rank // v + 1 - least_at_ends):
        small, larger = divmod(per_rank, v)
        relief = p * per_rank - layers
        for before in range(v - larger + 1 if larger else 1):
            rounds = [small + (before <= chunk < before + larger) for chunk in range(v)]
            for first in range(min(relief, rounds[0] - least_at_ends) + 1):
                last = relief - first
                if last <= rounds[-1] - least_at_ends:
                    counts = [held for held in rounds for _ in range(p)]
                    counts[0] -= first
                    counts[-1] -= last
                    yield tuple(counts)
        per_rank += 1


@lru_cache(maxsize=512)
def _even_or_ends(layers: int, p: int, v: int, ends: bool, ranks: tuple[int, ...]) -> Counts:
    """Layouts that a framework can write which spreads evenly, or sets the first and the last rank apart."""
    return _array(_even_or_ends_of(layers, p, v, ends, ranks), p * v)


def _even_or_ends_of(
    layers: int, p: int, v: int, ends: bool, ranks: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    if layers % v:
        return
    per_chunk = layers // v
    if not ends:
        if per_chunk % p == 0:
            yield tuple([per_chunk // p] * (p * v))
        return
    near = per_chunk if per_chunk <= MOST_SPREAD else NEAR_EVEN
    even = per_chunk // p
    for middle in range(max(even - near, 1), min(even + near, per_chunk)) if p > 2 else (1,):
        rest = per_chunk - (p - 2) * middle
        for first in range(max(rest // 2 - near, 1), min(rest // 2 + near, rest)):
            held = [first, *([middle] * (p - 2)), rest - first]
            yield tuple(held[rank] for rank in ranks)


def _array(layouts: Iterator[tuple[int, ...]], stages: int) -> Counts:
    return np.array(list(layouts), dtype=np.int64).reshape(-1, stages)


def near_even(price: SettingPrice) -> tuple[int, ...]:
    """A layout with every rank's work close to the mean, both ends of the model counted as layers."""
    stages, layers = len(price.order), price.request.model.num_layers
    mean = sum(sum(times[:3]) for times in price.kinds.values()) / len(price.kinds)
    ends = [0.0] * stages
    ends[0] += sum(price.embedding[:3])
    ends[-1] += sum(price.head[:3])
    counts = [counts_allowed(price, stage)[0] for stage in range(stages)]
    room = [counts_allowed(price, stage)[1] for stage in range(stages)]
    for _ in range(layers - sum(counts)):
        loaded = [
            (counts[stage] * mean + ends[stage], stage)
            for stage in range(stages)
            if counts[stage] < room[stage]
        ]
        counts[min(loaded)[1]] += 1
    return tuple(counts)
