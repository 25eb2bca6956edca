"""Gradient synchronisation and optimizer by hand, for every ZeRO stage."""

from __future__ import annotations

import pytest

from planner.cost.collectives import Group, all_gather_time, all_reduce_time, reduce_scatter_time
from planner.cost.data_parallel import (
    data_parallel_time,
    optimizer_offload_time,
    optimizer_time,
    owned_parameters,
)
from planner.cost.kernels import memory_bound_time
from planner.cost.setting import Settings
from planner.cost.states import LocalParameters
from planner.spec import PlanRequest

LOCAL = LocalParameters(dense=1e8)
GROUP = Group(8, 1)


def setting(stage: int, **fields: object) -> Settings:
    return Settings(data_parallel=8, zero_stage=stage, shard_group_size=8 if stage else 1, **fields)  # type: ignore[arg-type]


def test_zero_0_reduces_fp32_gradients(tiny_dense: PlanRequest) -> None:
    expected = all_reduce_time(4e8, GROUP, tiny_dense.cluster)
    assert data_parallel_time(LOCAL, setting(0), tiny_dense, 0.0, 0.0) == pytest.approx(expected)


def test_zero_1_scatters_gradients_and_gathers_weights(tiny_dense: PlanRequest) -> None:
    expected = reduce_scatter_time(4e8, GROUP, tiny_dense.cluster)
    expected += all_gather_time(2e8, GROUP, tiny_dense.cluster)
    assert data_parallel_time(LOCAL, setting(1), tiny_dense, 0.0, 0.0) == pytest.approx(expected)


def test_zero_3_has_its_traffic_in_the_layers(tiny_dense: PlanRequest) -> None:
    assert data_parallel_time(LOCAL, setting(3), tiny_dense, 0.0, 0.0) == 0.0


def test_hybrid_sharding_reduces_over_the_other_groups(tiny_dense: PlanRequest) -> None:
    hybrid = Settings(data_parallel=8, zero_stage=1, shard_group_size=4)
    cluster = tiny_dense.cluster
    expected = reduce_scatter_time(4e8, Group(4, 1), cluster) + all_gather_time(2e8, Group(4, 1), cluster)
    expected += all_reduce_time(1e8, Group(2, 4), cluster)
    assert data_parallel_time(LOCAL, hybrid, tiny_dense, 0.0, 0.0) == pytest.approx(expected)


def test_a_long_backward_pass_hides_it(tiny_dense: PlanRequest) -> None:
    shown = data_parallel_time(LOCAL, setting(1), tiny_dense, 0.0, 0.0)
    hidden = data_parallel_time(LOCAL, setting(1), tiny_dense, 10.0, 10.0)
    assert hidden == pytest.approx(shown * tiny_dense.framework.time.overlap_slowdown)


def test_replicas_reduce_in_buckets_of_their_own(tiny_dense: PlanRequest) -> None:
    """400 MB of gradients in messages of 100 MB; the shards of ZeRO-1 in messages of 200 MB."""
    habits = tiny_dense.framework.time.model_copy(
        update={"gradient_bucket_bytes": 2e8, "replica_bucket_bytes": 1e8}
    )
    framework = tiny_dense.framework.model_copy(update={"time": habits})
    request = tiny_dense.model_copy(update={"framework": framework})
    replicas = 4 * all_reduce_time(1e8, GROUP, request.cluster)
    assert data_parallel_time(LOCAL, setting(0), request, 0.0, 0.0) == pytest.approx(replicas)
    shards = 2 * reduce_scatter_time(2e8, GROUP, request.cluster)
    shards += all_gather_time(2e8, GROUP, request.cluster)
    assert data_parallel_time(LOCAL, setting(1), request, 0.0, 0.0) == pytest.approx(shards)


def test_one_rank_has_nothing_to_do(tiny_dense: PlanRequest) -> None:
    assert data_parallel_time(LOCAL, Settings(), tiny_dense, 0.0, 0.0) == 0.0


def test_optimizer_bytes_by_hand(tiny_dense: PlanRequest) -> None:
    # 45 bytes of an owned eighth and 8 bytes of every resident parameter
    expected = memory_bound_time(45 * 1.25e7 + 8 * 1e8, tiny_dense.cluster.accelerator, "optimizer")
    assert optimizer_time(LOCAL, setting(1), tiny_dense) == pytest.approx(expected)
    assert owned_parameters(LOCAL, setting(0)) == 1e8


def test_offloaded_optimizer_pays_the_host_link(tiny_dense: PlanRequest) -> None:
    # 6 + 28 bytes of 1.25e7 owned parameters over 25 GB/s
    offloaded = setting(1, offload="optimizer")
    assert optimizer_offload_time(LOCAL, offloaded, tiny_dense) == pytest.approx(34 * 1.25e7 / 25e9)
    assert optimizer_offload_time(LOCAL, setting(1), tiny_dense) == 0.0
    assert optimizer_time(LOCAL, offloaded, tiny_dense) < optimizer_time(LOCAL, setting(1), tiny_dense)


def test_adapters_leave_nothing_to_synchronise(tiny_dense: PlanRequest) -> None:
    workload = tiny_dense.workload.model_copy(update={"frozen_weights": True})
    frozen = tiny_dense.model_copy(update={"workload": workload})
    assert data_parallel_time(LOCAL, setting(1), frozen, 0.0, 0.0) == 0.0
    assert optimizer_time(LOCAL, setting(1), frozen) == 0.0
