"""The leanest plan of a request, and whether any plan fits: memory of whole tables of settings at once.

A time-optimal search prices candidates one by one; whether anything fits is decided sooner by the lower bound
of every setting's peak memory, and by the exact price of the few settings with the smallest bound.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from planner.cost.memory import memory, stage_memory
from planner.cost.stage import ChunkLoad, with_stages
from planner.cost.step import balanced_step_time
from planner.rules import broken_rules
from planner.rules.memory import HOST_BUFFER_FACTOR, HOST_GRADIENT_BYTES
from planner.solver.capacity import fits_somehow, rank_memory
from planner.solver.evaluate import evaluate
from planner.solver.space import Codes, Rows, Space
from planner.solver.tables import settings_by_category
from planner.spec import Pin, Plan, PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

MEMORY = "every_stage_fits_in_memory"
DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
"""Their product is the number of GPUs that a plan uses."""
GROUPS = 64
"""Work rows, micro-batch aside, that are joined into one table."""
MOST_TRIED = 12
"""Settings of one table that are priced exactly, those with the smallest bound."""
CORNER_TRIES = 3
"""Settings of one table of a corner that are priced exactly."""
SAMPLE = 1000
"""Settings of one table whose step time is estimated to find a fast one."""
MOST_KEPT = 400
"""Settings with the smallest bounds that are kept of all tables."""
EQUAL = 1e-9
"""Relative rounding error of a sum of bytes."""


@dataclass(frozen=True)
class Leanest:
    """The plan that needs the least memory among those priced, and a proven lower bound over all plans.

    ``bound_bytes`` is None where the time did not suffice to look at every setting.
    """

    plan: Estimate | None
    bound_bytes: float | None


@dataclass(frozen=True)
class Verdict:
    """Whether a request has a plan: a witness, a proof that there is none, or neither in the time given."""

    witness: Plan | None = None
    is_settled: bool = True
    num_settings: int = 0
    """Settings whose memory was bounded."""

    @property
    def is_impossible(self) -> bool:
        """Whether it is proven that no plan exists."""
        return self.witness is None and self.is_settled


def leanest(request: PlanRequest, seconds: float) -> Leanest:
    """Find the plan with the smallest peak memory, whatever the HBM.

    Parameters
    ----------
    seconds
        Time limit. [s]
    """
    deadline = time.monotonic() + seconds
    kept: list[tuple[float, Plan]] = []
    least, is_complete = np.inf, True
    for rows, bound in tables(request):
        few = np.argsort(bound, kind="stable")[:MOST_KEPT]
        least = min(least, float(bound[few[0]]) if len(few) else np.inf)
        kept += [(float(bound[index]), plan_at(rows, int(index))) for index in few]
        kept = sorted(kept, key=lambda item: item[0])[:MOST_KEPT]
        if time.monotonic() > deadline:
            is_complete = False
            break
    best = _leanest_of(kept, request, deadline)
    proven = least if is_complete and np.isfinite(least) else None
    return Leanest(None if best is None else evaluate(best, request), proven)


def _leanest_of(kept: list[tuple[float, Plan]], request: PlanRequest, deadline: float) -> Plan | None:
    best, peak = None, np.inf
    for bound, setting in kept:
        if bound >= peak or (best is not None and time.monotonic() > deadline):
            break
        plan = with_stages(setting, request.model)
        needed = peak_bytes(plan, request)
        if needed < peak and set(broken_rules(plan, request)) <= {MEMORY}:
            best, peak = plan, needed
    return best


def corner_plan(request: PlanRequest) -> Plan | None:
    """A plan that fits among the settings of one small corner of the space, or None: most problems have one.

    The corner holds the settings that save memory without slow links or host memory: one sequence a
    micro-batch, the most recompute, the highest ZeRO stage that goes with a pipeline.
    """
    corner, usable = _corner(request), request.cluster.usable_hbm_bytes
    for rows, bound in tables(corner):
        small = np.flatnonzero(bound <= usable)
        ranks = rows.values("pipeline_parallel")[small]
        for index in small[np.lexsort((bound[small], ranks))][:CORNER_TRIES]:
            plan = with_stages(plan_at(rows, int(index)), request.model)
            if not broken_rules(plan, request):
                return plan
    return None


def _corner(request: PlanRequest) -> PlanRequest:
    """The request with every field pinned that tells memory-saving settings apart and nobody pinned yet."""
    limits = request.framework.limits
    stages = limits.zero_stages_with_pipeline or limits.zero_stages
    values = {
        "recompute": limits.recompute[-1:],
        "zero_stage": (max(stages),),
        "micro_batch": (1,),
        "offload": limits.offloads[:1],
        "precision": request.workload.precisions[:1],
        "context_parallel_kind": limits.context_parallel_kinds[:1],
    }
    said = {pin.field for pin in request.pins}
    pins = [
        Pin(field=field, allowed=allowed, option=f"corner {field}")
        for field, allowed in values.items()
        if allowed and field not in said
    ]
    return request.model_copy(update={"pins": (*request.pins, *pins)})


def any_plan(request: PlanRequest, seconds: float, *, search: bool = True) -> Verdict:
    """Decide whether some plan is legal and fits.

    A small corner of the space is looked at first, then the settings whose lower bound of memory is small.
    Where none of them works and some setting may still fit, the solver searches for the rest of the time.

    Parameters
    ----------
    seconds
        Time limit. [s]
    search
        Whether the solver may decide what the bounds leave open.
    """
    deadline = time.monotonic() + seconds
    plan = corner_plan(request)
    if plan is not None:
        return Verdict(plan)
    usable, may_fit, number = request.cluster.usable_hbm_bytes, False, 0
    for rows, bound in tables(request):
        number += len(rows)
        small = np.flatnonzero(bound <= usable * (1 + EQUAL))
        small = small[fits_somehow(rows.take(small), request)] if len(small) else small
        may_fit |= len(small) > 0
        for index in small[np.argsort(bound[small], kind="stable")][:MOST_TRIED]:
            plan = with_stages(plan_at(rows, int(index)), request.model)
            if not broken_rules(plan, request):
                return Verdict(plan, num_settings=number)
        if time.monotonic() > deadline:
            return Verdict(is_settled=False, num_settings=number)
    if not may_fit:
        return Verdict(num_settings=number)
    return _searched(request, deadline - time.monotonic()) if search else Verdict(is_settled=False)


def quick_plan(request: PlanRequest, seconds: float) -> Estimate | None:
    """A plan that fits and is fast among those looked at: a sample of each table, priced with equal stages.

    Parameters
    ----------
    seconds
        Time limit. [s]
    """
    deadline = time.monotonic() + seconds
    usable, best = request.cluster.usable_hbm_bytes, None
    for rows, bound in tables(request):
        small = np.flatnonzero(bound <= usable)
        rows = rows.take(small[:: len(small) // SAMPLE + 1])
        for index in np.argsort(_equal_stage_seconds(rows, request), kind="stable")[:MOST_TRIED]:
            plan = with_stages(plan_at(rows, int(index)), request.model)
            if broken_rules(plan, request):
                continue
            found = evaluate(plan, request)
            if best is None or found.step_time_s < best.step_time_s:
                best = found
            break
        if time.monotonic() > deadline:
            break
    return best


def _equal_stage_seconds(rows: Rows, request: PlanRequest) -> Floats:
    seconds = np.zeros(len(rows))
    for chosen, setting in settings_by_category(rows):
        seconds[chosen] = balanced_step_time(setting, request).total
    return seconds


def _searched(request: PlanRequest, seconds: float) -> Verdict:
    from planner.solver import solve

    result = solve(request, top=1, time_limit_s=max(seconds, 0.1))
    return Verdict(result.best.plan if result.best else None, result.status != "time-limit")


def peak_bytes(plan: Plan, request: PlanRequest) -> float:
    """Peak memory of the fullest pipeline rank. [byte]."""
    return max(float(stage.total) for stage in memory(plan, request))


def plan_at(rows: Rows, index: int) -> Plan:
    """The plan of one row, its stages left open."""
    return Plan(**{field: rows.domains[field][codes[index]].item() for field, codes in rows.codes.items()})


def tables(request: PlanRequest) -> Iterator[tuple[Rows, Floats]]:
    """Every setting that the rules over fields admit and host memory allows, with its least peak. [byte].

    Of settings that differ only in how a replica's batch is cut into micro-batches, the one with the smallest
    micro-batch stands for all: it never needs more memory, and no rule ties the cut to recompute or sharding.
    """
    space = Space.of(request)
    work = space.work
    others = [field for field in work.codes if field != "micro_batch"]
    _, group = np.unique(work.key(others), return_inverse=True)
    for start in range(0, int(group.max(initial=-1)) + 1, GROUPS):
        rows = work.take(np.flatnonzero((group >= start) & (group < start + GROUPS)))
        rows = _completed(rows, space)
        if len(rows):
            yield rows, least_bytes(rows, request)


def _completed(rows: Rows, space: Space) -> Rows:
    rows = _joined(rows, space.shapes, ("tensor_parallel", "context_parallel"), space)
    rows = _joined(rows, space.batches, ("data_parallel", "micro_batch"), space)
    rows = smallest_cut(_joined(rows, space.schedules, ("pipeline_parallel",), space))
    rows = rows.cross(space.recomputes.codes)
    rows = rows.take(space.admitted(rows, ("recompute",)))
    rows = _joined(rows, space.sharding, ("pipeline_parallel",), space)
    rows = _joined(rows, space.shards, ("data_parallel", "context_parallel", "zero_stage"), space)
    return rows.take(_host_allows(rows, space.request))


def _joined(rows: Rows, other: Rows, on: tuple[str, ...], space: Space) -> Rows:
    joined, _ = rows.join(other, on)
    return joined.take(space.admitted(joined, set(other.codes) - set(rows.codes)))


def smallest_cut(rows: Rows) -> Rows:
    """Of rows equal but for micro-batch and number of micro-batches, with equal product, the smallest cut."""
    cut = ("micro_batch", "num_microbatches")
    key = rows.key(field for field in rows.codes if field not in cut)
    batch = rows.values(cut[0]) * rows.values(cut[1])
    order = np.lexsort((rows.values("micro_batch"), batch, key))
    changes = (np.diff(key[order]) != 0) | (np.diff(batch[order]) != 0)
    first = np.concatenate([np.ones(min(len(rows), 1), dtype=bool), changes])
    return rows.take(order[first])


def least_bytes(rows: Rows, request: PlanRequest) -> Floats:
    """Lower bound of each setting's peak memory over all its layouts. [byte].

    Notes
    -----
    The fullest rank holds at least the mean: ``fixed + (all layers + both ends) / p``.
    """
    bound = np.zeros(len(rows))
    for chosen, setting in settings_by_category(rows):
        priced = rank_memory(setting, request)
        ranks = np.asarray(setting.pipeline_parallel)
        spread: Any = (priced.model + priced.first_end + priced.last_end) / ranks
        bound[chosen] = (priced.fixed + spread) * (1 - EQUAL)
    return bound


def _host_allows(rows: Rows, request: PlanRequest) -> Mask:
    """Whether the optimizer state of a node's GPUs can lie in host memory; the mean rank stands for all.

    Notes
    -----
    A lower bound of ``planner.rules.memory.host_bytes_per_node``: the ends of the model are left out.
    """
    allows = rows.values("offload") != "optimizer"
    offloaded = np.flatnonzero(~allows)
    part = rows.take(offloaded)
    usable = request.cluster.accelerator.host.node_memory_bytes
    for chosen, setting in settings_by_category(part, offload="none"):
        state = _mean_optimizer_bytes(setting, request)
        gradients = state * HOST_GRADIENT_BYTES / request.framework.memory.optimizer_bytes
        degrees = [part.take(chosen).values(name) for name in DEGREES]
        used: Codes = np.prod(degrees, axis=0)
        gpus = np.minimum(request.cluster.gpus_per_node, used)
        needed = gpus * HOST_BUFFER_FACTOR * (state + gradients)
        allows[offloaded[chosen]] = needed * (1 - EQUAL) <= usable
    return np.asarray(allows)


def _mean_optimizer_bytes(setting: Any, request: PlanRequest) -> Floats:
    total: Any = 0.0
    for kind, count in Counter(request.model.layer_kinds).items():
        one, two = (
            stage_memory(ChunkLoad({kind: layers}), setting, request, 0).optimizer_bytes for layers in (1, 2)
        )
        total = total + count * (two - one)
    return np.asarray(total / np.asarray(setting.pipeline_parallel))
