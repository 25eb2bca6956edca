"""The nearest changes that make a plan possible: each alone and shown to work, the smallest of its kind."""

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
from planner.rules.schedule import bubble_fraction
from planner.spec import Pin, PlanRequest
from planner.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from planner.explain.leanest import Verdict
    from planner.solver.result import Estimate

GROWTH = (1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
"""Multiples of the cluster or the batch that are tried, smallest first."""
SHRINKING = (0.5, 0.25, 0.125)
"""Parts of the sequence or the batch that are tried, largest first."""
BUDGETS = (0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Bubble budgets that are tried, smallest first, before none at all."""
MOST_ACCELERATORS = 4
"""Accelerators that a sentence names."""
FASTER_S = 1.0
"""Time limit of each of the two searches for a faster plan under a change that works. [s]"""
FASTER_SHARE = 0.4
"""Part of the time limit within which faster plans are looked for."""

MEMORY = "every_stage_fits_in_memory"


@dataclass(frozen=True)
class Relaxation:
    """One change (or a pair of them) that makes a plan possible, and a plan with it."""

    kind: str
    change: str
    """What to type."""
    plan: Estimate
    remark: str = ""
    is_best: bool = False
    """Whether the plan is proven to be the fastest under the change."""

    @property
    def sentence(self) -> str:
        """The change and what it buys."""
        price = format_seconds(self.plan.step_time_s)
        reached = f"{price} a step" if self.is_best else f"{price} a step or less"
        return f"{self.change}{self.remark}: {plan_words(self.plan.plan)}, {reached}."

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


def relaxations(request: PlanRequest, conflict: tuple[str, ...], seconds: float) -> tuple[Relaxation, ...]:
    """Try every kind of change that touches the conflict; keep the smallest of each that works.

    Where no single change works, pairs of changes are tried (kind ``pair``).

    Parameters
    ----------
    conflict
        Names of the conflicting rules.
    seconds
        Time limit of all of them together. [s]
    """
    start = time.monotonic()
    found: list[_Working] = []
    for kind, steps in _kinds(request, conflict, start + seconds):
        working = _first_that_works(kind, steps, request, start + seconds)
        if working is not None:
            found.append(working)
    found = found or _pairs(request, conflict, start + seconds)
    faster_until = start + FASTER_SHARE * seconds
    return tuple(_described(entry, request, faster_until) for entry in found)


@dataclass(frozen=True)
class _Working:
    """A change that works: its kind, what to type, the request that it leads to, and a plan there."""

    kind: str
    change: str
    changed: PlanRequest
    plan: Estimate


def _first_that_works(
    kind: str, steps: Iterator[Step], request: PlanRequest, deadline: float
) -> _Working | None:
    from planner.solver.evaluate import evaluate

    for change, changed in steps:
        if time.monotonic() > deadline:
            return None
        witness = _any_plan(changed, deadline).witness
        if witness is not None:
            return _Working(kind, change, changed, evaluate(witness, changed))
    return None


def _kinds(
    request: PlanRequest, conflict: tuple[str, ...], deadline: float
) -> Iterator[tuple[str, Iterator[Step]]]:
    for pin in request.pins:
        if f"pin:{pin.option}" in conflict:
            yield "pin", iter(_without_pin(request, pin))
    touches = " ".join(conflict)
    memory = MEMORY in conflict
    if "bubble" in touches:
        yield "bubble", _wider_bubbles(request)
    if "fast_domain" in touches:
        update = {"allow_tensor_parallel_across_nodes": True}
        yield "domain", iter([("--allow-tp-across-nodes", request.model_copy(update=update))])
    if memory:
        yield "hbm", _more_hbm(request, deadline)
    if memory or "batch" in touches or "cluster" in touches:
        yield "gpus", _more_gpus(request)
    if memory or "sequence" in touches:
        yield "sequence", _shorter_sequences(request)
    if "batch" in touches or "bubble" in touches or "round" in touches:
        yield "batch", _other_batches(request)
    if "cluster" in touches and not request.allow_idle:
        yield "idle", iter([("--allow-idle", request.model_copy(update={"allow_idle": True}))])


def _pairs(request: PlanRequest, conflict: tuple[str, ...], deadline: float) -> list[_Working]:
    """The first pair of changes that works: one pin dropped, and another, or more GPUs, or all pins."""
    pinned = [pin for pin in request.pins if f"pin:{pin.option}" in conflict] or list(request.pins)
    found = []
    for pin in pinned:
        ((first, half),) = _without_pin(request, pin)
        seconds = [_without_pin(half, other)[0] for other in half.pins]
        steps = [*seconds, *_more_gpus(half)]
        both = ((f"{first} and {second}", changed) for second, changed in steps)
        working = _first_that_works("pair", both, request, deadline)
        if working is not None:
            found.append(working)
    if not found and len(request.pins) > 1:
        words = " and ".join(f"without {pin.option}" for pin in request.pins)
        free = iter([(words, request.model_copy(update={"pins": ()}))])
        working = _first_that_works("pair", free, request, deadline)
        found = [] if working is None else [working]
    return found


def _without_pin(request: PlanRequest, pin: Pin) -> list[Step]:
    pins = tuple(other for other in request.pins if other != pin)
    return [(f"without {pin.option}", request.model_copy(update={"pins": pins}))]


def _wider_bubbles(request: PlanRequest) -> Iterator[Step]:
    now = request.max_bubble if request.max_bubble is not None else math.inf
    for budget in BUDGETS:
        if budget > now:
            yield f"--max-bubble {budget:g}", request.model_copy(update={"max_bubble": budget})
    yield "--max-bubble none", request.model_copy(update={"max_bubble": None})


def _more_hbm(request: PlanRequest, deadline: float) -> Iterator[Step]:
    from planner.explain.leanest import leanest

    least = leanest(request, max(deadline - time.monotonic(), 0.0) / 2).plan
    if least is None:
        return
    needed = least.peak_memory_bytes + request.cluster.reserved_hbm_bytes
    gigabytes = math.ceil(needed / 1e8) / 10
    yield f"--hbm {gigabytes:g}GB", with_hbm_bytes(request, gigabytes * 1e9)


def _more_gpus(request: PlanRequest) -> Iterator[Step]:
    cluster = request.cluster
    counts = []
    for factor in GROWTH:
        nodes = math.ceil(cluster.num_gpus * factor / cluster.gpus_per_node)
        counts.append(nodes * cluster.gpus_per_node)
    for count in sorted(set(counts)):
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


def _described(found: _Working, request: PlanRequest, faster_until: float) -> Relaxation:
    """The relaxation in its final words, with a faster plan than the witness where one is found in time."""
    best, is_best, change = found.plan, False, found.change
    if time.monotonic() < faster_until:
        best, is_best = _faster(best, found.changed)
    if found.kind == "bubble":
        change = f"--max-bubble {max(_bubble(best), 0.01):g}"
    remark = _who_has(found.plan, request) if found.kind == "hbm" else ""
    return Relaxation(found.kind, change, best, remark, is_best)


def _faster(witness: Estimate, request: PlanRequest) -> tuple[Estimate, bool]:
    from planner.explain.leanest import quick_plan
    from planner.solver import solve

    quick = quick_plan(request, FASTER_S)
    best = witness if quick is None or quick.step_time_s > witness.step_time_s else quick
    result = solve(request, top=1, time_limit_s=FASTER_S)
    if result.best is None or result.best.step_time_s > best.step_time_s:
        return best, False
    return result.best, result.status == "optimal"


def _bubble(best: Estimate) -> float:
    """The budget that the plan needs, in whole per cents rounded up."""
    plan = best.plan
    share = bubble_fraction(plan.schedule, plan.pipeline_parallel, plan.virtual_stages, plan.num_microbatches)
    return math.ceil(float(share) * 100 - 1e-9) / 100


def _who_has(best: Estimate, request: PlanRequest) -> str:
    """Accelerators of the catalog with that much memory, the smallest first."""
    needed = math.ceil((best.peak_memory_bytes + request.cluster.reserved_hbm_bytes) / 1e8) * 1e8
    able = [load_accelerator(name) for name in entries("hardware")]
    able = sorted(
        (part for part in able if part.memory.hbm_bytes >= needed),
        key=lambda part: (part.memory.hbm_bytes, part.name),
    )
    if not able:
        return f" (no accelerator of the catalog has {format_bytes(needed)})"
    named = ", ".join(part.name for part in able[:MOST_ACCELERATORS])
    return f" (as {named}{', ...' if len(able) > MOST_ACCELERATORS else ''} have)"


def _any_plan(request: PlanRequest, deadline: float) -> Verdict:
    from planner.explain.leanest import any_plan

    return any_plan(request, max(deadline - time.monotonic(), 0.0))
