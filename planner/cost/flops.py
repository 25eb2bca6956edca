"""Matrix products of one layer as one GPU runs them, and the model's FLOPs.

One list serves both: FLOPs are ``2 m n k`` summed, time is ``gemm_time`` summed. Letters: h hidden, a query
heads, g KV heads, d head dim, f MLP width, E experts, k experts per token, V vocabulary, s sequence,
t tensor ranks, e expert ranks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.cost import linear_mixer
from planner.cost.setting import Setting, Settings
from planner.spec.model import LayerKind, Model


@dataclass(frozen=True, slots=True)
class Gemm:
    """``count`` products of an m x k activation with a k x n weight on one GPU."""

    name: str
    m: Any
    n: Any
    k: Any
    count: Any = 1
    expert: bool = False
    """A routed expert: its weights take part in expert parallelism."""

    @property
    def flop(self) -> Any:
        """Forward FLOPs; each of the two gradient products has as many. [FLOP]."""
        return 2.0 * self.m * self.n * self.k * self.count


def layer_gemms(
    model: Model, kind: LayerKind, tokens: Any, setting: Setting, linear_ranks: Any = None
) -> list[Gemm]:
    """Return the forward products of one layer, in order.

    Parameters
    ----------
    tokens : int or array
        Tokens of one micro-batch on one tensor group: b s / c. [token]
    setting
        Degrees; ``tensor_parallel``, ``sequence_parallel`` and the expert degrees are read.
    linear_ranks : int or array, optional
        Tensor ranks that split a linear mixer (``linear_mixer.linear_ranks``); all of them by default.
    """
    model = model.seen_by(kind)
    gemms: list[Gemm] = []
    if kind.has_attention:
        gemms += (
            _latent_attention(model, tokens, setting) if model.is_mla else _attention(model, tokens, setting)
        )
    if kind.has_linear:
        ranks = setting.tensor_parallel if linear_ranks is None else linear_ranks
        gemms += _linear(model, tokens, ranks)
    if kind.mlp:
        gemms += _experts(model, tokens, setting) if kind.moe else _mlp(model, tokens, setting)
    return gemms


def head_gemm(model: Model, tokens: Any, vocabulary: Any) -> Gemm:
    """The LM head on one tensor rank that holds ``vocabulary`` rows of it."""
    return Gemm("lm_head", tokens, vocabulary, model.hidden_size)


def expert_tokens(model: Model, tokens: Any, setting: Setting) -> Any:
    """Rows that reach one local expert when routing is balanced. [token].

    Each tensor rank routes its share tokens / t; a rank with E/e experts receives as many rows as it
    sends, times the expert-tensor ranks that share them.
    """
    routed = tokens / np.asarray(setting.tensor_parallel) * model.experts_per_token
    return routed * setting.expert_parallel * setting.expert_tensor_parallel / model.num_experts


def local_kv_heads(model: Model, setting: Setting) -> Any:
    """KV heads on one tensor rank; at least one, copied if there are fewer heads than ranks."""
    return np.maximum(model.num_kv_heads / np.asarray(setting.tensor_parallel), 1.0)


def model_flops_per_token(model: Model, seq_length: int, frozen_weights: bool = False) -> float:
    """Training FLOPs of one token, causal attention counted half, no recompute. [FLOP].

    Parameters
    ----------
    frozen_weights
        Adapters are trained: the model's own matrices have no weight gradients.

    Notes
    -----
    3 x forward: 2 FLOPs per active matrix parameter (LM head in, embedding out), 2 a (d_qk + d_v) FLOPs per
    token and attended position; a causal token attends s/2 positions on average, w - w (w - 1)/(2 s) with a
    window; a linear mixer's chunked scan as ``linear_mixer.scan_flop_per_token``. MTP modules count.

    References
    ----------
    physics 1.2; Megatron-LM ``num_floating_point_operations``.
    """
    one = Settings()
    forward = attention = 0.0
    for kind, count in Counter(model.layer_kinds).items():
        forward += count * _forward_flop(model, kind, seq_length, one)
        attention += count * _mixing_flop(model, kind, seq_length)
    forward += head_gemm(model, 1, model.vocab_size).flop
    if model.mtp_depth:
        module = _forward_flop(model, model.mtp_kind, seq_length, one)
        module += 4.0 * model.hidden_size**2 + head_gemm(model, 1, model.vocab_size).flop
        forward += model.mtp_depth * module
        attention += model.mtp_depth * _mixing_flop(model, model.mtp_kind, seq_length)
    return 2.0 * float(forward) + float(attention if frozen_weights else forward)


def mfu(
    model: Model,
    seq_length: int,
    tokens_per_s_per_gpu: float,
    peak_flop_per_s: float,
    frozen_weights: bool = False,
) -> float:
    """Model FLOPs utilisation: useful FLOPs over the vendor's dense peak. [1]."""
    useful = model_flops_per_token(model, seq_length, frozen_weights)
    return useful * tokens_per_s_per_gpu / peak_flop_per_s


