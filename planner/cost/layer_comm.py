"""Exposed communication of one layer and one micro-batch: tensor, context, expert and sharding groups.

GPUs are numbered tensor, context, expert, data, pipeline, the first fastest (Megatron's default), so tensor
groups have stride 1, context groups stride t, data groups stride t c, pipeline neighbours stride t c d. In
``tp-cp-ep-pp-dp`` neighbours have stride t c, and the data ranks of a stage stand t c p apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.cost import kernels, linear_mixer
from planner.cost.activations import tokens_per_micro_batch
from planner.cost.collectives import (
    Group,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    dispatch_time,
    reduce_scatter_time,
    send_time,
)
from planner.cost.flops import attention_dims, local_kv_heads
from planner.cost.orders import BIDIRECTIONAL
from planner.cost.setting import Setting
from planner.cost.states import layer_local_parameters, shard_ranks
from planner.cost.work import exposed_time
from planner.spec.cluster import Cluster
from planner.spec.model import LayerKind
from planner.spec.plan import DEFAULT_ORDER, Schedule
from planner.spec.request import PlanRequest

ELEMENT_BYTES = 2.0
"""Activations travel in 16 bits."""
PAIRED_SCHEDULES: frozenset[Schedule] = BIDIRECTIONAL | {"dualpipe-v"}
"""Schedules that run a forward and a backward chunk together and hide expert traffic behind them."""
PAIRED_HIDDEN_FRACTION = 0.9
"""Share of expert traffic hidden by such a pair (DeepSeek-V3 report: "fully hidden"; 0.9 leaves the ends)."""


def tensor_group(setting: Setting) -> Group:
    """Ranks that share one layer's matrices."""
    return Group(setting.tensor_parallel, 1)


def context_group(setting: Setting) -> Group:
    """Ranks that share one sequence."""
    return Group(setting.context_parallel, setting.tensor_parallel)


def expert_group(setting: Setting) -> Group:
    """Ranks that share one layer's experts."""
    return in_stage(setting.expert_parallel, setting.expert_tensor_parallel, setting)


def in_stage(size: Any, stride: Any, setting: Setting) -> Group:
    """Ranks of one pipeline rank that are ``stride`` apart in the order of its own t c d ranks.

    Those of a replica are neighbours. With replicas outermost the other stages stand between replicas: runs
    of as many ranks as a replica has at that stride, p times as far apart as they are long.
    """
    if setting.rank_order == DEFAULT_ORDER:
        return Group(size, stride)
    near = np.asarray(setting.tensor_parallel) * setting.context_parallel
    run = np.maximum(np.floor(near / stride), 1.0)
    run = np.where(_orders_number_alike(setting), np.maximum(run, size), run)
    return Group(size, stride, run, run * stride * setting.pipeline_parallel)


def stage_group(setting: Setting) -> Group:
    """Pipeline ranks of one model replica."""
    inner = np.asarray(setting.tensor_parallel) * setting.context_parallel
    if setting.rank_order == DEFAULT_ORDER:
        inner = inner * setting.data_parallel
    return Group(setting.pipeline_parallel, inner)


def orders_cost_the_same(setting: Setting, cluster: Cluster) -> Any:
    """Whether every group shares the blocks of every tier alike in both rank orders.

    Notes
    -----
    With one pipeline or one data rank both orders number alike. Else let t c be a multiple of each block B
    that is smaller than the cluster. Neighbouring stages are at least t c apart, so no block holds two of
    them. Of the ranks of a stage, each B / stride in a row fill a block: a block lies within one replica,
    and the order within a replica is the same.
    """
    near = np.asarray(setting.tensor_parallel) * setting.context_parallel
    blocks = [link.group_gpus for link in cluster.links[:-1] if link.group_gpus < cluster.num_gpus]
    filled = np.asarray(near > 0)
    for block in blocks:
        filled = filled & (near % block == 0)
    return _orders_number_alike(setting) | filled


