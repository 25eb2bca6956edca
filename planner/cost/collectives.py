"""Time of collectives and sends between GPUs, over every tier that a group spans.

Letters: n ranks, s stride, S bytes of the message, q ranks of the group inside one block of a tier,
k blocks of a tier that the group spans. The message is the full buffer: what an all-reduce reduces, what an
all-gather ends with, what a reduce-scatter starts from; for an all-to-all it is what one rank sends,
its own part included. Every function takes numbers or arrays that broadcast and is zero for one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.cost.routing import Groups, dispatch_bytes
from planner.spec.cluster import Cluster, Collective, CollectiveCurve, Link

Array = npt.NDArray[np.float64]

TREE_HOP = 20.9 / 14.0
"""Latency of one network hop of an NVLink-switch tree over that of a ring (NCCL 2.27 src/graph/tuning.cc)."""
LOW_LATENCY_HOP = 4.0 / 14.0
"""Latency of one network hop in NCCL's LL128 protocol over that of Simple (same table)."""
LOW_LATENCY_INNER_HOP = 1.9 / 3.4
"""The same between NVLink neighbours."""
LOW_LATENCY_BANDWIDTH = 0.92
"""Bandwidth of LL128 relative to Simple (120 of 128 bytes carry data, less protocol)."""
TREE_CHUNKS = 16
TREE_CHUNK_BYTES = 2e6
"""A tree passes a rail's share on in 1/16 or in 2 MB pieces, and each hop waits for one piece.

Both fitted on the published H100 all-reduce tables for 4 to 1024 nodes, 64 MB to 16 GB
(NVIDIA dgxc-benchmarking): worst error 13 %."""

DISPATCH_SETUP_S = 40e-6
"""Exchange of token counts before a dispatch or combine (TensorRT-LLM kernel on GB200: about 40 us)."""


@dataclass(frozen=True)
class Group:
    """Ranks of one communicator: ``size`` GPUs, ``stride`` apart in the order of GPUs (nodes are contiguous).

    Tensor ranks have stride 1; data ranks of a layout with t tensor ranks have stride t. All groups of
    the same kind are taken to communicate at the same time, so a GPU has its own share of the node's NICs.
    """

    size: Any
    stride: Any = 1
    run: Any = None
    """Ranks after which a gap follows (context ranks of a replica, with other stages between replicas)."""
    run_stride: Any = 1
    """From the first rank of a run to the first of the next."""


def all_reduce_time(message_bytes: Any, group: Group, cluster: Cluster) -> Any:
    """Time of one all-reduce. [s].

    Notes
    -----
    Inside the fastest domain: the measured curve. Across it: reduce-scatter and all-gather inside overlap
    with a tree all-reduce of S/q between blocks, so the slower of the two sets the bandwidth and each tree
    hop adds its latency and the wait for one piece.
    """
    size, members = _spread(group, cluster)
    message = np.asarray(message_bytes, dtype=np.float64)
    fits = members[0] >= size
    inside = _domain_time("all_reduce", message, size, cluster) if np.any(fits) else 0.0
    if np.all(fits):
        return _result(message, size, members, inside, inside)
    slowest = _domain_time("reduce_scatter", message, members[0], cluster)
    slowest = slowest + _domain_time("all_gather", message, members[0], cluster)
    extra: Any = 0.0
    for link, block, inner in _upper_tiers(cluster, members):
        blocks = np.maximum(1.0, block / inner)
        share, rate = message / inner, _rate(link)
        hops = 2.0 * np.log2(blocks)
        piece = np.minimum(share / TREE_CHUNKS, TREE_CHUNK_BYTES)
        slowest = np.maximum(slowest, 2.0 * (blocks - 1.0) / blocks * share / rate)
        extra = extra + (blocks > 1) * link.base_s + hops * (TREE_HOP * link.latency_s + piece / rate)
    return _result(message, size, members, inside, slowest + extra)


def all_gather_time(message_bytes: Any, group: Group, cluster: Cluster) -> Any:
    """Time of one all-gather. [s].

    Notes
    -----
    Across domains NCCL runs one ring through all ranks: k - 1 network hops, the other hops inside. The
    faster of two protocols is taken: one with full bandwidth, one with short hops.
    """
    return _ring_time("all_gather", message_bytes, group, cluster)


def reduce_scatter_time(message_bytes: Any, group: Group, cluster: Cluster) -> Any:
    """Time of one reduce-scatter. [s]. See :func:`all_gather_time`."""
    return _ring_time("reduce_scatter", message_bytes, group, cluster)


