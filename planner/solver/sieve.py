"""Bounds of many waiting candidates at once, from the chains that layouts of others ran into."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.cost.orders import BIDIRECTIONAL
from planner.solver.bounds import least_tail
from planner.solver.layout_passes import Counts, kinds_held, least_passes, surely_recomputed
from planner.solver.layouts import every_layout
from planner.solver.price import SettingPrice
from planner.solver.scale import ROUND_OFF
from planner.solver.scan import Bounds, Candidates
from planner.solver.tables import Floats

ALIKE = ("schedule", "pipeline_parallel", "virtual_stages", "num_microbatches", "recompute")
"""Fields of candidates that share their layouts and chains."""
NEAR = 1.1
"""Layouts whose busiest rank works up to this factor longer than the least possible are looked at closely."""
MOST_CELLS = 2_000_000
"""Stages of layouts of candidates that are looked at together: 50 MB."""


def sifted(price: SettingPrice, source: Candidates, chosen: npt.NDArray[np.int64]) -> Floats | None:
    """Lower bounds of candidates alike, over every layout; None where layouts cannot be listed. [s].

    Parameters
    ----------
    price
        Any of them.
    chosen
        Their places in ``source``.
    """
    layouts = every_layout(price)
    if layouts is None or not len(layouts):
        return None
    bounds = source.bounds
    makespans = np.zeros(len(chosen))
    for first in np.unique(bounds.first[chosen]).tolist():
        own = np.flatnonzero(bounds.first[chosen] == first)
        makespans[own] = _makespans(price, source, chosen[own], layouts, int(first))
    return np.asarray((makespans + source.fixed[chosen]) * source.growth[chosen])


def _makespans(
    price: SettingPrice, source: Candidates, chosen: npt.NDArray[np.int64], layouts: Counts, first: int
) -> Floats:
    """Longest chain of each candidate's best layout, and what follows it. [s]."""
    held = kinds_held(layouts, price.request.model)
    again = surely_recomputed(layouts, price.values["recompute"], first, price.request)
    makespans = np.zeros(len(chosen))
    step = max(MOST_CELLS // layouts.size, 1)
    for start in range(0, len(chosen), step):
        part = chosen[start : start + step]
        passes = least_passes(held, again, source.work, part, price.v)
        makespans[start : start + step] = _least(price, passes, source.bounds.take(part))
    return makespans


def _least(price: SettingPrice, passes: Floats, bounds: Bounds) -> Floats:
    """Longest chain of the best layout and what follows, of passes as [setting, layout, stage, phase]. [s].

    Chains are only followed through layouts whose busiest rank is near the least busy one of some setting;
    of the others that rank's work counts. What follows is as in ``SettingPrice.bounds``.
    """
    if price.schedule in BIDIRECTIONAL:
        longest = price.chains.longest(passes, price.schedule, price.p, price.v, price.m)
        return np.asarray(np.min(longest, axis=1))
    busy = price.m * np.max(np.sum(passes, axis=3) @ price.on_rank.T, axis=-1)
    after = least_tail(bounds.tail_s[:, None], busy / price.m, bounds.busiest_s[:, None]) * (1 - ROUND_OFF)
    near = np.any(busy <= NEAR * np.min(busy, axis=1, keepdims=True), axis=0)
    far = np.min(busy[:, ~near] + after[:, ~near], axis=1, initial=np.inf)
    longest = price.chains.longest(passes[:, near], price.schedule, price.p, price.v, price.m)
    return np.asarray(np.minimum(np.min(longest + after[:, near], axis=1), far))
