"""What pipeline ranks hold under many layouts: loads that recur are named once and priced once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.cost.orders import BIDIRECTIONAL
from planner.cost.stage import ChunkLoad
from planner.cost.terms import Quantity
from planner.solver.layout_passes import Counts, kinds_held
from planner.solver.tables import Floats
from planner.spec.model import LayerKind, Model
from planner.spec.plan import Schedule

Places = tuple[tuple[int, int], ...]
"""(rank, chunk) of every stage in the data's order."""
LARGE = 2**31
"""Keys above this are numbered anew before they could overflow."""


@dataclass(frozen=True)
class Shares:
    """Distinct loads of ranks, one entry each. [1]."""

    rank: Counts
    layers: dict[LayerKind, Counts]
    embedding: Counts
    head: Counts

    def take(self, chosen: npt.NDArray[np.int64]) -> Shares:
        """Some of them."""
        layers = {kind: counts[chosen] for kind, counts in self.layers.items()}
        return Shares(self.rank[chosen], layers, self.embedding[chosen], self.head[chosen])

    @property
    def num_layers(self) -> Counts:
        """Layers of all kinds."""
        return np.asarray(sum(self.layers.values()))

    def by_kinds(self, mirror: Shares | None) -> Iterator[npt.NDArray[np.int64]]:
        """Indices of loads that hold the same kinds of layer, and so does what they are mirrored by."""
        both = (self,) if mirror is None else (self, mirror)
        masks = [counts > 0 for shares in both for counts in shares.layers.values()]
        key = np.zeros(len(self.rank), dtype=np.int64)
        for mask in masks:
            key = 2 * key + mask
        for value in np.unique(key):
            yield np.flatnonzero(key == value)

    def load(self, mtp_depth: int, recomputed: Counts | None = None) -> ChunkLoad:
        """The loads as one, with a last axis for numbers of recomputed layers where these are given.

        Kinds of layer that none of them holds are left out.
        """

        def column(counts: Counts) -> Floats:
            whole = np.asarray(counts, dtype=np.float64)
            return whole if recomputed is None else whole[:, None]

        again: Quantity = 0 if recomputed is None else np.asarray(recomputed, dtype=np.float64)
        return ChunkLoad(
            {kind: column(counts) for kind, counts in self.layers.items() if np.any(counts)}, again,
            column(self.embedding), column(self.head), column(self.head) * mtp_depth,
        )  # fmt: skip


@dataclass(frozen=True)
class RankShares:
    """Layouts as [layout, stage], and the load of every rank of each by its number."""

    layouts: Counts
    place: Counts
    """Number of the load, as [layout, rank]."""
    own: Shares
    mirror: Shares | None
    """Under a two-way schedule the load of rank p-1-r, one entry each."""
    chunks: Counts
    """Layers of every chunk as [layout, rank, chunk]."""
    held: dict[LayerKind, Counts]
    """Layers of each kind as [layout, stage]."""

    @classmethod
    def of(cls, layouts: Counts, places: Places, schedule: Schedule, model: Model) -> RankShares:
        """Number the loads of layouts given in the order of the data."""
        p, v = 1 + max(rank for rank, _ in places), 1 + max(chunk for _, chunk in places)
        by_stage = kinds_held(layouts, model)
        held = {kind: _by_chunk(counts, places, p, v).sum(axis=2) for kind, counts in by_stage.items()}
        columns = list(held.values())
        if schedule in BIDIRECTIONAL:
            columns += [counts[:, ::-1] for counts in columns]
        ranks = np.broadcast_to(np.arange(p), (len(layouts), p))
        _, first, place = np.unique(_key([ranks, *columns]), return_index=True, return_inverse=True)
        layout, rank = np.divmod(first, p)
        shares = [_shares(held, layout, own, places) for own in (rank, p - 1 - rank)]
        return cls(
            layouts, place.reshape(len(layouts), p), shares[0],
            shares[1] if schedule in BIDIRECTIONAL else None, _by_chunk(layouts, places, p, v), by_stage,
        )  # fmt: skip

    def take(self, chosen: npt.NDArray[np.int64]) -> RankShares:
        """Some of the layouts, with the loads that they need."""
        used, place = np.unique(self.place[chosen], return_inverse=True)
        return RankShares(
            self.layouts[chosen], place.reshape(len(chosen), self.place.shape[1]), self.own.take(used),
            None if self.mirror is None else self.mirror.take(used), self.chunks[chosen],
            {kind: counts[chosen] for kind, counts in self.held.items()},
        )  # fmt: skip


def _by_chunk(counts: Counts, places: Places, p: int, v: int) -> Counts:
    """Counts as [layout, rank, chunk] from those of stages in the data's order."""
    found = np.zeros((len(counts), p, v), dtype=np.int64)
    ranks, chunks = zip(*places, strict=True)
    found[:, list(ranks), list(chunks)] = counts
    return found


def _key(columns: list[Counts]) -> npt.NDArray[np.int64]:
    """One number for every combination of values, flat."""
    key = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column.ravel()
        if key.max(initial=0) > LARGE:
            key = np.unique(key, return_inverse=True)[1]
    return key


def _shares(held: dict[LayerKind, Counts], layout: Counts, rank: Counts, places: Places) -> Shares:
    layers = {kind: counts[layout, rank] for kind, counts in held.items()}
    first, last = places[0][0], places[-1][0]
    return Shares(rank, layers, (rank == first).astype(np.int64), (rank == last).astype(np.int64))
