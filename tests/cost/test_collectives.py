"""Collective times: published points, limiting cases, monotone behaviour, arrays equal to scalars."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.hardware import load_cluster
from planner.cost.collectives import (
    Group,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    dispatch_time,
    reduce_scatter_time,
    send_time,
)
from planner.cost.routing import dispatch_bytes
from planner.spec.cluster import Cluster

MIB = 2.0**20
COMPONENTS = Path(__file__).parent.parent / "data" / "measured" / "components.jsonl"
COLLECTIVES: tuple[Callable[[Any, Group, Cluster], Any], ...] = (
    all_reduce_time, all_gather_time, reduce_scatter_time, all_to_all_time, send_time,
)  # fmt: skip
PARTS = (
    "h100",
    "a100",
    "b200",
    "gb200",
    "h800",
    "h100-nvl",
    "mi300x",
    "mi250x",
    "tpu-v5p",
    "tpu-v6e",
    "rtx-4090",
)


def bus_bandwidth(seconds: float, message_bytes: float, ranks: int, passes: float) -> float:
    """GB/s as nccl-tests prints it: passes (n - 1)/n S / t."""
    return passes * (ranks - 1) / ranks * message_bytes / seconds / 1e9


# ---------------------------------------------------------------- published points


@pytest.mark.parametrize(
    ("part", "ranks", "mebibytes", "published"),
    [  # NCCL tables of aiconfigurator, half precision
        ("h100", 8, 2, 96), ("h100", 8, 32, 294), ("h100", 8, 512, 445), ("h100", 4, 512, 350),
        ("h100", 2, 512, 318),
        ("a100", 8, 8, 115), ("a100", 8, 512, 222), ("a100", 2, 32, 150),
        ("b200", 8, 128, 590), ("b200", 8, 512, 704),
    ],
)  # fmt: skip
def test_all_reduce_inside_a_node(part: str, ranks: int, mebibytes: int, published: float) -> None:
    seconds = all_reduce_time(mebibytes * MIB, Group(ranks), load_cluster(part, ranks))
    assert bus_bandwidth(seconds, mebibytes * MIB, ranks, 2) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("function", "part", "mebibytes", "published"),
    [(all_gather_time, "h100", 512, 335), (reduce_scatter_time, "h100", 128, 307),
     (all_to_all_time, "h100", 512, 315),
     (all_gather_time, "b200", 512, 617), (all_to_all_time, "b200", 32, 331),
     (all_gather_time, "a100", 32, 135)],
)  # fmt: skip
def test_other_collectives_inside_a_node(function: Any, part: str, mebibytes: int, published: float) -> None:
    seconds = function(mebibytes * MIB, Group(8), load_cluster(part, 8))
    assert bus_bandwidth(seconds, mebibytes * MIB, 8, 1) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("gpus", "megabytes", "published"),
    [  # H100, 8 x 400 Gb/s (NVIDIA dgxc-benchmarking)
        (32, 64, 230), (32, 128, 277), (32, 512, 338), (32, 1000, 350),
        (32, 4000, 365), (32, 16000, 373),
        (8192, 64, 107), (8192, 128, 158), (8192, 512, 262),
        (8192, 1000, 300), (8192, 4000, 345), (8192, 16000, 373),
    ],
)  # fmt: skip
def test_all_reduce_across_nodes(gpus: int, megabytes: int, published: float) -> None:
    seconds = all_reduce_time(megabytes * 1e6, Group(gpus), load_cluster("h100", gpus))
    assert bus_bandwidth(seconds, megabytes * 1e6, gpus, 2) == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(
    ("mebibytes", "published"),
    [(1, 5.4), (16, 64), (64, 157), (256, 229), (1024, 362), (4096, 377), (16384, 382)],
)
def test_all_reduce_over_efa(mebibytes: int, published: float) -> None:
    # B200 on AWS, 4 nodes (stas00/ml-engineering); the 256 MiB point lies off the others
    seconds = all_reduce_time(mebibytes * MIB, Group(32), load_cluster("b200", 32, fabric="efa"))
    assert bus_bandwidth(seconds, mebibytes * MIB, 32, 2) == pytest.approx(published, rel=0.18)


@pytest.mark.parametrize(("ranks", "milliseconds"), [(16, 0.7), (32, 1.4)])
def test_every_ring_step_waits_for_the_network_on_efa(ranks: int, milliseconds: float) -> None:
    # Nanotron on 8xH100 nodes: 7 and 14 ms a layer for 10 exposed gathers and scatters of 17 to 67 MB
    cluster = load_cluster("h100", 64, fabric="efa", nic_bytes_per_s=50e9)
    for megabytes in (17, 67):
        seconds = all_gather_time(megabytes * 1e6, Group(ranks), cluster)
        assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.3)
    # InfiniBand only pays for the hops that cross it
    assert all_gather_time(17e6, Group(32), load_cluster("h100", 64)) < 0.3e-3


def test_one_rank_a_node_gets_one_nic() -> None:
    # stride 8: S (k - 1)/k over one 48 GB/s NIC, 16 nodes: 15/16 GB / 48e9 = 19.5 ms, latencies below 1 ms
    seconds = all_gather_time(1e9, Group(16, 8), load_cluster("h100", 128))
    assert seconds == pytest.approx(15 / 16 * 1e9 / 48e9, rel=0.05)
    # all eight ranks of each node in the group use eight NICs
    assert all_gather_time(1e9, Group(128), load_cluster("h100", 128)) < seconds / 4


def test_mesh_groups_use_only_their_own_links() -> None:
    # MI300X: 64 GB/s a peer at 0.7: 2 GPUs 44.8 (47.7 measured), 8 GPUs 313.6 (313 measured)
    for ranks, published in ((2, 47.7), (8, 313.0)):
        seconds = all_reduce_time(4e9, Group(ranks), load_cluster("mi300x", ranks))
        assert bus_bandwidth(seconds, 4e9, ranks, 2) == pytest.approx(published, rel=0.08)


def test_torus_has_no_cliff_and_uses_more_axes() -> None:
    # TPU v5p, 4096 chips = 16^3: one axis moves 2 x 90 GB/s x 0.95 both ways, three axes three times that
    cluster = load_cluster("tpu-v5p", 4096)
    one, three = all_gather_time(1e9, Group(16), cluster), all_gather_time(1e9, Group(4096), cluster)
    assert one == pytest.approx(15 / 16 * 1e9 / (0.95 * 180e9), rel=0.02)
    assert three == pytest.approx(1e9 / (0.95 * 540e9), rel=0.02)
    # 64 chips = 4^3 still wrap around: the same time for four chips of one axis
    four = [all_gather_time(1e9, Group(4), load_cluster("tpu-v5p", chips)) for chips in (64, 4096)]
    assert four[0] == pytest.approx(four[1], rel=1e-6)
    # a v5e slice of 64 chips (8 x 8) has no wrap-around links: twice the time of a full pod's axis
    half = all_gather_time(1e9, Group(8), load_cluster("tpu-v5e", 64))
    assert half == pytest.approx(7 / 8 * 1e9 / (0.95 * 45e9), rel=0.02)


def test_rack_domain_is_faster_than_the_network() -> None:
    inside = all_to_all_time(500e6, Group(64), load_cluster("gb200", 64))
    assert all_to_all_time(500e6, Group(64), load_cluster("b200", 64)) > 8 * inside


def test_oversubscription_hurts_all_to_all_most() -> None:
    flat = load_cluster("h100", 512)
    spine = load_cluster("h100", 512, pod_gpus=128, oversubscription=4.0)
    group = Group(512)
    slower_a2a = all_to_all_time(1e9, group, spine) / all_to_all_time(1e9, group, flat)
    slower_reduce = all_reduce_time(1e9, group, spine) / all_reduce_time(1e9, group, flat)
    assert slower_a2a > 2.5
    assert 1.0 <= slower_reduce < 1.5


def test_groups_that_straddle_a_node_pay_for_the_network() -> None:
    cluster = load_cluster("h100", 24)
    # three ranks: GPUs 6, 7, 8 lie on two nodes; four ranks never do
    assert all_reduce_time(64 * MIB, Group(3), cluster) > 2 * all_reduce_time(64 * MIB, Group(4), cluster)


# ---------------------------------------------------------------- sends and experts


def test_sends_take_the_slowest_tier_of_the_pipeline() -> None:
    cluster = load_cluster("h100", 64)
    inside = send_time(64e6, Group(2, 4), load_cluster("h100", 8))
    across = send_time(64e6, Group(8, 8), cluster)
    # 64 MB at 376 GB/s plus start-up; at 48 GB/s plus start-up
    assert inside == pytest.approx(64e6 / 376.2e9 + 11.8e-6, rel=1e-3)
    assert across == pytest.approx(64e6 / 48e9 + 39e-6, rel=1e-3)


def test_dispatch_goes_once_to_each_distinct_destination() -> None:
    # 2 destinations, top 1: half of the tokens leave: 4096 * 7168 * 2 bytes / 2
    assert dispatch_bytes(4096, 7168, 1, 2) == pytest.approx(4096 * 7168 * 2 / 2)
    # 8 destinations, top 8: 8 (1 - (7/8)^8) = 5.251 distinct, 7/8 of them remote
    assert dispatch_bytes(1, 1, 8, 8, 1.0) == pytest.approx(5.2511 * 7 / 8, rel=1e-4)
    # many destinations: as many copies as experts per token; node-limited routing caps them
    assert dispatch_bytes(1, 1, 8, 1e9, 1.0) == pytest.approx(8.0, rel=1e-3)
    assert dispatch_bytes(1, 1, 8, 64, 1.0, max_destinations=4) == pytest.approx(4 * 63 / 64)
    assert dispatch_bytes(1, 1, 8, 1, 1.0) == 0


def expert_errors(backend: str) -> list[float]:
    errors = []
    for row in map(json.loads, COMPONENTS.read_text().splitlines()):
        if not row["kind"].startswith("moe token") or row["backend"] != backend:
            continue
        cluster = load_cluster(row["hardware"]["gpu"], row["ep"])
        group, payload = Group(row["ep"]), row["tokens_per_gpu"] * row["topk"] * row["hidden"] * 2
        seconds = all_to_all_time(payload, group, cluster)
        if backend == "HybridEP":
            seconds = dispatch_time(
                row["tokens_per_gpu"], row["hidden"], row["topk"], group, cluster, max_nodes=4
            )
        errors.append(seconds / (row["time_us"] * 1e-6) - 1)
    return errors


@pytest.mark.parametrize(
    ("backend", "median", "worst"), [("all-to-all", 0.05, 0.12), ("HybridEP", 0.11, 0.23)]
)
def test_expert_exchange_as_measured(backend: str, median: float, worst: float) -> None:
    # GB200 and H100, 8 to 64 ranks, dispatch and combine (16 rows each)
    errors = [abs(error) for error in expert_errors(backend)]
    assert len(errors) == 16
    assert statistics.median(errors) < median
    assert max(errors) < worst


def test_all_reduce_as_measured_on_eight_h100() -> None:
    # 8 B to 16 GB; the source's 32 B and 4 KiB points are outliers of one run (68 and 24 us among 14-17 us)
    cluster = load_cluster("h100", 8)
    rows = [
        row for row in map(json.loads, COMPONENTS.read_text().splitlines()) if row["kind"] == "collective"
    ]
    seconds = all_reduce_time(np.array([row["bytes"] for row in rows]), Group(8), cluster)
    errors = np.sort(np.abs(seconds / np.array([row["out_of_place_us"] * 1e-6 for row in rows]) - 1))
    assert len(errors) == 32
    assert np.median(errors) < 0.03
    assert errors[-3] < 0.16


# ---------------------------------------------------------------- properties

sizes = st.floats(1.0, 1e11)


@given(
    function=st.sampled_from(COLLECTIVES),
    part=st.sampled_from(PARTS),
    message=sizes,
    stride=st.integers(1, 64),
)
@settings(deadline=None, max_examples=60)
def test_one_rank_is_free(function: Any, part: str, message: float, stride: int) -> None:
    cluster = load_cluster(part, 64)
    assert function(message, Group(1, stride), cluster) == 0.0
    assert function(0.0, Group(8, 1), cluster) == 0.0


@given(
    function=st.sampled_from(COLLECTIVES), part=st.sampled_from(PARTS), exponent=st.integers(1, 8),
    stride=st.sampled_from((1, 2, 4, 8)), small=sizes, factor=st.floats(1.0, 1e3),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_larger_messages_never_take_less(
    function: Any, part: str, exponent: int, stride: int, small: float, factor: float
) -> None:
    cluster = load_cluster(part, 2048)
    group = Group(2**exponent, stride)
    less, more = function(small, group, cluster), function(small * factor, group, cluster)
    assert 0 < less <= more * (1 + 1e-12)
    assert np.isfinite(more)


@given(
    function=st.sampled_from(COLLECTIVES), part=st.sampled_from(PARTS), exponent=st.integers(1, 8),
    stride=st.sampled_from((1, 3, 8)), message=sizes, gain=st.floats(1.0, 10.0),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_faster_links_never_take_longer(
    function: Any, part: str, exponent: int, stride: int, message: float, gain: float
) -> None:
    base = load_cluster(part, 2048)
    group = Group(2**exponent, stride)
    faster = load_cluster(
        part,
        2048,
        domain_bytes_per_s=base.links[0].bytes_per_s * gain,
        nic_bytes_per_s=base.links[-1].bytes_per_s * gain,
    )  # fmt: skip
    assert function(message, group, faster) <= function(message, group, base) * (1 + 1e-9)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("function", COLLECTIVES)
def test_arrays_equal_scalars(function: Any, part: str) -> None:
    cluster = load_cluster(part, 96, pod_gpus=48, oversubscription=2.0)
    messages = np.array([1e3, 3e6, 1e8, 7e9])[:, None]
    ranks = np.array([1, 2, 3, 4, 6, 8, 12, 32, 96])[None, :]
    strides = np.where(ranks <= 12, 8, 1)
    table = function(messages, Group(ranks, strides), cluster)
    assert table.shape == (4, 9)
    for i, message in enumerate(messages[:, 0]):
        for j, (rank, stride) in enumerate(zip(ranks[0], strides[0], strict=True)):
            single = function(float(message), Group(int(rank), int(stride)), cluster)
            assert isinstance(single, float)
            assert table[i, j] == pytest.approx(single, rel=1e-12)


def test_between_measured_group_sizes_time_lies_between() -> None:
    cluster = load_cluster("h100", 8)
    times = [all_gather_time(64 * MIB, Group(ranks), cluster) for ranks in (4, 6, 8)]
    assert times[0] < times[1] < times[2]
