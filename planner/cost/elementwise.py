"""Time of the memory-bound kernels of one layer: norms, residuals, gates, activations, sums of gradients.

Letters: h hidden, a query heads, g KV heads, d head dim, f MLP width, k experts per token, t tensor ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.cost import linear_mixer
from planner.cost.activations import token_region_divisor, tokens_per_micro_batch
from planner.cost.flops import attention_dims, local_kv_heads
from planner.cost.kernels import memory_bound_time
from planner.cost.parameters import norms_of_layer
from planner.cost.setting import Setting
from planner.cost.states import LocalParameters
from planner.spec.model import LayerKind
from planner.spec.request import PlanRequest

BLOCK_SCALED = frozenset({"mxfp8", "nvfp4"})


def experts_are_fused(setting: Setting, request: PlanRequest) -> bool:
    """Whether one kernel does everything between the dispatch and the combination: of gated experts alone.

    Transformer Engine fuses grouped product, gate and grouped product (``ops/fused/forward_grouped_mlp.py``);
    experts without a gate (Nemotron 3) run as before.
    """
    has_kernel = request.framework.time.block_scaled_expert_efficiency is not None
    return has_kernel and setting.precision in BLOCK_SCALED and request.model.gated_mlp


def elementwise_time(kind: LayerKind, setting: Setting, request: PlanRequest, backward: bool) -> Any:
    """Norms, residual additions, rotary embedding, activation, gates, convolution, the experts' permutation.

    Bytes per token (16-bit, fused; physics: memory-bound ops): norm 4h forward and 8h backward, residual
    addition 6h (dropout 1h more), rotary 4 (a + g) d, gate of the attention output 6 a d and 10 a d, gated
    activation 6f and 10f, plain one 4f and 6f, permutation and its inverse 4 h k each; a linear mixer's
    stand in ``linear_mixer.elementwise_bytes``. Layers that are a mixer or an MLP alone have half the stream.
    """
    model, habits, accelerator = request.model, request.framework.time, request.cluster.accelerator
    tokens = tokens_per_micro_batch(setting, request)
    own, region = tokens / np.asarray(setting.tensor_parallel), tokens / token_region_divisor(setting)
    moved = _stream_bytes(kind, request, backward) * region + _mixer_bytes(kind, setting, request, backward)
    kernels = (6.0 if model.gated_mlp else 5.0) / (2 if kind.is_single_block else 1)
    if kind.has_linear:
        kernels += 2.0 if model.linear_mixer == "mamba2" else 4.0
    if kind.mlp:
        moved = moved + _mlp_bytes(kind, request, backward) * own
    seconds = memory_bound_time(moved * habits.elementwise_factor, accelerator, "elementwise", kernels)
    if kind.moe and not experts_are_fused(setting, request):
        permuted = 8.0 * model.expert_input_size * model.experts_per_token * own
        seconds = seconds + memory_bound_time(permuted, accelerator, "permute", 4)
    return seconds


def _stream_bytes(kind: LayerKind, request: PlanRequest, backward: bool) -> float:
    """Per token of the token region: norms, residual additions (one more for two mixers), dropout."""
    model, h = request.model, request.model.hidden_size
    dropout = 2.0 * h if request.framework.memory.dropout_mask_bytes else 0.0
    additions = 6.0 * h if kind.mixer == "attention+linear" else 0.0
    halves = 0.5 if kind.is_single_block else 1.0
    norms = norms_of_layer(model, kind) * (8.0 if backward else 4.0) * h
    return norms + halves * 12.0 * h + halves * dropout + additions


def _mixer_bytes(kind: LayerKind, setting: Setting, request: PlanRequest, backward: bool) -> Any:
    """Rotary embedding and output gate of attention; convolution and norms of a linear mixer."""
    model, tokens = request.model.seen_by(kind), tokens_per_micro_batch(setting, request)
    moved: Any = 0.0
    if kind.has_attention:
        heads = model.num_heads / np.asarray(setting.tensor_parallel)
        rotated = heads + local_kv_heads(model, setting)
        moved = (0.0 if model.learned_positions else 4.0 * rotated * attention_dims(model)[0]) * tokens
        if model.attention_gate:
            moved = moved + (10.0 if backward else 6.0) * heads * model.head_dim * tokens
    if kind.has_linear:
        moved = moved + linear_mixer.elementwise_bytes(setting, request, tokens, backward)
    return moved


def _mlp_bytes(kind: LayerKind, request: PlanRequest, backward: bool) -> float:
    """Per token of a tensor rank's share: the activation of the MLP or of a token's experts."""
    model = request.model
    per_width = (10.0 if backward else 6.0) if model.gated_mlp else (6.0 if backward else 4.0)
    width = model.ffn_hidden_size
    if kind.moe:
        width = model.experts_per_token * model.expert_ffn_hidden_size + model.shared_expert_ffn_hidden_size
    return per_width * width


def accumulation_time(local: LocalParameters, setting: Setting, request: PlanRequest) -> Any:
    """Adding a micro-batch's gradients to the sum, where no kernel does it on the way; none for one batch."""
    if request.workload.frozen_weights or setting.zero_stage >= 2:
        return 0.0
    moved = request.framework.time.gradient_accumulation_bytes * local.total
    seconds = memory_bound_time(moved, request.cluster.accelerator, "optimizer")
    return np.where(np.asarray(setting.num_microbatches) > 1, seconds, 0.0)