def all_to_all_time(message_bytes: Any, group: Group, cluster: Cluster) -> Any:
    """Time of one all-to-all in which each rank sends ``message_bytes / n`` to every rank. [s].

    Notes
    -----
    Inside and outside traffic flow together; of S bytes, S (n - q)/n leave the domain through the GPU's
    own share of the NICs. Known error on H100, 16 to 64 ranks: within 8 %.
    """
    size, members = _spread(group, cluster)
    message = np.asarray(message_bytes, dtype=np.float64)
    inside = _domain_time("all_to_all", message, size, cluster)
    slowest = _domain_time("all_to_all", message * members[0] / size, members[0], cluster)
    extra: Any = 0.0
    for link, block, inner in _upper_tiers(cluster, members):
        blocks = np.maximum(1.0, block / inner)
        outside = message * np.maximum(0.0, size - inner) / size
        rate = link.bytes_per_s * link.all_to_all_efficiency / link.oversubscription
        slowest = np.maximum(slowest, (blocks > 1) * outside / rate)
        extra = extra + (blocks > 1) * (link.base_s + np.ceil(np.log2(blocks)) * link.latency_s)
    return _result(message, size, members, inside, slowest + extra)


def send_time(message_bytes: Any, group: Group, cluster: Cluster) -> Any:
    """Time in which each rank of ``group`` hands ``message_bytes`` to the next rank, all groups at once. [s].

    The slowest pair counts: it crosses a tier as soon as the group does.
    """
    size, members = _spread(group, cluster)
    stride = np.asarray(group.stride, dtype=np.float64)
    message = np.asarray(message_bytes, dtype=np.float64)
    first = cluster.links[0]
    time = first.base_s + first.latency_s + message / _sending_rate(first, size)
    below = first.group_gpus
    for link, block, inner in _upper_tiers(cluster, members):
        crossing = np.minimum(1.0, stride / below)
        rate = link.bytes_per_s * link.efficiency / np.maximum(1.0, link.oversubscription * crossing)
        time = np.where(block > inner, link.base_s + link.latency_s + message / rate, time)
        below = link.group_gpus
    return _scalar(np.where((size > 1) & (message > 0), time, 0.0))


def dispatch_time(
    tokens: Any,
    hidden_size: int,
    experts_per_token: int,
    group: Group,
    cluster: Cluster,
    bytes_per_element: float = 2.0,
    max_nodes: int | None = None,
    groups: Groups | None = None,
) -> Any:
    """Time of a deduplicating expert dispatch or combine (DeepEP, HybridEP): one copy per node and rank. [s].

    Notes
    -----
    The copy between nodes and the copy inside overlap; the slower one counts. The kernels write straight into
    their peers' memory, so inside a domain they reach the point-to-point rate.
    """
    size, members = _spread(group, cluster)
    inner = np.minimum(members[0], size)
    parts = (tokens, hidden_size, experts_per_token)
    payload = dispatch_bytes(*parts, size, bytes_per_element, None, groups)
    local = payload * (inner - 1.0) / np.maximum(size - 1.0, 1.0)
    time: Any = local / _direct_rate(cluster.links[0], inner)
    extra: Any = DISPATCH_SETUP_S
    for link, block, below in _upper_tiers(cluster, members):
        blocks = np.maximum(1.0, np.ceil(block / below))
        sent = dispatch_bytes(*parts, blocks, bytes_per_element, max_nodes, groups)
        rate = link.bytes_per_s * link.all_to_all_efficiency / link.oversubscription
        time = np.maximum(time, sent / rate)
        extra = extra + (blocks > 1) * (link.base_s + link.latency_s)
    return _scalar(np.where((size > 1) & (payload > 0), time + extra, 0.0))


def _ring_time(op: Collective, message_bytes: Any, group: Group, cluster: Cluster) -> Any:
    size, members = _spread(group, cluster)
    message = np.asarray(message_bytes, dtype=np.float64)
    fits = members[0] >= size
    inside = _domain_time(op, message, size, cluster) if np.any(fits) else 0.0
    across = inside if np.all(fits) else _across(op, message, size, members, cluster)
    return _result(message, size, members, inside, across)


