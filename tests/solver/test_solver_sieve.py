"""Bounds from the chains of other layouts lie below every price, and above those of the scan somewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from reference import layouts
from small import small_requests

from planner.cost.step import step_time
from planner.rules import broken_rules
from planner.solver.layouts import every_layout
from planner.solver.price import Layout, SettingPrice
from planner.solver.scan import Candidates, Scan
from planner.solver.sieve import ALIKE, sifted
from planner.solver.stages import shares_of
from planner.spec import Plan, PlanRequest


def setting(found: Candidates, index: int) -> dict[str, Any]:
    return {field: found.rows.values(field)[index].item() for field in found.rows.codes}


def least_price(request: PlanRequest, values: dict[str, Any]) -> float:
    """Step time of the best of the first 200 legal layouts, infinite without one. [s]."""
    least, seen = np.inf, 0
    for stages in layouts(request, values):
        plan = Plan(stages=stages, **values)
        if not broken_rules(plan, request):
            least, seen = min(least, float(step_time(plan, request).total)), seen + 1
        if seen == 200:
            break
    return least


def test_sifted_bounds_lie_below_every_price_and_raise_some_bounds() -> None:
    compared = raised = 0
    for _, request in small_requests(16, first_seed=2300):
        scan = Scan(request)
        found = scan.expand(np.arange(len(scan.steady_s)))
        keys = found.rows.key(ALIKE)
        piped = np.flatnonzero(found.rows.values("pipeline_parallel") > 1)
        for key in np.unique(keys[piped])[:4].tolist():
            chosen = np.flatnonzero(keys == key)[:3]
            price = SettingPrice(setting(found, int(chosen[0])), found.work, int(chosen[0]), request)
            listed = every_layout(price)
            for layers in [] if listed is None else listed[:3].tolist():
                price.learn(Layout(tuple(layers), (0,) * price.p))
            if listed is None:
                continue
            worth = np.full(len(chosen), np.inf)
            bounds, _ = sifted(shares_of(price), found, chosen, worth, price.known, request)
            for index, bound in zip(chosen.tolist(), bounds.tolist(), strict=True):
                values = setting(found, index)
                plain = least_price(request, {**values, "recompute": "none"})
                assert min(bound, plain) <= least_price(request, values) * (1 + 1e-9)
                compared += 1
                raised += found.bound_s[index] * (1 + 1e-9) < bound < np.inf
    assert compared > 20
    assert raised > 0
