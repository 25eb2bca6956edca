"""Nominal textbook forms: what a person computes on paper, without measured curves or framework habits.

Practice mode asks for these and the worked examples test them. Letters: M ranks, p stages, v chunks, m
micro-batches, s sequence, b micro-batch, h hidden, a heads, t tensor ranks, c context ranks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

BF16_BYTES = 2.0


def ring_all_reduce_wire(message_bytes: Any, num_ranks: Any) -> Any:
    """Bytes that leave one rank in a ring all-reduce: 2 (M - 1)/M of the buffer. [byte]."""
    return 2.0 * gather_wire(message_bytes, num_ranks)


def gather_wire(message_bytes: Any, num_ranks: Any) -> Any:
    """Bytes that leave one rank in a ring all-gather or reduce-scatter: (M - 1)/M of the whole. [byte]."""
    ranks = np.asarray(num_ranks)
    return np.asarray(message_bytes) * (ranks - 1) / ranks


def zero_wire(parameter_bytes: Any, num_ranks: Any, zero_stage: int) -> Any:
    """Bytes that leave one rank per step for gradients and parameters under ZeRO. [byte].

    Stages 0-2 move the parameters' bytes twice (reduce-scatter and all-gather make an all-reduce), stage 3
    three times (gather forward, gather backward, reduce-scatter).

    References
    ----------
    ZeRO (arXiv 1910.02054) section 7.
    """
    passes = 3 if zero_stage == 3 else 2
    return passes * gather_wire(parameter_bytes, num_ranks)


def transfer_time(wire_bytes: Any, bytes_per_s: Any) -> Any:
    """Bandwidth-only time. [s]."""
    return np.asarray(wire_bytes) / bytes_per_s


def zero_bytes_per_parameter(zero_stage: int, num_ranks: Any) -> Any:
    """Model state of Adam in mixed precision with 16-bit gradients, per parameter and GPU. [byte].

    16 without sharding; 4 + 12/M, 2 + 14/M, 16/M for stages 1-3.

    References
    ----------
    ZeRO (arXiv 1910.02054) figure 1.
    """
    replicated = {0: 16.0, 1: 4.0, 2: 2.0, 3: 0.0}[zero_stage]
    return replicated + (16.0 - replicated) / np.asarray(num_ranks)


def largest_model(memory_bytes: Any, zero_stage: int, num_ranks: Any) -> Any:
    """Parameters whose state alone fills the memory of one GPU. [1]."""
    return np.asarray(memory_bytes) / zero_bytes_per_parameter(zero_stage, num_ranks)


def tensor_collectives(num_layers: Any) -> Any:
    """All-reduces of one micro-batch under tensor parallelism: 2 forward and 2 backward per layer. [1].

    References
    ----------
    Megatron-LM (arXiv 1909.08053) section 3.
    """
    return 4 * np.asarray(num_layers)


def activation_message(micro_batch: Any, seq_length: Any, hidden_size: Any) -> Any:
    """16-bit hidden states of one micro-batch: a stage's hand-off, or one collective's tensor. [byte]."""
    return BF16_BYTES * np.asarray(micro_batch) * seq_length * hidden_size


def gemm_flop(m: Any, n: Any, k: Any) -> Any:
    """Floating-point operations of one matrix product; a multiply-add is two. [FLOP]."""
    return 2.0 * np.asarray(m) * n * k


def compute_time(flop: Any, flop_per_s: Any, utilisation: Any = 1.0) -> Any:
    """Time at a share of the peak. [s]."""
    return np.asarray(flop) / (np.asarray(flop_per_s) * utilisation)


def training_flop(parameters: Any, tokens: Any) -> Any:
    """Forward and backward operations without attention: 6 N D. [FLOP]."""
    return 6.0 * np.asarray(parameters) * tokens


def bubble_over_ideal(pipeline_parallel: Any, num_microbatches: Any, virtual_stages: Any = 1) -> Any:
    """Idle over ideal time of 1F1B, interleaved with v chunks: (p - 1)/(m v).

    References
    ----------
    Narayanan et al. (arXiv 2104.04473) section 2.2.
    """
    return (np.asarray(pipeline_parallel) - 1) / (np.asarray(num_microbatches) * virtual_stages)


def bubble_share(pipeline_parallel: Any, num_microbatches: Any, virtual_stages: Any = 1) -> Any:
    """Idle over whole step time: (p - 1)/(m v + p - 1)."""
    idle = bubble_over_ideal(pipeline_parallel, num_microbatches, virtual_stages)
    return idle / (1.0 + idle)


def utilisation(pipeline_parallel: Any, num_microbatches: Any, virtual_stages: Any = 1) -> Any:
    """Busy over whole step time: m v/(m v + p - 1)."""
    return 1.0 - bubble_share(pipeline_parallel, num_microbatches, virtual_stages)


def microbatches_for_bubble(pipeline_parallel: int, max_bubble: float, virtual_stages: int = 1) -> int:
    """Fewest micro-batches whose bubble over ideal time is at most ``max_bubble``. [1]."""
    exact = (pipeline_parallel - 1) / (max_bubble * virtual_stages)
    return max(1, math.ceil(exact - 1e-9))


def pointwise_activations(micro_batch: Any, seq_length: Any, hidden_size: Any) -> Any:
    """Saved bytes of a layer's norms, dropouts, residuals, copied by plain tensor parallelism: 10 s b h.

    References
    ----------
    Korthikanti et al. (arXiv 2205.05198) section 4.2.1; 10 counts bytes already.
    """
    return 10.0 * np.asarray(micro_batch) * seq_length * hidden_size


def layer_activations(
    micro_batch: Any,
    seq_length: Any,
    hidden_size: Any,
    tensor_parallel: Any = 1,
    sequence_parallel: bool = False,
    unfused_heads: Any = 0,
) -> Any:
    """Saved bytes of one GPT layer: s b h (10 + 24/t + 5 a s/(h t)), all over t with sequence parallelism.

    ``unfused_heads`` is a where the s x s scores are kept, 0 with a fused attention kernel.

    References
    ----------
    Korthikanti et al. (arXiv 2205.05198) table 2.
    """
    tokens, h, t = np.asarray(micro_batch) * seq_length, np.asarray(hidden_size), np.asarray(tensor_parallel)
    copied = 10.0 / t if sequence_parallel else 10.0
    return tokens * h * (copied + 24.0 / t + 5.0 * unfused_heads * np.asarray(seq_length) / (h * t))


def key_value_bytes(seq_length: Any, num_kv_heads: Any, head_dim: Any, context_parallel: Any = 1) -> Any:
    """16-bit keys and values of one layer and one sequence on one context rank. [byte]."""
    return 2.0 * BF16_BYTES * np.asarray(seq_length) * num_kv_heads * head_dim / context_parallel


def ring_attention_wire(seq_length: Any, num_kv_heads: Any, head_dim: Any, context_parallel: Any) -> Any:
    """Bytes of keys and values that leave a context rank in a layer's forward pass: c - 1 hops. [byte]."""
    local = key_value_bytes(seq_length, num_kv_heads, head_dim, context_parallel)
    return local * (np.asarray(context_parallel) - 1)


