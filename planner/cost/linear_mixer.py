"""Linear mixers (state space, linear attention) of one layer: weights, products, scan, traffic, activations.

Letters: h hidden, a_k and a_v heads of keys and of values (Mamba-2: groups and heads), d_k and d_v their
widths (Mamba-2: state size and head dim), w width of the short convolution, C tokens of a chunk, r tensor
ranks that split the mixer, c context ranks, T tokens of a micro-batch on one tensor group.

Weights follow transformers' ``modeling_mamba2``, ``modeling_qwen3_next`` and flash-linear-attention's
``layers/kda.py`` (gates of low rank without biases, as in Kimi Linear). Bytes follow the buffers that the
Triton kernels of mamba-ssm 2 (``ssd_combined.py``) and flash-linear-attention (``ops/gated_delta_rule``,
``ops/kda``) read, write and keep. Of the times one constant is fitted, the rate of Mamba-2's chunk products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from planner.cost.collectives import Group, all_to_all_time
from planner.cost.kernels import attention_time, memory_bound_time
from planner.cost.setting import Setting
from planner.spec.model import Model
from planner.spec.request import PlanRequest

CHUNK_TOKENS = {"mamba2": 256, "gated_delta": 64, "kimi_delta": 64}
"""Tokens that the scan handles at once: the defaults of mamba-ssm's kernels and of FLA's delta rules."""
SCAN_KERNELS = {"mamba2": 7, "gated_delta": 12, "kimi_delta": 14}
"""Forward kernels between the projections. Mamba-2: convolution, five of the scan, gated norm; delta rules:
convolution (three for Kimi), splits of its output, norms of queries and keys, gates, six of the scan, gated
norm."""
PRODUCT_SLOWDOWN = {"mamba2": 3.5, "gated_delta": 1.0, "kimi_delta": 1.0}
"""Time of the chunk products over that at the attention curve's rate. Mamba-2: fitted on seven published
runs of Nemotron-H 56B (H100), 15 to 20 % fast without it; those of Nemotron-3-Super (GB200, GB300), which
took no part, come nearer as well (5 to 23 % fast). No run speaks for the delta rules."""
QUERY_BLOCK = 128
"""Tokens of one head that a thread block handles at a time."""
STATE_BYTES = {"mamba2": 4.0, "gated_delta": 2.0, "kimi_delta": 2.0}
"""Per element of the state that each chunk hands on (mamba-ssm: fp32; FLA: 16 bits)."""
BACKWARD_SCAN_PASSES = 3.0
"""Traffic of the backward scan over the forward one: states are recomputed, then two gradients for one
product."""
SENT_BYTES = 2.0
"""Activations travel in 16 bits."""


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix product of the mixer; tensor ranks split its columns or rows, or each has all of it."""

    name: str
    rows: int
    columns: int
    split: Literal["columns", "rows", "copied"]


def projections(model: Model) -> tuple[Projection, ...]:
    """Matrices of one linear mixer in order, as the kernels of training run them (one input product)."""
    h, keys, values = model.hidden_size, key_width(model), value_width(model)
    out = Projection("linear_out", values, h, "rows")
    if model.linear_mixer == "kimi_delta":
        rank = model.linear_value_head_dim
        return (
            Projection("linear_in", h, 2 * keys + values, "columns"),
            Projection("decay_down", h, rank, "copied"),
            Projection("decay_up", rank, keys, "columns"),
            Projection("gate_down", h, rank, "copied"),
            Projection("gate_up", rank, values, "columns"),
            Projection("beta", h, model.linear_key_heads, "copied"),
            out,
        )
    per_head = 1 if model.linear_mixer == "mamba2" else 2
    wide = 2 * keys + 2 * values + per_head * model.linear_value_heads
    return (Projection("linear_in", h, wide, "columns"), out)


def key_width(model: Model) -> int:
    """Width of all keys, which queries share: a_k d_k (Mamba-2: of B, which C shares). [1]."""
    return model.linear_key_heads * model.linear_key_head_dim


def value_width(model: Model) -> int:
    """Width of all values: a_v d_v (Mamba-2: the inner width). [1]."""
    return model.linear_value_heads * model.linear_value_head_dim


def convolved_width(model: Model) -> int:
    """Channels of the short convolution: queries, keys and values (Mamba-2: x, B and C). [1]."""
    return 2 * key_width(model) + value_width(model)


def scanned_width(model: Model) -> int:
    """Columns of everything that the input products make for convolution, scan and gate. [1]."""
    inner = ("linear_out", "decay_down", "gate_down")
    return sum(one.columns for one in projections(model) if one.name not in inner)