def _across(op: Collective, message: Array, size: Array, members: list[Array], cluster: Cluster) -> Array:
    """Time of groups that leave the fastest domain."""
    within = _domain_time(op, message, members[0], cluster)
    tiers = list(_upper_tiers(cluster, members))
    options = []
    for bandwidth, net_hop, inner_hop in (
        (1.0, 1.0, 1.0),
        (LOW_LATENCY_BANDWIDTH, LOW_LATENCY_HOP, LOW_LATENCY_INNER_HOP),
    ):
        slowest: Any = within
        latency: Any = 0.0
        network_hops: Any = 0.0
        for link, block, inner in tiers:
            blocks = np.maximum(1.0, block / inner)
            waits = link.ring_waits
            hops = np.where(blocks > 1, size - 1.0, 0.0) if waits else (blocks - 1.0) * size / block
            slowest = np.maximum(slowest, (blocks - 1.0) / blocks * message / inner / _rate(link) / bandwidth)
            latency = (
                latency + (blocks > 1) * link.base_s + hops * link.latency_s * (1.0 if waits else net_hop)
            )
            network_hops = network_hops + hops
        inner_hops = np.maximum(0.0, size - members[0] - network_hops)
        options.append(slowest + latency + inner_hops * cluster.links[0].latency_s * inner_hop)
    return np.asarray(np.minimum(*options))


def _spread(group: Group, cluster: Cluster) -> tuple[Array, list[Array]]:
    """Return n and, for every tier, the ranks of one group inside one of the tier's blocks."""
    size = np.asarray(group.size, dtype=np.float64)
    stride = np.asarray(group.stride, dtype=np.float64)
    members = [_members(size, stride, link.group_gpus, cluster.num_gpus) for link in cluster.links]
    if group.run is not None:
        for tier, link in enumerate(cluster.links):
            whole = (size <= group.run) | (link.group_gpus >= cluster.num_gpus)
            members[tier] = np.where(whole, members[tier], _gapped(size, stride, group, link.group_gpus))
    members[-1] = size + 0.0 * members[0]
    return members[-1], members


def _members(size: Array, stride: Array, block: int, num_gpus: int) -> Array:
    if block >= num_gpus:
        return np.asarray(size + 0.0 * stride)
    span = size * stride
    aligned = (span <= block) & (np.mod(block, span) == 0)
    straddles = (span <= block) & ~aligned
    parts = np.clip(np.floor(block / stride), 1.0, size)
    return np.where(aligned, size, np.where(straddles, np.maximum(1.0, np.floor(size / 2.0)), parts))


def _gapped(size: Array, stride: Array, group: Group, block: int) -> Array:
    """``_members`` of a group of several runs: those of one run, and the runs that share the block whole."""
    run, span = np.asarray(group.run, dtype=np.float64), size / group.run * group.run_stride
    of_run = np.clip(np.floor(block / stride), 1.0, run)
    runs = np.clip(np.floor(block / group.run_stride), 1.0, np.maximum(size / run, 1.0))
    parts = np.where(of_run < run, of_run, run * runs)
    straddles = (span <= block) & (np.mod(block, span) > 0)
    return np.where(straddles, np.maximum(1.0, np.floor(size / 2.0)), np.minimum(parts, size))


def _upper_tiers(cluster: Cluster, members: list[Array]) -> list[tuple[Link, Array, Array]]:
    """Tiers above the fastest domain: link, ranks in its block, ranks in a block of the tier below."""
    tiers = zip(cluster.links[1:], members[1:], members[:-1], strict=True)
    return [(link, np.maximum(own, below), below) for link, own, below in tiers]


def _rate(link: Link) -> float:
    return link.bytes_per_s * link.efficiency / link.oversubscription


def _direct_rate(link: Link, size: Array) -> Array:
    """Rate of one rank to all its peers at once."""
    share = (size - 1.0) / max(1, link.group_gpus - 1) if link.is_mesh else 1.0
    return np.maximum(link.bytes_per_s * link.efficiency * share, 1.0) + 0.0 * size


def _sending_rate(link: Link, size: Array) -> Array:
    """Rate of one rank to one neighbour."""
    rate = np.full_like(size, link.bytes_per_s * link.efficiency)
    if link.is_mesh:
        return rate / max(1, link.group_gpus - 1)
    return rate / (2 * link.torus_axes) if link.is_torus else rate


def _result(message: Array, size: Array, members: list[Array], inside: Any, across: Any) -> Any:
    time = np.where(members[0] >= size, inside, across)
    return _scalar(np.where((size > 1) & (message > 0), time, 0.0))


