"""Activations that one layer keeps for its backward pass, per micro-batch, on one GPU.

Letters: h hidden, a query heads, g KV heads, d head dim, f FFN width, E experts, k experts per token,
s sequence, b micro-batch, t tensor ranks, c context ranks. T = b s / c is the tokens of one micro-batch on
one tensor group. Two regions differ under tensor parallelism: the *token region* (norms, residuals,
dropout) is divided by t only with sequence parallelism, the *tensor region* (between the column- and
row-parallel products) always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.cost import linear_mixer
from planner.cost.parameters import norms_of_layer
from planner.cost.setting import Setting
from planner.cost.states import LOW_PRECISION, kv_heads_per_rank, padded_vocabulary
from planner.cost.terms import Terms
from planner.spec.model import LayerKind, Model
from planner.spec.request import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSaved(Terms):
    """Saved bytes of one layer and one micro-batch, by the part that a selective recompute can drop."""

    layer_input: Any = 0.0
    residual: Any = 0.0
    """Input of the MLP half: the residual stream after attention."""
    norms: Any = 0.0
    queries: Any = 0.0
    keys_values: Any = 0.0
    attention_core: Any = 0.0
    """Output of the attention and its row statistics."""
    attention_scores: Any = 0.0
    """The s x s scores and their dropout: only without a fused kernel."""
    latent: Any = 0.0
    """Compressed queries, keys and values of multi-head latent attention."""
    linear_inputs: Any = 0.0
    """What a linear mixer's first products made, before the scan."""
    linear_scan: Any = 0.0
    """What its scan reads again: queries, keys, values, decay, chunk matrices."""
    linear_output: Any = 0.0
    """Output of the scan, before and after its gate."""
    dropout: Any = 0.0
    mlp_hidden: Any = 0.0
    """Outputs of the first MLP products."""
    mlp_activation: Any = 0.0
    shared_hidden: Any = 0.0
    shared_activation: Any = 0.0
    routing: Any = 0.0
    unweighted_tokens: Any = 0.0
    """Tokens sent to experts, before the router's probabilities are applied to them."""
    expert_input: Any = 0.0
    expert_hidden: Any = 0.0
    expert_activation: Any = 0.0
    expert_output: Any = 0.0


@dataclass(frozen=True)
class LayerActivations:
    """What one layer keeps per micro-batch, with and without the setting's recompute. [byte]."""

    plain: Any
    recomputed: Any
    transient: Any
    """Largest short-lived buffers of its backward pass beyond what is saved, recomputed parts included."""


_EXPERT_PARTS = (
    "routing", "shared_hidden", "shared_activation", "unweighted_tokens",
    "expert_input", "expert_hidden", "expert_activation", "expert_output",
)  # fmt: skip
RECOMPUTE_DROPS: dict[str, dict[str, float]] = {
    "core_attn": {"attention_scores": 1.0},
    "mlp": {"mlp_hidden": 1.0, "mlp_activation": 1.0},
    "moe": dict.fromkeys(_EXPERT_PARTS, 1.0),
    "moe_act": {"expert_activation": 1.0},
    "shared_experts": {"shared_hidden": 1.0, "shared_activation": 1.0},
    "layernorm": {"norms": 1.0},
    "mla_up_proj": {"queries": 1.0, "keys_values": 1.0},
    "elementwise": {
        "norms": 1.0, "dropout": 1.0, "mlp_activation": 1.0, "shared_activation": 1.0,
        "expert_activation": 1.0,
    },
    "op": {
        "norms": 1.0, "dropout": 1.0, "attention_scores": 1.0, "keys_values": 0.5, "mlp_hidden": 0.5,
        "mlp_activation": 1.0, "shared_hidden": 0.5, "shared_activation": 1.0, "unweighted_tokens": 1.0,
        "expert_input": 1.0, "expert_hidden": 1.0, "expert_activation": 1.0, "linear_inputs": 0.5,
        "linear_scan": 1.0, "linear_output": 1.0,
    },
}  # fmt: skip
"""Share of each part that a selectively recomputed module does not keep.

Names are Megatron-Core's; ``op`` is torchtitan's per-operator policy (every second plain matrix product, the
experts' grouped ones and every elementwise result are recomputed, the attention output is kept; eager code
also keeps the last product's output, as large as the residual, which no backward kernel reads; the scan of
a linear mixer is no product on its list),
``elementwise`` keeps all matrix products (MaxText's minimal policy)."""