def _orders_number_alike(setting: Setting) -> Any:
    return (np.asarray(setting.pipeline_parallel) == 1) | (np.asarray(setting.data_parallel) == 1)


def tensor_comm(
    kind: LayerKind, setting: Setting, request: PlanRequest, input_gemm_s: Any, weight_gemm_s: Any
) -> tuple[Any, Any]:
    """Exposed tensor-parallel time of one layer, forward and backward. [s].

    Notes
    -----
    Two column/row pairs a layer, one for the mixer and one for the MLP: none for experts that are not split,
    nor for a linear mixer that every rank has whole, unless its input is gathered. Forward with sequence
    parallelism: an all-gather and a reduce-scatter of 2 b s h / c bytes a pair; without, an all-reduce.
    Backward: the row side's gradient is gathered first (exposed); the column side's input is gathered again
    beside the input-gradient product and its gradient scattered beside the weight-gradient product. Without
    SP one all-reduce beside the weight-gradient product. Scaled formats are gathered in their own width where
    the framework casts before it gathers; what is summed stays in 16 bits.

    References
    ----------
    Korthikanti et al., arXiv 2205.05198, section 4; Megatron-Core ``tensor_parallel/layers.py``.
    """
    habits, cluster, group = request.framework.time, request.cluster, tensor_group(setting)
    message = ELEMENT_BYTES * request.model.hidden_size * tokens_per_micro_batch(setting, request)
    pairs = _tensor_pairs(kind, setting, request)
    gather = all_gather_time(message * _gathered_width(setting, request), group, cluster)
    scatter = reduce_scatter_time(message, group, cluster)
    reduce = all_reduce_time(message, group, cluster)
    column = 0.5 / np.maximum(pairs, 1.0)
    overlaps = habits.tensor_backward_overlaps
    beside_input = exposed_time(gather, column * input_gemm_s, habits, overlaps)
    beside_weight = exposed_time(scatter, column * weight_gemm_s, habits, overlaps)
    plain = exposed_time(reduce, column * weight_gemm_s, habits, overlaps)
    sequence = np.asarray(setting.sequence_parallel)
    forward = pairs * np.where(sequence, gather + scatter, reduce)
    backward = pairs * np.where(sequence, gather + beside_input + beside_weight, plain)
    shown = 1.0 - habits.tensor_comm_hidden_fraction
    extra = _expert_tensor_comm(kind, setting, request)
    return forward * shown + extra, backward * shown + extra


def _gathered_width(setting: Setting, request: PlanRequest) -> float:
    """Bytes of a gathered element over those of a 16-bit one; adapters read the 16-bit input as well."""
    if not request.framework.time.low_precision_gathers or request.workload.frozen_weights:
        return 1.0
    return min(1.0, kernels.ELEMENT_BYTES[setting.precision] / ELEMENT_BYTES)


def _tensor_pairs(kind: LayerKind, setting: Setting, request: PlanRequest) -> Any:
    """Pairs of collectives: of the mixer, and of an MLP or shared experts unless they run beside it."""
    has_mlp = kind.mlp and not (kind.moe and not request.model.shared_expert_ffn_hidden_size)
    mixer: Any = 1.0 if kind.mixer != "none" else 0.0
    if kind.mixer == "linear" and not request.framework.limits.linear_tensor_parallel:
        mixer = np.where(np.asarray(setting.sequence_parallel), 1.0, 0.0)
    if request.model.parallel_block and kind.mixer != "none":
        return np.maximum(mixer, float(has_mlp))
    return mixer + float(has_mlp)


def _expert_tensor_comm(kind: LayerKind, setting: Setting, request: PlanRequest) -> Any:
    """All-gather before and reduce-scatter after experts that are split over expert-tensor ranks."""
    if not kind.moe:
        return 0.0
    group, model = in_stage(setting.expert_tensor_parallel, 1, setting), request.model
    routed = tokens_per_micro_batch(setting, request) / setting.tensor_parallel * model.experts_per_token
    message = ELEMENT_BYTES * model.expert_input_size * routed * setting.expert_tensor_parallel
    return all_gather_time(message, group, request.cluster) + reduce_scatter_time(
        message, group, request.cluster
    )


