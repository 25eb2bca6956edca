"""Goals, targets, batch ranges, idle GPUs, robustness, pins and tie-breaks against brute force."""

from __future__ import annotations

from typing import Any

import pytest
from reference import priced_plans
from toys import tiny_dense, tiny_moe, toy_cluster, vary

from planner.cost.step import step_time
from planner.solver import evaluate, solve
from planner.solver.goals import MEMORY_PRECISION, worst_case
from planner.solver.scale import TIME_TOLERANCE_S
from planner.spec import Pin, Plan, PlanRequest

FEW = {"schedules": ("none", "1f1b"), "zero_stages": (0, 1), "recompute": ("none",)}


def small(gpus: int = 4, **changes: Any) -> PlanRequest:
    """``tiny_dense`` on few GPUs with few choices and a batch of 4; no tie-break."""
    limits = FEW | changes.pop("limits", {})
    workload = {"global_batch": 4} | changes.pop("workload", {})
    request = vary(
        tiny_dense(), model={"num_layers": 2} | changes.pop("model", {}), limits=limits, workload=workload
    )
    fields = {"cluster": toy_cluster(gpus), "prefer_simple": False, "max_bubble": None}
    return request.model_copy(update=fields | changes)


def pinned(field: str, *allowed: Any, **limits: Any) -> Pin:
    return Pin(field=field, allowed=allowed or None, option=f"--{field}", **limits)


def test_least_memory_is_found_to_its_precision() -> None:
    request = small(goal="memory")
    least = min(peak for _, peak, _ in priced_plans(request))
    answer = solve(request, top=1)
    found = answer.plans[0].peak_memory_bytes
    assert least <= found * (1 + 1e-12)
    assert found <= least * (1 + 2 * MEMORY_PRECISION)
    assert answer.gap_pct is not None
    assert answer.gap_pct <= 100 * MEMORY_PRECISION + 1e-9


def test_least_cost_counts_the_gpus_of_each_plan() -> None:
    """Cost is GPU-seconds a sequence: step time x GPUs / batch."""
    request = small(goal="cost", allow_idle=True)
    plans = priced_plans(request)
    known = min(seconds * plan.num_gpus / plan.global_batch for seconds, _, plan in plans)
    best = solve(request, top=1).plans[0]
    assert best.step_time_s * best.plan.num_gpus / best.plan.global_batch == pytest.approx(known, rel=1e-3)
    assert best.plan.num_gpus < 4, "fewer GPUs communicate less"


@pytest.mark.parametrize("goal", ["tokens-per-s", "step-time"])
def test_a_batch_range_is_used_as_the_goal_says(goal: str) -> None:
    request = small(goal=goal, workload={"global_batch": 4, "global_batch_max": 8})
    plans = priced_plans(request)
    best = solve(request, top=1).plans[0]
    if goal == "step-time":
        assert best.step_time_s == pytest.approx(plans[0][0], abs=TIME_TOLERANCE_S)
        assert best.plan.global_batch == 4, "a smaller batch is a shorter step"
        return
    known = max(plan.global_batch / seconds for seconds, _, plan in plans)
    assert best.plan.global_batch / best.step_time_s == pytest.approx(known, rel=1e-3)
    assert best.plan.global_batch == 8, "the overheads of a step are spread over more sequences"


def test_the_target_is_reached_on_the_fewest_nodes() -> None:
    fields = {
        "workload": {"global_batch": 24, "seq_length": 4096},
        "model": {"hidden_size": 1024, "head_dim": 128},
    }
    request = small(gpus=12, **fields)
    by_nodes = {gpus: solve(small(gpus=gpus, **fields), top=1).plans[0].step_time_s for gpus in (4, 8, 12)}
    assert by_nodes[4] > by_nodes[8] > by_nodes[12]
    target = (by_nodes[4] + by_nodes[8]) / 2
    answer = solve(request.model_copy(update={"max_step_time_s": target}), top=1)
    assert answer.plans[0].plan.num_gpus == 8
    assert answer.plans[0].step_time_s == pytest.approx(by_nodes[8], abs=TIME_TOLERANCE_S)
    impossible = solve(request.model_copy(update={"max_step_time_s": by_nodes[12] / 10}), top=1)
    assert any("No plan reaches" in note for note in impossible.notes)


def test_idle_gpus_are_used_where_seven_cannot_be() -> None:
    """Batch 4 on 7 GPUs: no d, t or p of 7 is legal, so without idle GPUs there is no plan."""
    assert solve(small(gpus=7)).status == "infeasible"
    request = small(gpus=7, allow_idle=True)
    best = solve(request, top=1).plans[0]
    assert best.step_time_s == pytest.approx(priced_plans(request)[0][0], abs=TIME_TOLERANCE_S)
    assert best.plan.num_gpus < 7


