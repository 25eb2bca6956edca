"""In which order work rows are scanned, and for which of their settings first."""

from __future__ import annotations

import heapq
from dataclasses import replace
from functools import cached_property

import numpy as np

from planner.solver.alike import Index
from planner.solver.limits import Limits
from planner.solver.preference import NEVER, WEIGHTED_GOALS
from planner.solver.scale import MICROSECOND_S, ROUND_OFF, microseconds_down
from planner.solver.scan import Candidates, Scan
from planner.spec.request import PlanRequest

WIDEN = 1.2
"""Each round of the scan takes work rows up to this factor above the round before."""
FIRST_ROWS, OPEN_ROWS = 128, 16
"""Work rows of the first scan; and where idle GPUs, a range of batches or no limit leave much of each."""
GROWTH = 2
"""A scan takes at most so many times the rows of the one before."""
MOST_SETTINGS = 40_000
"""Settings that one scan should look at, in about a second; the scan before shows how many rows that is."""
FIRST_LOOK = 1.05
"""Settings above the best plan by more than this factor are scanned later, if they still matter by then: the
first plans of the other ranks are rarely good."""


class Rounds:
    """The scan of one search, round after round.

    Parameters
    ----------
    threshold_s
        The first round takes work rows up to so much, or so many as it may: where a limit is known from the
        start, all below it. [s]
    """

    def __init__(self, scan: Scan, request: PlanRequest, threshold_s: float = 0.0) -> None:
        self._scan = scan
        self._most_rows = FIRST_ROWS
        if request.allow_idle or request.workload.global_batch_max is not None:
            self._most_rows = OPEN_ROWS
        self._is_weighted = request.goal in WEIGHTED_GOALS
        self._next_row = 0
        self._threshold_s = threshold_s
        self._postponed: list[tuple[int, int, int]] = []

    @property
    def least_us(self) -> int:
        """Lower bound of the settings that were not scanned."""
        return min([self._next_us, *(most_us for most_us, _, _ in self._postponed[:1])])

    @property
    def _next_us(self) -> int:
        return self._steady_us[self._next_row] if self._next_row < len(self._steady_us) else NEVER

    @cached_property
    def _steady_us(self) -> list[int]:
        found: list[int] = microseconds_down(self._scan.steady_s).tolist()
        return found

    def next(self, limits: Limits, best_us: int) -> tuple[Candidates, Index]:
        """Candidates of the next work rows, or more of earlier ones; and which of them are new.

        Parameters
        ----------
        limits
            Above them no setting matters.
        best_us
            The best plan.
        """
        if self._postponed and self._postponed[0][0] <= self._next_us:
            most_us, start, stop = heapq.heappop(self._postponed)
            found = self._scan.expand(np.arange(start, stop), limits)
            return found, np.flatnonzero(found.bound_s > most_us * MICROSECOND_S * (1 - ROUND_OFF))
        most_us = int(best_us * FIRST_LOOK)
        is_first = self._next_us * WIDEN < most_us < limits.overall_s / MICROSECOND_S
        is_first = is_first and limits.overall_s < np.inf and not self._is_weighted
        start, stop = self._next_row, self._stop(limits)
        self._next_row = stop
        if is_first:
            heapq.heappush(self._postponed, (most_us, start, stop))
            limits = replace(limits, overall_s=most_us * MICROSECOND_S)
        before = self._scan.num_settings
        found = self._scan.expand(np.arange(start, stop), Limits() if self._is_weighted else limits)
        rows, settings = stop - start, self._scan.num_settings - before
        self._most_rows = max(min(MOST_SETTINGS * rows // (settings + 1), GROWTH * rows), 1)
        return found, np.arange(len(found.rows))

    def _stop(self, limits: Limits) -> int:
        steady = self._scan.steady_s
        self._threshold_s = max(self._threshold_s, float(steady[self._next_row])) * WIDEN
        stop = int(np.searchsorted(steady, min(self._threshold_s, limits.overall_s), side="right"))
        is_open = self._is_weighted or limits.overall_s >= NEVER * MICROSECOND_S
        most = min(self._most_rows, OPEN_ROWS) if is_open and self._next_row == 0 else self._most_rows
        return max(min(stop, self._next_row + most), self._next_row + 1)
