"""Layouts worth pricing first, and all layouts where a framework can write down only a few.

The solver's layouts: one chunk a rank may hold any number of layers. With several chunks a rank, every
stage but the first and the last holds q or q + 1 layers, q = layers / stages rounded down (at least 1), and
these two at most q + 1: relief at the ends, as frameworks offer it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from planner.solver.price import SettingPrice

MOST_STAGES = 512
"""Stages of the longest pipeline whose layouts are counted."""


def counts_allowed(price: SettingPrice, stage: int) -> tuple[int, int]:
    """Fewest and most layers of a stage (in the order of the data flow)."""
    stages, layers = len(price.order), price.request.model.num_layers
    if price.v == 1:
        return 1, layers - stages + 1
    least = layers // stages
    if stage in (0, stages - 1):
        return (1 if price.request.framework.limits.uneven_stages != "any" else 0), least + 1
    return max(least, 1), least + 1


def framework_layouts(price: SettingPrice) -> Iterator[tuple[int, ...]] | None:
    """Every layout that a framework with ``even`` or ``ends`` can write; None where any layout goes."""
    uneven = price.request.framework.limits.uneven_stages
    if price.p == 1 or uneven == "any":
        return None if price.p > 1 and uneven == "any" else iter([_one_rank(price)])
    return _even_or_ends(price, ends=uneven == "ends")


def all_layouts(price: SettingPrice, most: int) -> Iterator[tuple[int, ...]] | None:
    """Every layout of the solver's space, None when there are more than ``most``."""
    ranges = tuple(counts_allowed(price, stage) for stage in range(len(price.order)))
    if len(ranges) > MOST_STAGES or _number(ranges, price.request.model.num_layers) > most:
        return None
    return _fill(ranges, price.request.model.num_layers)


@lru_cache(maxsize=4096)
def _number(ranges: tuple[tuple[int, int], ...], layers: int) -> int:
    """Ways to choose one count in each range with the sum ``layers``."""
    ways = [1, *([0] * layers)]
    for least, highest in ranges:
        ways = [
            sum(ways[total - count] for count in range(least, min(highest, total) + 1))
            for total in range(layers + 1)
        ]
    return ways[layers]


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


def _one_rank(price: SettingPrice) -> tuple[int, ...]:
    return (price.request.model.num_layers,)


def _even_or_ends(price: SettingPrice, ends: bool) -> Iterator[tuple[int, ...]]:
    layers, p, v = price.request.model.num_layers, price.p, price.v
    if layers % v:
        return
    per_chunk = layers // v
    if not ends:
        if per_chunk % p == 0:
            yield tuple([per_chunk // p] * (p * v))
        return
    for middle in range(1, per_chunk) if p > 2 else (1,):
        rest = per_chunk - (p - 2) * middle
        for first in range(1, rest):
            ranks = [first, *([middle] * (p - 2)), rest - first]
            yield tuple(ranks[rank] for rank, _ in price.order)


def near_even(price: SettingPrice) -> tuple[int, ...]:
    """A layout with every rank's work close to the mean, both ends of the model counted as layers."""
    stages, layers = len(price.order), price.request.model.num_layers
    mean = sum(sum(times[:3]) for times in price.kinds.values()) / len(price.kinds)
    ends = [0.0] * stages
    ends[0] += sum(price.first[:3])
    ends[-1] += sum(price.last[:3])
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
