"""The scan: every setting is bounded, in bulk, and the few that could be among the best are handed on.

Settings grow field by field (work of a layer; degrees and batch; schedule; recompute; sharding). After each
step a lower bound of the objective drops what cannot beat the limit. A dropped row is safe to drop: its
bound is
below the price of every completion, and the limit is the price of a plan already in hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class _Partial:
    """Settings that grow: the work row each came from, its phases, and what is added to a makespan."""

    rows: Rows
    source: Codes
    work: WorkTimes
    fixed: Floats
    growth: Floats

    def take(self, chosen: npt.NDArray[Any]) -> _Partial:
        """Some of them, in this order."""
        return _Partial(
            self.rows.take(chosen), self.source[chosen], self.work.take(chosen),
            self.fixed[chosen], self.growth[chosen],
        )  # fmt: skip

    def of(self, rows: Rows) -> _Partial:
        """The same with more fields."""
        return replace(self, rows=rows)

    def step(self, makespan: Floats) -> Floats:
        """Step time of a makespan with what follows it. [s]."""
        return (makespan + self.fixed) * self.growth

    def below(self, makespan: Floats, limit_s: float) -> _Partial:
        """Those whose step does not exceed the limit."""
        return self.take(np.flatnonzero(self.step(makespan) <= limit_s))


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

    def expand(
        self, chosen: Codes, limit_s: float = np.inf, sample: tuple[tuple[str, ...], int] | None = None
    ) -> Candidates:
        """All settings that complete some work rows and whose bound is not above the limit.

        With a sample of some fields and a number, only so many settings (before sharding) of the lowest
        bounds, no two of them alike in these fields: a quick look for first plans.
        """
        rows, source = self.work.take(chosen), chosen
        rows, source = self._join(rows, source, self.space.shapes, ("tensor_parallel", "context_parallel"))
        rows, source = self._join(rows, source, self.space.batches, ("data_parallel", "micro_batch"))
        rows, source = self._join(rows, source, self.space.schedules, ("pipeline_parallel",))
        partial = _Partial(rows, source, self._sorted[1].take(source), *self._around(rows))
        partial = partial.below(pipeline_bound(rows, partial.work).makespan, limit_s)
        partial = self._recomputing(partial, limit_s, sample)
        partial = self._sharded(partial)
        self.num_settings += 0 if sample else len(partial.rows)
        return self._bounded(partial, limit_s)

    def _recomputing(
        self, partial: _Partial, limit_s: float, sample: tuple[tuple[str, ...], int] | None
    ) -> _Partial:
        """Every kind of recompute, priced; one that recomputes parts of chunks does so at least once each."""
        rows, index = self._cross(partial.rows, np.arange(len(partial.rows)), self.space.recomputes)
        grown = partial.take(index).of(rows)
        self._price(grown)
        surely = with_recompute(rows, grown.work, self._recomputes_parts(rows))
        bound = pipeline_bound(rows, surely, self._recomputes_all(rows)).makespan
        if sample is None:
            return grown.below(bound, limit_s)
        order = np.argsort(grown.step(bound), kind="stable")
        _, lowest = np.unique(rows.take(order).key(sample[0]), return_index=True)
        return grown.take(order[np.sort(lowest)[: sample[1]]])

    def _price(self, partial: _Partial) -> None:
        """Phases where recompute or the schedule change them; settings of one work row share them."""
        rows = partial.rows
        changed = rows.values("recompute") != "none"
        paired = np.zeros(len(rows), dtype=bool)
        if self.request.model.is_moe:
            paired = np.isin(rows.values("schedule"), sorted(PAIRED_SCHEDULES))
            changed |= paired != (most_hiding(self.request) in PAIRED_SCHEDULES)
        chosen = np.flatnonzero(changed)
        if len(chosen):
            kind = rows.codes["recompute"] * 2 + paired
            key = partial.source[chosen] * (2 * len(rows.domains["recompute"])) + kind[chosen]
            _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
            times = work_times(rows.take(chosen[first]), self.request)
            partial.work.put(chosen, times.take(inverse))

    def _sharded(self, partial: _Partial) -> _Partial:
        """Every ZeRO stage, sharding group and offload."""
        rows, index = partial.rows, np.arange(len(partial.rows))
        rows, index = self._join(rows, index, self.space.sharding, ("pipeline_parallel",))
        on = ("data_parallel", "context_parallel", "zero_stage")
        rows, index = self._join(rows, index, self.space.shards, on)
        return partial.take(index).of(rows)

    def _around(self, rows: Rows) -> tuple[Floats, Floats]:
        """Sends and overhead beside the makespan [s], and the factor of waiting for each other."""
        fixed, growth = np.zeros(len(rows)), np.ones(len(rows))
        for chosen, setting in settings_by_category(rows, vary=("schedule",)):
            hops = exposed_hops(setting, self.request) * hop_time(setting, self.request)
            fixed[chosen] = hops + self.request.framework.time.step_overhead_s
            growth[chosen] = 1.0 + straggler_fraction(setting, self.request)
        return fixed, growth

    def _bounded(self, partial: _Partial, limit_s: float) -> Candidates:
        """Candidates with their best bound: first of time alone, then with what memory forces.

        ZeRO stages that communicate in a layer are priced in between: until then they count as stage 1.
        """
        bound = self._bound(partial, self._recomputes_parts(partial.rows))
        keep = np.flatnonzero(bound <= limit_s)
        partial, bound = partial.take(keep), bound[keep]
        fits, first = fits_and_first(partial.rows, self.request)
        partial, first, bound = partial.take(np.flatnonzero(fits)), first[fits], bound[fits]
        shared = partial.rows.values("zero_stage") >= 2
        if np.any(shared):
            chosen = np.flatnonzero(shared)
            partial.work.put(chosen, work_times(partial.rows.take(chosen), self.request))
        more = np.flatnonzero((first > 1) | shared)
        bound[more] = self._bound(partial.take(more), first[more])
        keep = np.flatnonzero(bound <= limit_s)
        partial, bound = partial.take(keep), bound[keep]
        forced = busiest_recomputing(partial.rows, partial.work, self.request)
        bound = np.maximum(bound, partial.step(forced * partial.rows.values("num_microbatches")))
        keep = np.flatnonzero(bound <= limit_s)
        return Candidates(partial.rows.take(keep), bound[keep], partial.work.take(keep))

    def _bound(self, partial: _Partial, first: Floats) -> Floats:
        """Lower bound of the step when each chunk recomputes at least its ``first`` layers. [s]."""
        rows = partial.rows
        surely = with_recompute(rows, partial.work, first)
        pipeline = pipeline_bound(rows, surely, self._recomputes_all(rows))
        return partial.step(np.maximum(self._with_tail(rows, surely, pipeline), pipeline.floor))

    def _recomputes_parts(self, rows: Rows) -> Floats:
        """1 where the framework recomputes the first n >= 1 layers of every chunk, 0 elsewhere."""
        limits = self.request.framework.limits
        counted = [
            kind for kind in ("selective", "full")
            if limits.recomputes_partially(kind) and not limits.recompute_per_stage
        ]  # fmt: skip
        return np.isin(rows.values("recompute"), counted).astype(np.float64)

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
