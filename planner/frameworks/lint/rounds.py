"""Rounds of Megatron's interleaved schedule whose length the run's files say themselves."""

from __future__ import annotations

from planner.frameworks.launch import LaunchFile
from planner.frameworks.lint.findings import Finding, finding
from planner.spec.plan import Plan

ROUNDS = "microbatches_fill_interleaved_rounds"
"""The planner's rule for rounds of as many micro-batches as there are pipeline ranks."""


def says_rounds(launch: LaunchFile) -> bool:
    """Whether the files give the length of a round."""
    return "microbatch_group" in launch.fields


def rounds_finding(launch: LaunchFile, plan: Plan) -> Finding | None:
    """Return what is wrong with the rounds that the files ask for, None where nothing is.

    References
    ----------
    megatron-core schedules.py, ``forward_backward_pipelining_with_interleaving``: between p and m in a round,
    and the last one is whole or has p at least.
    """
    size, p, m = launch.get("microbatch_group", 0), plan.pipeline_parallel, plan.num_microbatches
    if plan.schedule != "interleaved" or not size:
        return None
    valid = [n for n in range(p, m + 1) if m % n == 0 or m % n >= p]
    if size in valid:
        return None
    at = launch.fields["microbatch_group"]
    nearest = f" (nearest: {min(valid, key=lambda n: (abs(n - size), n))})" if valid else ""
    message = (
        f"rounds of {size} micro-batches do not suit {m} micro-batches over {p} pipeline ranks: a round has "
        f"{p} to {m}, the last one {p} or all{nearest}"
    )
    return finding(at, "error", ROUNDS, message)