def attention_dims(model: Model) -> tuple[int, int]:
    """Head dims of the query-key and the value side. [1]."""
    if model.is_mla:
        return model.qk_nope_head_dim + model.qk_rope_head_dim, model.v_head_dim
    return model.head_dim, model.head_dim


def _forward_flop(model: Model, kind: LayerKind, seq_length: int, setting: Setting) -> float:
    products = sum(gemm.flop for gemm in layer_gemms(model, kind, 1, setting))
    return float(products) + _mixing_flop(model, kind, seq_length)


def _mixing_flop(model: Model, kind: LayerKind, seq_length: int) -> float:
    """Forward FLOPs per token without weights: of attention and of the scan."""
    flop = 0.0
    if kind.has_attention:
        dims = attention_dims(model.seen_by(kind))
        flop += 2.0 * model.num_heads * sum(dims) * _context(kind, seq_length)
    return flop + (linear_mixer.scan_flop_per_token(model) if kind.has_linear else 0.0)


def _context(kind: LayerKind, seq_length: int) -> float:
    window = kind.window
    if window is None or window >= seq_length:
        return seq_length / 2
    return window - window * (window - 1) / (2 * seq_length)


def _attention(model: Model, tokens: Any, setting: Setting) -> list[Gemm]:
    h, d = model.hidden_size, model.head_dim
    heads, queries = model.num_heads / np.asarray(setting.tensor_parallel), 2 if model.attention_gate else 1
    return [
        Gemm("qkv", tokens, (queries * heads + model.kv_projections * local_kv_heads(model, setting)) * d, h),
        Gemm("attention_out", tokens, h, heads * d),
    ]


def _latent_attention(model: Model, tokens: Any, setting: Setting) -> list[Gemm]:
    """Down-projections are copied over tensor ranks and work on the rank's own tokens under SP."""
    h, q, k = model.hidden_size, model.q_lora_rank, model.kv_lora_rank
    d_nope, d_rope, d_value = model.qk_nope_head_dim, model.qk_rope_head_dim, model.v_head_dim
    heads = model.num_heads / np.asarray(setting.tensor_parallel)
    own = tokens / np.where(setting.sequence_parallel, setting.tensor_parallel, 1)
    query = [Gemm("query", tokens, heads * (d_nope + d_rope), h)]
    if q:
        query = [Gemm("query_down", own, q, h), Gemm("query_up", tokens, heads * (d_nope + d_rope), q)]
    return [
        *query,
        Gemm("kv_down", own, k + d_rope, h),
        Gemm("kv_up", tokens, heads * (d_nope + d_value), k),
        Gemm("attention_out", tokens, h, heads * d_value),
    ]


def _linear(model: Model, tokens: Any, ranks: Any) -> list[Gemm]:
    gemms = []
    for one in linear_mixer.projections(model):
        rows = one.rows / np.asarray(ranks) if one.split == "rows" else one.rows
        columns = one.columns / np.asarray(ranks) if one.split == "columns" else one.columns
        gemms.append(Gemm(one.name, tokens, columns, rows))
    return gemms


def _mlp(
    model: Model, tokens: Any, setting: Setting, width: int | None = None, name: str = "mlp"
) -> list[Gemm]:
    h, inputs = model.hidden_size, 2 if model.gated_mlp else 1
    f = (model.ffn_hidden_size if width is None else width) / np.asarray(setting.tensor_parallel)
    return [Gemm(f"{name}_in", tokens, inputs * f, h), Gemm(f"{name}_out", tokens, h, f)]


def _experts(model: Model, tokens: Any, setting: Setting) -> list[Gemm]:
    h, inputs, read = model.hidden_size, 2 if model.gated_mlp else 1, model.expert_input_size
    rows = expert_tokens(model, tokens, setting)
    local = model.num_experts / np.asarray(setting.expert_parallel)
    width = model.expert_ffn_hidden_size / np.asarray(setting.expert_tensor_parallel)
    own = tokens / np.asarray(setting.tensor_parallel)
    gemms = [
        Gemm("router", own, model.num_experts, h),
        Gemm("expert_in", rows, inputs * width, read, local, expert=True),
        Gemm("expert_out", rows, read, width, local, expert=True),
    ]
    if model.expert_latent_size:
        gemms += [Gemm("latent_down", own, read, h), Gemm("latent_up", own, h, read)]
    if model.shared_expert_ffn_hidden_size:
        gemms += _mlp(model, tokens, setting, model.shared_expert_ffn_hidden_size, "shared")
    return gemms
