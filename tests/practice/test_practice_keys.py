"""Every numeric key against a plain formula written here: no code shared with ``planner.cost``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from pytest import approx

from planner.practice.bank import KINDS, SYLLABUS, find
from planner.practice.question import Numeric

SEEDS = range(300)
ZERO = {0: (16, 0), 1: (4, 12), 2: (2, 14), 3: (0, 16)}


def zero(stage: int, ranks: int) -> float:
    whole, shared = ZERO[stage]
    return whole + shared / ranks


def bubble(p: int, m: int, v: int, asked: str) -> float:
    idle, work = p - 1, m * v
    return {"ratio": idle / work, "share": idle / (idle + work), "used": work / (idle + work)}[asked]


def layer(s: int, b: int, h: int, t: int, split: str) -> float:
    return s * b * h * {"none": 34, "tp": 10 + 24 / t, "tp+sp": 34 / t}[split]


def in_flight(schedule: str, p: int, rank: int, m: int, layers: int, h: int) -> float:
    held = m if schedule == "GPipe" else min(m, p - rank)
    return held * layers / p * 34 * 4096 * h / 8


def least_pipeline(parameters_b: float, d: int, gradient_bytes: int, budget_gb: int) -> int:
    p = 1
    while (2 + gradient_bytes + 12 / d) * parameters_b / (8 * p) > budget_gb:
        p *= 2
    return p


def read_table(row: str) -> float:
    # Llama 3 report table 4; Megatron paper (2104.04473) table 1: parameters, p, replicas
    size, p, d = {
        "Llama 3 405B": (405e9, 16, 128), "Megatron GPT 145B": (145.6e9, 8, 24),
        "Megatron GPT 310B": (310.1e9, 16, 15), "Megatron GPT 1T": (1008e9, 64, 6),
    }[row]  # fmt: skip
    return (6 + 12 / (2 * d)) * size / (8 * p / 2)


def deduplicated(tokens: int, k: int, h: int, nodes: int, limit: int) -> float:
    hit = nodes * (1 - ((nodes - 1) / nodes) ** k)
    return min(hit, limit) * (nodes - 1) / nodes * tokens * h


FORMULAS: dict[str, Callable[..., float]] = {
    "state-plain": lambda parameters_b, gradient_bytes, gpus: (14 + gradient_bytes) * parameters_b * 1e9,
    "all-reduce-wire": lambda parameters_b, gradient_bytes, gpus: (
        2 * parameters_b * 1e9 * gradient_bytes * (gpus - 1) / gpus
    ),
    "all-reduce-time": lambda parameters_b, gpus, rate_gb: 4 * parameters_b * (gpus - 1) / gpus / rate_gb,
    "sync-share": lambda parameters_b, gpus, tokens, rate_gb, peak_tflop, used_pct: (
        (4 * (gpus - 1) / gpus / (rate_gb * 1e9)) / (4 * tokens / (peak_tflop * 1e10 * used_pct))
    ),
    "zero-state": lambda parameters_b, stage, gpus: zero(stage, gpus) * parameters_b * 1e9,
    "zero-largest": lambda memory_gb, stage, gpus: memory_gb * 1e9 / zero(stage, gpus),
    "zero-wire": lambda parameters_b, stage, gpus: (
        (3 if stage == 3 else 2) * 2e9 * parameters_b * (gpus - 1) / gpus
    ),
    "zero-ranks": lambda parameters_b, memory_gb, free_gb: math.ceil(
        16 * parameters_b / (memory_gb - free_gb)
    ),
    "tp-all-reduce": lambda b, s, h, t, rate_gb: 4 * b * s * h * (t - 1) / t / (rate_gb * 1e9),
    "tp-step": lambda layers, b, s, h, t, rate_gb: 16 * layers * b * s * h * (t - 1) / t / (rate_gb * 1e9),
    "ffn-gemm": lambda b, s, h, f, t, peak_tflop: 2 * b * s * h * f / t / (peak_tflop * 1e12),
    "tp-share": lambda b, s, h, f, t, rate_gb: (4 * (t - 1) / t / (rate_gb * 1e9)) / (6 * f / t / 989e12),
    "bubble": bubble,
    "bubble-microbatches": lambda p, budget_pct, v: -(-100 * (p - 1) // (budget_pct * v)),
    "hand-off": lambda b, s, h, rate_gb: 2 * b * s * h / (rate_gb * 1e9),
    "in-flight": in_flight,
    "activations": lambda s, b, h, t, layers, split: layers * layer(s, b, h, t, split),
    "sequence-saving": lambda s, b, h, layers, t: 10 * s * b * h * layers * (t - 1) / t,
    "recompute": lambda s, b, h, t, layers: s * b * h * (2 * layers + 34) / t,
    "attention-scores": lambda s, b, a, t, layers: 5 * a * s * s * b * layers / t,
    "key-values": lambda s, a, g, c, layers: 4 * s / c * g * 128 * layers,
    "ring-time": lambda s, a, g, c, rate_gb: (c - 1) * 4 * s / c * g * 128 / (rate_gb * 1e9),
    "zigzag": lambda c, rank: 2 * c - 1 - rank,
    "mix-state": lambda parameters_b, t, p, d, gradient_bytes: (
        (2 + gradient_bytes + 12 / d) * parameters_b * 1e9 / t / p
    ),
    "mix-sync": lambda parameters_b, t, p, d, rate_gb: 4 * parameters_b / t / p * (d - 1) / d / rate_gb,
    "step-compute": lambda parameters_b, batch, s, gpus, used_pct: (
        6e9 * parameters_b * batch * s / (gpus * 9.89e12 * used_pct)
    ),
    "least-pipeline": least_pipeline,
    "read-table": read_table,
    "expert-all-to-all": lambda tokens, k, h, e, width, rate_gb: (
        tokens * k * h * width * (e - 1) / e / (rate_gb * 1e9)
    ),
    "expert-nodes": deduplicated,
    "failures": lambda gpus: 54 * 86400 * 16384 / 419 / gpus,
    "checkpoint": lambda gpus, blocking_s: math.sqrt(2 * blocking_s * 54 * 86400 * 16384 / 419 / gpus),
}
"""Kind to its key in base units, from the question's numbers."""