def split_parameters(model: Model) -> int:
    """Parameters of one linear mixer that tensor ranks divide.

    Notes
    -----
    Matrices; convolution ``(w + bias) (2 a_k d_k + a_v d_v)``; Mamba-2: ``3 a_v`` (decay, step, skip) and a
    norm of ``a_v d_v``; gated delta net: ``2 a_v``; Kimi: decay ``a_k`` and step ``a_k d_k``.
    """
    matrices = sum(one.rows * one.columns for one in projections(model) if one.split != "copied")
    convolution = (model.linear_conv_kernel + model.linear_conv_bias) * convolved_width(model)
    if model.linear_mixer == "mamba2":
        vectors = 3 * model.linear_value_heads + value_width(model) * model.linear_output_norm
    elif model.linear_mixer == "gated_delta":
        vectors = 2 * model.linear_value_heads
    else:
        vectors = model.linear_key_heads + key_width(model)
    return matrices + convolution + vectors


def copied_parameters(model: Model) -> int:
    """Parameters that every tensor rank holds: inner halves of low-rank gates, a delta rule's head norm."""
    matrices = sum(one.rows * one.columns for one in projections(model) if one.split == "copied")
    norm = 0 if model.linear_mixer == "mamba2" else model.linear_value_head_dim * model.linear_output_norm
    return matrices + norm


def mixer_parameters(model: Model) -> int:
    """All parameters of one linear mixer."""
    return split_parameters(model) + copied_parameters(model)


def linear_ranks(setting: Setting, request: PlanRequest) -> Any:
    """Tensor ranks that split a linear mixer: all, or one where the framework copies it to each of them."""
    splits = request.framework.limits.linear_tensor_parallel
    return np.asarray(setting.tensor_parallel) if splits else np.ones_like(setting.tensor_parallel)


def scan_flop_per_token(model: Model) -> float:
    """Forward FLOPs of the chunked scan, all heads, the masked half of chunk products not counted. [FLOP].

    Notes
    -----
    Mamba-2: scores ``C d_k`` a group; per head scores times values ``C d_v``, states of chunks ``2 d_k d_v``,
    states to outputs ``2 d_k d_v``. Delta rules, per value head: scores of keys and of queries ``2 C d_k``,
    the triangular inverse ``C^2 / 3``, its products with keys and values ``C (d_k + d_v)``, scores times new
    values ``C d_v``, and three products with the state ``6 d_k d_v``.

    References
    ----------
    Mamba-2, arXiv:2405.21060, section 6; gated delta net, arXiv:2412.06464, section 3.3; chunked delta rule,
    arXiv:2406.06484, section 3.2. Megatron-LM ``num_floating_point_operations`` has 7 d_k d_v a head for
    Mamba-2 and 8 d_v^2 for the delta rule, about the same.
    """
    chunk = CHUNK_TOKENS[model.linear_mixer]
    d_k, d_v = model.linear_key_head_dim, model.linear_value_head_dim
    if model.linear_mixer == "mamba2":
        per_head = chunk * d_v + 4.0 * d_k * d_v
        return model.linear_key_heads * chunk * d_k + model.linear_value_heads * per_head
    return model.linear_value_heads * (chunk * (3.0 * d_k + 2.0 * d_v) + chunk**2 / 3.0 + 6.0 * d_k * d_v)


def _scan_bytes_per_token(model: Model) -> float:
    """What the forward kernels of the scan read and write, all heads. [byte].

    Mamba-2 reads x twice and writes y, B and C twice, scores of a chunk (fp32) once each way, and its states
    four times. Delta rules read keys four times, queries once, write and read weighted keys and values, read
    and write new values, and move states and chunk matrices (fp32 and 16 bits) twice.
    """
    chunk, values = CHUNK_TOKENS[model.linear_mixer], value_width(model)
    state = STATE_BYTES[model.linear_mixer] * values * model.linear_key_head_dim / chunk
    if model.linear_mixer == "mamba2":
        scores = 8.0 * chunk * model.linear_key_heads
        return 6.0 * values + 8.0 * key_width(model) + scores + 4.0 * state
    keys = model.linear_value_heads * model.linear_key_head_dim
    return 14.0 * keys + 12.0 * values + 2.0 * state + 12.0 * chunk * model.linear_value_heads


