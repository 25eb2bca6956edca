"""The scan: every setting is bounded, in bulk, and the few that could be among the best are handed on.

Settings grow field by field (work of a layer; degrees and batch; schedule; recompute; sharding). After each
step a lower bound of the objective drops what cannot beat the limit. A dropped row is safe to drop: its bound is
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
from planner.solver.bounds import pipeline_seconds
from planner.solver.capacity import fits_somehow
from planner.solver.space import Codes, Rows, Space
from planner.solver.tables import Floats, WorkTimes, settings_by_category, steady_seconds, work_times
from planner.spec.request import PlanRequest


@dataclass(frozen=True)
class Candidates:
    """Settings with a lower bound of each one's step time over all its layouts. [s]"""

    rows: Rows
    bound_s: Floats

    def take(self, chosen: npt.NDArray[Any]) -> Candidates:
        """Some of the candidates."""
        return Candidates(self.rows.take(chosen), self.bound_s[chosen])


class Scan:
    """Bounds over the space of one request, cheapest part first."""

    def __init__(self, request: PlanRequest, space: Space | None = None) -> None:
        self.request = request
        self.space = Space.of(request) if space is None else space

    @cached_property
    def work(self) -> Rows:
        """Work rows, smallest steady work first."""
        return self._sorted[0]

    @cached_property
    def steady_s(self) -> Floats:
        """Lower bound of every completion of each work row, ascending. [s]"""
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
        rows, source = self._cross(rows, source, self.space.recomputes)
        bound = self._bound(rows, source)
        rows, bound = rows.take(keep := bound <= limit_s), bound[keep]
        rows, index = self._join(rows, np.arange(len(rows)), self.space.sharding, ("pipeline_parallel",))
        rows, index = self._join(
            rows, index, self.space.shards, ("data_parallel", "context_parallel", "zero_stage")
        )
        fits = fits_somehow(rows, self.request)
        return Candidates(rows.take(fits), bound[index[fits]])

    def _join(self, rows: Rows, source: Codes, other: Rows, on: tuple[str, ...]) -> tuple[Rows, Codes]:
        joined, left = rows.join(other, on)
        admitted = self.space.admitted(joined, set(other.codes) - set(rows.codes))
        return joined.take(admitted), source[left[admitted]]

    def _cross(self, rows: Rows, source: Codes, other: Rows) -> tuple[Rows, Codes]:
        crossed = rows.cross(other.codes)
        admitted = self.space.admitted(crossed, other.codes)
        return crossed.take(admitted), np.repeat(source, len(other))[admitted]

    def _bound(self, rows: Rows, source: Codes) -> Floats:
        """Pipeline, sends and fixed overhead, with the straggler's share: what no layout can avoid. [s]"""
        times = self._sorted[1].take(source)
        bound = pipeline_seconds(rows, times)
        for chosen, setting in settings_by_category(rows, vary=("schedule",)):
            hops = exposed_hops(setting, self.request) * hop_time(setting, self.request)
            fixed = bound[chosen] + hops + self.request.framework.time.step_overhead_s
            bound[chosen] = fixed * (1.0 + straggler_fraction(setting, self.request))
        return bound
