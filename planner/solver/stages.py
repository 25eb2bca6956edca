"""The stages of one setting: how many layers each holds, and how many of them each rank recomputes."""

from __future__ import annotations

from planner.solver.layouts import all_layouts, framework_layouts, near_even
from planner.solver.price import Layout, SettingPrice
from planner.solver.scale import MICROSECOND_S

MOST_LAYOUTS = 64
"""Up to so many layouts of one setting are all priced; beyond, the balanced one stands for them."""


def best_layout(price: SettingPrice, worth_us: int) -> tuple[float, Layout] | None:
    """The layout with the least step time [s], if one is below ``worth_us`` and fits.

    Every layout is priced where the framework can write down only a few, or the model has only a few.
    Otherwise it is the balanced one; ``stage_model.refine`` searches the others where they could matter.
    """
    layouts = framework_layouts(price)
    if layouts is None:
        layouts = all_layouts(price, MOST_LAYOUTS) or iter([near_even(price)])
    best: tuple[float, Layout] | None = None
    worth_s = worth_us * MICROSECOND_S
    for least_s, layers in sorted((price.makespan_bound(layers), layers) for layers in layouts):
        if least_s >= worth_s:
            break
        plain = Layout(layers, (0,) * price.p)
        if price.values["recompute"] == "none" and price.seconds(plain, worth_s) >= worth_s:
            continue
        recomputed = price.least_recomputed(layers)
        if recomputed is None:
            continue
        layout = Layout(layers, recomputed)
        seconds = price.seconds(layout, worth_s)
        if seconds < worth_s:
            best, worth_s = (seconds, layout), seconds
    return best


def is_exhaustive(price: SettingPrice) -> bool:
    """Whether ``best_layout`` prices every layout of the setting."""
    return framework_layouts(price) is not None or all_layouts(price, MOST_LAYOUTS) is not None
