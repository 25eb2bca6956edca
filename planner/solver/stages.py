"""The stage model: how many layers each stage holds, and how many of them each rank recomputes, for one setting."""

from __future__ import annotations

from planner.solver.layouts import framework_layouts, near_even
from planner.solver.price import Layout, SettingPrice


def best_layout(price: SettingPrice, bound_us: int, worth_us: int, deadline: float) -> Layout | None:
    """The layout with the least step time; None when there is none."""
    layouts = framework_layouts(price)
    best: tuple[float, Layout] | None = None
    for layers in layouts if layouts is not None else [near_even(price)]:
        recomputed = price.least_recomputed(layers)
        if recomputed is None:
            continue
        layout = Layout(layers, recomputed)
        seconds = price.seconds(layout)
        if best is None or seconds < best[0]:
            best = (seconds, layout)
    return None if best is None else best[1]
