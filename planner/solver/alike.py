"""Settings that share their layouts: what each layout takes at least, and how it fits, all at once.

The busiest rank's work and what would follow it rule out most layouts; of the others memory says how much
each rank recomputes; then the chains of operations that are known bound the makespan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.cost.data_parallel import tail_time
from planner.cost.memory import DOUBLE_MODEL, merge_loads, stage_memory
from planner.cost.orders import BIDIRECTIONAL
from planner.cost.setting import Settings
from planner.cost.stage import ChunkLoad, stage_order
from planner.cost.states import load_local_parameters
from planner.solver.chain_pool import ChainPool
from planner.solver.layout_passes import Counts, least_passes, recomputes_all
from planner.solver.rank_shares import RankShares, Shares
from planner.solver.recompute_counts import fewest, spread, tried
from planner.solver.scale import ROUND_OFF
from planner.solver.space import Rows
from planner.solver.tables import (
    CATEGORIES,
    OF_TAIL,
    Floats,
    WorkTimes,
    settings_by_category,
    settings_of_memory,
)
from planner.spec.plan import Schedule
from planner.spec.request import PlanRequest

Index = npt.NDArray[np.int64]
NEAR = 1.1
"""Layouts whose busiest rank works up to this factor longer than the least possible are looked at closely."""
MOST_CELLS = 2_000_000
"""Entries of the largest array: 16 MB."""


@dataclass(frozen=True)
class Alike:
    """Settings with the same schedule, p, v, m and kind of recompute, one entry each.

    All of them, or none, offload activations.
    """

    rows: Rows
    work: WorkTimes
    fixed: Floats
    """Beside the makespan and what follows it. [s]"""
    growth: Floats
    request: PlanRequest

    def __len__(self) -> int:
        return len(self.fixed)

    def take(self, chosen: Index) -> Alike:
        """Some of them."""
        return Alike(
            self.rows.take(chosen), self.work.take(chosen), self.fixed[chosen], self.growth[chosen],
            self.request,
        )  # fmt: skip

    def value(self, field: str) -> Any:
        """The value of a field that all share."""
        return self.rows.value(field, 0)

    @cached_property
    def shape(self) -> tuple[Schedule, int, int, int]:
        """What chains depend on: schedule, p, v, m."""
        names = ("schedule", "pipeline_parallel", "virtual_stages", "num_microbatches")
        schedule, p, v, m = (self.value(name) for name in names)
        return schedule, p, v, m

    @cached_property
    def places(self) -> Index:
        """(rank, chunk) of every stage in the data's order, as [2, stage]."""
        return _places(*self.shape[:3])

    @property
    def is_two_way(self) -> bool:
        """Whether each rank works on the stages of two."""
        return self.value("schedule") in BIDIRECTIONAL

    def step(self, seconds: Floats) -> Floats:
        """Step time of a makespan and what follows it, as [setting, layout]. [s]."""
        return np.asarray((seconds + self.fixed[:, None]) * self.growth[:, None])


@lru_cache(maxsize=256)
def _places(schedule: Schedule, p: int, v: int) -> Index:
    return np.array(stage_order(schedule, p, v)).T


@dataclass(frozen=True)
class Close:
    """Layouts of one setting that fit and may be fast enough, one entry each."""

    shares: RankShares
    """These layouts and others."""
    index: Index
    """Which of those."""
    least_s: Floats
    """Step time at least. [s]"""
    after_s: Floats
    """What follows the makespan at least. [s]"""
    recomputed: Counts
    """Recomputed layers as [layout, rank]."""
    chains: int
    """``least_s`` contains the first so many of the known chains."""


def bounded(
    alike: Alike, shares: RankShares, worth_s: Floats, chains: ChainPool
) -> tuple[Floats, list[Close | None]]:
    """Lower bounds of the step time of every setting over all layouts, and layouts that may reach its worth.

    Parameters
    ----------
    worth_s
        One a setting: layouts at or above it do not matter. [s]

    Notes
    -----
    A layout is dropped as soon as its bound is not below the worth of any setting, and a setting when none of
    its layouts is below its own; until then bounds of settings and layouts are kept as [setting, layout].
    """
    longest, paces = _longest(_busy(alike, shares)[:, shares.place], _is_exact(alike))
    least = alike.step(alike.value("num_microbatches") * longest)
    rows, columns = _below(least, worth_s)
    found = np.min(least, axis=1, initial=np.inf)
    closes: list[Close | None] = [None] * len(alike)
    after: Floats | None = None
    if _is_exact(alike) and len(rows):
        after = _after(alike.take(rows), shares.take(columns), paces[np.ix_(rows, columns)])
        least = least[np.ix_(rows, columns)] + after * alike.growth[rows, None]
        found[rows] = np.maximum(found[rows], np.min(least, axis=1))
        inner_rows, inner_columns = _below(least, worth_s[rows])
        rows, columns, after = (
            rows[inner_rows],
            columns[inner_columns],
            after[np.ix_(inner_rows, inner_columns)],
        )
    if len(rows):
        part = shares.take(columns)
        least, after, recomputed, chained = _closely(alike.take(rows), part, after, worth_s[rows], chains)
        found[rows] = np.maximum(found[rows], np.min(least, axis=1))
        for place, row in enumerate(rows.tolist()):
            own = np.flatnonzero(least[place] < worth_s[row])
            closes[row] = Close(
                part, own, least[place, own], after[place, own], recomputed[place, own],
                int(np.min(chained[own], initial=chains.number(*alike.shape))),
            )  # fmt: skip
    return found, closes


