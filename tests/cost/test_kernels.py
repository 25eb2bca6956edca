"""Kernel times: published rates, hand-computed values, limiting cases and monotone behaviour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.hardware import load_accelerator
from planner.cost.kernels import (
    FP32_SUM,
    attention_flop,
    attention_time,
    cast_time,
    gemm_curve,
    gemm_time,
    memory_bound_time,
)
from planner.errors import BadInput
from planner.spec.cluster import Accelerator

COMPONENTS = Path(__file__).parent.parent / "data" / "measured" / "components.jsonl"
PARTS = ("h100", "a100", "b200", "gb200", "mi300x", "tpu-v5p", "tpu-v6e", "v100", "rtx-4090", "h20")


def burst(name: str, sustained: float = 1.0) -> Accelerator:
    """The part with the clock of a short benchmark (or the given share of it)."""
    part = load_accelerator(name)
    change = {"sustained_fraction": sustained}
    return part.model_copy(
        update={
            "gemm": {key: curve.model_copy(update=change) for key, curve in part.gemm.items()},
            "attention": {key: curve.model_copy(update=change) for key, curve in part.attention.items()},
        }
    )


def tflops(m: float, n: float, k: float, part: Accelerator, precision: str = "bf16", **options: Any) -> float:
    count = options.get("count", 1)
    return count * 2 * m * n * k / gemm_time(m, n, k, part, precision, **options) / 1e12


# ---------------------------------------------------------------- products


def test_gemm_by_hand() -> None:
    # H100 bf16: t0 3.4 us + 2 (8192^2 + 2 * 115^2) (8192 + 150) / (805e12 * 0.95)
    expected = 3.4e-6 + 2 * (8192**2 + 2 * 115**2) * 8342 / (805e12 * 0.95)
    assert gemm_time(8192, 8192, 8192, burst("h100", 0.95)) == pytest.approx(expected)


def test_quantise_pass_of_fp8_by_hand() -> None:
    # H100 fp8, M = N = 8192, K = 4096: t0 + 2 (M N + 2 * 115^2) (K + 338) / (1522e12 * 0.95) + 2.42e-12 M K
    product = 2 * (8192**2 + 2 * 115**2) * (4096 + 338) / (1522e12 * 0.95)
    expected = 11.1e-6 + product + 2.42e-12 * 8192 * 4096
    assert gemm_time(8192, 8192, 4096, burst("h100", 0.95), "fp8") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("dimension", "size", "published"),
    [  # mean rates over the measured shapes (aiconfigurator, H100), here over 4096 to 16384 in the others
        ("k", 512, 604), ("k", 1024, 704), ("k", 4096, 783), ("k", 8192, 790), ("m", 128, 314),
        ("m", 256, 588),
        ("m", 512, 725), ("m", 1024, 763), ("n", 256, 546), ("n", 512, 737), ("n", 1024, 792),
    ],
)  # fmt: skip
def test_narrow_products_lose_rate_as_measured(dimension: str, size: int, published: float) -> None:
    part, others = burst("h100"), [4096, 8192, 16384]
    names = [name for name in "mnk" if name != dimension]
    rates = [
        tflops(part=part, **{dimension: size, names[0]: first, names[1]: second})
        for first in others
        for second in others
    ]
    assert np.mean(rates) == pytest.approx(published, rel=0.11)


@pytest.mark.parametrize(("n", "published"), [(512, 302), (1024, 504), (8192, 1208)])
def test_narrow_fp8_products_lose_their_benefit(n: int, published: float) -> None:
    assert tflops(8192, n, 8192, burst("h100"), "fp8") == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize(
    ("tokens", "forward", "weight"), [(1024, 1030, 650), (512, 820, 490), (256, 615, 331), (128, 460, 174)]
)
def test_expert_products_as_measured(tokens: int, forward: float, weight: float) -> None:
    # SimuMax on B200, N 4096, K 7168; its node sustains about 0.7 of the burst rate
    part = burst("b200", 0.7)
    assert tflops(tokens, 4096, 7168, part, count=8) == pytest.approx(forward, rel=0.28)
    seconds = tflops(4096, 7168, tokens, part, count=8, sum_bytes=FP32_SUM)
    assert seconds == pytest.approx(weight, rel=0.15)


def test_dense_weight_gradients_are_3_to_8_percent_slower() -> None:
    part = burst("b200", 0.8)
    plain, summed = (gemm_time(8192, 8192, 8192, part, sum_bytes=moved) for moved in (0.0, FP32_SUM))
    assert 1.01 < summed / plain < 1.08


def test_expert_weight_gradient_pays_for_the_fp32_sum() -> None:
    # 1 token: nothing but 8 bytes per element of 4096 x 7168
    part = load_accelerator("b200")
    floor = 8 * 4096 * 7168 / (8e12 * part.memory.elementwise_fraction)
    assert gemm_time(4096, 7168, 1, part, sum_bytes=FP32_SUM) > floor


def test_systolic_arrays_pad_every_dimension() -> None:
    part = load_accelerator("tpu-v6e")
    assert gemm_time(8192, 8192, 300, part) == gemm_time(8192, 8192, 512, part)
    assert gemm_time(8192, 8192, 513, part) > gemm_time(8192, 8192, 512, part)


def test_missing_precisions_fall_back() -> None:
    assert gemm_curve(load_accelerator("a100"), "fp8") == gemm_curve(load_accelerator("a100"), "bf16")
    assert gemm_curve(load_accelerator("h100"), "nvfp4") == gemm_curve(load_accelerator("h100"), "fp8")
    assert gemm_curve(load_accelerator("v100"), "bf16") == gemm_curve(load_accelerator("v100"), "fp16")
    assert gemm_time(4096, 4096, 4096, load_accelerator("a100"), "fp32") > 5 * gemm_time(
        4096, 4096, 4096, load_accelerator("a100")
    )
    bare = load_accelerator("h100").model_copy(update={"gemm": {}})
    with pytest.raises(BadInput, match="no matrix-product curve for precision 'bf16'"):
        gemm_time(1, 1, 1, bare)


@given(
    part=st.sampled_from(PARTS), m=st.integers(1, 50_000), n=st.integers(1, 50_000), k=st.integers(1, 50_000),
    factor=st.integers(1, 9),
)  # fmt: skip
@settings(deadline=None, max_examples=100)
def test_products_never_beat_the_peak_and_grow_with_k(part: str, m: int, n: int, k: int, factor: int) -> None:
    accelerator = load_accelerator(part)
    seconds = gemm_time(m, n, k, accelerator)
    peak = max(accelerator.compute.peak_flop_per_s.get(name, 0.0) for name in ("bf16", "fp16"))
    assert seconds > 2.0 * m * n * k / peak
    assert gemm_time(m, n, k * factor, accelerator) >= seconds


@given(
    part=st.sampled_from(PARTS), sizes=st.tuples(*[st.integers(1, 20_000)] * 3),
    dimension=st.sampled_from("mnk"), more=st.integers(1, 5_000), count=st.integers(1, 64),
    precision=st.sampled_from(["bf16", "fp8"]), sum_bytes=st.sampled_from([0.0, 4.0, FP32_SUM]),
)  # fmt: skip
@settings(deadline=None, max_examples=300)
def test_no_product_gets_faster_by_growing(
    part: str, sizes: tuple[int, int, int], dimension: str, more: int, count: int, precision: str,
    sum_bytes: float,
) -> None:  # fmt: skip
    shape = dict(zip("mnk", sizes, strict=True))
    larger = shape | {dimension: shape[dimension] + more}
    options: dict[str, Any] = {"precision": precision, "count": count, "sum_bytes": sum_bytes}
    small, large = (
        gemm_time(accelerator=load_accelerator(part), **options, **each) for each in (shape, larger)
    )
    assert large >= small * (1 - 1e-9)
    assert gemm_time(
        accelerator=load_accelerator(part), **(options | {"count": count + more}), **shape
    ) >= small * (1 - 1e-9)


@pytest.mark.parametrize("part", ["h100", "a100", "b200"])
def test_few_rows_cost_as_much_as_a_tile_of_them(part: str) -> None:
    # Below D rows the product takes the time of sqrt(2) D rows: 64 rows are not half as dear as 128 (K large
    # enough that neither the operands' bytes nor the launch decide).
    few, more = (gemm_time(rows, 65_536, 8192, burst(part), count=1) for rows in (64, 128))
    assert few > 0.6 * more


def test_a_cast_by_hand() -> None:
    # H100 fp8: 2.42 ps an element; bf16 needs no cast
    part = load_accelerator("h100")
    assert cast_time(8192, 4096, part, "fp8", 3) == pytest.approx(3 * 2.42e-12 * 8192 * 4096)
    assert cast_time(8192, 4096, part, "bf16") == 0.0


def test_nothing_costs_nothing() -> None:
    assert gemm_time(8192, 8192, 8192, load_accelerator("h100"), count=0) == 0.0
    assert attention_time(0.0, 4096, 1024, load_accelerator("h100")) == 0.0
    assert memory_bound_time(0.0, load_accelerator("h100")) == 0.0


# ---------------------------------------------------------------- attention


def test_causal_flops_by_hand() -> None:
    # 2 * batch * heads * (128 + 128) * s^2 / 2, and with a window w: w s - w^2 / 2 pairs
    assert attention_flop(4096, 32, 128, 2) == 2 * 2 * 32 * 256 * 4096**2 / 2
    assert attention_flop(4096, 1, 64, 1, window=1024) == 2 * 128 * (1024 * 4096 - 1024**2 / 2)
    assert attention_flop(4096, 1, 64, 1, window=9999) == attention_flop(4096, 1, 64, 1)
    # latent attention: 192 for queries and keys, 128 for values
    assert attention_flop(4096, 128, 192, 1, value_dim=128) == 2 * 128 * 320 * 4096**2 / 2


@pytest.mark.parametrize(
    ("part", "kernel", "length", "backward", "published"),
    [("h100", "fa3", 4096, False, 579), ("h100", "fa3", 16384, False, 616),
     ("h100", "cudnn", 2048, False, 484),
     ("h100", "fa3", 8192, True, 521)],
)  # fmt: skip
def test_attention_rates_as_published(
    part: str, kernel: str, length: int, backward: bool, published: float
) -> None:
    flop = attention_flop(length, 32, 128, 16)
    seconds = attention_time(flop, length, 32 * 16 * length / 128, burst(part), kernel, backward=backward)
    assert flop * (2.5 if backward else 1) / seconds / 1e12 == pytest.approx(published, rel=0.01)


def test_forward_and_backward_together_as_published_for_fa2() -> None:
    # A100, 8192 tokens: 182 TFLOP/s over forward and backward (3.5 times the forward FLOPs)
    part, flop = burst("a100"), attention_flop(8192, 16, 128, 4)
    seconds = sum(attention_time(flop, 8192, 4096, part, "fa2", backward=flag) for flag in (False, True))
    assert 3.5 * flop / seconds / 1e12 == pytest.approx(182, rel=0.02)


@pytest.mark.parametrize(("heads", "forward", "backward"), [(16, 650, 850), (8, 350, 740), (4, 188, 388)])
def test_few_heads_starve_the_kernel(heads: int, forward: float, backward: float) -> None:
    # SimuMax on B200, s = 4096, relative to its 64 heads: 960 and 820 TFLOP/s
    part, reference = burst("b200"), {False: 960.0, True: 820.0}
    for flag, published in ((False, forward), (True, backward)):
        full, few = (
            count
            / attention_time(
                attention_flop(4096, count, 128, 1), 4096, count * 32, part, "cudnn", backward=flag
            )
            for count in (64, heads)
        )
        assert few / full == pytest.approx(min(1.0, published / reference[flag]), rel=0.12)


def test_latent_attention_as_measured() -> None:
    # cuDNN with DeepSeek-V3's head dims, one sequence, 128 heads
    rows = [
        row
        for row in map(json.loads, COMPONENTS.read_text().splitlines())
        if row["kind"] == "attention kernel"
    ]
    assert len(rows) == 4
    for row in rows:
        s = row["seq_len"]
        part = burst("h100" if row["hardware"]["gpu"] == "Hopper" else "b200")
        flop = attention_flop(s, 128, 192, 1, value_dim=128)
        forward = attention_time(flop, s, 128 * s / 128, part, "cudnn", 160)
        backward = attention_time(flop, s, 128 * s / 128, part, "cudnn", 160, backward=True)
        assert flop / forward / 1e12 == pytest.approx(row["fwd_tflops"], rel=0.16)
        assert 2.5 * flop / backward / 1e12 == pytest.approx(row["bwd_tflops"], rel=0.10)


def test_kernel_generations_fall_back() -> None:
    part = load_accelerator("a100")
    assert attention_time(1e12, 4096, 4096, part, "fa3") == attention_time(1e12, 4096, 4096, part, "fa2")
    assert attention_time(1e12, 4096, 4096, load_accelerator("tpu-v5p"), "fa2") > 0
    with pytest.raises(BadInput, match="no attention curve"):
        attention_time(1e12, 4096, 4096, part.model_copy(update={"attention": {}}))


@given(
    part=st.sampled_from(PARTS), s=st.integers(16, 200_000), factor=st.integers(1, 8), backward=st.booleans()
)
@settings(deadline=None, max_examples=100)
def test_longer_sequences_take_longer(part: str, s: int, factor: int, backward: bool) -> None:
    accelerator = load_accelerator(part)
    times = [
        attention_time(attention_flop(n, 8, 128, 1), n, 8 * n / 128, accelerator, backward=backward)
        for n in (s, s * factor)
    ]
    assert 0 < times[0] <= times[1] * (1 + 1e-12)


# ---------------------------------------------------------------- memory-bound kernels


def test_memory_bound_by_hand() -> None:
    # H100: 1 GB at 0.82 * 3.35 TB/s = 364 us, plus two gaps of 2 us
    part = load_accelerator("h100")
    fractions = {"elementwise_fraction": 0.82, "permute_fraction": 0.75, "optimizer_fraction": 0.85}
    part = part.model_copy(update={"memory": part.memory.model_copy(update=fractions)})
    assert memory_bound_time(1e9, part, count=2) == pytest.approx(1e9 / (0.82 * 3.35e12) + 4e-6)
    assert memory_bound_time(1e9, part, "permute") > memory_bound_time(1e9, part)
    with pytest.raises(BadInput, match="did you mean 'optimizer'"):
        memory_bound_time(1.0, part, "optimiser")  # type: ignore[arg-type]


@pytest.mark.parametrize("part", PARTS)
def test_arrays_equal_scalars(part: str) -> None:
    accelerator = load_accelerator(part)
    sizes = np.array([1, 100, 4096, 30_000])
    products = gemm_time(
        sizes[:, None], sizes[None, :], 512, accelerator, count=sizes[:, None], sum_bytes=FP32_SUM
    )
    attention = attention_time(sizes * 1e9, sizes, sizes, accelerator, head_dim=sizes)
    moved = memory_bound_time(sizes * 1e6, accelerator, "loss", sizes)
    for i, size in enumerate(sizes.tolist()):
        assert attention[i] == pytest.approx(
            attention_time(size * 1e9, size, size, accelerator, head_dim=size)
        )
        assert moved[i] == pytest.approx(memory_bound_time(size * 1e6, accelerator, "loss", size))
        for j, other in enumerate(sizes.tolist()):
            single = gemm_time(size, other, 512, accelerator, count=size, sum_bytes=FP32_SUM)
            assert isinstance(single, float)
            assert products[i, j] == pytest.approx(single)
