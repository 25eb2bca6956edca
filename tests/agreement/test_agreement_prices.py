"""Three ways to price a plan agree to rounding: one plan, a table of many, operation by operation."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement_plans import PLANS_OF_A_REQUEST, groups

sys.path.append(str(Path(__file__).parent.parent / "fuzz"))
from fuzz_oracle import assert_figures

from planner.cost.memory import memory
from planner.cost.orders import BIDIRECTIONAL
from planner.cost.schedule import closed_form, simulate
from planner.cost.setting import Settings
from planner.cost.stage import chunk_loads
from planner.cost.step import balanced_step_time, step_time, unit_times
from planner.report.json import dumps, estimate_report
from planner.solver.evaluate import evaluate
from planner.solver.price import Layout, SettingPrice
from planner.solver.space import Rows
from planner.solver.tables import CATEGORIES, WorkTimes, work_times
from planner.spec import Plan, PlanRequest

ROUNDING = 1e-9
FIELDS = tuple(name for name in Settings.__dataclass_fields__ if name != "recompute_modules")
FAST, SLOW = 15, 500
"""Requests with ``PLANS_OF_A_REQUEST`` plans each."""


def table(plans: Sequence[Plan]) -> Rows:
    """The plans' settings as the solver's table."""
    domains, codes = {}, {}
    for field in FIELDS:
        values = [getattr(plan, field) for plan in plans]
        domains[field] = np.array(sorted(set(values)))
        codes[field] = np.array([list(domains[field]).index(value) for value in values])
    return Rows(domains, codes)


def priced(plan: Plan, work: WorkTimes, index: int, request: PlanRequest) -> tuple[SettingPrice, Layout]:
    """The solver's price of the plan's setting, and the plan's layout."""
    price = SettingPrice({field: getattr(plan, field) for field in FIELDS}, work, index, request)
    flow = tuple(plan.stages[rank].chunk_layers[chunk] for rank, chunk in price.order)
    return price, Layout(flow, tuple(stage.recompute_layers for stage in plan.stages))


def table_seconds(plans: Sequence[Plan], request: PlanRequest) -> list[float]:
    """Step times from one vectorised table of all the plans' settings."""
    work = work_times(table(plans), request)
    seconds = []
    for index, plan in enumerate(plans):
        price, layout = priced(plan, work, index, request)
        assert price.plan(layout) == plan
        seconds.append(price.seconds(layout))
    return seconds


def operations(plan: Plan, request: PlanRequest) -> tuple[float, float]:
    """Makespan and busy time of the pace-setting rank, from the operations one by one. [s]."""
    units = unit_times(plan, request)
    chunks = [
        [units.chunk(load, plan.virtual_stages) for load in rank] for rank in chunk_loads(plan, request.model)
    ]
    phases = [
        [[float(getattr(chunk, phase).total) for chunk in rank] for rank in chunks]
        for phase in ("forward", "backward_input", "backward_weight")
    ]
    timeline = simulate(plan.schedule, *phases, plan.num_microbatches, with_events=True)
    by_rank: dict[int, list[Any]] = defaultdict(list)
    for event in timeline.events:
        by_rank[event.rank].append(event)
    busy = {rank: sum(event.end_s - event.start_s for event in events) for rank, events in by_rank.items()}
    for events in by_rank.values():
        events.sort(key=lambda event: (event.start_s, event.end_s))
        for one, after in pairwise(events):
            assert after.start_s >= one.end_s - 1e-12, "one rank does two things at once"
    pace = int(np.argmax(timeline.busy_s))
    if plan.schedule in BIDIRECTIONAL:
        mirrored = plan.pipeline_parallel - 1 - pace
        assert busy[pace] + busy[mirrored] == pytest.approx(2 * timeline.busy_s[pace], rel=ROUNDING)
    else:
        assert busy[pace] == pytest.approx(timeline.busy_s[pace], rel=ROUNDING)
    if plan.schedule == "zb-h2":
        spans = [max(e.end_s for e in events) - min(e.start_s for e in events) for events in by_rank.values()]
        return max(spans), timeline.busy_s[pace]
    return max(event.end_s for event in timeline.events), timeline.busy_s[pace]


