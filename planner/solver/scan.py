"""The scan: every setting is bounded, in bulk, and the few that could be among the best are handed on.

Settings grow field by field (work of a layer; degrees and batch; schedule; recompute; sharding). After each
step a lower bound of the objective drops what cannot beat the limit. A dropped row is safe to drop: its
bound is
below the price of every completion, and the limit is the price of a plan already in hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.cost.layer_comm import PAIRED_SCHEDULES
from planner.cost.step import exposed_hops, hop_time, straggler_fraction
from planner.solver.bounds import PipelineBound, pipeline_bound, tail_bound, with_recompute
from planner.solver.capacity import busiest_recomputing, fits_and_first
from planner.solver.space import Codes, Rows, Space
from planner.solver.tables import (
    Floats,
    WorkTimes,
    most_hiding,
    settings_by_category,
    steady_seconds,
    work_times,
)
from planner.spec.request import PlanRequest


@dataclass(frozen=True)
class Candidates:
    """Settings with a lower bound of each one's step time over all its layouts. [s]."""

    rows: Rows
    bound_s: Floats
    work: WorkTimes

    def take(self, chosen: npt.NDArray[Any]) -> Candidates:
        """Some of the candidates."""
        return Candidates(self.rows.take(chosen), self.bound_s[chosen], self.work.take(chosen))


class Scan:
    """Bounds over the space of one request, cheapest part first."""

    def __init__(self, request: PlanRequest, space: Space | None = None) -> None:
        self.request = request
        self.space = Space.of(request) if space is None else space
        self.num_settings = 0
        """Legal settings that were bounded one by one so far."""

    @cached_property
    def work(self) -> Rows:
        """Work rows, smallest steady work first."""
        return self._sorted[0]

    @cached_property
    def steady_s(self) -> Floats:
        """Lower bound of every completion of each work row, ascending. [s]."""
        return self._sorted[2]

    @cached_property
    def _sorted(self) -> tuple[Rows, WorkTimes, Floats]:
        rows = self.space.work
        times = work_times(rows, self.request)
        bound = steady_seconds(rows, times, self.request)
        order = np.argsort(bound, kind="stable")
        return rows.take(order), times.take(order), bound[order]

    def expand(self, chosen: Codes, limit_s: float = np.inf) -> Candidates:
        """All settings that complete some work rows and whose bound is not above the limit."""
        rows, source = self.work.take(chosen), chosen
        rows, source = self._join(rows, source, self.space.shapes, ("tensor_parallel", "context_parallel"))
        rows, source = self._join(rows, source, self.space.batches, ("data_parallel", "micro_batch"))
        rows, source = self._join(rows, source, self.space.schedules, ("pipeline_parallel",))
        fixed, growth = self._around(rows)
        pipeline = pipeline_bound(rows, self._sorted[1].take(source))
        bound = (pipeline.makespan + fixed) * growth
        keep = np.flatnonzero(bound <= limit_s)
        rows, index = self._cross(rows.take(keep), keep, self.space.recomputes)
        rows, index = self._join(rows, index, self.space.sharding, ("pipeline_parallel",))
        on = ("data_parallel", "context_parallel", "zero_stage")
        rows, index = self._join(rows, index, self.space.shards, on)
        self.num_settings += len(rows)
        fits, first = fits_and_first(rows, self.request)
        rows, index, first = rows.take(fits), index[fits], first[fits]
        work = self._with_sharding(rows, self._sorted[1].take(source[index]))
        return self._bounded(rows, work, fixed[index], growth[index], limit_s, first)

    def _around(self, rows: Rows) -> tuple[Floats, Floats]:
        """Sends and overhead beside the makespan [s], and the factor of waiting for each other."""
        fixed, growth = np.zeros(len(rows)), np.ones(len(rows))
        for chosen, setting in settings_by_category(rows, vary=("schedule",)):
            hops = exposed_hops(setting, self.request) * hop_time(setting, self.request)
            fixed[chosen] = hops + self.request.framework.time.step_overhead_s
            growth[chosen] = 1.0 + straggler_fraction(setting, self.request)
        return fixed, growth

    def _with_sharding(self, rows: Rows, work: WorkTimes) -> WorkTimes:
        """Exact phases: what the ZeRO stage, the schedule and recompute change is priced again."""
        chosen = np.flatnonzero(self._repriced(rows))
        if len(chosen):
            work.put(chosen, work_times(rows.take(chosen), self.request))
        return work

    def _repriced(self, rows: Rows) -> npt.NDArray[np.bool_]:
        changed = (rows.values("zero_stage") >= 2) | (rows.values("recompute") != "none")
        if self.request.model.is_moe:
            paired = np.isin(rows.values("schedule"), sorted(PAIRED_SCHEDULES))
            changed |= paired != (most_hiding(self.request) in PAIRED_SCHEDULES)
        return np.asarray(changed)

    def _bounded(
        self, rows: Rows, work: WorkTimes, fixed: Floats, growth: Floats, limit_s: float, first: Floats
    ) -> Candidates:
        """Candidates with their best bound, what follows the last backward pass included."""
        surely = with_recompute(rows, work, first)
        pipeline = pipeline_bound(rows, surely, self._recomputes_all(rows))
        makespan = np.maximum(self._with_tail(rows, surely, pipeline), pipeline.floor)
        bound = (makespan + fixed) * growth
        keep = np.flatnonzero(bound <= limit_s)
        forced = busiest_recomputing(rows.take(keep), work.take(keep), self.request)
        forced *= rows.take(keep).values("num_microbatches")
        bound[keep] = np.maximum(bound[keep], (forced + fixed[keep]) * growth[keep])
        keep = keep[bound[keep] <= limit_s]
        return Candidates(rows.take(keep), bound[keep], work.take(keep))

    def _with_tail(self, rows: Rows, work: WorkTimes, pipeline: PipelineBound) -> Floats:
        """Lower bound of the makespan and what follows it, of both sorts of layouts. [s]."""
        least = pipeline.least + tail_bound(rows, work, pipeline.busiest.least, self.request)
        others = pipeline.others.copy()
        low = np.flatnonzero((others < least) & (rows.values("num_microbatches") > 1))
        second = pipeline.busiest.second[low]
        others[low] += tail_bound(rows.take(low), work.take(low), second, self.request)
        return np.minimum(least, others)

    def _recomputes_all(self, rows: Rows) -> Floats:
        """1 where the framework can only recompute every layer, 0 elsewhere."""
        limits = self.request.framework.limits
        every = [
            kind for kind in ("selective", "full")
            if not (limits.recompute_per_stage or limits.recomputes_partially(kind))
        ]  # fmt: skip
        return np.isin(rows.values("recompute"), every).astype(np.float64)

    def _join(self, rows: Rows, source: Codes, other: Rows, on: tuple[str, ...]) -> tuple[Rows, Codes]:
        joined, left = rows.join(other, on)
        admitted = self.space.admitted(joined, set(other.codes) - set(rows.codes))
        return joined.take(admitted), source[left[admitted]]

    def _cross(self, rows: Rows, source: Codes, other: Rows) -> tuple[Rows, Codes]:
        crossed = rows.cross(other.codes)
        admitted = self.space.admitted(crossed, other.codes)
        return crossed.take(admitted), np.repeat(source, len(other))[admitted]
