"""Values of Megatron's arguments: patterns of layers, exchanges, number formats."""

from __future__ import annotations

import ast
from typing import Any

from planner.frameworks.launch import whole, yes
from planner.frameworks.megatron.arguments import CONTEXT_KINDS
from planner.spec.plan import DEFAULT_ORDER, FAR_REPLICAS


def moe_layers(value: Any) -> list[int] | int:
    """Read ``--moe-layer-freq``: a number, or an expression of 0/1 lists with ``+`` and ``*``."""
    if isinstance(value, list):
        return [whole(entry) for entry in value]
    word = str(value).strip()
    if word.isdigit():
        return int(word)
    if len(word) > 10_000:
        raise ValueError("must be a short expression of 0/1 lists")
    try:
        return _pattern(ast.parse(word, mode="eval").body)
    except (SyntaxError, RecursionError) as error:
        raise ValueError("must be a number or an expression such as ([0]*3+[1]*58)") from error


def _pattern(node: ast.expr) -> list[int]:
    if isinstance(node, ast.List) and all(isinstance(entry, ast.Constant) for entry in node.elts):
        return [whole(entry.value) for entry in node.elts if isinstance(entry, ast.Constant)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _pattern(node.left) + _pattern(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        times = node.right.value
        if isinstance(times, int) and 0 <= times <= 10_000:
            return _pattern(node.left) * times
    raise ValueError("must be a number or an expression such as ([0]*3+[1]*58)")


def is_fused(value: Any) -> bool:
    """Read ``--attention-backend``: TE's unfused one and Megatron's own keep the scores."""
    return str(value).lower().rpartition(".")[2] not in {"unfused", "local"}


def share(value: Any) -> float:
    """Read a probability."""
    number = float(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError("must be between 0 and 1")
    return number


def words(value: Any) -> tuple[str, ...]:
    """Read one or several words."""
    return tuple(str(entry) for entry in value) if isinstance(value, list) else (str(value),)


_KINDS = {name: kind for kind, name in CONTEXT_KINDS.items()} | {
    "all_gather": "all_gather",
    "a2a+p2p": "ring",
}
"""Megatron's words; the ring between groups is what a hierarchical exchange adds to one node's all-to-all."""


def context_kind(value: Any) -> str:
    """Read ``--cp-comm-type``; one word for all layers."""
    kinds = {_KINDS.get(name) for name in words(value)}
    if None in kinds or not kinds:
        raise ValueError(f"must be of {', '.join(_KINDS)}")
    if len(kinds) > 1:
        raise ValueError("differs by layer, which is not priced: every layer counts as a ring")
    return str(kinds.pop())


def format_bytes(value: Any) -> float:
    """Read a number format (``bf16``, ``torch.float32``) as its bytes."""
    word = str(value).lower()
    if "32" in word:
        return 4.0
    if "16" in word:
        return 2.0
    if "8" in word:
        return 1.0
    raise ValueError("must be fp32, bf16, fp16 or fp8")


def not_in_16_bits(value: Any) -> bool:
    """Read a switch of gradients in fp32."""
    return not yes(value)


def full(value: Any) -> str | None:
    """Read a switch of full recompute."""
    return "full" if yes(value) else None


def experts_alone(value: Any) -> tuple[str, ...]:
    """Read ``--moe-layer-recompute``: the module that it recomputes."""
    return ("moe",) if yes(value) else ()


def rank_order(value: Any) -> str:
    """Read ``--use-tp-pp-dp-mapping``."""
    return FAR_REPLICAS if yes(value) else DEFAULT_ORDER


def batch_schedule(value: Any) -> list[int]:
    """Read ``--step-batch-size-schedule`` (``0:384 200B:768``) as its batch sizes. [sequence]."""
    steps = str(" ".join(map(str, value)) if isinstance(value, list) else value).split()
    sizes = [step.rpartition(":")[2] for step in steps]
    if not sizes or not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise ValueError("must be steps of a threshold and a batch size, such as 0:384 200B:768")
    return [int(size) for size in sizes]


def batch_rampup(value: Any) -> list[int]:
    """Read ``--rampup-batch-size`` as its first batch size and its increment. [sequence]."""
    numbers = value if isinstance(value, list) else str(value).split()
    if len(numbers) != 3 or not all(str(number).isdigit() for number in numbers):
        raise ValueError("must be a first batch size, an increment and a number of samples")
    return [int(number) for number in numbers[:2]]
