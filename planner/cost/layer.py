"""Time of one transformer layer, and of the model's two ends, for one micro-batch on one GPU.

Letters: h hidden, a query heads, g KV heads, d head dim, f MLP width, k experts per token, s sequence,
b micro-batch, t tensor ranks, c context ranks, e expert ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.cost import linear_mixer
from planner.cost.activations import selective_modules, token_region_divisor, tokens_per_micro_batch
from planner.cost.elementwise import accumulation_time, elementwise_time, experts_are_fused
from planner.cost.flops import Gemm, attention_dims, head_gemm, layer_gemms
from planner.cost.kernels import (
    FP32_SUM,
    attention_flop,
    attention_time,
    cast_time,
    gemm_time,
    memory_bound_time,
)
from planner.cost.layer_comm import context_comm, expert_comm, head_comm, shard_comm, tensor_comm
from planner.cost.offload import IN_LAYERS, end_copies, layer_copies
from planner.cost.setting import Setting
from planner.cost.states import (
    embedding_local_parameters,
    head_local_parameters,
    layer_local_parameters,
    padded_vocabulary,
)
from planner.cost.work import LayerTime, WorkTime, exposed_time
from planner.spec.model import LayerKind
from planner.spec.request import PlanRequest

SCORE_BYTES_FORWARD = 9.0
SCORE_BYTES_BACKWARD = 11.0
"""Moved per attention score by softmax and dropout kernels when attention is not fused: forward reads and
writes 2 B twice and a mask byte; backward reads 2 + 2 and writes 2, then reads 2 + 1 and writes 2
(arXiv 2205.05198)."""
UNFUSED = "unfused"
"""Attention "kernel" of training before FlashAttention: two batched products with the scores in memory."""
ALIGNED_HEAD = 8
MISALIGNED_SLOWDOWN = 10.0
"""Batched products of 16-bit heads whose width is no multiple of 8 elements (16 bytes) leave the tensor
cores; fitted on BigScience rows with head dims 108, 145 and 150 (A100)."""
EXPERT_CASTS = 2.0
"""Passes over the experts' input: the permuted tokens are cast and, for the weight gradient, cast again
transposed, by kernels of their own (physics 10: about twice the curves' single cast)."""
QUERY_BLOCK = 128
"""Query rows that one thread block of a fused attention kernel handles (FlashAttention 2 and 3)."""


def layer_time(kind: LayerKind, setting: Setting, request: PlanRequest) -> LayerTime:
    """Phases of one layer of the given kind for one micro-batch, communication and host floor included.

    Notes
    -----
    Forward: products, attention or scan, elementwise kernels, exposed collectives. The backward pass
    computes input and weight gradients of every product; attention, scan, elementwise work and all
    collectives count with the input gradients. Frozen weights (adapters) leave out weight gradients.
    """
    gemms = _gemms(kind, setting, request)
    forward = WorkTime(
        gemm_s=sum(_forward_gemm(gemm, setting, request) for gemm in gemms),
        attention_s=_attention(kind, setting, request, backward=False),
        scan_s=_scan(kind, setting, request, backward=False),
        elementwise_s=elementwise_time(kind, setting, request, backward=False),
    )
    input_gradient = WorkTime(
        gemm_s=sum(_input_gemm(gemm, setting, request) for gemm in gemms),
        attention_s=_attention(kind, setting, request, backward=True),
        scan_s=_scan(kind, setting, request, backward=True),
        elementwise_s=elementwise_time(kind, setting, request, backward=True),
    )
    weight = WorkTime(
        gemm_s=sum(_weight_gemm(gemm, setting, request) for gemm in gemms),
        elementwise_s=accumulation_time(layer_local_parameters(kind, setting, request), setting, request),
    )
    priced = _with_communication(kind, setting, request, forward, input_gradient, weight)
    if setting.offload not in IN_LAYERS:
        return priced
    return priced + layer_copies(kind, setting, request, priced)


def _gemms(kind: LayerKind, setting: Setting, request: PlanRequest) -> list[Gemm]:
    """Forward products of one layer and micro-batch on one GPU."""
    ranks = linear_mixer.linear_ranks(setting, request)
    return layer_gemms(request.model, kind, tokens_per_micro_batch(setting, request), setting, ranks)


def _with_communication(
    kind: LayerKind, setting: Setting, request: PlanRequest,
    forward: WorkTime, backward: WorkTime, weight: WorkTime,
) -> LayerTime:  # fmt: skip
    habits = request.framework.time
    tensor = tensor_comm(kind, setting, request, backward.gemm_s, weight.gemm_s)
    context = context_comm(kind, setting, request, forward.attention_s, backward.attention_s)
    expert = expert_comm(kind, setting, request)
    gather, reduce = shard_comm(kind, setting, request)
    shard_forward = exposed_time(gather, forward.total, habits, habits.parameter_gather_overlaps)
    backward_work = backward.total + weight.total
    shard_backward = exposed_time(gather + reduce, backward_work, habits, habits.gradient_sync_overlaps)
    forward = forward + WorkTime(
        tensor_comm_s=tensor[0], context_comm_s=context[0], expert_comm_s=expert[0], data_comm_s=shard_forward
    )
    backward = backward + WorkTime(
        tensor_comm_s=tensor[1],
        context_comm_s=context[1],
        expert_comm_s=expert[1],
        data_comm_s=shard_backward,
    )
    launches = _launch_time(kind, setting, request)
    recompute = WorkTime(recompute_s=_recompute(kind, setting, request, forward, launches))
    forward = forward + WorkTime(host_s=np.maximum(launches - forward.total, 0.0))
    waits = _backward_waits(launches, backward.total, weight.total, request)
    backward, weight = backward + WorkTime(host_s=waits[0]), weight + WorkTime(host_s=waits[1])
    return LayerTime(forward, backward, weight, recompute)


def _backward_waits(launches: Any, input_s: Any, weight_s: Any, request: PlanRequest) -> tuple[Any, Any]:
    """Time that input and weight gradients wait for the host, which launches as many kernels for either.

    Together they take twice the forward launches at least; a gradient that runs longer than its own lets the
    host catch up for the other. Frozen weights leave all launches to the input gradients.
    """
    if request.workload.frozen_weights:
        return np.maximum(2.0 * launches - input_s, 0.0), 0.0 * weight_s
    of_input = np.minimum(launches, 2.0 * launches - weight_s) - input_s
    of_weight = np.minimum(launches, 2.0 * launches - input_s) - weight_s
    return np.maximum(of_input, 0.0), np.maximum(of_weight, 0.0)


def _launch_time(kind: LayerKind, setting: Setting, request: PlanRequest) -> Any:
    """Host time to launch one layer's forward kernels."""
    habits = request.framework.time
    kernels = _kernels(kind, setting, request)
    p, t = np.asarray(setting.pipeline_parallel), np.asarray(setting.tensor_parallel)
    ranks = p * t * setting.context_parallel * setting.data_parallel
    crosses = (p > 1) & (ranks > request.cluster.gpus_per_node)
    growth = 1.0 + np.where(crosses, habits.cross_node_launch_growth * t**1.25, 0.0)
    return kernels * habits.launch_factor * request.cluster.accelerator.host.kernel_launch_s * growth


def _kernels(kind: LayerKind, setting: Setting, request: PlanRequest) -> float:
    """Forward kernels of one layer: half of a dense layer's for the mixer, and a linear one's scan."""
    habits, mixer = request.framework.time, request.framework.time.kernels_per_layer / 2
    many = kind.moe and not experts_are_fused(setting, request)
    whole = habits.kernels_per_moe_layer if many else habits.kernels_per_layer
    kernels = (mixer if kind.mixer != "none" else 0.0) + (whole - mixer if kind.mlp else 0.0)
    return kernels + (linear_mixer.SCAN_KERNELS[request.model.linear_mixer] if kind.has_linear else 0)


def _precision(gemm: Gemm, setting: Setting) -> str:
    """Router and LM head keep 16 bits whatever the linear layers use."""
    low = setting.precision not in ("fp32", "fp16", "bf16")
    return "bf16" if low and gemm.name in ("router", "lm_head") else setting.precision


def _imbalance(gemm: Gemm, request: PlanRequest) -> float:
    return request.framework.time.expert_imbalance if gemm.expert else 1.0


def _efficiency(gemm: Gemm, setting: Setting, request: PlanRequest) -> float:
    habits = request.framework.time
    if not gemm.expert:
        return habits.kernel_efficiency
    efficiency = habits.expert_kernel_efficiency
    if experts_are_fused(setting, request):
        efficiency = habits.block_scaled_expert_efficiency or efficiency
    return habits.kernel_efficiency * efficiency


def _casts(gemm: Gemm, setting: Setting, request: PlanRequest) -> float:
    """Casts of the activation per product."""
    if not gemm.expert:
        return request.framework.time.casts_per_product
    return 0.0 if experts_are_fused(setting, request) else EXPERT_CASTS


def _product(
    m: Any, n: Any, k: Any, gemm: Gemm, setting: Setting, request: PlanRequest,
    slowdown: float = 1.0, sum_bytes: float = 0.0,
) -> Any:  # fmt: skip
    """Time of the product of this shape, one of the three that ``gemm`` stands for."""
    accelerator, precision = request.cluster.accelerator, _precision(gemm, setting)
    seconds = gemm_time(m, n, k, accelerator, precision, gemm.count, slowdown, sum_bytes)
    casts = _casts(gemm, setting, request)
    if casts != 1.0:
        seconds = seconds + (casts - 1.0) * cast_time(m, k, accelerator, precision, gemm.count)
    return seconds / _efficiency(gemm, setting, request)


def _forward_gemm(gemm: Gemm, setting: Setting, request: PlanRequest) -> Any:
    return _product(gemm.m * _imbalance(gemm, request), gemm.n, gemm.k, gemm, setting, request)


def _input_gemm(gemm: Gemm, setting: Setting, request: PlanRequest) -> Any:
    return _product(gemm.m * _imbalance(gemm, request), gemm.k, gemm.n, gemm, setting, request)


def _weight_gemm(gemm: Gemm, setting: Setting, request: PlanRequest) -> Any:
    if request.workload.frozen_weights:
        return 0.0 * np.asarray(gemm.m, dtype=np.float64)
    habits, rows = request.framework.time, gemm.m * _imbalance(gemm, request)
    if request.framework.memory.gradient_bytes >= 4.0:
        return _product(gemm.n, gemm.k, rows, gemm, setting, request, sum_bytes=FP32_SUM)
    if habits.adds_into_gradients:
        return _product(gemm.n, gemm.k, rows, gemm, setting, request, sum_bytes=FP32_SUM / 2)
    return _product(gemm.n, gemm.k, rows, gemm, setting, request, habits.weight_gradient_slowdown)


def _attention(kind: LayerKind, setting: Setting, request: PlanRequest, backward: bool) -> Any:
    """Attention core of one layer: a fused kernel, or two batched products and the score kernels."""
    if not kind.has_attention:
        return 0.0
    if request.framework.time.attention_kernel == UNFUSED:
        return _unfused_attention(kind, setting, request, backward)
    model, s = request.model.seen_by(kind), request.workload.seq_length
    b, c = np.asarray(setting.micro_batch), np.asarray(setting.context_parallel)
    heads = model.num_heads / np.asarray(setting.tensor_parallel)
    query_dim, value_dim = attention_dims(model)
    flop = attention_flop(s, heads, query_dim, b, value_dim, kind.window) / c
    length = s / c if setting.context_parallel_kind == "ring" else s + 0 * c
    if kind.window is not None:
        length = np.minimum(length, 2 * kind.window)
    return attention_time(
        flop, length, heads * b * s / c / QUERY_BLOCK, request.cluster.accelerator,
        request.framework.time.attention_kernel, (query_dim + value_dim) / 2, backward,
    ) / request.framework.time.attention_efficiency  # fmt: skip


def _scan(kind: LayerKind, setting: Setting, request: PlanRequest, backward: bool) -> Any:
    return linear_mixer.scan_time(setting, request, backward) if kind.has_linear else 0.0


def _unfused_attention(kind: LayerKind, setting: Setting, request: PlanRequest, backward: bool) -> Any:
    model, s, accelerator = (
        request.model.seen_by(kind),
        request.workload.seq_length,
        request.cluster.accelerator,
    )
    query_dim, value_dim = attention_dims(model)
    rows = s / np.asarray(setting.context_parallel)
    products = np.asarray(setting.micro_batch) * model.num_heads / setting.tensor_parallel
    precision = "bf16" if setting.precision not in ("fp32", "fp16") else setting.precision
    scores = gemm_time(rows, s, query_dim, accelerator, precision, products)
    values = gemm_time(rows, value_dim, s, accelerator, precision, products)
    moved = (SCORE_BYTES_BACKWARD if backward else SCORE_BYTES_FORWARD) * rows * s * products
    passes = (2.0 if backward else 1.0) * (MISALIGNED_SLOWDOWN if query_dim % ALIGNED_HEAD else 1.0)
    return passes * (scores + values) + memory_bound_time(moved, accelerator, "elementwise", 2)


def _recompute(
    kind: LayerKind, setting: Setting, request: PlanRequest, forward: WorkTime, launches: float
) -> Any:
    """Forward work that the backward pass repeats in a recomputed layer."""
    if setting.recompute == "none":
        return 0.0 * forward.total
    if setting.recompute == "full":
        return np.maximum(forward.total - forward.data_comm_s, launches)
    modules = selective_modules(setting, request)
    return sum((_module(name, kind, setting, request, forward) for name in modules), 0.0 * forward.total)


def _module(name: str, kind: LayerKind, setting: Setting, request: PlanRequest, forward: WorkTime) -> Any:
    """Forward time of one module that selective recompute may name."""
    wanted = {
        "mlp": ("mlp_in", "mlp_out"),
        "mla_up_proj": ("query_up", "kv_up"),
        "shared_experts": ("shared_in", "shared_out"),
        "moe": ("router", "expert_in", "expert_out"),
        "op": ("expert_in", "expert_out"),
    }
    gemms = [gemm for gemm in _gemms(kind, setting, request) if gemm.name in wanted.get(name, ())]
    seconds = sum((_forward_gemm(gemm, setting, request) for gemm in gemms), 0.0 * forward.total)
    if name == "core_attn":
        return forward.attention_s
    if name == "op":  # every second plain product, but the experts' grouped ones all (``RECOMPUTE_DROPS``)
        return (forward.gemm_s + seconds) / 2 + forward.elementwise_s + forward.scan_s
    if name == "elementwise":
        return forward.elementwise_s
    if name in ("moe_act", "layernorm"):
        return forward.elementwise_s / 3
    if name == "moe" and kind.moe:
        return seconds + forward.expert_comm_s + forward.elementwise_s / 2
    if name == "mlp" and kind.mlp and not kind.moe:  # with its part of the tensor-parallel collectives
        parts = 1 if kind.is_single_block else 2
        return seconds + forward.elementwise_s / (1.5 * parts) + forward.tensor_comm_s / parts
    return seconds


def embedding_time(setting: Setting, request: PlanRequest) -> LayerTime:
    """Phases of the token embedding: gather forward, scatter-add backward, its tensor-parallel reduction."""
    accelerator, h = request.cluster.accelerator, request.model.hidden_size
    tokens = tokens_per_micro_batch(setting, request)
    gathered = memory_bound_time(4.0 * h * tokens, accelerator)
    scattered = memory_bound_time(10.0 * h * tokens, accelerator)
    comm = head_comm(setting, request)
    trainable = 0.0 if request.workload.frozen_weights else 1.0
    priced = LayerTime(
        forward=WorkTime(embedding_and_loss_s=gathered, tensor_comm_s=comm),
        backward_input=WorkTime(
            tensor_comm_s=comm * trainable * np.where(setting.sequence_parallel, 1.0, 0.0)
        ),
        backward_weight=WorkTime(embedding_and_loss_s=scattered * trainable),
    )
    local = embedding_local_parameters(setting, request)
    return priced + end_copies(local, setting, request, priced)


def head_time(setting: Setting, request: PlanRequest) -> LayerTime:
    """Phases of final norm, LM head and loss. The head keeps 16 bits whatever the linear layers use."""
    model, accelerator, habits = request.model, request.cluster.accelerator, request.framework.time
    tokens = tokens_per_micro_batch(setting, request)
    vocabulary = padded_vocabulary(request, setting) / setting.tensor_parallel
    gemm = head_gemm(model, tokens, vocabulary)
    half_loss = memory_bound_time(
        habits.loss_bytes_per_logit / 2 * tokens * vocabulary, accelerator, "loss", 3
    )
    norm = memory_bound_time(4.0 * model.hidden_size * tokens / token_region_divisor(setting), accelerator)
    comm = head_comm(setting, request)
    with_sequence = np.where(setting.sequence_parallel, 1.0, 0.0)
    priced = LayerTime(
        forward=WorkTime(
            embedding_and_loss_s=_forward_gemm(gemm, setting, request) + half_loss + norm,
            tensor_comm_s=comm * with_sequence,
        ),
        backward_input=WorkTime(
            embedding_and_loss_s=_input_gemm(gemm, setting, request) + half_loss + 2.0 * norm,
            tensor_comm_s=comm,
        ),
        backward_weight=WorkTime(embedding_and_loss_s=_weight_gemm(gemm, setting, request)),
    )
    return priced + end_copies(head_local_parameters(setting, request), setting, request, priced)


def mtp_time(setting: Setting, request: PlanRequest) -> LayerTime:
    """Phases of one multi-token-prediction module: a layer, a 2h -> h projection, the shared head again."""
    tokens = tokens_per_micro_batch(setting, request)
    h = request.model.hidden_size
    projection = Gemm("mtp_projection", tokens, h / np.asarray(setting.tensor_parallel), 2 * h)
    own = LayerTime(
        forward=WorkTime(gemm_s=_forward_gemm(projection, setting, request)),
        backward_input=WorkTime(gemm_s=_input_gemm(projection, setting, request)),
        backward_weight=WorkTime(gemm_s=_weight_gemm(projection, setting, request)),
    )
    layer = layer_time(request.model.mtp_kind, setting, request)
    return layer + own + head_time(setting, request)