def context_comm(
    kind: LayerKind, setting: Setting, request: PlanRequest, forward_s: Any, backward_s: Any
) -> tuple[Any, Any]:
    """Exposed context-parallel time of one layer, forward and backward. [s].

    Parameters
    ----------
    forward_s, backward_s
        Attention time of the rank; a ring hides each hop behind 1/c of it.

    Notes
    -----
    Ring: c - 1 hops of the rank's keys and values, twice the bytes backward (their gradients travel too).
    All-gather: keys and values, backward gathered again and reduce-scattered. All-to-all: queries, keys and
    values in, outputs out, the same backward. A linear mixer always trades tokens for heads.
    """
    if not kind.has_linear:
        return _attention_context_comm(kind, setting, request, forward_s, backward_s)
    tokens = tokens_per_micro_batch(setting, request)
    traded = linear_mixer.all_to_all(setting, request, tokens, context_group(setting))
    forward, backward = _attention_context_comm(kind, setting, request, forward_s, backward_s)
    return forward + traded, backward + traded


def _attention_context_comm(
    kind: LayerKind, setting: Setting, request: PlanRequest, forward_s: Any, backward_s: Any
) -> tuple[Any, Any]:
    if not kind.has_attention:
        return 0.0, 0.0
    model, cluster, group = request.model.seen_by(kind), request.cluster, context_group(setting)
    c, tokens = np.asarray(setting.context_parallel), tokens_per_micro_batch(setting, request)
    query_dim, value_dim = attention_dims(model)
    heads = model.num_heads / np.asarray(setting.tensor_parallel)
    kv_heads = heads if model.is_mla else local_kv_heads(model, setting)
    own = ELEMENT_BYTES * tokens * kv_heads * (query_dim + value_dim)
    if setting.context_parallel_kind == "all_gather":
        gather, scatter = (
            all_gather_time(own * c, group, cluster),
            reduce_scatter_time(own * c, group, cluster),
        )
        return gather, gather + scatter
    if setting.context_parallel_kind == "all_to_all":
        queries = ELEMENT_BYTES * tokens * heads
        inward = all_to_all_time(queries * query_dim + own, group, cluster)
        both = inward + all_to_all_time(queries * value_dim, group, cluster)
        return both, both
    habits, hops = request.framework.time, c - 1
    reach = own if kind.window is None else own * min(1.0, 2 * kind.window / request.workload.seq_length)
    forward = hops * exposed_time(send_time(reach, group, cluster), forward_s / c, habits)
    backward = hops * exposed_time(send_time(2 * reach, group, cluster), backward_s / c, habits)
    return forward, backward


def expert_comm(kind: LayerKind, setting: Setting, request: PlanRequest) -> tuple[Any, Any]:
    """Exposed dispatch and combine of one layer, forward and backward. [s].

    Notes
    -----
    Each rank sends its b s / (c t) tokens to k experts and gets them back: an all-to-all of k copies, or a
    kernel that sends one copy to each distinct rank. Backward sends the gradients the same two ways.
    """
    if not kind.moe:
        return 0.0, 0.0
    model, cluster, habits = request.model, request.cluster, request.framework.time
    tokens = tokens_per_micro_batch(setting, request) / setting.tensor_parallel
    group, k, h = expert_group(setting), model.experts_per_token, model.expert_input_size
    if habits.deduplicates_dispatch:
        routed = (tokens, h, k, group, cluster)
        dispatch = dispatch_time(*routed, habits.dispatch_bytes, groups=model.router_groups)
        combine = dispatch_time(*routed, ELEMENT_BYTES, groups=model.router_groups)
    else:
        dispatch = all_to_all_time(tokens * k * h * habits.dispatch_bytes, group, cluster)
        combine = all_to_all_time(tokens * k * h * ELEMENT_BYTES, group, cluster)
    hidden = habits.expert_comm_hidden_fraction
    if setting.schedule in PAIRED_SCHEDULES:
        hidden = max(hidden, PAIRED_HIDDEN_FRACTION)
    both = (dispatch + combine) * (1.0 - hidden) * habits.expert_imbalance
    return both, both