def _below(least: Floats, worth_s: Floats) -> tuple[Index, Index]:
    """Settings that have a layout below their worth, and these layouts."""
    below = least < worth_s[:, None]
    return np.flatnonzero(np.any(below, axis=1)), np.flatnonzero(np.any(below, axis=0))


def _closely(
    alike: Alike, shares: RankShares, after: Floats | None, worth_s: Floats, chains: ChainPool
) -> tuple[Floats, Floats, Counts, Counts]:
    """Bounds [s], what follows the makespan [s], and recomputed layers, as [setting, layout] and [.., rank].

    Bounds are infinite where the layout does not fit. What follows is passed on where it is known. Last comes
    how many of the known chains the bounds of each layout contain.
    """
    recompute, request = alike.value("recompute"), alike.request
    numbers = tried(shares.own, shares.mirror, recompute, request)
    fits = fits_of(alike, shares.own, shares.mirror, numbers)
    fits, recomputed = fewest(fits, shares, recompute, alike.value("offload"), request)
    passes = passes_of(alike, shares, recomputed)
    longest, paces = _longest(_by_rank(alike, passes), True)
    after = _after(alike, shares, paces & fits[:, :, None]) if after is None else after
    least = alike.step(alike.value("num_microbatches") * longest + after)
    least = np.where(fits, least, np.inf)
    most = np.minimum(worth_s, NEAR * np.min(least, axis=1))
    close = np.any(least < most[:, None], axis=0)
    makespans = np.zeros(least.shape)
    makespans[:, close] = longest_chains(alike, passes[:, close], chains)
    known = close * chains.number(*alike.shape)
    return np.maximum(least, alike.step(makespans + after)), after, recomputed, known