def tokens_per_micro_batch(setting: Setting, request: PlanRequest) -> Any:
    """Tokens of one micro-batch on one tensor group: b s / c. [token]."""
    return np.asarray(setting.micro_batch) * request.workload.seq_length / setting.context_parallel


def token_region_divisor(setting: Setting) -> Any:
    """Divisor of the token region: t with sequence parallelism, else 1."""
    return np.where(setting.sequence_parallel, setting.tensor_parallel, 1)


def layer_saved_bytes(kind: LayerKind, setting: Setting, request: PlanRequest) -> LayerSaved:
    """Bytes that one layer saves per micro-batch without recompute, by part.

    References
    ----------
    Korthikanti et al. (arXiv 2205.05198) section 4 for the unfused sum 34 s b h + 5 a s^2 b; with a fused
    attention kernel the scores are replaced by output and row statistics.
    """
    parts = _stream_parts(kind, setting, request)
    if kind.has_attention:
        parts.update(_attention_parts(kind, setting, request))
    if kind.has_linear:
        tokens = tokens_per_micro_batch(setting, request)
        parts.update(linear_mixer.saved_bytes(setting, request, tokens))
    if kind.mlp:
        parts.update(_moe_parts(setting, request) if kind.moe else _mlp_parts(setting, request))
    return LayerSaved(**parts)


def layer_activation_bytes(kind: LayerKind, setting: Setting, request: PlanRequest) -> LayerActivations:
    """Saved bytes of one layer and micro-batch without and with recompute, and the backward transient.

    In fp32 everything but the masks of dropouts has twice the 16 bits that it is counted in.
    """
    saved = layer_saved_bytes(kind, setting, request)
    dropped = _dropped_bytes(saved, setting, request)
    plain = saved.total
    backward = _backward_transient(kind, setting, request)
    width = _width(setting)
    return LayerActivations(width * plain, width * (plain - dropped), width * (backward + dropped))


def _width(setting: Setting) -> float:
    """Bytes of an element over those of a 16-bit one. [1]."""
    return 2.0 if setting.precision == "fp32" else 1.0


def selective_modules(setting: Setting, request: PlanRequest) -> tuple[str, ...]:
    """Modules that a selective recompute covers: those that the plan names, else the framework's default."""
    return setting.recompute_modules or default_modules(request)


def default_modules(request: PlanRequest) -> tuple[str, ...]:
    """The framework's default modules, of which a named part of the model must be there."""
    model = request.model
    absent = set() if model.is_mla else {"mla_up_proj"}
    absent |= set() if model.is_moe else {"moe", "moe_act", "shared_experts"}
    return tuple(module for module in request.framework.memory.selective_modules if module not in absent)


def _dropped_bytes(saved: LayerSaved, setting: Setting, request: PlanRequest) -> Any:
    if setting.recompute == "none":
        return 0.0 * saved.layer_input
    if setting.recompute == "full":
        return saved.total - saved.layer_input * request.framework.memory.checkpoint_bytes / 2.0
    modules = selective_modules(setting, request)
    shares: dict[str, float] = {}
    for module in modules:
        for part, share in RECOMPUTE_DROPS.get(module, {}).items():
            shares[part] = max(share, shares.get(part, 0.0))
    if "op" in modules and request.framework.memory.compiled_blocks:
        shares["residual"] = 1.0
    return sum((share * getattr(saved, part) for part, share in shares.items()), 0.0 * saved.layer_input)


def _stream_parts(kind: LayerKind, setting: Setting, request: PlanRequest) -> dict[str, Any]:
    """The residual stream; a layer that is a mixer or an MLP alone has half of it."""
    h, region = request.model.hidden_size, _token_region(setting, request)
    low, halves = _keeps_low_precision(setting, request), 0.5 if kind.is_single_block else 1.0
    return {
        "layer_input": 2.0 * h * region,
        "residual": 0.0 if kind.is_single_block else 2.0 * h * region,
        "norms": halves * (2.0 if low else 4.0) * h * region + _eager_norms(kind, setting, request),
        "dropout": halves * request.framework.memory.dropout_mask_bytes / _width(setting) * h * region,
    }