def assert_agreement(request: PlanRequest, plans: Sequence[Plan]) -> None:
    tabled = table_seconds(plans, request)
    for index, (plan, seconds) in enumerate(zip(plans, tabled, strict=True)):
        exact = step_time(plan, request)
        assert float(exact.total) == pytest.approx(seconds, rel=ROUNDING), plan
        makespan, busy = operations(plan, request)
        assert float(exact.bubble_s) == pytest.approx(
            max(makespan - busy, 0.0), rel=1e-6, abs=ROUNDING * busy
        ), plan
        assert float(exact.total) == pytest.approx(sum(map(float, exact.as_dict().values())), rel=ROUNDING)
        if index % 4:
            continue
        estimate = evaluate(plan, request)
        assert estimate.step_time_s == float(exact.total)
        assert estimate.peak_memory_bytes == max(float(stage.total) for stage in memory(plan, request))


def test_scalar_table_and_simulator_agree() -> None:
    for request, plans in groups(0, FAST):
        assert_agreement(request, plans)


@pytest.mark.slow
def test_scalar_table_and_simulator_agree_on_ten_thousand_plans() -> None:
    assert SLOW * PLANS_OF_A_REQUEST >= 10_000
    for request, plans in groups(10_000, SLOW):
        assert_agreement(request, plans)


def test_balanced_table_equals_plan_by_plan() -> None:
    """``balanced_step_time`` over arrays equals itself one by one, and ``step_time`` without a pipeline."""
    compared = 0
    for request, plans in groups(100, FAST // 2):
        for key, members in _by_category(plans).items():
            arrays = {
                field: np.array([getattr(plan, field) for plan in members])
                for field in FIELDS if field not in CATEGORIES
            }  # fmt: skip
            fixed = dict(zip(CATEGORIES, key, strict=True))
            many = balanced_step_time(Settings(**arrays, **fixed), request)
            totals = np.broadcast_to(np.asarray(many.total), len(members))
            for plan, total in zip(members, totals, strict=True):
                alone = balanced_step_time(plan, request)
                assert float(alone.total) == pytest.approx(float(total), rel=ROUNDING)
                everything = (
                    plan.recompute == "none" or plan.stages[0].recompute_layers == request.model.num_layers
                )
                if plan.pipeline_parallel == 1 and everything:
                    compared += 1
                    assert float(step_time(plan, request).total) == pytest.approx(float(total), rel=ROUNDING)
    assert compared >= 10


def _by_category(plans: Sequence[Plan]) -> dict[tuple[Any, ...], list[Plan]]:
    found: dict[tuple[Any, ...], list[Plan]] = defaultdict(list)
    for plan in plans:
        found[tuple(getattr(plan, field) for field in CATEGORIES)].append(plan)
    return found


def test_memory_of_a_rank_equals_its_merged_load() -> None:
    """``memory`` rank by rank is ``stage_memory`` of the table's merged chunks."""
    for request, plans in groups(200, FAST // 3):
        work = work_times(table(plans), request)
        for index, plan in enumerate(plans):
            price, layout = priced(plan, work, index, request)
            expected = [float(stage.total) for stage in memory(plan, request)]
            assert price.rank_bytes(layout) == pytest.approx(expected, rel=ROUNDING)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1"])
def test_closed_form_equals_the_simulator_on_equal_stages(schedule: Any) -> None:
    rng = random.Random(f"closed {schedule}")
    for _ in range(60):
        p = rng.randrange(2, 9)
        v = rng.randrange(2, 5) if schedule == "interleaved" else 1
        m = p * rng.randrange(1, 7) if schedule == "interleaved" else rng.randrange(p, 40)
        f, d, w = (rng.uniform(0.1, 3.0) for _ in range(3))
        if schedule == "zb-h1":
            d, w = f, f
        rows = [[[value / v] * v for _ in range(p)] for value in (f, d, w)]
        assert closed_form(schedule, f, d, w, p, v, m) == pytest.approx(
            simulate(schedule, *rows, m).makespan_s, rel=ROUNDING
        )


def test_reports_are_json_without_nan_or_negative_figures() -> None:
    for request, plans in groups(300, FAST // 4):
        for plan in plans:
            report = estimate_report(evaluate(plan, request))
            assert_figures(report)
            assert dumps(report) == dumps(estimate_report(evaluate(plan, request)))
