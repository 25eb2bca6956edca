"""Plans in one sentence: everything that a row of the ranking leaves out."""

from __future__ import annotations

from dataclasses import replace

from planner.api import complete
from planner.cost.terms import Memory, StepTime
from planner.report.in_full import full_words, roomier_words, unseen_settings
from planner.solver.evaluate import evaluate
from planner.solver.result import Estimate
from planner.spec import Plan, PlanRequest, StagePlan


def staged(*ranks: tuple[int, ...], **more: object) -> Plan:
    stages = tuple(StagePlan(chunk_layers=chunks) for chunks in ranks)
    return Plan.model_validate({
        "pipeline_parallel": len(ranks), "virtual_stages": len(ranks[0]), "stages": stages,
        "schedule": "interleaved" if len(ranks[0]) > 1 else "1f1b", **more,
    })  # fmt: skip


def test_layers_are_counted_in_runs(tiny_dense: PlanRequest) -> None:
    assert full_words(staged((4,), (4,)), tiny_dense).endswith("4 layers a rank")
    uneven = full_words(staged((4,), (5,), (5,), (2,)), tiny_dense)
    assert uneven.endswith("1f1b, 4 layers on rank 0, 5 on ranks 1 to 2, 2 on rank 3")
    assert full_words(staged((2, 2), (3, 1)), tiny_dense).endswith("4 layers a rank in chunks of 1 to 3")
    assert full_words(staged((2, 2), (2, 2)), tiny_dense).endswith("4 layers a rank in chunks of 2")


def test_what_the_columns_do_not_show_is_said(tiny_dense: PlanRequest) -> None:
    plan = Plan(
        tensor_parallel=2, sequence_parallel=True, context_parallel=2, context_parallel_kind="all_to_all",
        data_parallel=4, zero_stage=1, shard_group_size=4, offload="optimizer", recompute="selective",
        recompute_modules=("mlp",),
    )  # fmt: skip
    words = full_words(plan, tiny_dense)
    for part in (
        "optimizer offload", "with sequence parallelism", "context parallel by all-to-all", "recomputing mlp",
        "state shared by groups of 4 of the 8 replicas",
    ):  # fmt: skip
        assert part in words
    assert "shared" not in full_words(plan.model_copy(update={"shard_group_size": 8}), tiny_dense)


def test_the_rank_order_is_said_where_it_is_not_the_default(tiny_dense: PlanRequest) -> None:
    near = staged((2,), (2,), data_parallel=2)
    far = near.model_copy(update={"rank_order": "tp-cp-ep-pp-dp"})
    assert "tp-cp" not in full_words(near, tiny_dense)
    words = full_words(far, tiny_dense)
    assert "1f1b tp-cp-ep-pp-dp" in words
    assert "pipeline neighbours near each other and data-parallel replicas far apart" in words
    assert unseen_settings([near, far]) == ["Rank order tp-cp-ep-pp-dp: plan 2."]


def test_settings_without_a_column_are_listed_by_plan() -> None:
    plain, away = Plan(), Plan(offload="optimizer")
    assert unseen_settings([plain, plain]) == []
    assert unseen_settings([away, plain, away]) == ["Optimizer offload: plans 1 and 3."]
    split, low = Plan(expert_tensor_parallel=2), Plan(precision="fp8")
    assert unseen_settings([plain, split, low]) == ["Experts split over etp=2: plan 2.", "In fp8: plan 3."]


def test_the_fastest_plan_with_room_is_named_where_the_first_has_none(tiny_dense: PlanRequest) -> None:
    base = evaluate(complete({}, tiny_dense), tiny_dense)

    def priced(step_s: float, peak_gb: float) -> Estimate:
        return replace(base, time=StepTime(gemm_s=step_s), stages=(Memory(weights_bytes=peak_gb * 1e9),))

    first, near, lean, slow = priced(10.0, 99.0), priced(9.98, 94.0), priced(10.3, 80.0), priced(12.0, 20.0)
    assert roomier_words([first, near, lean, slow], 100e9) == [
        "Plan 3 leaves 20.0 GB free for +3.0 % of step time."
    ]
    assert roomier_words([first, near], 100e9) == ["Plan 2 leaves 6.0 GB free for -0.2 % of step time."]
    assert roomier_words([near, priced(10.0, 93.0)], 100e9) == []  # the first has a twentieth as well
    assert roomier_words([lean, first], 100e9) == []
    assert roomier_words([first, first], 100e9) == []
    assert roomier_words([], 100e9) == []
