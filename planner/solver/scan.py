"""The scan: every setting is bounded, in bulk, and the few that could be among the best are handed on.

Settings grow field by field (work of a layer; degrees and batch; schedule; recompute; sharding). After each
step a lower bound of the objective drops what cannot beat the limit. A dropped row is safe to drop: its bound
is below the price of every completion, and the limit is the price of a plan already in hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.cost.layer_comm import PAIRED_SCHEDULES
from planner.cost.offload import IN_LAYERS
from planner.cost.step import exposed_hops, hop_time, straggler_fraction
from planner.solver.bounds import bound_with_tail, pipeline_bound, with_recompute, with_tail
from planner.solver.capacity import busiest_recomputing, fits_and_first, fits_widest, holds_one_layer
from planner.solver.deadline import ensure_time
from planner.solver.limits import Limits
from planner.solver.rank_chains import chain_bound, chain_bound_within
from planner.solver.space import Codes, Join, Rows, Space
from planner.solver.tables import (
    Floats,
    WorkTimes,
    leading_seconds,
    most_hiding,
    settings_by_category,
    steady_seconds,
    work_times,
)
from planner.spec.plan import DEFAULT_ORDER
from planner.spec.request import PlanRequest

MOST_ROWS = 50_000
"""Degrees and batches that are completed together: some 100 MB with everything that joins them."""
MOST_SHARED = 1_000_000
"""At most so many settings are bounded together: some 200 MB, as the ZeRO stages of few of them differ."""
NO_LIMITS = Limits()
OF_BATCH = ("tensor_parallel", "context_parallel", "micro_batch")
OF_EXPERTS = ("tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel")
"""Fields of work rows that degrees and batch, or degrees and experts, tie together."""


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of settings over all their layouts. [s]."""

    step_s: Floats
    tail_s: Floats
    """What follows the makespan where the busiest rank works ``busiest_s``."""
    busiest_s: Floats
    """Of a micro-batch."""

    def take(self, chosen: npt.NDArray[Any]) -> Bounds:
        """Those of some settings."""
        return Bounds(self.step_s[chosen], self.tail_s[chosen], self.busiest_s[chosen])

    @staticmethod
    def concatenate(parts: list[Bounds]) -> Bounds:
        """Bounds of several blocks, one after the other."""
        names = ("step_s", "tail_s", "busiest_s")
        return Bounds(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def put(self, chosen: npt.NDArray[Any], other: Bounds) -> None:
        """Replace those of some settings."""
        self.step_s[chosen], self.tail_s[chosen] = other.step_s, other.tail_s
        self.busiest_s[chosen] = other.busiest_s


@dataclass(frozen=True)
class Candidates:
    """Settings with lower bounds; ``fixed`` and ``growth`` make a step of a makespan (``_Partial``)."""

    rows: Rows
    bounds: Bounds
    work: WorkTimes
    fixed: Floats
    growth: Floats

    @property
    def bound_s(self) -> Floats:
        """Lower bound of each one's step time over all its layouts. [s]."""
        return self.bounds.step_s

    @staticmethod
    def concatenate(parts: list[Candidates]) -> Candidates:
        """Candidates of several blocks, one after the other."""
        return Candidates(
            Rows.concatenate([part.rows for part in parts]),
            Bounds.concatenate([part.bounds for part in parts]),
            WorkTimes.concatenate([part.work for part in parts]),
            np.concatenate([part.fixed for part in parts]),
            np.concatenate([part.growth for part in parts]),
        )


@dataclass(frozen=True)
class _Partial:
    """Settings that grow: the work row each came from, its phases, and what is added to a makespan.

    ``floor`` is a lower bound of the makespan whatever memory forces. [s]
    """

    rows: Rows
    source: Codes
    work: WorkTimes
    floor: Floats
    fixed: Floats
    growth: Floats

    def take(self, chosen: npt.NDArray[Any]) -> _Partial:
        """Some of them, in this order."""
        return _Partial(
            self.rows.take(chosen), self.source[chosen], self.work.take(chosen), self.floor[chosen],
            self.fixed[chosen], self.growth[chosen],
        )  # fmt: skip

    def of(self, rows: Rows) -> _Partial:
        """The same with more fields."""
        return replace(self, rows=rows)

    def step(self, makespan: Floats) -> Floats:
        """Step time of a makespan with what follows it. [s]."""
        return (makespan + self.fixed) * self.growth

    def above(self, makespan: Floats) -> _Partial:
        """The same with another lower bound of the makespan. [s]."""
        return replace(self, floor=np.maximum(self.floor, makespan))

    def below(self, limits: Limits) -> _Partial:
        """Those whose step does not surely exceed their limit."""
        return self.take(np.flatnonzero(self.step(self.floor) <= limits.of(self.rows)))


class Scan:
    """Bounds over the space of one request, cheapest part first."""

    def __init__(self, request: PlanRequest, space: Space | None = None, deadline: float = inf) -> None:
        self.request = request
        self.space = Space.of(request) if space is None else space
        self._deadline = deadline
        self.num_settings = 0
        """Legal settings that were bounded one by one so far."""

    @cached_property
    def work(self) -> Rows:
        """Work rows, smallest work of the most frequent kind of layer first."""
        return self._sorted[0]

    @cached_property
    def steady_s(self) -> Floats:
        """Lower bound of every completion of each work row, ascending. [s]."""
        return self._sorted[1]

    @cached_property
    def _sorted(self) -> tuple[Rows, Floats]:
        rows = self._completable(self.space.work)
        bound = leading_seconds(rows, self.request, self._deadline)
        order = np.argsort(bound, kind="stable")
        return rows.take(order), bound[order]

    def _completable(self, rows: Rows) -> Rows:
        """Work rows that the degrees and the batch leave: those of no legal setting are not worth a price.

        Idle GPUs and ranges of batches leave nearly all: there the question is not worth its answer.
        """
        if self.request.allow_idle or self.request.workload.global_batch_max is not None:
            return rows
        space, shapes = self.space, self.space.shapes
        batches = [(space.batches, ("data_parallel",)), (space.schedules, ("pipeline_parallel",))]
        left = np.isin(rows.key(OF_BATCH), self._keys(shapes, batches, OF_BATCH))
        _, first = np.unique(rows.key(OF_EXPERTS), return_index=True)
        experts = Rows(rows.domains, {name: rows.codes[name][first] for name in OF_EXPERTS})
        found = self._keys(experts, [(shapes, ("tensor_parallel", "context_parallel"))], OF_EXPERTS)
        return rows.take(left & np.isin(rows.key(OF_EXPERTS), found))

    def _keys(self, rows: Rows, joins: Sequence[Join], fields: tuple[str, ...]) -> Codes:
        """Keys of some fields that are left when rows are joined with one table after the other."""
        return np.unique(np.concatenate([part.key(fields) for part in self.space.grown(rows, joins)]))

    def expand(
        self, chosen: Codes, limits: Limits = NO_LIMITS, sample: tuple[tuple[str, ...], int] | None = None
    ) -> Candidates:
        """All settings that complete some work rows and whose bound is not above their limit.

        With a sample of some fields and a number, only so many settings (before sharding) of the lowest
        bounds, no two of them alike in these fields: a quick look for first plans.

        Raises
        ------
        OutOfTime
            The scan's deadline passed.
        """
        work_rows, work = self._worked(self.work.take(chosen), limits.overall_s)
        rows, source = work_rows, np.arange(len(work_rows))
        rows, source = self._join(rows, source, self.space.shapes, ("tensor_parallel", "context_parallel"))
        rows, source = self._join(rows, source, self.space.batches, ("data_parallel", "micro_batch"))
        blocks = np.array_split(np.arange(len(rows)), len(rows) // MOST_ROWS + 1)
        found = [self._block(rows.take(own), source[own], work, limits, sample) for own in blocks]
        return found[0] if len(found) == 1 else Candidates.concatenate(found)

    def _block(
        self,
        rows: Rows,
        source: Codes,
        work: WorkTimes,
        limits: Limits,
        sample: tuple[tuple[str, ...], int] | None,
    ) -> Candidates:
        """``expand`` from some degrees and batches on; ``source`` tells each one's row of ``work``."""
        ensure_time(self._deadline)
        rows, source = self._join(rows, source, self.space.schedules, ("pipeline_parallel",))
        work = work.take(source)
        partial = _Partial(rows, source, work, pipeline_bound(rows, work).makespan, *self._around(rows))
        partial = partial.below(limits)
        partial = self._recomputing(partial, limits, sample)
        found = []
        for own in self._shared_blocks(partial.rows):
            ensure_time(self._deadline)
            whole = partial if len(own) == len(partial.rows) else partial.take(own)
            whole = self._sharded(whole, limits, first_only=sample is not None)
            self.num_settings += 0 if sample else len(whole.rows)
            found.append(self._bounded(whole, limits))
        return found[0] if len(found) == 1 else Candidates.concatenate(found)

    def _shared_blocks(self, rows: Rows) -> list[Codes]:
        """Rows in blocks that ZeRO stages, sharding groups and offload make bearable tables of."""
        stages = rows.matches(self.space.sharding, ("pipeline_parallel",))
        groups = rows.matches(self.space.shards, ("data_parallel", "context_parallel"))
        blocks = int(np.sum(stages * groups)) // MOST_SHARED + 1
        return np.array_split(np.arange(len(rows)), min(blocks, max(len(rows), 1)))

    def _worked(self, rows: Rows, limit_s: float) -> tuple[Rows, WorkTimes]:
        """Work rows of which a layer fits and whose steady work is below the limit, with all their phases."""
        rows = rows.take(holds_one_layer(rows, self.request))
        work = work_times(rows, self.request)
        below = np.flatnonzero(steady_seconds(rows, work, self.request) <= limit_s)
        return rows.take(below), work.take(below)

    def _recomputing(
        self, partial: _Partial, limits: Limits, sample: tuple[tuple[str, ...], int] | None
    ) -> _Partial:
        """Every kind of recompute, priced; one that recomputes parts of chunks does so at least once each."""
        rows, index = self._cross(partial.rows, np.arange(len(partial.rows)), self.space.recomputes)
        grown = partial.take(index).of(rows)
        self._price(grown)
        surely = with_recompute(rows, grown.work, self._recomputes_parts(rows))
        grown = grown.above(pipeline_bound(rows, surely, self._recomputes_all(rows)).makespan)
        if sample is None:
            grown = grown.below(limits)
            return self._chained(grown, self._recomputes_parts(grown.rows)).below(limits)
        order = np.argsort(grown.step(grown.floor), kind="stable")
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

    def _ordered(self, partial: _Partial, first_only: bool) -> _Partial:
        """Every rank order with its own sends; what a layer exchanges each micro-batch is the same in all."""
        rows, index = self.space.ordered(partial.rows, first_only)
        partial = partial.take(index).of(rows)
        if len(self.space.domains["rank_order"]) == 1:
            return partial
        return replace(partial, fixed=self._around(rows)[0])

    def _sharded(self, partial: _Partial, limits: Limits, first_only: bool) -> _Partial:
        """Every ZeRO stage and offload, rank order (or the first alone), and sharding group."""
        rows, index = partial.rows, np.arange(len(partial.rows))
        rows, index = self._join(rows, index, self.space.sharding, ("pipeline_parallel",))
        fits = fits_widest(rows, self.request)
        partial = self._ordered(partial.take(index[fits]).of(rows.take(fits)), first_only).below(limits)
        rows, index = partial.rows, np.arange(len(partial.rows))
        on = ("data_parallel", "context_parallel", "zero_stage")
        rows, index = self._join(rows, index, self.space.shards, on)
        return partial.take(index).of(rows)

    def _around(self, rows: Rows) -> tuple[Floats, Floats]:
        """Sends and overhead beside the makespan [s], and the factor of waiting for each other.

        Without a rank order in the rows, the one whose sends are faster.
        """
        fixed, growth = np.zeros(len(rows)), np.ones(len(rows))
        for chosen, setting in settings_by_category(rows, vary=("schedule", "rank_order")):
            orders = [setting.rank_order] if "rank_order" in rows.codes else self._orders
            ways = [hop_time(replace(setting, rank_order=order), self.request) for order in orders]
            hops = exposed_hops(setting, self.request) * np.min(ways, axis=0)
            fixed[chosen] = hops + self.request.framework.time.step_overhead_s
            growth[chosen] = 1.0 + straggler_fraction(setting, self.request)
        return fixed, growth

    @cached_property
    def _orders(self) -> list[Any]:
        """Rank orders that are left; any where the user's pins leave none."""
        return self.space.domains["rank_order"].tolist() or [DEFAULT_ORDER]

    def _bounded(self, partial: _Partial, limits: Limits) -> Candidates:
        """Candidates with their best bound: first of time alone, then with what memory forces.

        ZeRO stages that communicate in a layer and offloads that copy in one are priced in between: until
        then they count as stage 1 and as none.
        """
        bounds = self._bound(partial, self._recomputes_parts(partial.rows))
        keep = np.flatnonzero(bounds.step_s <= limits.of(partial.rows))
        partial, bounds = partial.take(keep), bounds.take(keep)
        fits, first = fits_and_first(partial.rows, self.request)
        keep = np.flatnonzero(fits)
        partial, first, bounds = partial.take(keep), first[keep], bounds.take(keep)
        shared = partial.rows.values("zero_stage") >= 2
        shared |= np.isin(partial.rows.values("offload"), sorted(IN_LAYERS))
        if np.any(shared):
            chosen = np.flatnonzero(shared)
            partial.work.put(chosen, work_times(partial.rows.take(chosen), self.request))
        more = np.flatnonzero((first > 1) | shared)
        known = bounds.step_s.copy()
        bounds.put(more, self._bound(self._chained(partial.take(more), first[more]), first[more]))
        bounds = replace(bounds, step_s=np.maximum(bounds.step_s, known))
        keep = np.flatnonzero(bounds.step_s <= limits.of(partial.rows))
        partial, first, bounds = partial.take(keep), first[keep], bounds.take(keep)
        forced = busiest_recomputing(partial.rows, partial.work, self.request)
        forced = partial.step(forced * partial.rows.values("num_microbatches"))
        bounds = replace(bounds, step_s=np.maximum(bounds.step_s, forced))
        keep = np.flatnonzero(bounds.step_s <= limits.of(partial.rows))
        partial, bounds = self._within_memory(partial.take(keep), first[keep], bounds.take(keep))
        keep = np.flatnonzero(bounds.step_s <= limits.of(partial.rows))
        kept = partial.take(keep)
        return Candidates(kept.rows, bounds.take(keep), kept.work, kept.fixed, kept.growth)

    def _within_memory(self, partial: _Partial, first: Floats, bounds: Bounds) -> tuple[_Partial, Bounds]:
        """Floors and bounds raised to what the layouts that fit allow."""
        rows = partial.rows
        again = self._recomputes_all(rows)
        floor = chain_bound_within(rows, partial.work, again, first, partial.floor, self.request)
        partial = partial.above(floor)
        step = partial.step(with_tail(rows, partial.floor, bounds.tail_s, bounds.busiest_s))
        return partial, replace(bounds, step_s=np.maximum(bounds.step_s, step))

    def _chained(self, partial: _Partial, first: Floats) -> _Partial:
        """Floors raised to what one chain through each rank allows, recomputing as in ``_bound``."""
        surely = with_recompute(partial.rows, partial.work, first)
        again = self._recomputes_all(partial.rows)
        return partial.above(chain_bound(partial.rows, surely, again, partial.floor))

    def _bound(self, partial: _Partial, first: Floats) -> Bounds:
        """Lower bounds when each chunk recomputes at least its ``first`` layers."""
        rows = partial.rows
        surely = with_recompute(rows, partial.work, first)
        pipeline = pipeline_bound(rows, surely, self._recomputes_all(rows))
        seconds, tail = bound_with_tail(rows, surely, pipeline, partial.floor, self.request)
        return Bounds(partial.step(seconds), tail, pipeline.busiest.least)

    def _recomputes_parts(self, rows: Rows) -> Floats:
        """1 where the framework recomputes the first n >= 1 layers of every chunk, 0 elsewhere."""
        limits = self.request.framework.limits
        counted = [
            kind for kind in ("selective", "full")
            if limits.recomputes_partially(kind) and not limits.recompute_per_stage
        ]  # fmt: skip
        return np.isin(rows.values("recompute"), counted).astype(np.float64)

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