def _token_region(setting: Setting, request: PlanRequest) -> Any:
    """Tokens of one micro-batch on one GPU between the tensor-parallel products."""
    return tokens_per_micro_batch(setting, request) / token_region_divisor(setting)


def _attention_parts(kind: LayerKind, setting: Setting, request: PlanRequest) -> dict[str, Any]:
    model, habits = request.model.seen_by(kind), request.framework.memory
    t = np.asarray(setting.tensor_parallel)
    tokens = tokens_per_micro_batch(setting, request)
    low = _keeps_low_precision(setting, request)
    copies = 2.0 if habits.activation_style == "unfused" else 1.0
    heads = model.num_heads / t
    value_dim = model.v_head_dim if model.is_mla else model.head_dim
    key_width = model.qk_nope_head_dim + model.qk_rope_head_dim if model.is_mla else model.head_dim
    value_width = heads * value_dim
    regrouped = np.where(np.asarray(setting.context_parallel) > 1, 2.0, 0.0) * (
        setting.context_parallel_kind == "all_to_all"
    )
    core = habits.low_precision_attention_bytes if low else 2.0
    kept = 4.0 + 1.0 / _width(setting) if habits.drops_scores else 2.0
    score = 0.0 if habits.fused_attention else kept
    gated = 4.0 * value_width if model.attention_gate else 0.0  # the gate, and the output before it
    return {
        "queries": copies * 2.0 * tokens * heads * key_width,
        "keys_values": copies * 2.0 * tokens * (_kv_heads(model, setting) * (key_width + value_dim)),
        "attention_core": tokens * (value_width * (core + regrouped) + 4.0 * heads + gated),
        "attention_scores": tokens * score * heads * request.workload.seq_length,
        "latent": _latent(model, tokens, _token_region(setting, request)),
    }


def _eager_norms(kind: LayerKind, setting: Setting, request: PlanRequest) -> Any:
    """What RMS norms that are written out keep besides their outputs, those of queries and keys included."""
    model, each = request.model.seen_by(kind), request.framework.memory.eager_norm_bytes
    if model.norm != "rms" or not each:
        return 0.0
    tokens = tokens_per_micro_batch(setting, request)
    normed = kind.has_attention and model.query_key_norm != "none"
    heads = model.num_heads / np.asarray(setting.tensor_parallel) if normed else 0.0
    keys = kv_heads_per_rank(model, setting) if normed else 0.0
    hidden = norms_of_layer(model, kind) * model.hidden_size / token_region_divisor(setting)
    return each * tokens * (hidden + (heads + keys) * model.head_dim)


def _kv_heads(model: Model, setting: Setting) -> Any:
    """Heads with keys and values of their own on a tensor rank: all heads with latent attention."""
    return (
        model.num_heads / np.asarray(setting.tensor_parallel)
        if model.is_mla
        else kv_heads_per_rank(model, setting)
    )


def _latent(model: Model, tokens: Any, region: Any) -> Any:
    if not model.is_mla:
        return 0.0 * tokens
    return (4.0 * model.q_lora_rank + 4.0 * model.kv_lora_rank + 2.0 * model.qk_rope_head_dim) * region


def _mlp_parts(setting: Setting, request: PlanRequest) -> dict[str, Any]:
    model = request.model
    tokens = tokens_per_micro_batch(setting, request) / setting.tensor_parallel
    low = _keeps_low_precision(setting, request)
    f = model.ffn_hidden_size
    return {
        "mlp_hidden": _hidden_bytes(request, low) * f * tokens,
        "mlp_activation": (1.0 if low else 2.0) * f * tokens,
    }


def _moe_parts(setting: Setting, request: PlanRequest) -> dict[str, Any]:
    model, habits = request.model, request.framework.memory
    h, k, f_e = model.expert_input_size, model.experts_per_token, model.expert_ffn_hidden_size
    tokens = tokens_per_micro_batch(setting, request) / setting.tensor_parallel
    low = _keeps_low_precision(setting, request)
    hidden = _hidden_bytes(request, low)
    routed = k * tokens * setting.expert_tensor_parallel
    f_s = model.shared_expert_ffn_hidden_size
    return {
        "shared_hidden": hidden * f_s * tokens,
        "shared_activation": (1.0 if low else 2.0) * f_s * tokens,
        "routing": (12.0 * model.num_experts + 4.0 * model.expert_latent_size) * tokens,
        "unweighted_tokens": 2.0 * h * routed * habits.keeps_unweighted_tokens,
        "expert_input": (1.0 if low else 2.0) * h * routed,
        "expert_hidden": hidden * f_e * k * tokens,
        "expert_activation": (1.0 if low else 2.0) * f_e * k * tokens,
        "expert_output": 2.0 * h * routed * habits.keeps_expert_output,
    }


