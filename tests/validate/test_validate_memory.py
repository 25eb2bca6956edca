"""Measured memory: units, the figure that is compared, unstated recompute, accuracy on published runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planner.cost.memory import memory
from planner.cost.terms import Memory
from planner.errors import BadInput
from planner.spec import MemoryHabits, Plan
from planner.validate.measured import to_case
from planner.validate.memory import (
    compared_memory,
    least_recompute,
    measured_memory_bytes,
    settled_recompute,
    stated_unit_bytes,
    states_recompute,
)

ROWS = Path(__file__).parents[1] / "data" / "measured" / "calibration.jsonl"
RANKS = (
    Memory(weights_bytes=10.0, fragmentation_bytes=1.0, context_bytes=5.0),
    Memory(weights_bytes=20.0, fragmentation_bytes=2.0, context_bytes=5.0),
)


@pytest.mark.parametrize(("kind", "expected"), [("allocated", 20.0), ("reserved", 22.0), ("device", 27.0)])
def test_the_kind_of_the_row_decides(kind, expected):
    assert compared_memory(RANKS, {"measured": {"memory_kind": kind}}, MemoryHabits()) == expected


def test_an_unknown_kind_is_what_the_framework_prints():
    row = {"measured": {"memory_kind": "unknown"}}
    assert compared_memory(RANKS, row, MemoryHabits(reported="reserved")) == 22.0
    first = MemoryHabits(reported="reserved", reported_rank="first")
    assert compared_memory(RANKS, row, first) == 11.0


def test_units_of_a_source():
    torch_log = {"source": "HF nanotron sweep", "measured": {"peak_memory_gb": 2.0}}
    table = {"source": "MLPerf", "measured": {"peak_memory_gb": 2.0}}
    assert measured_memory_bytes(torch_log) == 2 * 2**30
    assert measured_memory_bytes(table) == 2e9
    assert stated_unit_bytes(table) == 1e9
    assert measured_memory_bytes({"source": "MLPerf", "measured": {}}) is None


def test_recompute_is_stated_only_by_the_source():
    assert states_recompute({"config": {"recompute": "none"}})
    assert not states_recompute({"config": {}})
    assert not states_recompute({"config": {"recompute": "none"}, "assumed": ["config.recompute"]})


def test_least_recompute_is_the_least_that_fits(tiny_dense):
    plan = Plan(data_parallel=8, zero_stage=1, shard_group_size=8, micro_batch=64)
    needed = float(memory(plan, tiny_dense)[0].total)

    def with_memory(hbm: float) -> Plan:
        accelerator = tiny_dense.cluster.accelerator
        smaller = accelerator.memory.model_copy(update={"hbm_bytes": hbm})
        cluster = tiny_dense.cluster.model_copy(
            update={"accelerator": accelerator.model_copy(update={"memory": smaller})}
        )
        return least_recompute(plan, tiny_dense.model_copy(update={"cluster": cluster}))

    assert with_memory(needed) == plan
    tight = with_memory(needed - 1e6)
    assert tight.recompute == "selective"
    assert 0 < tight.stages[0].recompute_layers < 4
    assert with_memory(1.0) == plan  # nothing helps


def test_a_list_of_layers_that_a_row_does_not_give_is_the_shortest_that_fits():
    # DeepSeek-V3 over 128 nodes of MI355X, four layers a stage: fits with a quarter recomputed, not with none
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    row = next(row for row in rows if row["id"] == "primus-draft-dsv3-full-128n-tuned-mi355x")
    case = to_case(row)
    assert case.plan.recompute == "full"
    assert all(stage.recompute_layers == round(stage.layers / 4) for stage in case.plan.stages)
    peak = max(float(rank.total) for rank in memory(case.plan, case.request))
    assert peak == pytest.approx(276.5e9, rel=0.02)
    elsewhere = to_case(row | {"framework": "megatron"})  # Megatron itself means all layers by "full"
    assert all(stage.recompute_layers == stage.layers for stage in elsewhere.plan.stages)


def test_a_stated_recompute_stays_as_stated(tiny_dense):
    plan = Plan(data_parallel=8, zero_stage=1, shard_group_size=8, recompute="full")
    assert settled_recompute({"config": {"recompute": "full"}}, plan, tiny_dense) is plan


@pytest.fixture(scope="module")
def published() -> list[tuple[float, str]]:
    """Relative error and framework of every published row with a memory figure."""
    errors = []
    for line in ROWS.read_text().splitlines():
        row = json.loads(line)
        measured = measured_memory_bytes(row)
        if measured is None:
            continue
        try:
            case = to_case(row)
        except BadInput:
            continue
        habits = case.request.framework.memory
        predicted = compared_memory(memory(case.plan, case.request), row, habits)
        errors.append((predicted / measured - 1, str(row["framework"])))
    return errors


def test_accuracy_on_published_runs_stays(published):
    errors = np.abs([error for error, _ in published])
    assert len(errors) > 350
    assert np.median(errors) < 0.04
    assert np.quantile(errors, 0.9) < 0.12


@pytest.mark.parametrize(
    ("framework", "median"),
    [("megatron", 0.025), ("nanotron", 0.05), ("megatron-deepspeed", 0.04), ("nemo", 0.06)],
)
def test_accuracy_by_framework_stays(published, framework, median):
    errors = np.abs([error for error, name in published if name == framework])
    assert np.median(errors) < median
