"""Goals that are a series of searches: least memory, fewest GPUs for a step time, the best worst case."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from planner.solver.evaluate import evaluate
from planner.solver.result import PlanResult
from planner.spec.request import PlanRequest

MEMORY_PRECISION = 0.01
"""The least peak memory is found to this fraction."""
SLACK_BYTES = 1.0
"""Rounding of a plan's peak memory. [byte]"""
SLOWER_LINKS = 0.8
LESS_HBM_BYTES = 3e9
"""The robust worst case: every link at 80 % of its bandwidth and 3 GB less HBM. Faster links and more
memory never slow a plan, so the worst corner of the range is this one."""


class Solve(Protocol):
    """One search; with ``enough`` it ends at the first plan that is legal and fits."""

    def __call__(self, request: PlanRequest, enough: bool = False) -> PlanResult: ...  # noqa: D102


Narrow = Callable[[PlanRequest], PlanRequest | None]
"""A request with the same plans that fit and fewer settings, or None where none fits."""


def is_series(request: PlanRequest) -> bool:
    """Whether the request needs more than one search."""
    return request.goal == "memory" or request.max_step_time_s is not None or request.robust


def solve_series(request: PlanRequest, solve: Solve, narrow: Narrow | None = None) -> PlanResult:
    """Answer a request whose goal takes several searches; ``solve`` does one, ``narrow`` makes it small."""
    start = time.monotonic()
    if request.robust:
        answer = _robust(request, solve)
    elif request.max_step_time_s is not None:
        answer = _fewest_gpus(request, request.max_step_time_s, solve)
    else:
        answer = _least_memory(request, solve, narrow)
    return replace(answer, solve_s=time.monotonic() - start)


def worst_case(request: PlanRequest) -> PlanRequest:
    """The request on slower links with less memory."""
    cluster = request.cluster
    links = tuple(
        link.model_copy(update={"bytes_per_s": link.bytes_per_s * SLOWER_LINKS}) for link in cluster.links
    )
    reserved = cluster.reserved_hbm_bytes + LESS_HBM_BYTES
    slower = cluster.model_copy(update={"links": links, "reserved_hbm_bytes": reserved})
    return request.model_copy(update={"cluster": slower, "robust": False})


def _robust(request: PlanRequest, solve: Solve) -> PlanResult:
    worst = solve(worst_case(request))
    plans = tuple(evaluate(found.plan, request) for found in worst.plans)
    note = "Chosen for the worst case: links at 80 % of their bandwidth and 3 GB less memory."
    return replace(worst, plans=plans, notes=(*worst.notes, note))


def _with_usable(request: PlanRequest, usable_bytes: float) -> PlanRequest:
    reserved = request.cluster.accelerator.memory.hbm_bytes - usable_bytes
    cluster = request.cluster.model_copy(update={"reserved_hbm_bytes": reserved})
    return request.model_copy(update={"cluster": cluster, "goal": "step-time", "prefer_simple": False})


def _least_memory(request: PlanRequest, solve: Solve, narrow: Narrow | None) -> PlanResult:
    """Halve the range of memory until the least peak is known to ``MEMORY_PRECISION``; rank what fits it."""

    def solve_within(usable_bytes: float, enough: bool = False) -> PlanResult:
        tight = _with_usable(request, usable_bytes)
        few = tight if narrow is None else narrow(tight)
        return PlanResult(status="infeasible") if few is None else solve(few, enough)

    best = solve(request.model_copy(update={"goal": "step-time", "prefer_simple": False}), enough=True)
    low = 0.0
    while best.plans:
        peak = min(found.peak_memory_bytes for found in best.plans)
        if peak - low <= MEMORY_PRECISION * peak:
            break
        middle = (low + peak) / 2
        answer = solve_within(middle, enough=True)
        if answer.plans:
            best = answer
        elif answer.status == "infeasible":
            low = middle
        else:
            break
    if not best.plans:
        return best
    peak = min(found.peak_memory_bytes for found in best.plans)
    ranked = solve_within(peak + SLACK_BYTES)
    best = ranked if ranked.plans else best
    ordered = sorted(best.plans, key=lambda found: found.peak_memory_bytes)
    plans = tuple(evaluate(found.plan, request) for found in ordered)
    least = plans[0].peak_memory_bytes
    return replace(best, status="feasible", plans=plans, gap_pct=100.0 * max(0.0, least - low) / least)


def _fewest_gpus(request: PlanRequest, target_s: float, solve: Solve) -> PlanResult:
    """Halve the range of node counts; more GPUs are taken to reach what fewer reach."""
    per_node, gpus = request.cluster.gpus_per_node, request.cluster.num_gpus
    counts = [*range(per_node, gpus, per_node), gpus]
    plain = request.model_copy(update={"max_step_time_s": None})
    low, high = 0, len(counts) - 1
    best = solve(plain)
    if not best.plans or best.plans[0].step_time_s > target_s:
        note = f"No plan reaches {target_s:g} s on {gpus} GPUs."
        return replace(best, notes=(*best.notes, note))
    while low < high:
        middle = (low + high) // 2
        answer = solve(_on_gpus(plain, counts[middle]))
        if answer.status == "time-limit":
            note = (
                f"{counts[high]} of {gpus} GPUs reach {target_s:g} s; the time ended before fewer were tried."
            )
            return replace(best, status="feasible", notes=(*best.notes, note))
        if answer.plans and answer.plans[0].step_time_s <= target_s:
            best, high = answer, middle
        else:
            low = middle + 1
    note = (
        f"{counts[high]} of {gpus} GPUs: the fewest nodes found to reach {target_s:g} s, halving the range."
    )
    return replace(best, notes=(*best.notes, note))


def _on_gpus(request: PlanRequest, count: int) -> PlanRequest:
    return request.model_copy(update={"cluster": request.cluster.model_copy(update={"num_gpus": count})})
