"""The longest sequence that fits, for plans that do not: the memory of one micro-batch against its tokens."""

from __future__ import annotations

from math import lcm

from planner.cost.memory import memory
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

STEP_TOKENS = 64
"""Lengths that are tried, beside what the ranks divide: finer ones are below the error of the memory."""


def longest_sequence(plan: Plan, request: PlanRequest) -> int:
    """Return the longest sequence, up to the request's, with which the plan fits; 0 where none does. [token].

    Notes
    -----
    Peak memory grows with the sequence, so the length is found by halving. It is a multiple of what
    context ranks (two pieces each) and sequence-parallel ranks divide.
    """
    ranks = plan.context_parallel * (plan.tensor_parallel if plan.sequence_parallel else 1)
    step = lcm(STEP_TOKENS, 2 * ranks) if ranks > 1 else STEP_TOKENS
    fitting, failing = 0, request.workload.seq_length // step + 1
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        fits = _peak_bytes(plan, request, middle * step) <= request.cluster.usable_hbm_bytes
        fitting, failing = (middle, failing) if fits else (fitting, middle)
    return fitting * step


def longest_sentence(plan: Plan, request: PlanRequest) -> str:
    """Say which sequences fit, of as many as the plan puts into a micro-batch."""
    tokens = longest_sequence(plan, request)
    if tokens == 0:
        return "no length of the sequences makes it fit"
    each = "" if plan.micro_batch == 1 else f" ({plan.micro_batch} in a micro-batch)"
    return f"sequences of up to {tokens} tokens fit{each}"


def _peak_bytes(plan: Plan, request: PlanRequest, seq_length: int) -> float:
    workload = request.workload.model_copy(update={"seq_length": seq_length})
    asked = request.model_copy(update={"workload": workload})
    return max(float(stage.total) for stage in memory(plan, asked))