def _keeps_low_precision(setting: Setting, request: PlanRequest) -> bool:
    """Whether inputs of products are kept in one byte."""
    return setting.precision in LOW_PRECISION and request.framework.memory.low_precision_activations


def _hidden_bytes(request: PlanRequest, low: bool) -> float:
    """Bytes per token and FFN column that the first products keep: gate and up, and the gate's activation."""
    if not request.model.gated_mlp:
        return 2.0
    if low and request.framework.memory.low_precision_gate:
        return 2.0
    return 6.0 if request.framework.memory.activation_style == "unfused" else 4.0


def _backward_transient(kind: LayerKind, setting: Setting, request: PlanRequest) -> Any:
    """Short-lived buffers of a layer's backward pass: gradients of the first products or hidden states.

    The first products are the MLP's and a linear mixer's, whose states are remade as well.

    With sequence parallelism the gathered input of a column-parallel product and its gradient before the
    reduce-scatter are whole on every tensor rank; without, only the gradient before the all-reduce.
    """
    model = request.model
    tokens = tokens_per_micro_batch(setting, request)
    width = model.experts_per_token * model.expert_ffn_hidden_size if kind.moe else model.ffn_hidden_size
    if not kind.mlp:
        width = 0
    gradients = (4.0 if model.gated_mlp else 2.0) * width * tokens / setting.tensor_parallel
    if kind.has_linear:
        gradients = np.maximum(gradients, linear_mixer.transient_bytes(setting, request, tokens))
    is_gathered = np.where(np.asarray(setting.tensor_parallel) > 1, setting.sequence_parallel, False)
    return np.maximum(gradients, np.where(is_gathered, 4.0, 2.0) * model.hidden_size * tokens)


def loss_bytes(setting: Setting, request: PlanRequest) -> Any:
    """Logits and loss of one micro-batch at the worst moment, on the stage with the head. [byte].

    Besides the logits, the gathered input of the head and its gradient before the reduce-scatter are live
    (2 T h bytes each). Under GPipe the other micro-batches' logits wait for the backward passes.
    """
    habits = request.framework.memory
    vocabulary = padded_vocabulary(request, setting) / setting.tensor_parallel
    tokens = tokens_per_micro_batch(setting, request)
    waiting = np.asarray(setting.num_microbatches) - 1 if setting.schedule == "gpipe" else 0
    is_split = np.asarray(setting.tensor_parallel) > 1
    at_peak = habits.loss_peak_bytes + np.where(is_split, habits.parallel_loss_bytes, 0.0)
    per_logit = at_peak + habits.loss_saved_bytes * waiting
    return tokens * (vocabulary * per_logit + 4.0 * request.model.hidden_size)


def dummy_gradient_bytes(kind: LayerKind, setting: Setting, request: PlanRequest) -> Any:
    """16-bit stand-ins for weight gradients, one per distinct local matrix shape of a layer. [byte]."""
    model, t = request.model.seen_by(kind), np.asarray(setting.tensor_parallel)
    h, d = model.hidden_size, model.head_dim
    gate = 2 if model.gated_mlp else 1
    matrices: Any = 0.0
    if kind.has_attention:
        heads, queries = model.num_heads / t, 2 if model.attention_gate else 1
        matrices = h * d * ((queries + 1) * heads + model.kv_projections * kv_heads_per_rank(model, setting))
    if kind.has_linear:
        split = linear_mixer.split_parameters(model) / linear_mixer.linear_ranks(setting, request)
        matrices = matrices + split + linear_mixer.copied_parameters(model)
    if kind.mlp:
        width = model.ffn_hidden_size / t
        if kind.moe:
            width = model.expert_ffn_hidden_size / np.asarray(setting.expert_tensor_parallel)
            h = model.expert_input_size
        matrices = matrices + (gate + 1) * h * width
    return 2.0 * matrices
