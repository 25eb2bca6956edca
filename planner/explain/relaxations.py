"""The nearest changes that make a plan possible: each alone, each re-solved, the smallest of its kind."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.catalog.files import entries
from planner.catalog.hardware import load_accelerator
from planner.cost.words import plan_words
from planner.explain.changes import with_batch, with_hbm_bytes, with_num_gpus, with_seq_length
from planner.spec import Pin, PlanRequest
from planner.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from planner.solver.result import Estimate

GROWTH = (1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 32)
"""Multiples of the cluster or the batch that are tried, smallest first."""
SHRINKING = (0.5, 0.25, 0.125)
"""Parts of the sequence or the batch that are tried, largest first."""
MOST_ACCELERATORS = 4
"""Accelerators that a sentence names."""
TOTAL_SEARCHES = 6
"""All relaxations together may take so many times the limit of one search."""

MEMORY = "every_stage_fits_in_memory"


@dataclass(frozen=True)
class Relaxation:
    """One change that makes a plan possible, and the best plan with it."""

    kind: str
    change: str
    """What to type."""
    plan: Estimate
    remark: str = ""

    @property
    def sentence(self) -> str:
        """The change and what it buys."""
        price = format_seconds(self.plan.step_time_s)
        return f"{self.change}{self.remark}: {plan_words(self.plan.plan)}, {price} a step."

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "kind": self.kind,
            "change": self.change,
            "sentence": self.sentence,
            "step_time_s": self.plan.step_time_s,
            "plan": self.plan.plan.model_dump(mode="json"),
        }


Step = tuple[str, PlanRequest]
"""What to type, and the request that results."""


def relaxations(
    request: PlanRequest, conflict: tuple[str, ...], least: Estimate | None, seconds: float
) -> tuple[Relaxation, ...]:
    """Try every kind of change that touches the conflict; keep the smallest of each that works.

    Parameters
    ----------
    conflict
        Names of the conflicting rules.
    least
        The plan with the least memory, where memory is one of them.
    seconds
        Time limit of one search. [s]
    """
    deadline = time.monotonic() + TOTAL_SEARCHES * seconds
    found: list[Relaxation] = []
    for kind, steps in _kinds(request, conflict, least):
        for change, changed in steps:
            if time.monotonic() > deadline:
                return tuple(found)
            best = _solve(changed, seconds)
            if best is not None:
                found.append(_relaxation(kind, change, best, request))
                break
    return tuple(found)


def _kinds(
    request: PlanRequest, conflict: tuple[str, ...], least: Estimate | None
) -> Iterator[tuple[str, Iterator[Step]]]:
    for pin in request.pins:
        if f"pin:{pin.option}" in conflict:
            yield "pin", iter(_without_pin(request, pin))
    touches = " ".join(conflict)
    memory = MEMORY in conflict
    if "bubble" in touches:
        yield "bubble", iter([("--max-bubble", request.model_copy(update={"max_bubble": None}))])
    if "fast_domain" in touches:
        update = {"allow_tensor_parallel_across_nodes": True}
        yield "domain", iter([("--allow-tp-across-nodes", request.model_copy(update=update))])
    if memory and least is not None:
        yield "hbm", _more_hbm(request, least)
    if memory or "batch" in touches or "cluster" in touches:
        yield "gpus", _more_gpus(request)
    if memory or "sequence" in touches:
        yield "sequence", _shorter_sequences(request)
    if "batch" in touches or "bubble" in touches or "round" in touches:
        yield "batch", _other_batches(request)
    if "cluster" in touches and not request.allow_idle:
        yield "idle", iter([("--allow-idle", request.model_copy(update={"allow_idle": True}))])


def _without_pin(request: PlanRequest, pin: Pin) -> list[Step]:
    pins = tuple(other for other in request.pins if other != pin)
    return [(f"without {pin.option}", request.model_copy(update={"pins": pins}))]


def _more_hbm(request: PlanRequest, least: Estimate) -> Iterator[Step]:
    needed = least.peak_memory_bytes + request.cluster.reserved_hbm_bytes
    gigabytes = math.ceil(needed / 1e8) / 10
    yield f"--hbm {gigabytes:g}GB", with_hbm_bytes(request, gigabytes * 1e9)


def _more_gpus(request: PlanRequest) -> Iterator[Step]:
    cluster = request.cluster
    for factor in GROWTH:
        nodes = math.ceil(cluster.num_gpus * factor / cluster.gpus_per_node)
        count = nodes * cluster.gpus_per_node
        if count > cluster.num_gpus:
            yield f"--gpus {count}", with_num_gpus(request, count)


def _shorter_sequences(request: PlanRequest) -> Iterator[Step]:
    for factor in SHRINKING:
        changed = with_seq_length(request, factor)
        if changed is not None:
            yield f"--seq-length {changed.workload.seq_length}", changed


def _other_batches(request: PlanRequest) -> Iterator[Step]:
    for factor in (*GROWTH[2:], *SHRINKING):
        changed = with_batch(request, factor)
        if changed is not None:
            yield f"--global-batch {changed.workload.global_batch}", changed


def _relaxation(kind: str, change: str, best: Estimate, request: PlanRequest) -> Relaxation:
    if kind == "bubble":
        return Relaxation(kind, f"--max-bubble {_bubble(best):g}", best)
    if kind == "hbm":
        return Relaxation(kind, change, best, _who_has(best, request))
    return Relaxation(kind, change, best)


def _bubble(best: Estimate) -> float:
    """The budget that the plan needs, in whole per cents rounded up."""
    from planner.rules.schedule import bubble_fraction

    plan = best.plan
    share = bubble_fraction(plan.schedule, plan.pipeline_parallel, plan.virtual_stages, plan.num_microbatches)
    return math.ceil(float(share) * 100) / 100


def _who_has(best: Estimate, request: PlanRequest) -> str:
    """Accelerators of the catalog with that much memory, the smallest first."""
    needed = best.peak_memory_bytes + request.cluster.reserved_hbm_bytes
    able = [load_accelerator(name) for name in entries("hardware")]
    able = sorted(
        (part for part in able if part.memory.hbm_bytes >= needed),
        key=lambda part: (part.memory.hbm_bytes, part.name),
    )
    if not able:
        return f" (no accelerator of the catalog has {format_bytes(needed)})"
    named = ", ".join(part.name for part in able[:MOST_ACCELERATORS])
    return f" (as {named}{', ...' if len(able) > MOST_ACCELERATORS else ''} have)"


def _solve(request: PlanRequest, seconds: float) -> Estimate | None:
    from planner.solver import solve

    return solve(request, top=1, time_limit_s=seconds).best