def scan_time(setting: Setting, request: PlanRequest, backward: bool) -> Any:
    """Time of the chunked scan of one layer and micro-batch: products or traffic, whichever is longer. [s].

    The chunk products run at the rate that the attention curve gives for a sequence of one chunk, or a part
    of it (``PRODUCT_SLOWDOWN``); context ranks have all tokens of their share of the heads, or all heads of
    their tokens: the same work.
    """
    model, accelerator = request.model, request.cluster.accelerator
    tokens = np.asarray(setting.micro_batch) * request.workload.seq_length / setting.context_parallel
    ranks, chunk = linear_ranks(setting, request), CHUNK_TOKENS[model.linear_mixer]
    heads = model.linear_value_heads / ranks
    products = attention_time(
        scan_flop_per_token(model) * tokens / ranks, chunk, heads * tokens / QUERY_BLOCK, accelerator,
        request.framework.time.attention_kernel,
        (model.linear_key_head_dim + model.linear_value_head_dim) / 2, backward,
    ) * PRODUCT_SLOWDOWN[model.linear_mixer] / request.framework.time.attention_efficiency  # fmt: skip
    passes = BACKWARD_SCAN_PASSES if backward else 1.0
    moved = passes * _scan_bytes_per_token(model) * tokens / ranks
    return np.maximum(products, memory_bound_time(moved, accelerator, "elementwise", passes * 6))


def elementwise_bytes(setting: Setting, request: PlanRequest, tokens: Any, backward: bool) -> Any:
    """Bytes that convolution, norms of queries and keys, and the gated norm move. [byte].

    Per token, 16-bit and fused: convolution 4 a channel forward and 6 backward; norm of queries and keys 4
    an element and 6; gate and norm of the output 6 a value and 10.
    """
    model = request.model
    normed = 0 if model.linear_mixer == "mamba2" else 2 * key_width(model)
    once = 6.0 if backward else 4.0
    gated = (10.0 if backward else 6.0) * value_width(model)
    return (once * (convolved_width(model) + normed) + gated) * tokens / linear_ranks(setting, request)


def all_to_all(setting: Setting, request: PlanRequest, tokens: Any, group: Group) -> Any:
    """Time in which context ranks trade tokens for heads before the scan, and back after it. [s].

    Everything that the input product makes goes in, the output comes back; Mamba-2's groups are copied where
    there are fewer than context ranks. The backward pass sends the gradients the same two ways.

    References
    ----------
    Megatron-LM ``ssm/mamba_context_parallel.py`` and ``ssm/gated_delta_net``.
    """
    model, ranks = request.model, linear_ranks(setting, request)
    made = scanned_width(model)
    width = (made - 2 * key_width(model)) / ranks
    groups = np.maximum(model.linear_key_heads / ranks, np.asarray(setting.context_parallel))
    if model.linear_mixer != "mamba2":
        groups = model.linear_key_heads / ranks
    width = width + 2 * groups * model.linear_key_head_dim
    inward = all_to_all_time(SENT_BYTES * tokens * width, group, request.cluster)
    return inward + all_to_all_time(SENT_BYTES * tokens * value_width(model) / ranks, group, request.cluster)


def saved_bytes(setting: Setting, request: PlanRequest, tokens: Any) -> dict[str, Any]:
    """What one linear mixer keeps for its backward pass, by part. [byte].

    Notes
    -----
    Mamba-2 keeps the input product's result (convolution and states are recomputed) and the scan's output.
    Delta rules keep the convolution's input and the gate; queries, keys (one a value head) and values after
    it, decay and step, and the 16-bit chunk matrices (Kimi: of keys and of queries); states are recomputed.
    Both keep the scan's output and the gated output, input of the last product.
    """
    model = request.model
    keys, values = key_width(model), value_width(model)
    scanned = 0
    made = scanned_width(model)
    if model.linear_mixer != "mamba2":
        repeated = model.linear_value_heads * model.linear_key_head_dim
        is_kimi = model.linear_mixer == "kimi_delta"
        decay = keys if is_kimi else 2 * model.linear_value_heads
        matrices = (2 if is_kimi else 1) * CHUNK_TOKENS[model.linear_mixer] * model.linear_value_heads
        scanned = 2 * repeated + values + decay + model.linear_value_heads + matrices
        made = convolved_width(model) + values + (2 * model.linear_value_head_dim if is_kimi else 0)
    local = 2.0 * tokens / linear_ranks(setting, request)
    return {
        "linear_inputs": made * local,
        "linear_scan": scanned * local,
        "linear_output": 2.0 * values * local,
    }


def transient_bytes(setting: Setting, request: PlanRequest, tokens: Any) -> Any:
    """Short-lived buffers of the backward pass: gradients of what is scanned, states and theirs. [byte]."""
    model = request.model
    made = scanned_width(model)
    chunk = CHUNK_TOKENS[model.linear_mixer]
    state = STATE_BYTES[model.linear_mixer] * value_width(model) * model.linear_key_head_dim / chunk
    return (2.0 * made + 2.0 * state) * tokens / linear_ranks(setting, request)