def _scalar(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value


def _factor(op: Collective, size: Any) -> Any:
    """Bus factor: bytes through one rank's port over the message (nccl-tests)."""
    return (2.0 if op == "all_reduce" else 1.0) * (size - 1.0) / size


def _domain_time(op: Collective, message: Any, size: Array, cluster: Cluster) -> Array:
    """Time inside the fastest domain; zero for one rank."""
    link = cluster.links[0]
    curves = [curve for curve in cluster.accelerator.collectives if curve.collective == op]
    ranks = np.maximum(size, 2.0)
    if link.is_torus:
        time = _torus_time(op, message, ranks, link, cluster.num_gpus)
    elif curves:
        time = _curve_time(op, message, ranks, link, sorted(curves, key=lambda curve: curve.num_ranks))
    else:
        time = _alpha_beta_time(op, message, ranks, link)
    return np.where((size > 1) & (np.asarray(message) > 0), time, 0.0)


def _alpha_beta_time(op: Collective, message: Any, size: Array, link: Link) -> Array:
    """``base + steps * latency + factor * S / rate``; a mesh of n ranks uses n - 1 links in one step."""
    share = (size - 1.0) / max(1, link.group_gpus - 1) if link.is_mesh else 1.0
    passes = 2.0 if op == "all_reduce" else 1.0
    steps = passes * (1.0 if link.is_mesh or op == "all_to_all" else size - 1.0)
    rate = link.bytes_per_s * link.efficiency * np.minimum(1.0, share)
    return np.asarray(link.base_s + steps * link.latency_s + _factor(op, size) * message / rate)


def _torus_time(op: Collective, message: Any, size: Array, link: Link, num_gpus: int) -> Array:
    """Rings along the axes that the group spans.

    Notes
    -----
    A slice of N chips has sides N^(1/A). A group of n spans a = ceil(log n / log side) axes; each axis
    carries its share of the chip's line rate in both directions, half of it without wrap-around.
    An all-to-all of S bytes per chip moves S x/4 over each axis of length x (scaling book, sharding).
    """
    chips = max(2, min(link.group_gpus, num_gpus))
    axes_total = max(1, link.torus_axes)
    side = round(chips ** (1.0 / axes_total), 9)
    axes = (
        np.clip(np.ceil(np.log(size) / np.log(side) - 1e-9), 1.0, axes_total)
        if side > 1
        else np.ones_like(size)
    )
    length = np.minimum(size, size ** (1.0 / axes))
    wraps = max(side, 1.0) >= link.torus_wrap_side
    per_axis = link.bytes_per_s * link.efficiency / axes_total * (1.0 if wraps else 0.5)
    hops = axes * length / 2.0
    if op == "all_to_all":
        moved = message * np.maximum(length / 4.0, (size - 1.0) / size / axes) / per_axis
    else:
        moved = _factor(op, size) * message / (per_axis * axes)
    passes = 2.0 if op == "all_reduce" else 1.0
    return np.asarray(link.base_s + np.maximum(passes * hops * link.latency_s, moved))


def _curve_time(
    op: Collective, message: Any, size: Array, link: Link, curves: list[CollectiveCurve]
) -> Array:
    """Measured times, log-log between sizes and between groups; beyond the largest group by bus factor."""
    log_message = np.log(np.maximum(message, 1.0))
    largest = float(curves[-1].num_ranks)
    here = _at_size(curves[0], log_message, link)
    time = here * np.minimum(1.0, _factor(op, size) / _factor(op, curves[0].num_ranks))
    for lower, upper in pairwise(curves):
        if not np.any(size > lower.num_ranks):
            return np.asarray(time)
        there = _at_size(upper, log_message, link)
        span = np.log(upper.num_ranks / lower.num_ranks) or 1.0  # two curves of one group: the later
        weight = np.clip(np.log(size / lower.num_ranks) / span, 0.0, 1.0)
        time = np.where(size > lower.num_ranks, here ** (1.0 - weight) * there**weight, time)
        here = there
    if not np.any(size > largest):
        return np.asarray(time)
    rings = op in ("all_gather", "reduce_scatter")
    hops = (size - largest) * link.latency_s * LOW_LATENCY_INNER_HOP if rings else 0.0
    beyond = here * _factor(op, size) / _factor(op, largest) + hops
    return np.asarray(np.where(size > largest, beyond, time))


def _at_size(curve: CollectiveCurve, log_message: Any, link: Link) -> Array:
    sizes, times = _log_points(curve)
    time = np.exp(np.interp(log_message, sizes, times) + np.maximum(0.0, log_message - sizes[-1]))
    floor = np.exp(times[0])
    return np.asarray(floor + (time - floor) * (curve.link_bytes_per_s / link.bytes_per_s))


@lru_cache(maxsize=1024)
def _log_points(curve: CollectiveCurve) -> tuple[Array, Array]:
    """Logarithms of the points; a time above a later one is lowered to it, so time never falls with size."""
    times = np.minimum.accumulate(np.asarray(curve.time_s, dtype=np.float64)[::-1])[::-1]
    return np.log(np.asarray(curve.message_bytes, dtype=np.float64)), np.log(times)
