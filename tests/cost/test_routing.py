"""Distinct destinations of a token's experts, free and by groups."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import load_cluster, load_model
from planner.cost.collectives import Group, dispatch_time
from planner.cost.layer_comm import expert_comm
from planner.cost.routing import dispatch_bytes, distinct_destinations
from planner.cost.setting import Settings
from planner.spec.model import LayerKind
from planner.spec.request import PlanRequest


def test_deepseek_v3_on_eight_and_on_four_nodes() -> None:
    # 8 groups, 4 a token, 8 experts. One group a node: half of the nodes are chosen and hit with 1 - (3/4)^8.
    assert distinct_destinations(8, 8, (8, 4)) == pytest.approx(4 * (1 - 0.75**8))
    # Two groups a node: one chosen with 2 C(6,3) / C(8,4) = 40/70, both with C(6,2) / 70 = 15/70.
    expected = 4 * (40 / 70 * (1 - 0.75**8) + 15 / 70 * (1 - 0.5**8))
    assert distinct_destinations(4, 8, (8, 4)) == pytest.approx(expected)
    # 64 ranks: the four groups span 32 of them
    assert distinct_destinations(64, 8, (8, 4)) == pytest.approx(32 * (1 - (31 / 32) ** 8))


def test_counted_over_all_choices() -> None:
    # 4 destinations of 2 groups, 3 of 8 groups chosen, 2 experts drawn among them with replacement
    total = 0
    for chosen in itertools.combinations(range(8), 3):
        for draws in itertools.product(chosen, repeat=2):
            total += len({group // 2 for group in draws})
    assert distinct_destinations(4, 2, (8, 3)) == pytest.approx(total / (math.comb(8, 3) * 9))


@given(
    exponent=st.integers(0, 8), k=st.integers(1, 16), groups=st.sampled_from([(4, 2), (8, 3), (8, 4), (8, 8)])
)
@settings(deadline=None)
def test_groups_never_spread_a_token_further(exponent: int, k: int, groups: tuple[int, int]) -> None:
    count = 2**exponent
    free, limited = distinct_destinations(count, k), distinct_destinations(count, k, groups)
    assert 0 < limited <= free + 1e-9
    assert free <= min(count, k) + 1e-9


def test_arrays_are_the_numbers_one_by_one() -> None:
    counts = np.array([1, 2, 4, 8, 16, 64])
    many = distinct_destinations(counts, 8, (8, 4))
    assert many.tolist() == [pytest.approx(float(distinct_destinations(int(n), 8, (8, 4)))) for n in counts]


def test_the_model_says_how_its_router_chooses(tiny_dense: PlanRequest) -> None:
    # DeepSeek-V3 over 64 ranks of 8 H100 nodes: 3.6 copies between nodes in place of 5.25
    model, cluster = load_model("deepseek-v3"), load_cluster("h100", 64, 8)
    free = model.model_copy(update={"router_groups": None})
    habits = tiny_dense.framework.time.model_copy(update={"deduplicates_dispatch": True})
    framework = tiny_dense.framework.model_copy(update={"time": habits})
    workload = tiny_dense.workload.model_copy(update={"seq_length": 65536})
    request = tiny_dense.model_copy(update={"cluster": cluster, "framework": framework, "workload": workload})
    setting = Settings(data_parallel=64, expert_parallel=64)
    limited_s, free_s = (
        expert_comm(
            LayerKind(moe=True, window=None),
            setting,
            request.model_copy(update={"model": one}),
        )[0]
        for one in (model, free)
    )
    ratio = dispatch_bytes(1, 1, 8, 8, groups=(8, 4)) / dispatch_bytes(1, 1, 8, 8)
    assert ratio == pytest.approx(3.6 / 5.25, rel=0.01)
    assert limited_s / free_s == pytest.approx(ratio, rel=0.02)


def test_one_domain_has_no_nodes_to_save() -> None:
    cluster, group = load_cluster("gb200-nvl72", 8, 4), Group(8)
    limited, free = (dispatch_time(4096, 7168, 8, group, cluster, groups=groups) for groups in ((8, 4), None))
    assert limited < free
