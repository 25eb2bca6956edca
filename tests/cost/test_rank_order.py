"""Which ranks of a group share a block: the cost module's count against the rank map's, in both orders."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from toys import TOY, tiny_dense, tiny_moe, toy_cluster, vary

from planner.cost import collectives
from planner.cost.collectives import Group, reduce_scatter_time, send_time
from planner.cost.data_parallel import data_parallel_time
from planner.cost.layer_comm import in_stage, orders_cost_the_same, shard_groups, stage_group
from planner.cost.setting import Settings
from planner.cost.states import LocalParameters
from planner.cost.step import step_time
from planner.spec import Cluster, Link, Plan, PlanRequest
from planner.spec.plan import DEFAULT_ORDER, FAR_REPLICAS
from planner.spec.ranks import Coordinate, coordinates

ORDERS = (DEFAULT_ORDER, FAR_REPLICAS)
POWERS = st.sampled_from((1, 2, 4, 8))


def tiered(num_gpus: int, *blocks: int) -> Cluster:
    """Domains of so many GPUs, each tier slower than the one before, and a last one over everything."""
    links = tuple(
        Link(
            name=f"tier{i}", group_gpus=size, bytes_per_s=100e9 / 8**i, latency_s=1e-6 * (i + 1),
            oversubscription=1.0 if i < len(blocks) else 2.0, **TOY,
        )
        for i, size in enumerate((*blocks, 1_000_000))
    )  # fmt: skip
    return toy_cluster(num_gpus, blocks[0]).model_copy(update={"links": links})


def shared(plan: Plan, key: Any, block: int) -> set[int]:
    """In how many ranks the members of a group meet in one block of GPUs: every number that occurs."""
    counts: Counter[Any] = Counter()
    for place in coordinates(plan, 1):
        counts[key(place), place.rank // block] += 1
    return set(counts.values())


def of_stage(place: Coordinate) -> tuple[int, ...]:
    return place.tensor, place.context, place.data


def members(group: Group, cluster: Cluster) -> list[float]:
    """What the cost module takes for them on every tier but the last."""
    return [float(count) for count in collectives._spread(group, cluster)[1]][:-1]


def in_replica_order(place: Coordinate, plan: Plan) -> int:
    """Place of a rank among those that hold the same dense parameters."""
    return place.context + plan.context_parallel * place.data


@settings(deadline=None, max_examples=100)
@given(t=POWERS, c=POWERS, d=POWERS, p=POWERS, shards=POWERS, order=st.sampled_from(ORDERS), block=POWERS)
def test_members_of_a_block_are_those_of_the_rank_map(
    t: int, c: int, d: int, p: int, shards: int, order: Any, block: int
) -> None:
    """Degrees and blocks are powers of two, so every block holds equally many of a group, or none."""
    assume(t * c * d * p > 8 * block and (c * d) % shards == 0)
    plan = Plan(
        tensor_parallel=t, context_parallel=c, data_parallel=d, pipeline_parallel=p, rank_order=order,
        zero_stage=1, shard_group_size=shards,
    )  # fmt: skip
    cluster = tiered(plan.num_gpus, block, 4 * block)
    [(_, dense, repeats)] = shard_groups(1.0, 0.0, plan)

    def shard(place: Coordinate) -> tuple[int, ...]:
        return place.tensor, place.pipeline, in_replica_order(place, plan) // shards

    def repeat(place: Coordinate) -> tuple[int, ...]:
        return place.tensor, place.pipeline, in_replica_order(place, plan) % shards

    for group, key in ((stage_group(plan), of_stage), (dense, shard), (repeats, repeat)):
        for tier, count in enumerate(members(group, cluster)):
            assert shared(plan, key, block * 4**tier) == {count}


@settings(deadline=None, max_examples=100)
@given(t=POWERS, c=POWERS, d=POWERS, p=POWERS, etp=POWERS, e=POWERS, order=st.sampled_from(ORDERS))
def test_experts_and_their_replicas_are_those_of_the_rank_map(
    t: int, c: int, d: int, p: int, etp: int, e: int, order: Any
) -> None:
    assume((t * c * d) % (etp * e) == 0 and t * c * d * p > 32)
    plan = Plan(
        tensor_parallel=t, context_parallel=c, data_parallel=d, pipeline_parallel=p, expert_parallel=e,
        expert_tensor_parallel=etp, rank_order=order,
    )  # fmt: skip
    cluster = tiered(plan.num_gpus, 4, 16)
    replicas = plan.expert_data_parallel
    groups = (
        (in_stage(e, etp, plan), lambda at: (at.pipeline, at.expert_tensor, at.expert_data)),
        (in_stage(replicas, e * etp, plan), lambda at: (at.pipeline, at.expert_tensor, at.expert)),
    )
    for group, key in groups:
        for tier, count in enumerate(members(group, cluster)):
            assert shared(plan, key, 4 * 4**tier) == {count}


def test_orders_by_hand() -> None:
    """t2 d4 p4 in domains of 8: of 4 replicas all meet in one by default, and in the other order one."""
    near = Settings(tensor_parallel=2, data_parallel=4, pipeline_parallel=4)
    far = Settings(tensor_parallel=2, data_parallel=4, pipeline_parallel=4, rank_order=FAR_REPLICAS)
    cluster = tiered(32, 8)
    assert (stage_group(near).stride, stage_group(far).stride) == (8, 2)
    assert members(stage_group(near), cluster) == [1.0]
    assert members(stage_group(far), cluster) == [4.0]
    assert members(shard_groups(1.0, 0.0, near)[0][2], cluster) == [4.0]
    assert members(shard_groups(1.0, 0.0, far)[0][2], cluster) == [1.0]


def test_context_ranks_stay_together_and_data_ranks_do_not() -> None:
    """t2 c2 d2 p2 in domains of 4: runs of two context ranks, 8 GPUs apart."""
    plan = Plan(
        tensor_parallel=2, context_parallel=2, data_parallel=2, pipeline_parallel=2, schedule="1f1b",
        zero_stage=1, shard_group_size=4, rank_order=FAR_REPLICAS,
    )  # fmt: skip
    [(_, group, _)] = shard_groups(1.0, 0.0, plan)
    assert (group.size, group.stride, float(group.run), float(group.run_stride)) == (4, 2, 2.0, 8.0)
    assert members(group, tiered(16, 4)) == [2.0]
    places = [at.rank for at in coordinates(plan, 4) if (at.tensor, at.pipeline) == (0, 0)]
    assert places == [0, 2, 8, 10]


def test_a_run_is_priced_like_a_plain_group_of_its_size() -> None:
    cluster = tiered(64, 8)
    plain, run = Group(4, 2), Group(4, 2, 4, 32)
    assert reduce_scatter_time(1e8, run, cluster) == reduce_scatter_time(1e8, plain, cluster)
    apart = Group(4, 2, 1, 16)
    assert reduce_scatter_time(1e8, apart, cluster) == reduce_scatter_time(1e8, Group(4, 16), cluster)


def test_pipeline_neighbours_near_send_over_the_fast_link() -> None:
    """t2 d4 p4: 4 stages of one replica fill a domain of 8, so sends never leave it."""
    cluster = tiered(32, 8)
    near, far = (
        stage_group(Settings(tensor_parallel=2, data_parallel=4, pipeline_parallel=4, rank_order=order))
        for order in ORDERS
    )
    assert send_time(1e8, far, cluster) == pytest.approx(1e-6 + 1e8 / 100e9)
    assert send_time(1e8, near, cluster) > 8 * send_time(1e8, far, cluster)


def test_far_replicas_pay_the_network_for_their_gradients() -> None:
    request = vary(tiny_dense(), cluster=dict(tiered(32, 8)))
    local = LocalParameters(dense=1e8)
    near, far = (
        data_parallel_time(
            local, Settings(tensor_parallel=2, data_parallel=4, pipeline_parallel=4, rank_order=order),
            request, 0.0, 0.0,
        )
        for order in ORDERS
    )  # fmt: skip
    assert far > 3 * near


@pytest.mark.parametrize(
    ("make", "blocks"),
    [(tiny_dense, (4,)), (tiny_dense, (2, 8)), (tiny_dense, (3, 12)), (tiny_moe, (6,)), (tiny_moe, (4, 8))],
)
def test_orders_said_to_cost_the_same_do(make: Any, blocks: tuple[int, ...]) -> None:
    """Every combination of odd and even degrees, every ZeRO stage and shard group, to the last bit."""
    alike = differ = 0
    for t, c, p, d in product((1, 2, 3, 4), (1, 2, 3), (1, 2), (1, 2, 3)):
        request: PlanRequest = vary(make(), cluster=dict(tiered(t * c * p * d, *blocks)))
        whole = c * d
        for zero, group in ((0, 1), (1, whole), (3, whole), (3, c), (1, max(whole // 2, 1))):
            plan = Plan(
                tensor_parallel=t, context_parallel=c, pipeline_parallel=p, data_parallel=d, zero_stage=zero,
                shard_group_size=group if whole % group == 0 else 1, schedule="gpipe" if p > 1 else "none",
                expert_parallel=t * c if make is tiny_moe else 1, num_microbatches=4,
            )  # fmt: skip
            other = plan.model_copy(update={"rank_order": FAR_REPLICAS})
            same = float(step_time(plan, request).total) == float(step_time(other, request).total)
            if orders_cost_the_same(plan, request.cluster):
                assert same, (plan, blocks)
                alike += 1
            differ += not same
    assert alike > 40 and differ > 40


def test_whole_tables_are_priced_like_single_settings() -> None:
    cluster = tiered(64, 8, 32)
    sizes, runs, apart = np.array([4, 8, 8]), np.array([2, 1, 4]), np.array([16, 8, 16])
    table = reduce_scatter_time(1e8, Group(sizes, 2, runs, apart), cluster)
    for i, seconds in enumerate(table):
        single = Group(int(sizes[i]), 2, int(runs[i]), int(apart[i]))
        assert seconds == reduce_scatter_time(1e8, single, cluster)