KEYS: dict[str, float] = {
    "12.1.1/1": 120e9, "12.1.1/1+1": 2 * 15e9 * 63 / 64,
    "12.1.1/2": 208 / 80, "12.1.1/2+1": 26e9,
    "12.1.1/3": 16 / 4, "12.1.1/3+1": 18 / 6,
    # 29.53 GB at 25 GB/s over 4 P FLOP a token at 140.4 TFLOP/s
    "12.1.1/4": (2 * 15e9 * 63 / 64 / 25e9) * 312e12 * 0.45 / (4 * 7.5e9),
    "12.1.1/4+1": (2 * 15e9 * 63 / 64 / 25e9) / (8192 * 4 * 7.5e9 / (312e12 * 0.45)),
    "12.1.2/1": 2 * 15e9 * 63 / 64, "12.1.2/1+1": 3 * 15e9 * 63 / 64,
    # 70B: 1120, 293, 155, 17.5 GB; 30B: 480, 125.6, 66.6, 7.5 GB
    "12.1.2/2": 3, "12.1.2/2+1": 2,
    "12.1.2/3+1": 26e9,
    "12.1.2/4": 3 * 140e9 * 1023 / 1024, "12.1.2/4+1": 3 * 17.5e9 * 127 / 128,
    "12.2.1/1": 140e9, "12.2.1/1+1": 17.5e9,
    # 1.879 GB at 25 and 600 GB/s over three products of 3.848 TFLOP at 989 TFLOP/s
    "12.2.1/2": 1.8790e9 / 25e9 / (3 * 3.8482e12 / 989e12),
    "12.2.1/2+1": 1.8790e9 / 600e9 / (3 * 3.8482e12 / 989e12),
    "12.2.1/3": 1.073742e9, "12.2.1/3+1": 2.147484e9,
    # d = 16, m = 28; d = 8, m = 60
    "12.2.1/4": 16 * 28, "12.2.1/4+1": 8 * 60,
    "12.2.2/1": 32 / 39, "12.2.2/1+1": 128 / 135,
    "12.2.2/2": (3 * 350e9 * 63 / 64) / (2 * 32 * 2 * 4 * 2048 * 12288),
    "12.2.2/2+1": 43.75e9 + 43.75e9 + 12 * 175e9 / 64,
    "12.2.2/3": 0.070, "12.2.2/3+1": 0.150,
    "12.3.1/1": 40 * 1.0905e9, "12.3.1/1+1": 40 * 0.35652e9, "12.3.1/1+2": 33.554e9 * 7 / 8,
    "12.3.1/2": 2 * 7 / 8 * 2 * 4 * 4096 * 5120, "12.3.1/2+1": 2 / 2 * 2 * 4 * 4096 * 5120,
    "12.3.1/3": 4, "12.3.1/3+1": 8,
    "12.3.2/1": 80 * 4 * 16384 * 128, "12.3.2/1+1": 7 * 4 * 16384 * 128 / 50e9,
    "12.3.2/2": 4.294967e9, "12.3.2/2+1": 4.294967e9 / 8,
    "12.3.2/3+1": 13,
    "12.4.1/1+1": (4 + 12 / 64) * 12.5e9, "12.4.1/1+2": (6 + 12 / 64) * 12.5e9,
    # Power Lines: 0.0471 D^0.462 sequences of 2048 tokens at D = 1e12
    "12.4.1/2": 1 / (1 + 10000 * 4096 / (0.0471 * 1e12**0.462 * 2048)),
    "12.4.1/2+1": 1 / (1 + 1250 * 4096 / (0.0471 * 1e12**0.462 * 2048)),
    "12.4.1/3": 2 * 16 * 2 * 8192 * 16384 / 8, "12.4.1/3+1": 2 * 127 / 128 * 810e9 / 128,
    "12.4.2/1": 58 * 256 * 3 * 7168 * 2048 / 671.026e9,
    "12.4.2/1+1": 4096 * 8 * 7168 * 63 / 64 / 50e9,
    "12.4.2/2": 8 * 34 * 131072 * 16384 / 8, "12.4.2/2+1": 34 * 8192 * 16384,
    "12.4.2/3": 124, "12.4.2/3+1": 31, "12.4.2/3+2": 54 * 86400 / 419 / 2,
}  # fmt: skip
"""Every numeric question of the syllabus and its follow-ups, by hand."""


