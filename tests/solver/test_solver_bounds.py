"""Pruning is safe: no bound is above the price of any layout, and table prices are the cost module's."""

from __future__ import annotations

import numpy as np
import pytest
from reference import layouts
from small import small_requests

from planner.cost.step import step_time
from planner.rules import broken_rules
from planner.solver.limits import Limits
from planner.solver.preference import least_simplicity, simplicity
from planner.solver.price import Layout, SettingPrice
from planner.solver.scan import Scan
from planner.spec import Plan, PlanRequest


def legal_prices(request: PlanRequest, price: SettingPrice) -> list[tuple[float, Plan]]:
    """Step times of the legal layouts of one setting, at most 20 of them."""
    found = []
    for stages in layouts(request, price.values):
        plan = Plan(stages=stages, **price.values)
        if not broken_rules(plan, request):
            found.append((float(step_time(plan, request).total), plan))
        if len(found) == 20:
            break
    return found


def test_bounds_lie_below_and_table_prices_equal_the_cost_module() -> None:
    compared = 0
    rng = np.random.default_rng(5)
    for _, request in small_requests(15, first_seed=500):
        scan = Scan(request)
        found = scan.expand(np.arange(len(scan.steady_s)))
        least = least_simplicity(found.rows)
        for index in rng.permutation(len(found.rows))[:3].tolist():
            values = {field: found.rows.values(field)[index].item() for field in found.rows.codes}
            price = SettingPrice(values, found.work, index, request)
            for seconds, plan in legal_prices(request, price):
                layers = tuple(plan.stages[rank].chunk_layers[chunk] for rank, chunk in price.order)
                layout = Layout(layers, tuple(stage.recompute_layers for stage in plan.stages))
                assert price.seconds(layout) == pytest.approx(seconds, rel=1e-12)
                assert found.bound_s[index] <= seconds * (1 + 1e-9)
                assert least[index] <= simplicity(plan)
                compared += 1
    assert compared > 20


def test_scanning_in_rounds_finds_what_one_unpruned_scan_finds() -> None:
    for _, request in small_requests(5, first_seed=900):
        scan = Scan(request)
        everything = scan.expand(np.arange(len(scan.steady_s)))
        if not len(everything.rows):
            continue
        limit = float(np.median(everything.bound_s))
        pruned = scan.expand(np.arange(len(scan.steady_s)), Limits(limit))
        assert len(pruned.rows) == np.sum(everything.bound_s <= limit)


def test_a_first_look_finds_settings_of_the_whole_scan_with_the_same_bounds() -> None:
    fields = ("tensor_parallel", "pipeline_parallel")
    compared = 0
    for _, request in small_requests(5, first_seed=1300):
        scan = Scan(request)
        rows = np.arange(len(scan.steady_s))
        whole, some = scan.expand(rows), scan.expand(rows, sample=(fields, 2))
        names = list(whole.rows.codes)
        known = dict(zip(whole.rows.key(names).tolist(), whole.bound_s.tolist(), strict=True))
        assert len(np.unique(some.rows.key(fields))) <= 2
        for key, bound in zip(some.rows.key(names).tolist(), some.bound_s.tolist(), strict=True):
            assert known[key] == pytest.approx(bound, rel=1e-12)
            compared += 1
    assert compared > 10
