"""Time of the kernels of one GPU: matrix products, attention, everything that only moves memory.

Letters: M, N, K sizes of a product; R rate; s sequence; a heads; d head dim; b sequences.
Every function takes numbers or arrays that broadcast.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from planner.errors import BadInput, did_you_mean
from planner.spec.cluster import Accelerator, AttentionCurve, GemmCurve

MemoryKind = Literal["elementwise", "permute", "loss", "optimizer"]

FALLBACKS: dict[str, tuple[str, ...]] = {
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "fp32": ("tf32",),
    "tf32": (),
    "fp8": ("bf16", "fp16"),
    "mxfp8": ("fp8", "bf16", "fp16"),
    "fp8_block": ("mxfp8", "fp8", "bf16", "fp16"),
    "nvfp4": ("mxfp8", "fp8", "bf16", "fp16"),
}
"""Which curve stands in for a precision that the accelerator has no curve for, nearest first."""
FP32_SLOWDOWN = 8.0
"""fp32 products without TF32 against bf16 (a bound; A100: 19.5 against 312 TFLOP/s at best)."""
ELEMENT_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.0,
    "fp8_block": 1.0,
    "nvfp4": 0.5,
}
FP32_SUM = 8.0
"""Bytes that adding to an fp32 sum reads and writes per element."""
EPILOGUE_POWER = 1.4
"""How far such a sum hides behind the product: 1 = not at all, infinite = all of it that fits.

Fitted on B200 expert weight gradients, 128 to 1024 tokens per expert (MooreThreads/SimuMax 4dcaae5); gives
the 3-8 % that dense weight gradients lose against forward products in the same tables.
"""
KERNEL_FALLBACKS = ("cudnn", "fa3", "fa2", "splash", "triton")
BACKWARD_FLOPS = 2.5
"""Backward FLOPs of fused attention over its forward FLOPs (five products against two)."""


def gemm_curve(accelerator: Accelerator, precision: str) -> tuple[GemmCurve, float]:
    """Return the fitted curve for a precision and the slow-down to apply to it.

    A missing precision is served by the nearest one in :data:`FALLBACKS`.
    """
    for name in (precision, *FALLBACKS.get(precision, ("bf16", "fp16"))):
        if name in accelerator.gemm:
            return accelerator.gemm[name], 1.0
    for name in ("bf16", "fp16"):
        if name in accelerator.gemm and precision == "fp32":
            return accelerator.gemm[name], FP32_SLOWDOWN
    known = ", ".join(sorted(accelerator.gemm))
    raise BadInput(
        f"{accelerator.name} has no matrix-product curve for precision {precision!r} (it has {known})"
    )


def gemm_time(
    m: Any,
    n: Any,
    k: Any,
    accelerator: Accelerator,
    precision: str = "bf16",
    count: Any = 1,
    slowdown: float = 1.0,
    sum_bytes: float = 0.0,
) -> Any:
    """Time of ``count`` products of an M x K with a K x N matrix. [s].

    Parameters
    ----------
    m, n, k
        Rows (tokens), columns and inner dimension.
    count
        Independent products of this shape, run as one launch (experts, or batched products).
    slowdown
        Multiplies the product term; weight gradients that accumulate into fp32 run at 1.03 to 1.08.
    sum_bytes
        Read and written per element of the result where it is added to a sum (accumulating weight
        gradient): 8 in fp32, 4 in 16 bits.

    Notes
    -----
    t = t0 + count (max(2 M' N' (K + K0) / R, bytes / HBM) + q M K), M' = sqrt(M^2 + 2 D^2) and N' likewise: a
    product of few rows or columns pays for some 1.4 D of them, so that time never falls as a dimension grows.
    Where tiles run in whole waves, M' N' is at least the area that the waves cover.
    The memory floor makes small expert batches pay for reading their weights. Adding to a sum moves s bytes
    per element of the result, partly behind the product: (t^a + (s M N / HBM)^a)^(1/a), a = 1.4.
    Known error for B200 expert weight gradients, 128 to 1024 tokens per expert: within 15 %.
    """
    curve, precision_slowdown = gemm_curve(accelerator, precision)
    rows, columns, inner = (_padded(value, curve.tile) for value in (m, n, k))
    rate = curve.rate_flop_per_s * curve.sustained_fraction / (slowdown * precision_slowdown)
    lost = 2.0 * curve.small_dimension**2
    area = np.sqrt((rows * rows + lost) * (columns * columns + lost))
    if curve.waves:
        area = np.maximum(area, _wave_area(rows, columns, count, accelerator.compute.multiprocessors))
    product = 2.0 * area * (inner + curve.k0) / rate
    element = ELEMENT_BYTES.get(precision, 2.0)
    bytes_per_s = accelerator.memory.hbm_bytes_per_s * accelerator.memory.elementwise_fraction
    operands = element * inner * (rows + columns)
    work = np.maximum(product, (operands + 2.0 * rows * columns) / bytes_per_s)
    if sum_bytes:
        work = np.hypot(
            work ** (EPILOGUE_POWER / 2), (sum_bytes * rows * columns / bytes_per_s) ** (EPILOGUE_POWER / 2)
        )
        work = work ** (2 / EPILOGUE_POWER)
    work = np.asarray(count) * (work + curve.quantise_s_per_element * rows * inner)
    return _scalar(np.where(work > 0, curve.launch_s + work, 0.0))


def cast_time(m: Any, k: Any, accelerator: Accelerator, precision: str, count: Any = 1) -> Any:
    """Time to cast ``count`` M x K activations to a scaled format once, zero for others. [s]."""
    curve, _ = gemm_curve(accelerator, precision)
    return _scalar(curve.quantise_s_per_element * np.asarray(m, dtype=np.float64) * k * count)


WAVE_TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.92))
"""Rows and columns of a thread block's tile, and its rate relative to the largest (cuBLAS on A100)."""


