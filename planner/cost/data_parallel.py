"""What follows the last backward pass: gradient reduction, optimizer, parameter gathering.

Letters: P parameters of one GPU before sharding, D ranks that share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from planner.cost.collectives import Group, all_gather_time, all_reduce_time, reduce_scatter_time
from planner.cost.kernels import memory_bound_time
from planner.cost.layer_comm import ELEMENT_BYTES, shard_groups
from planner.cost.offload import OF_STATE, optimizer_offload_time
from planner.cost.setting import Setting
from planner.cost.states import LocalParameters, owned_parameters
from planner.cost.work import exposed_time
from planner.spec.cluster import Cluster
from planner.spec.request import PlanRequest


def data_parallel_time(
    local: LocalParameters, setting: Setting, request: PlanRequest, forward_s: Any, backward_s: Any
) -> Any:
    """Exposed gradient reduction and parameter gathering, once a step. [s].

    Parameters
    ----------
    local
        Parameters of the pace-setting rank.
    forward_s, backward_s
        Its first forward and its last backward pass (one micro-batch): all that can hide the two collectives.

    Notes
    -----
    ZeRO-0: all-reduce of the gradients. ZeRO-1: reduce-scatter of the gradients, all-gather of the weights.
    ZeRO-2 only gathers here, ZeRO-3 nothing: their other traffic repeats every micro-batch and is part of the
    layer's time.
    """
    habits, stage = request.framework.time, setting.zero_stage
    reduce, gather = 0.0, 0.0
    bucket = (habits.replica_bucket_bytes if stage == 0 else None) or habits.gradient_bucket_bytes
    if request.workload.frozen_weights:
        return 0.0 * np.asarray(backward_s)
    for count, group, replicas in shard_groups(local.dense, local.expert, setting):
        gradients = count * habits.gradient_reduce_bytes
        if stage == 1:
            reduce = reduce + _in_buckets(reduce_scatter_time, gradients, group, bucket, request)
        if stage <= 1:
            shard = gradients / np.maximum(group.size, 1.0)
            reduce = reduce + _in_buckets(all_reduce_time, shard, replicas, bucket, request)
        if stage in (1, 2):
            gather = gather + _in_buckets(all_gather_time, count * ELEMENT_BYTES, group, bucket, request)
    overlaps = habits.gradient_sync_overlaps and (stage == 0 or habits.sharded_sync_overlaps)
    hidden_reduce = exposed_time(reduce, backward_s, habits, overlaps)
    return hidden_reduce + exposed_time(gather, forward_s, habits, habits.parameter_gather_overlaps)


def _in_buckets(
    collective: Callable[[Any, Group, Cluster], Any],
    message_bytes: Any,
    group: Group,
    largest: float | None,
    request: PlanRequest,
) -> Any:
    """Time of a collective that is cut into messages of at most ``largest`` bytes. [s]."""
    if largest is None:
        return collective(message_bytes, group, request.cluster)
    buckets = np.maximum(np.asarray(message_bytes) / largest, 1.0)
    return buckets * collective(message_bytes / buckets, group, request.cluster)


def optimizer_time(local: LocalParameters, setting: Setting, request: PlanRequest) -> Any:
    """Adam, gradient norm and clipping on the GPU, by bytes. [s].

    Notes
    -----
    (x P / D + y P) / HBM rate, with x bytes per owned and y per resident parameter of the framework's habits.
    """
    if request.workload.frozen_weights:
        return 0.0 * np.asarray(local.total)
    habits = request.framework.time
    owned = 0.0 if setting.offload in OF_STATE else owned_parameters(local, setting)
    moved = habits.optimizer_bytes_per_owned * owned + habits.optimizer_bytes_per_resident * local.total
    return memory_bound_time(moved, request.cluster.accelerator, "optimizer")


def tail_time(
    local: LocalParameters, setting: Setting, request: PlanRequest, forward_s: Any, backward_s: Any
) -> Any:
    """Everything that follows the last backward pass. [s]; see ``data_parallel_time`` for the parameters."""
    exchanged = data_parallel_time(local, setting, request, forward_s, backward_s)
    updated = optimizer_time(local, setting, request) + optimizer_offload_time(local, setting, request)
    return exchanged + updated
