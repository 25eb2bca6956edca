"""Micro-batches as Megatron's own settings have them: rounds of a length that they say, batches that grow."""

from __future__ import annotations

from collections.abc import Iterator

from planner.frameworks.launch import LaunchFile
from planner.frameworks.lint.findings import Finding, finding
from planner.spec.plan import Plan

ROUNDS = "microbatches_fill_interleaved_rounds"
"""The planner's rule for rounds of as many micro-batches as there are pipeline ranks."""


def says_rounds(launch: LaunchFile) -> bool:
    """Whether the files give the length of a round."""
    return "microbatch_group" in launch.fields


def micro_batch_findings(launch: LaunchFile, plan: Plan) -> Iterator[Finding]:
    """Yield what is wrong with the rounds, and the batches on the way to the last, that the files ask for.

    References
    ----------
    megatron-core num_microbatches_calculator.py: every batch is a multiple of micro-batch times replicas.
    """
    rounds = _rounds(launch, plan)
    if rounds is not None:
        yield rounds
    unit = plan.micro_batch * plan.data_parallel
    for name in ("batch_schedule", "batch_rampup"):
        wrong = [size for size in launch.get(name, []) if size % unit]
        if wrong:
            at = launch.fields[name]
            message = (
                f"{at.key}: batches of {', '.join(map(str, wrong))} are not a multiple of micro-batch "
                f"{plan.micro_batch} x {plan.data_parallel} replicas = {unit}"
            )
            yield finding(at, "error", "replicas_divide_the_global_batch", message)


def _rounds(launch: LaunchFile, plan: Plan) -> Finding | None:
    """What is wrong with the length of a round.

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
