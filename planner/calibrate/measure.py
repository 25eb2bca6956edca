"""Timing kernels with PyTorch, on a GPU for a calibration and on the CPU in tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from planner.cost.kernels import attention_flop

Shape = tuple[int, int, int]

ATTENTION_HEADS, ATTENTION_HEAD_DIM = 16, 128
ATTENTION_TOKENS = 16_384
"""Tokens of one attention call, whatever the sequence length (as the published FlashAttention tables)."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def shapes(quick: bool) -> list[Shape]:
    """Products to time: square, narrow and short ones, 128 to 16,384."""
    sizes = (256, 1024, 4096, 8192) if quick else (128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
    large = [size for size in sizes if size >= 1024]
    found = [(m, n, k) for m in large for n in large for k in large]
    narrow = [size for size in sizes if size < 1024]
    found += [(m, n, n) for m in narrow for n in large]
    found += [(m, n, m) for m in large for n in narrow]
    found += [(m, m, k) for m in large for k in narrow]
    return found


def seconds_of(function: Callable[[], Any], device: str, repeats: int) -> float:
    """Median seconds of a call, after a warm-up of three."""
    for _ in range(3):
        function()
    return sorted(_once(function, device) for _ in range(repeats))[repeats // 2]


def _once(function: Callable[[], Any], device: str) -> float:
    if device != "cuda":
        start = time.perf_counter()
        function()
        return time.perf_counter() - start
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    function()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) * 1e-3


def gemm_points(
    sizes: Iterable[Shape], precision: str, device: str, repeats: int = 20
) -> list[tuple[int, int, int, float]]:
    """Time one product of each shape. M, N, K, seconds."""
    points = []
    for m, n, k in sizes:
        run = _fp8_product(m, n, k, device) if precision == "fp8" else _product(m, n, k, precision, device)
        points.append((m, n, k, seconds_of(run, device, repeats)))
    return points


def _product(m: int, n: int, k: int, precision: str, device: str) -> Callable[[], Any]:
    left = torch.randn(m, k, device=device, dtype=DTYPES[precision])
    right = torch.randn(k, n, device=device, dtype=DTYPES[precision])
    return lambda: left @ right


def _fp8_product(m: int, n: int, k: int, device: str) -> Callable[[], Any]:
    """A product with the activation quantised in the same call, as a training step does it."""
    activation = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    weight = torch.randn(n, k, device=device, dtype=torch.bfloat16).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)

    def run() -> Any:
        quantised = (activation * one).to(torch.float8_e4m3fn)
        return torch._scaled_mm(quantised, weight, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: SLF001

    return run


def burst_and_sustained(
    precision: str, device: str, size: int = 8192, warm_s: float = 20.0
) -> tuple[float, float]:
    """Seconds of one large product when the chip is cool and after ``warm_s`` of nothing else."""
    run = _product(size, size, size, precision, device)
    burst = seconds_of(run, device, 10)
    until = time.monotonic() + warm_s
    while time.monotonic() < until:
        for _ in range(50):
            run()
        if device == "cuda":
            torch.cuda.synchronize()
    return burst, seconds_of(run, device, 50)


def attention_points(
    lengths: Iterable[int], precision: str, device: str, tokens: int = ATTENTION_TOKENS
) -> list[tuple[int, float, float, float]]:
    """Time fused causal attention. Sequence length, forward FLOPs, forward seconds, backward seconds."""
    points = []
    for length in lengths:
        batch = max(1, tokens // length)
        shape = (batch, ATTENTION_HEADS, length, ATTENTION_HEAD_DIM)
        query, key, value = (
            torch.randn(shape, device=device, dtype=DTYPES[precision], requires_grad=True) for _ in range(3)
        )
        forward, both = _attention_calls(query, key, value)
        forward_s = seconds_of(forward, device, 20)
        both_s = seconds_of(both, device, 20)
        flop = float(attention_flop(length, ATTENTION_HEADS, ATTENTION_HEAD_DIM, batch))
        points.append((length, flop, forward_s, max(both_s - forward_s, 1e-9)))
    return points


def _attention_calls(query: Any, key: Any, value: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    attend = torch.nn.functional.scaled_dot_product_attention
    gradient = torch.randn_like(query)

    def forward() -> Any:
        return attend(query, key, value, is_causal=True)

    def both() -> None:
        torch.autograd.grad(forward(), (query, key, value), gradient)

    return forward, both


def memory_points(device: str, elements: int = 2**28) -> dict[str, tuple[float, float]]:
    """Time kernels that only move memory. By kind: bytes, seconds."""
    first, second = (torch.randn(elements, device=device, dtype=torch.bfloat16) for _ in range(2))
    total = torch.empty_like(first)
    rows = first.view(-1, 1024)
    order = torch.randperm(rows.shape[0], device=device)
    return {
        "elementwise": (6.0 * elements, seconds_of(lambda: torch.add(first, second, out=total), device, 20)),
        "permute": (4.0 * elements, seconds_of(lambda: rows.index_select(0, order), device, 20)),
        "loss": (16.0 * elements / 8, seconds_of(_loss_call(device, elements // 8), device, 20)),
        "optimizer": (28.0 * elements / 8, seconds_of(_optimizer_call(device, elements // 8), device, 20)),
    }


def _loss_call(device: str, elements: int, vocabulary: int = 32_768) -> Callable[[], Any]:
    tokens = max(1, elements // vocabulary)
    width = elements // tokens
    logits = torch.randn(tokens, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(width, (tokens,), device=device)

    def run() -> None:
        torch.autograd.grad(torch.nn.functional.cross_entropy(logits, target), logits)

    return run


def _optimizer_call(device: str, elements: int) -> Callable[[], Any]:
    weight = torch.nn.Parameter(torch.randn(elements, device=device))
    weight.grad = torch.randn_like(weight)
    adam = torch.optim.AdamW([weight], fused=device == "cuda")
    return lambda: adam.step()


def launch_seconds(device: str, launches: int = 2000) -> float:
    """Host seconds of one small operation when the queue never blocks."""
    small = torch.zeros(16, device=device)
    small.add_(1)
    start = time.perf_counter()
    for _ in range(launches):
        small.add_(1)
    return (time.perf_counter() - start) / launches


def host_link(device: str, elements: int = 2**27) -> float:
    """Bandwidth of a copy from pinned host memory. [byte/s]."""
    pinned = torch.empty(elements, dtype=torch.uint8, pin_memory=device == "cuda")
    there = torch.empty(elements, dtype=torch.uint8, device=device)
    return elements / seconds_of(lambda: there.copy_(pinned, non_blocking=True), device, 10)
