"""Every load that a pipeline rank could hold within memory and a time limit, priced in bulk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import floor

import numpy as np
import numpy.typing as npt

from planner.cost.data_parallel import tail_time
from planner.cost.memory import stage_memory
from planner.cost.stage import ChunkLoad
from planner.cost.states import load_local_parameters
from planner.solver.price import SettingPrice
from planner.solver.tables import Floats

ROUND_OFF = 1e-9
"""Relative slack of the time limit against float arithmetic."""

Kinds = tuple[int, ...]
"""Layers of each kind, in the order of ``SettingPrice.kinds``."""
Ends = tuple[int, int]
"""Whether a rank holds the embedding, and the head."""


@dataclass(frozen=True)
class RankLoad:
    """One load that fits."""

    layers: Kinds
    least_recomputed: int
    """Fewest recomputed layers with which it fits."""
    tail_s: float
    """Synchronisation and optimizer at least, where this rank sets the pace. [s]"""

    @property
    def num_layers(self) -> int:
        """Layers of all kinds."""
        return sum(self.layers)


Loads = list[list[RankLoad]]
"""The loads of every rank."""


def covers(more: Loads, fewer: Loads) -> bool:
    """Whether every load of ``fewer`` is one of ``more``, with no more recomputed and no more to follow."""
    for own, others in zip(fewer, more, strict=True):
        known = {row.layers: row for row in others}
        for row in own:
            same = known.get(row.layers)
            if same is None or same.least_recomputed > row.least_recomputed or same.tail_s > row.tail_s:
                return False
    return True


def rank_loads(price: SettingPrice, worth_s: float) -> list[list[RankLoad]]:
    """Loads of every rank that fit and whose work alone takes no longer than ``worth_s``.

    Of one-way schedules; under a two-way schedule mirrored ranks share memory and work (``pair_loads``).
    """
    by_ends: dict[Ends, list[int]] = {}
    for rank in range(price.p):
        ends = (int((rank, 0) == price.order[0]), int(rank == price.order[-1][0]))
        by_ends.setdefault(ends, []).append(rank)
    loads: list[list[RankLoad]] = [[] for _ in range(price.p)]
    for ends, ranks in by_ends.items():
        kinds = list(_bearable(price, ends, worth_s))
        tails = _tails(price, ends, kinds).tolist()
        for rank, least in zip(ranks, _least_recomputed(price, ranks, ends, kinds), strict=True):
            rows = zip(kinds, least, tails, strict=True)
            loads[rank] = [RankLoad(held, again, tail) for held, again, tail in rows if again is not None]
    return loads


def spare_seconds(price: SettingPrice, worth_s: float) -> float:
    """Work of a micro-batch that a rank can do if the step is to take ``worth_s``. [s]."""
    growth = price.finish(1.0, 0.0) - price.finish(0.0, 0.0)
    return (worth_s - price.finish(0.0, 0.0)) / growth * (1 + ROUND_OFF) / price.m


def _bearable(price: SettingPrice, ends: Ends, worth_s: float) -> Iterator[Kinds]:
    """Layers of each kind that a rank can work off in ``worth_s``."""
    model = price.request.model
    counts = [sum(own == kind for own in model.layer_kinds) for kind in price.kinds]
    seconds = [sum(phases[:3]) for phases in price.kinds.values()]
    paid = (
        sum(price.engine[:3]) * price.v + ends[0] * sum(price.embedding[:3]) + ends[1] * sum(price.head[:3])
    )
    spare = spare_seconds(price, worth_s) - paid
    least = 1 if price.v == 1 else 0
    most = model.num_layers - (price.p - 1) * least
    ranges = [
        range(min(count, max(floor(spare / each), 0)) + 1)
        for count, each in zip(counts, seconds, strict=True)
    ]
    for layers in product(*ranges):
        work = sum(held * each for held, each in zip(layers, seconds, strict=True))
        if least <= sum(layers) <= most and work <= spare:
            yield layers


def _tails(price: SettingPrice, ends: Ends, kinds: list[Kinds]) -> Floats:
    """Synchronisation and optimizer of each load, hidden behind as much computation as there can be. [s]."""
    if not kinds:
        return np.zeros(len(kinds))
    columns = np.array(kinds).T
    load = ChunkLoad(
        dict(zip(price.kinds, columns, strict=True)), embedding=ends[0], head=ends[1],
        mtp=price.request.model.mtp_depth * ends[1],
    )  # fmt: skip
    again = price.values["recompute"] != "none"
    forward, backward = np.zeros(len(kinds)), np.zeros(len(kinds))
    parts = [
        *zip(columns, price.kinds.values(), strict=True),
        (ends[0], price.embedding),
        (ends[1], price.head),
    ]
    for count, phases in parts:
        forward = forward + count * phases[0]
        backward = backward + count * (phases[1] + phases[2] + again * phases[3])
    forward = forward + price.v * price.engine[0]
    backward = backward + price.v * (price.engine[1] + price.engine[2])
    local = load_local_parameters(load, price.setting, price.request)
    tail = tail_time(local, price.setting, price.request, forward, backward)
    return np.asarray(np.broadcast_to(tail, (len(kinds),)))


def _least_recomputed(
    price: SettingPrice, ranks: list[int], ends: Ends, kinds: list[Kinds]
) -> list[list[int | None]]:
    """Fewest recomputed layers with which each load fits, as [rank][load], None where it never does."""
    least: list[list[int | None]] = [[None] * len(kinds) for _ in ranks]
    groups: dict[tuple[bool, ...], list[int]] = {}
    for index, held in enumerate(kinds):
        groups.setdefault(tuple(count > 0 for count in held), []).append(index)
    for held_kinds, members in groups.items():
        fits = _fits(price, ranks, ends, np.array([kinds[index] for index in members]).T, held_kinds)
        fewest, any_fit = np.argmax(fits, axis=2), np.any(fits, axis=2)
        for place in range(len(ranks)):
            for column, index in enumerate(members):
                if any_fit[place, column]:
                    least[place][index] = int(fewest[place, column])
    return least


def _fits(
    price: SettingPrice, ranks: list[int], ends: Ends, counts: npt.NDArray[np.int64], held: tuple[bool, ...]
) -> npt.NDArray[np.bool_]:
    """Whether loads fit as [rank, load, recomputed layers]; ``counts`` is [kind, load]."""
    columns = counts[:, None, :, None]
    total = np.sum(columns, axis=0)
    most = int(total.max()) if price.values["recompute"] != "none" else 0
    tried = np.arange(most + 1, dtype=np.float64)[None, None, :]
    named = zip(price.kinds, columns, held, strict=True)
    load = ChunkLoad(
        {kind: column for kind, column, is_held in named if is_held}, tried, ends[0], ends[1],
        price.request.model.mtp_depth * ends[1],
    )  # fmt: skip
    needed = stage_memory(load, price.setting, price.request, np.array(ranks)[:, None, None]).total
    fits = (needed <= price.request.cluster.usable_hbm_bytes) & (tried <= total)
    return np.broadcast_to(fits, (len(ranks), counts.shape[1], most + 1))