def blocks(alike: Alike, shares: RankShares) -> Iterator[Index]:
    """Settings that are bounded together."""
    most = int(shares.own.num_layers.max(initial=0)) if alike.value("recompute") != "none" else 0
    cells = max(3 * shares.layouts.size, len(shares.own.rank) * (most + 1), 1)
    step = max(MOST_CELLS // cells, 1)
    for start in range(0, len(alike), step):
        yield np.arange(start, min(start + step, len(alike)))


def _is_exact(alike: Alike) -> bool:
    """Whether the layout alone says how many layers are recomputed."""
    recompute = alike.value("recompute")
    return recompute == "none" or recomputes_all(recompute, alike.value("offload"), alike.request)


def _busy(alike: Alike, shares: RankShares) -> Floats:
    """Seconds of a micro-batch that each load takes at least, as [setting, load]. [s]."""
    again = float(recomputes_all(alike.value("recompute"), alike.value("offload"), alike.request))
    forward, backward = _phases(alike, shares.own, shares.mirror, again)
    return forward + backward


def _phases(alike: Alike, own: Shares, mirror: Shares | None, again: float) -> tuple[Floats, Floats]:
    """Forward and backward seconds of each load, as [setting, load]; of two ranks their mean. [s]."""
    work, both = alike.work, [own] if mirror is None else [own, mirror]
    forward = np.zeros((len(alike), len(own.rank)))
    backward = np.zeros(forward.shape)
    for each in both:
        parts = [(each.layers[kind], phases) for kind, phases in work.layers.items()]
        parts += [(each.embedding, work.first), (each.head, work.last), (np.ones_like(own.rank), work.engine)]
        for counts, phases in parts:
            seconds = phases.backward_input + phases.backward_weight + again * phases.recompute
            forward += phases.forward[:, None] * (counts / len(both))
            backward += seconds[:, None] * (counts / len(both))
    return forward, backward


def _longest(busy: Floats, is_exact: bool) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Work of the busiest rank as [setting, layout] [s], and which ranks it may be as [.., rank]."""
    longest = np.max(busy, axis=2)
    return longest, (busy >= longest[:, :, None] * (1 - ROUND_OFF)) | (not is_exact)


def _after(alike: Alike, shares: RankShares, paces: npt.NDArray[np.bool_]) -> Floats:
    """Synchronisation and optimizer at least, the least of the ranks that may be the busiest. [s].

    Exact where all layers are recomputed or none: else as if all could hide them.

    Parameters
    ----------
    paces
        Whether a rank may be the busiest, as [setting, layout, rank].
    """
    ever = np.any(paces, axis=0)
    used = np.unique(shares.place[ever])
    number = np.zeros(len(shares.own.rank), dtype=np.int64)
    number[used] = np.arange(len(used))
    tails = tails_of(
        alike, shares.own.take(used), None if shares.mirror is None else shares.mirror.take(used)
    )
    of_ranks = tails[:, np.where(ever, number[shares.place], 0)] if len(used) else np.zeros(paces.shape)
    return np.asarray(np.min(np.where(paces, of_ranks, np.inf), axis=2))


def tails_of(alike: Alike, own: Shares, mirror: Shares | None) -> Floats:
    """Synchronisation and optimizer of each load at least, as [setting, load]. [s]."""
    depth = alike.request.model.mtp_depth
    forward, backward = _phases(alike, own, mirror, float(alike.value("recompute") != "none"))
    load = own.load(depth)
    if mirror is not None:
        load = merge_loads([load, mirror.load(depth)])
    tails = np.zeros(forward.shape)
    for chosen, setting in settings_by_category(alike.rows, OF_TAIL):
        wide = _along(setting, 1)
        local = load_local_parameters(load, wide, alike.request)
        tails[chosen] = tail_time(local, wide, alike.request, forward[chosen], backward[chosen])
    return tails


def fits_of(alike: Alike, own: Shares, mirror: Shares | None, numbers: Counts) -> npt.NDArray[np.bool_]:
    """Whether each load fits, as [setting, load, number of recomputed layers].

    Parameters
    ----------
    mirror
        Under a two-way schedule the other stage that the rank holds, which recomputes alike.
    """
    request = alike.request
    fits = np.zeros((len(alike), len(own.rank), len(numbers)), dtype=bool)
    copies = mirror if alike.value("schedule") in DOUBLE_MODEL else None
    settings = list(settings_of_memory(alike.rows))
    for members in own.by_kinds(copies):
        load = _recomputing(own.take(members), numbers, request)
        other = None if copies is None else _recomputing(copies.take(members), numbers, request)
        ranks = own.rank[members][:, None]
        for chosen, setting in settings:
            needed = stage_memory(load, _along(setting, 2), request, ranks, other).total
            enough = needed <= request.cluster.usable_hbm_bytes
            fits[np.ix_(chosen, members)] = np.broadcast_to(enough, (len(chosen), len(members), len(numbers)))
    return fits


def _recomputing(shares: Shares, numbers: Counts, request: PlanRequest) -> ChunkLoad:
    held = shares.num_layers[:, None]
    return shares.load(request.model.mtp_depth, np.minimum(numbers, held))


def passes_of(alike: Alike, shares: RankShares, recomputed: Counts, chosen: Any = np.s_[:]) -> Floats:
    """Seconds as [setting, layout, stage, phase], of recomputed layers as [setting, layout, rank]. [s].

    Parameters
    ----------
    chosen
        Layouts of ``shares``, by default all.
    """
    again = None
    if np.any(recomputed):
        ranks, chunks = alike.places
        again = spread(shares.chunks[chosen], recomputed)[..., ranks, chunks]
    held = {kind: counts[chosen] for kind, counts in shares.held.items()}
    return least_passes(held, again, alike.work, alike.value("virtual_stages"))


def _by_rank(alike: Alike, passes: Floats) -> Floats:
    """Seconds of a micro-batch as [setting, layout, rank]; of two ranks their mean. [s]."""
    ranks = alike.places[0]
    work = np.sum(passes, axis=3) @ (ranks[:, None] == np.arange(ranks.max() + 1)).astype(np.float64)
    return np.asarray((work + work[..., ::-1]) / 2 if alike.is_two_way else work)


def longest_chains(alike: Alike, passes: Floats, chains: ChainPool) -> Floats:
    """Longest known chain of layouts as [setting, layout], of ``passes_of``. [s]."""
    return np.asarray(chains.longest(passes, *alike.shape))


def _along(setting: Settings, axes: int) -> Settings:
    """The settings with so many axes behind theirs."""
    changes: dict[str, Any] = {}
    for field in fields(setting):
        value = getattr(setting, field.name)
        if field.name not in CATEGORIES and isinstance(value, np.ndarray):
            changes[field.name] = value.reshape(value.shape + (1,) * axes)
    return replace(setting, **changes)
