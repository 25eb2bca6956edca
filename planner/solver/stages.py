"""The stages of one setting: how many layers each holds, and how many of them each rank recomputes."""

from __future__ import annotations

from functools import cached_property
from math import inf

import numpy as np

from planner.solver.alike import Close, bounded, passes_of
from planner.solver.layout_passes import Counts, recomputes_all
from planner.solver.layouts import every_layout, near_even
from planner.solver.price import Layout, SettingPrice
from planner.solver.rank_shares import RankShares
from planner.solver.scale import MICROSECOND_S
from planner.solver.tables import Floats


def every_share(price: SettingPrice) -> RankShares | None:
    """``every_layout`` with the loads of its ranks; settings that differ in other fields share it."""
    known, key = price.known.shares, (price.schedule, price.p, price.v)
    if key not in known:
        layouts = every_layout(price)
        known[key] = None if layouts is None else _shares(price, layouts)
    return known[key]


def is_exhaustive(price: SettingPrice) -> bool:
    """Whether ``best_layout`` prices every layout of the setting."""
    return every_share(price) is not None


def shares_of(price: SettingPrice) -> RankShares:
    """Layouts that ``best_layout`` looks at: every one, or the balanced one where they cannot be listed."""
    shares = every_share(price)
    return _shares(price, np.array([near_even(price)])) if shares is None else shares


def best_layout(
    price: SettingPrice, worth_us: int, close: Close | None = None
) -> tuple[float, Layout] | None:
    """The layout with the least step time [s], if one is below ``worth_us`` and fits.

    Every layout is bounded, and priced where it matters, if they can be listed. Otherwise it is the balanced
    one; ``stage_model.refine`` searches the others where they could matter.

    Parameters
    ----------
    close
        What ``alike.bounded`` found for as much time or more; by default it is asked.
    """
    worth_s = worth_us * MICROSECOND_S
    if close is None:
        close = bounded(price.alike, shares_of(price), np.array([worth_s]), price.chains)[1][0]
        if close is None:
            return None
    best: tuple[float, Layout] | None = None
    layouts = _Chained(price, close)
    while layouts.least_s < worth_s:
        layout = layouts.pop()
        seconds = price.seconds(layout, worth_s)
        if seconds < worth_s:
            best, worth_s = (seconds, layout), seconds
            continue
        price.learn(layout)
    return best


class _Chained:
    """Layouts of one setting by their bounds, which rise with every chain that is learnt."""

    def __init__(self, price: SettingPrice, close: Close) -> None:
        self._price, self._close = price, close
        self._bounds_s, self._known = close.least_s.copy(), close.chains

    @property
    def least_s(self) -> float:
        """Least bound that is left, with all chains that are known by now. [s]."""
        number = self._price.chains.number(*self._price.alike.shape)
        if self._known < number:
            alike, start = self._price.alike, self._known
            makespans = self._price.chains.longest(self._passes, *alike.shape, start=start)
            self._bounds_s = np.maximum(self._bounds_s, alike.step(makespans + self._close.after_s)[0])
            self._known = number
        return float(np.min(self._bounds_s, initial=inf))

    @cached_property
    def _passes(self) -> Floats:
        """Seconds as [1, layout, stage, phase]. [s]."""
        close = self._close
        return passes_of(self._price.alike, close.shares, close.recomputed[None], close.index)

    def pop(self) -> Layout:
        """Take out the layout with the least bound."""
        index = int(np.argmin(self._bounds_s))
        self._bounds_s[index] = inf
        layers = self._close.shares.layouts[self._close.index[index]].tolist()
        return Layout(tuple(layers), tuple(self._close.recomputed[index].tolist()))


def floor_s(price: SettingPrice) -> float:
    """Step time of the balanced layout at least, with no more recompute than its kind forces. [s]."""
    layers = near_even(price)
    held = tuple(sum(chunks) for chunks in price.chunk_layers(layers))
    again = recomputes_all(price.values["recompute"], price.values["offload"], price.request)
    return price.least_seconds(Layout(layers, held if again else (0,) * price.p))


def _shares(price: SettingPrice, layouts: Counts) -> RankShares:
    return RankShares.of(layouts, tuple(price.order), price.schedule, price.request.model)
