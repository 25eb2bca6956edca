"""The stages of one setting: how many layers each holds, and how many of them each rank recomputes."""

from __future__ import annotations

import numpy as np

from planner.solver.layouts import every_layout, near_even
from planner.solver.price import Layout, SettingPrice
from planner.solver.recompute_counts import least_recomputed
from planner.solver.scale import MICROSECOND_S


def best_layout(price: SettingPrice, worth_us: int) -> tuple[float, Layout] | None:
    """The layout with the least step time [s], if one is below ``worth_us`` and fits.

    Every layout is priced where they can be listed. Otherwise it is the balanced one;
    ``stage_model.refine`` searches the others where they could matter.
    """
    layouts = every_layout(price)
    if layouts is None:
        layouts = np.array([near_even(price)])
    best: tuple[float, Layout] | None = None
    worth_s = worth_us * MICROSECOND_S
    layouts = layouts[price.work_bounds(layouts) < worth_s]
    layouts = layouts[price.bounds(layouts) < worth_s]
    if not len(layouts):
        return None
    after = price.tails(layouts)
    bounds = price.makespan_bounds(layouts) + after
    while np.any(bounds < worth_s):
        index = int(np.argmin(bounds))
        bounds[index] = np.inf
        found = _priced(price, tuple(layouts[index].tolist()), worth_s)
        if found is not None:
            best, worth_s = found, found[0]
        elif np.any(bounds < worth_s):
            bounds = np.maximum(bounds, price.makespan_bounds(layouts) + after)
    return best


def _priced(price: SettingPrice, layers: tuple[int, ...], worth_s: float) -> tuple[float, Layout] | None:
    """The layout with the least recompute that fits, if its step takes less than ``worth_s``."""
    plain = Layout(layers, (0,) * price.p)
    if price.values["recompute"] == "none" and price.seconds(plain, worth_s) >= worth_s:
        price.learn(plain)
        return None
    recomputed = least_recomputed(price, layers)
    if recomputed is None:
        return None
    layout = Layout(layers, recomputed)
    if price.least_seconds(layout) >= worth_s:
        return None
    seconds = price.seconds(layout, worth_s)
    if seconds < worth_s:
        return seconds, layout
    price.learn(layout)
    return None


def is_exhaustive(price: SettingPrice) -> bool:
    """Whether ``best_layout`` prices every layout of the setting."""
    return every_layout(price) is not None