def zigzag_chunks(context_parallel: int) -> list[tuple[int, int]]:
    """Sequence chunks of every context rank: of 2c chunks, rank i takes i and 2c - 1 - i.

    References
    ----------
    Llama 3 report (arXiv 2407.21783) section 3.3.2.
    """
    return [(rank, 2 * context_parallel - 1 - rank) for rank in range(context_parallel)]


def blockwise_attention(
    queries: npt.NDArray[Any], keys: npt.NDArray[Any], values: npt.NDArray[Any], num_blocks: int
) -> npt.NDArray[Any]:
    """Full attention with keys and values taken block by block, as a ring does, in the arrays' own precision.

    Equal to one-pass attention in real arithmetic; in floating point the sums run in another order.

    References
    ----------
    Ring attention (arXiv 2310.01889); running maximum and sum as in FlashAttention.
    """
    scale = np.asarray(1.0 / math.sqrt(queries.shape[-1]), dtype=queries.dtype)
    highest = np.full(queries.shape[0], -np.inf, dtype=queries.dtype)
    norm = np.zeros(queries.shape[0], dtype=queries.dtype)
    output = np.zeros((queries.shape[0], values.shape[1]), dtype=queries.dtype)
    for block_keys, block_values in zip(
        np.array_split(keys, num_blocks), np.array_split(values, num_blocks), strict=True
    ):
        scores = queries @ block_keys.T * scale
        new = np.maximum(highest, scores.max(axis=1))
        weights, kept = np.exp(scores - new[:, None]), np.exp(highest - new)
        norm = norm * kept + weights.sum(axis=1)
        output = output * kept[:, None] + weights @ block_values
        highest = new
    return output / norm[:, None]
