"""The step: terms add up, balanced equals exact where stages are equal, and directions are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import tiny_dense as make_dense
from toys import tiny_moe as make_moe

from planner.cost.setting import Settings
from planner.cost.stage import ChunkLoad
from planner.cost.step import (
    balanced_step_time,
    exposed_hops,
    hop_time,
    step_time,
    straggler_fraction,
    unit_times,
)
from planner.spec import Plan, PlanRequest, StagePlan
from planner.spec.model import LayerKind


def endless(request: PlanRequest) -> PlanRequest:
    """Without weight in the ends of the model, so that even layers make even stages."""
    return request.model_copy(update={"model": request.model.model_copy(update={"vocab_size": 1})})


@given(
    t=st.sampled_from([1, 2]), d=st.sampled_from([1, 2, 4]), b=st.integers(1, 4), m=st.integers(1, 9),
    zero=st.sampled_from([0, 1, 2, 3]), recompute=st.sampled_from(["none", "full", "selective"]),
    moe=st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_balanced_equals_exact_on_one_stage(
    t: int, d: int, b: int, m: int, zero: int, recompute: Any, moe: bool
) -> None:
    request = make_moe() if moe else make_dense()
    plan = Plan(
        tensor_parallel=t, data_parallel=d, micro_batch=b, num_microbatches=m, zero_stage=zero,
        shard_group_size=d if zero else 1, sequence_parallel=t > 1, recompute=recompute,
    )  # fmt: skip
    exact, balanced = step_time(plan, request), balanced_step_time(plan, request)
    for name, value in exact.items():
        assert float(getattr(balanced, name)) == pytest.approx(float(value), rel=1e-9, abs=1e-15), name


@pytest.mark.parametrize(
    ("schedule", "v"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1)]
)
def test_balanced_is_a_tight_lower_bound_of_a_pipeline(
    tiny_dense: PlanRequest, schedule: Any, v: int
) -> None:
    plan = Plan(pipeline_parallel=2, virtual_stages=v, schedule=schedule, data_parallel=4, num_microbatches=8)
    for request in (tiny_dense, endless(tiny_dense)):
        exact, bound = step_time(plan, request).total, balanced_step_time(plan, request).total
        assert bound <= exact * (1 + 1e-9)
    assert bound == pytest.approx(exact, rel=0.06)  # without ends only their fixed costs differ


def test_terms_are_never_negative_and_add_up(tiny_moe: PlanRequest) -> None:
    plan = Plan(
        pipeline_parallel=2, schedule="1f1b", data_parallel=4, expert_parallel=4, zero_stage=1,
        shard_group_size=4, num_microbatches=4, recompute="full",
    )  # fmt: skip
    step = step_time(plan, tiny_moe)
    assert min(float(value) for _, value in step.items()) >= 0.0
    assert sum(step.as_dict().values()) == pytest.approx(float(step.total), rel=1e-12)


def test_uneven_stages_cost_the_slowest(tiny_dense: PlanRequest) -> None:
    even = Plan(pipeline_parallel=2, schedule="1f1b", data_parallel=4, num_microbatches=16)
    skew = even.model_copy(update={"stages": (StagePlan(chunk_layers=(3,)), StagePlan(chunk_layers=(1,)))})
    assert step_time(skew, tiny_dense).total > step_time(even, tiny_dense).total


def test_recomputing_fewer_layers_is_faster(tiny_dense: PlanRequest) -> None:
    def plan(layers: int) -> Plan:
        return Plan(
            data_parallel=8, recompute="full", num_microbatches=2,
            stages=(StagePlan(chunk_layers=(4,), recompute_layers=layers),),
        )  # fmt: skip

    none, half, whole = (step_time(plan(layers), tiny_dense) for layers in (0, 2, 4))
    assert none.recompute_s == 0.0
    assert half.recompute_s == pytest.approx(whole.recompute_s / 2)


def test_chunks_are_linear_in_their_load(tiny_moe: PlanRequest) -> None:
    units = unit_times(Settings(), tiny_moe)
    dense, moe = LayerKind(), LayerKind(moe=True)
    parts = [ChunkLoad(layers={dense: 1}), ChunkLoad(layers={moe: 3}), ChunkLoad(head=1, embedding=1)]
    whole = units.chunk(ChunkLoad(layers={dense: 1, moe: 3}, head=1, embedding=1))
    assert float(whole.total.total) == pytest.approx(
        sum(float(units.chunk(part).total.total) for part in parts)
    )


def test_the_engine_costs_every_micro_batch(tiny_dense: PlanRequest) -> None:
    time = tiny_dense.framework.time.model_copy(update={"microbatch_overhead_s": 0.01})
    slower = tiny_dense.model_copy(
        update={"framework": tiny_dense.framework.model_copy(update={"time": time})}
    )
    plan = Plan(
        data_parallel=4, pipeline_parallel=2, virtual_stages=2, schedule="interleaved", num_microbatches=4
    )
    added = step_time(plan, slower).host_s - step_time(plan, tiny_dense).host_s
    assert added == pytest.approx(0.04)


def test_hops_by_hand(tiny_dense: PlanRequest) -> None:
    # 1F1B, p = 4, m = 8: 2 * 3 * 8 / 4 + 2 * 2 = 16; interleaved with overlap: 2 (4 * 2 - 1) = 14
    one = Settings(pipeline_parallel=4, num_microbatches=8, schedule="1f1b")
    assert exposed_hops(one, tiny_dense) == 16
    two = Settings(pipeline_parallel=4, virtual_stages=2, num_microbatches=8, schedule="interleaved")
    assert exposed_hops(two, tiny_dense) == 14
    assert exposed_hops(Settings(), tiny_dense) == 0
    # of the 2 * 3 * 8 / 4 * 2 = 24 of the steady state a quarter shows
    time = tiny_dense.framework.time.model_copy(update={"pipeline_sends_hidden_fraction": 0.75})
    shown = tiny_dense.model_copy(
        update={"framework": tiny_dense.framework.model_copy(update={"time": time})}
    )
    assert exposed_hops(two, shown) == 14 + 6


def test_sends_stall_from_a_number_of_nodes_on(tiny_dense: PlanRequest) -> None:
    time = tiny_dense.framework.time.model_copy(update={"send_stall_nodes": 2, "send_stall_s": 0.5})
    stalls = tiny_dense.model_copy(
        update={"framework": tiny_dense.framework.model_copy(update={"time": time})}
    )
    ranks = tiny_dense.cluster.gpus_per_node
    one, two = (Settings(pipeline_parallel=2, data_parallel=d, schedule="1f1b") for d in (ranks // 2, ranks))
    assert hop_time(one, stalls) == hop_time(one, tiny_dense)
    assert hop_time(two, stalls) == pytest.approx(hop_time(two, tiny_dense) + 0.5)


def test_stragglers_grow_by_doubling(tiny_dense: PlanRequest) -> None:
    slope = tiny_dense.framework.time.straggler_per_doubling
    assert straggler_fraction(Settings(data_parallel=4), tiny_dense) == 0
    assert straggler_fraction(Settings(data_parallel=32), tiny_dense) == pytest.approx(3 * slope)


def test_many_plans_at_once_equal_one_by_one(tiny_dense: PlanRequest) -> None:
    p, d = np.array([1, 2, 4]), np.array([8, 4, 2])
    many = balanced_step_time(
        Settings(pipeline_parallel=p, data_parallel=d, num_microbatches=8, schedule="1f1b"), tiny_dense
    )
    for index in range(3):
        one = balanced_step_time(
            Settings(
                pipeline_parallel=int(p[index]),
                data_parallel=int(d[index]),
                num_microbatches=8,
                schedule="1f1b",
            ),
            tiny_dense,
        )
        assert many.total[index] == pytest.approx(float(one.total))


def test_llama_3_8b_on_h100_is_near_the_published_step(llama3_8b_on_h100: PlanRequest) -> None:
    # NVIDIA DGX Cloud recipes: 8 H100, bf16, c = 2, d = 4, 128 sequences of 8192: 12.3 to 12.9 s
    plan = Plan(context_parallel=2, data_parallel=4, zero_stage=1, shard_group_size=8, num_microbatches=32)
    assert float(step_time(plan, llama3_8b_on_h100).total) == pytest.approx(12.5, rel=0.12)