def test_the_robust_plan_is_the_best_in_the_worst_case() -> None:
    request = small(robust=True)
    worst = worst_case(request)
    known = priced_plans(worst)[0][0]
    answer = solve(request, top=1)
    plan = answer.plans[0].plan
    assert float(step_time(plan, worst).total) == pytest.approx(known, abs=TIME_TOLERANCE_S)
    assert answer.plans[0].step_time_s == evaluate(plan, request).step_time_s, (
        "the time shown is the nominal one"
    )
    assert worst.cluster.usable_hbm_bytes == request.cluster.usable_hbm_bytes - 3e9


ASKED = {
    "recompute": ("none", "full"), "offloads": ("none", "optimizer"),
    "rank_orders": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
}  # fmt: skip
EVERY_FIELD: dict[str, Any] = {
    "tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2, "virtual_stages": 2,
    "context_parallel": 2, "context_parallel_kind": "ring", "schedule": "1f1b", "expert_parallel": 2,
    "expert_tensor_parallel": 2, "zero_stage": 1, "shard_group_size": 2, "sequence_parallel": True,
    "micro_batch": 2, "num_microbatches": 2, "recompute": "full", "offload": "optimizer", "precision": "fp8",
    "rank_order": "tp-cp-ep-pp-dp",
}  # fmt: skip


@pytest.mark.parametrize("field", EVERY_FIELD)
def test_pins_and_bans_hold_on_every_field(field: str) -> None:
    limits = {"schedules": ("none", "1f1b", "interleaved")}
    request = vary(tiny_moe(), limits=FEW | limits | ASKED, workload={"global_batch": 8})
    if field == "precision":
        request = vary(request, workload={"precisions": ("bf16", "fp8")})
    value = EVERY_FIELD[field]
    asked = solve(request.model_copy(update={"pins": (pinned(field, value),)}), top=1)
    assert asked.plans
    assert all(getattr(found.plan, field) == value for found in asked.plans)
    ban = Pin(field=field, forbidden=(value,), option=f"--{field}")
    banned = solve(request.model_copy(update={"pins": (ban,)}), top=1)
    assert all(getattr(found.plan, field) != value for found in banned.plans)
    assert banned.plans or field == "context_parallel_kind"


def test_a_range_pin_holds() -> None:
    pin = pinned("tensor_parallel", minimum=2, maximum=4)
    answer = solve(tiny_dense().model_copy(update={"pins": (pin,)}), top=3)
    assert {found.plan.tensor_parallel for found in answer.plans} <= {2, 4}
    assert answer.plans


def test_hybrid_sharding_groups_are_priced_like_any_other_setting() -> None:
    """ZeRO-3 on two nodes: shards over all 8 replicas, or over the 4 (or 2) of a node."""
    limits = {"zero_stages": (3,), "zero_stages_with_pipeline": (3,), "hybrid_sharding": True}
    request = small(gpus=8, limits=limits, workload={"global_batch": 8}, pins=(pinned("data_parallel", 8),))
    plans = priced_plans(request)
    assert {plan.shard_group_size for _, _, plan in plans} >= {2, 4, 8}
    for group in (2, 4, 8):
        known = min(seconds for seconds, _, plan in plans if plan.shard_group_size == group)
        pins = (*request.pins, pinned("shard_group_size", group))
        best = solve(request.model_copy(update={"pins": pins}), top=1).plans[0]
        assert best.plan.shard_group_size == group
        assert best.step_time_s == pytest.approx(known, abs=TIME_TOLERANCE_S)


def test_offload_is_found_where_nothing_else_fits() -> None:
    request = small(limits={"offloads": ("none", "optimizer")}, pins=(pinned("data_parallel", 4),))
    by_kind: dict[str, float] = {}
    for _, peak, plan in priced_plans(request):
        by_kind[plan.offload] = min(peak, by_kind.get(plan.offload, peak))
    assert by_kind["optimizer"] < by_kind["none"]
    between = (by_kind["optimizer"] + by_kind["none"]) / 2
    tight = request.model_copy(update={"cluster": toy_cluster(4, hbm_bytes=between)})
    best: Plan = solve(tight, top=1).plans[0].plan
    assert best.offload == "optimizer"


def test_the_faster_precision_is_chosen_of_those_asked_for() -> None:
    """Wide layers: FP8 products run at 150 instead of 80 TFLOP/s."""
    wide = {"hidden_size": 2048, "head_dim": 256, "ffn_hidden_size": 8192}
    request = small(model=wide, workload={"seq_length": 2048}, pins=(pinned("data_parallel", 4),))
    assert solve(request, top=1).plans[0].plan.precision == "bf16"
    both = vary(request, workload={"precisions": ("bf16", "fp8")})
    best = solve(both, top=1).plans[0]
    assert best.plan.precision == "fp8"
    assert best.step_time_s == pytest.approx(priced_plans(both)[0][0], abs=TIME_TOLERANCE_S)
