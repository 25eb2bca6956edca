"""Every two stages that a rank and its mirror could hold under a two-way schedule, priced in bulk."""

from __future__ import annotations

from itertools import accumulate
from math import floor

import numpy as np
import numpy.typing as npt

from planner.solver.alike import fits_of, tails_of
from planner.solver.price import SettingPrice
from planner.solver.rank_loads import ROUND_OFF, Kinds, Loads, RankLoad, spare_seconds
from planner.solver.rank_shares import Shares
from planner.solver.recompute_counts import tried

Counts = npt.NDArray[np.int64]


def pair_loads(price: SettingPrice, worth_s: float) -> Loads:
    """Loads of the ranks r and p-1-r together, for every r of the first half, layers of r first.

    Those fit whose work alone takes no longer than ``worth_s``, both stages with the same recompute. A stage
    is a run of the model's layers; of the first pair one starts with the first layer, one ends with the last.
    """
    ends = _pairs(price, [0], worth_s)
    inner = list(range(1, price.p // 2))
    return ends + (_pairs(price, inner, worth_s) if ends[0] and inner else [[] for _ in inner])


def _pairs(price: SettingPrice, ranks: list[int], worth_s: float) -> Loads:
    """Loads of pairs of ranks that are all at the ends of the model, or none of them."""
    owns, mirrors = _bearable(price, ranks[0], worth_s)
    if not len(owns):
        return [[] for _ in ranks]
    own, mirror = (
        _shares(price, owns, np.array(ranks)),
        _shares(price, mirrors, price.p - 1 - np.array(ranks)),
    )
    numbers = tried(own, mirror, price.values["recompute"], price.request)
    fits = fits_of(price.alike, own, mirror, numbers)[0] & fits_of(price.alike, mirror, own, numbers)[0]
    held = np.maximum(own.num_layers, mirror.num_layers)
    least = np.minimum(numbers[np.argmax(fits, axis=1)], held).reshape(len(ranks), -1)
    fitting = np.any(fits, axis=1).reshape(least.shape)
    first = np.arange(len(owns))
    tails = tails_of(price.alike, own.take(first), mirror.take(first))[0].tolist()
    layers = [(*each, *other) for each, other in zip(owns.tolist(), mirrors.tolist(), strict=True)]
    return [
        [RankLoad(layers[index], again[index], tails[index]) for index in np.flatnonzero(enough).tolist()]
        for again, enough in zip(least.tolist(), fitting, strict=True)
    ]


def _bearable(price: SettingPrice, rank: int, worth_s: float) -> tuple[Counts, Counts]:
    """Layers of each kind of two stages that are worked off in ``worth_s``, as [pair, kind] each."""
    seconds = np.array([sum(phases[:3]) for phases in price.kinds.values()])
    paid = 2 * sum(price.engine[:3])
    paid += (sum(price.embedding[:3]) + sum(price.head[:3])) * (rank == 0)
    spare = 2 * spare_seconds(price, worth_s) - paid
    own, mirror = (_runs(price, spare, rank == 0, is_last) for is_last in (False, True))
    work = (own @ seconds)[:, None] + mirror @ seconds
    first, second = np.nonzero(work <= spare * (1 + ROUND_OFF))
    return own[first], mirror[second]


def _runs(price: SettingPrice, spare: float, is_end: bool, is_last: bool) -> Counts:
    """Layers of each kind in runs of layers that are worked off in time, as [run, kind].

    Those that start with the model's first layer or, ``is_last``, end with its last, if they are an end.
    """
    kinds, seconds = list(price.kinds), [sum(phases[:3]) for phases in price.kinds.values()]
    layers = price.request.model.layer_kinds
    before = np.array([[0, *accumulate(int(own == kind) for own in layers)] for kind in kinds]).T
    most = min(floor(spare / min(seconds)) if spare > 0 else 0, len(layers) - price.p + 1)
    found: set[Kinds] = set()
    for length in range(1, most + 1):
        starts = np.arange(len(layers) - length + 1)
        if is_end:
            starts = starts[-1:] if is_last else starts[:1]
        found |= {tuple(run) for run in (before[starts + length] - before[starts]).tolist()}
    return np.array(sorted(found), dtype=np.int64).reshape(-1, len(kinds))


def _shares(price: SettingPrice, layers: Counts, places: Counts) -> Shares:
    """Loads of ranks, all loads of the first of them first."""
    ranks = np.repeat(places, len(layers))
    named = {kind: np.tile(counts, len(places)) for kind, counts in zip(price.kinds, layers.T, strict=True)}
    return Shares(ranks, named, (ranks == 0).astype(np.int64), (ranks == price.p - 1).astype(np.int64))