def _wave_area(rows: Any, columns: Any, count: Any, multiprocessors: int) -> Any:
    """Elements of one result that all multiprocessors could have made in its waves, with the best tile. [1].

    References
    ----------
    physics: explicit tile and wave quantisation improves the A100 fit; NVIDIA, "Matrix multiplication
    background", wave quantisation.
    """
    units, products = max(multiprocessors, 1), np.maximum(np.asarray(count, dtype=np.float64), 1e-9)
    best: Any = np.inf
    for height, width, rate in WAVE_TILES:
        tiles = np.ceil(np.asarray(rows) / height) * np.ceil(np.asarray(columns) / width) * products
        best = np.minimum(best, np.ceil(tiles / units) * units * height * width / rate / products)
    return best


def attention_flop(
    seq_length: Any, heads: Any, head_dim: Any, batch: Any, value_dim: Any = None, window: int | None = None
) -> Any:
    """Forward FLOPs of causal attention, the masked half not counted. [FLOP].

    Notes
    -----
    2 b a (d_qk + d_v) pairs, with s^2/2 pairs, or w s - w^2/2 with a window of w < s.
    """
    s = np.asarray(seq_length, dtype=np.float64)
    w = s if window is None else np.minimum(s, window)
    value = head_dim if value_dim is None else value_dim
    return _scalar(2.0 * batch * heads * (np.asarray(head_dim) + value) * (w * s - w * w / 2.0))


def attention_curve(accelerator: Accelerator, kernel: str) -> AttentionCurve:
    """Return the curve of a kernel generation, or of the newest one the accelerator has."""
    for name in (kernel, *KERNEL_FALLBACKS, *accelerator.attention):
        if name in accelerator.attention:
            return accelerator.attention[name]
    raise BadInput(f"{accelerator.name} has no attention curve")


def attention_time(
    flop: Any,
    seq_length: Any,
    tiles: Any,
    accelerator: Accelerator,
    kernel: str = "fa3",
    head_dim: Any = 128,
    backward: bool = False,
) -> Any:
    """Time of one fused attention call, forward or backward. [s].

    Parameters
    ----------
    flop
        *Forward* FLOPs of the call (:func:`attention_flop`), also for the backward pass.
    seq_length
        Length that sets the kernel's efficiency: of the sequence, or twice the window.
    tiles
        Blocks of 128 query rows: heads * sequences * s / 128.
    head_dim
        Mean of the query and value head dims.

    Notes
    -----
    Rates are interpolated over log s. With too few blocks to fill the multiprocessors the rate falls in
    proportion (few heads per GPU, short sequences).
    """
    curve = attention_curve(accelerator, kernel)
    rates = curve.backward_flop_per_s if backward else curve.forward_flop_per_s
    need = curve.backward_tiles_per_multiprocessor if backward else curve.forward_tiles_per_multiprocessor
    length = np.maximum(np.asarray(seq_length, dtype=np.float64), 1.0)
    log_lengths = np.log(np.asarray(curve.seq_lengths, dtype=np.float64))
    rate = np.interp(np.log(length), log_lengths, np.asarray(rates, dtype=np.float64))
    rate = rate * np.minimum(1.0, length / curve.seq_lengths[0])
    rate = rate * curve.sustained_fraction * np.interp(head_dim, curve.head_dims, curve.head_dim_factors)
    wanted = max(need * accelerator.compute.multiprocessors, 1.0)
    rate = rate * np.minimum(1.0, np.asarray(tiles, dtype=np.float64) / wanted)
    work = np.asarray(flop, dtype=np.float64) * (BACKWARD_FLOPS if backward else 1.0)
    launches = 2.0 if backward else 1.0
    gap = accelerator.host.kernel_gap_s * launches
    return _scalar(np.where(work > 0, gap + work / np.maximum(rate, 1.0), 0.0))


def memory_bound_time(
    bytes_moved: Any, accelerator: Accelerator, kind: MemoryKind = "elementwise", count: Any = 1
) -> Any:
    """Time of ``count`` kernels that together read and write ``bytes_moved``. [s].

    The share of the HBM bandwidth that such kernels reach stands in the hardware file.
    """
    memory = accelerator.memory
    fractions = {
        "elementwise": memory.elementwise_fraction,
        "permute": memory.permute_fraction,
        "loss": memory.loss_fraction,
        "optimizer": memory.optimizer_fraction,
    }
    if kind not in fractions:
        raise BadInput(f"unknown kind of memory-bound kernel {kind!r}{did_you_mean(kind, fractions)}")
    moved = np.asarray(bytes_moved, dtype=np.float64)
    gaps = np.asarray(count) * accelerator.host.kernel_gap_s
    return _scalar(np.where(moved > 0, moved / (fractions[kind] * memory.hbm_bytes_per_s) + gaps, 0.0))


def _padded(value: Any, tile: int) -> Any:
    array = np.maximum(np.asarray(value, dtype=np.float64), 1e-9)
    return np.ceil(array / tile) * tile if tile > 1 else array


def _scalar(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