def numeric_kinds() -> list[Any]:
    return [kind for kind in KINDS if isinstance(kind.question(0).key, Numeric)]


def test_every_numeric_kind_has_a_formula_here() -> None:
    assert {kind.name for kind in numeric_kinds()} == set(FORMULAS)


@pytest.mark.parametrize("kind", numeric_kinds(), ids=lambda kind: kind.name)
def test_keys_equal_plain_formulas(kind: Any) -> None:
    for seed in SEEDS:
        first, second = kind.values(seed)
        question = kind.question(seed)
        for numbers, asked in ((first, question), (second, question.follow_ups[0])):
            assert asked.key.value == approx(FORMULAS[kind.name](**numbers), rel=1e-9), (seed, numbers)


@pytest.mark.parametrize("kind", numeric_kinds(), ids=lambda kind: kind.name)
def test_follow_ups_change_exactly_one_number(kind: Any) -> None:
    for seed in SEEDS:
        first, second = kind.values(seed)
        assert [name for name in first if first[name] != second[name]] == [kind.follow]


@pytest.mark.parametrize(("ident", "value"), KEYS.items())
def test_syllabus_keys_by_hand(ident: str, value: float) -> None:
    key = find(ident).key
    assert isinstance(key, Numeric)
    assert key.value == approx(value, rel=2e-4)


def test_every_numeric_syllabus_question_is_worked_by_hand_here() -> None:
    asked = [one for entry in SYLLABUS for one in (entry.question(), *entry.question().follow_ups)]
    assert {one.ident for one in asked if isinstance(one.key, Numeric)} == set(KEYS)