def head_comm(setting: Setting, request: PlanRequest) -> Any:
    """One gather, scatter or reduction of the hidden state over tensor ranks at an end of the model. [s]."""
    message = ELEMENT_BYTES * request.model.hidden_size * tokens_per_micro_batch(setting, request)
    group, cluster = tensor_group(setting), request.cluster
    return np.where(
        np.asarray(setting.sequence_parallel),
        all_gather_time(message, group, cluster),
        all_reduce_time(message, group, cluster),
    )


def shard_comm(kind: LayerKind, setting: Setting, request: PlanRequest) -> tuple[Any, Any]:
    """Gather and gradient reduction that every micro-batch of a layer repeats under ZeRO-2 and ZeRO-3. [s].

    Zero below ZeRO-2. ZeRO-3 gathers 16-bit weights for forward and again for backward; both reduce-scatter
    gradients each micro-batch (piped FSDP: less often), and HSDP all-reduces its shard over the other groups.
    """
    if setting.zero_stage < 2 or (request.workload.frozen_weights and setting.zero_stage < 3):
        return 0.0, 0.0
    local = layer_local_parameters(kind, setting, request)
    habits, cluster = request.framework.time, request.cluster
    gather, reduce = 0.0, 0.0
    for count, group, replicas in shard_groups(local.dense, local.expert, setting):
        reduce = reduce + reduce_scatter_time(count * habits.gradient_reduce_bytes, group, cluster)
        shard = count * habits.gradient_reduce_bytes / np.maximum(group.size, 1.0)
        reduce = reduce + all_reduce_time(shard, replicas, cluster)
        gather = gather + all_gather_time(count * ELEMENT_BYTES, group, cluster)
    reduce = 0.0 if request.workload.frozen_weights else reduce * gradient_reductions(setting, request)
    return (gather if setting.zero_stage >= 3 else 0.0 * gather), reduce


def gradient_reductions(setting: Setting, request: PlanRequest) -> Any:
    """Gradient reductions of a layer per micro-batch under ZeRO-2 and 3. [1].

    One, except where the shard is the master and a pipeline accumulates: one a step (FSDP2 reduces after the
    last micro-batch only), or one for p consecutive micro-batches.
    """
    habits, p, m = request.framework.memory, setting.pipeline_parallel, setting.num_microbatches
    if not habits.sharded_weights_are_master:
        return 1.0
    together = m if habits.piped_gradients == "whole" else np.minimum(p, m)
    return np.where(np.asarray(p) > 1, 1.0 / np.asarray(together), 1.0)


def shard_groups(dense: Any, expert: Any, setting: Setting) -> list[tuple[Any, Group, Group]]:
    """Parameters with the group that shards them and the group that repeats the shards: dense, experts."""
    dense_ranks, expert_ranks = shard_ranks(setting)
    t, c = np.asarray(setting.tensor_parallel), np.asarray(setting.context_parallel)
    groups = [(dense, *_cut(c * setting.data_parallel, dense_ranks, t, setting))]
    if np.any(np.asarray(expert) > 0):
        experts = np.asarray(setting.expert_parallel) * setting.expert_tensor_parallel
        replicas = np.maximum(t * c * setting.data_parallel / experts, 1.0)
        groups.append((expert, *_cut(replicas, expert_ranks, experts, setting)))
    return groups


def _cut(replicas: Any, shards: Any, stride: Any, setting: Setting) -> tuple[Group, Group]:
    """The group that shards, neighbours among the replicas, and the one that repeats its shards."""
    shards = np.maximum(shards, 1.0)
    repeats = np.maximum(replicas / shards, 1.0)
    return in_stage(shards, stride, setting), in_stage(repeats, stride * shards, setting)
