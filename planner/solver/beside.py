"""The best plan below a step time that is already in hand: a search that need not find its own limit.

What else would be nearly as good, with one setting fixed or one number of the problem changed, is asked many
times about one answer. A plan to beat is known each time, so that the scan starts with a limit.
"""

from __future__ import annotations

import os

from planner.solver.entry import Entry
from planner.solver.preference import NEVER, simplicity
from planner.solver.result import Estimate
from planner.solver.rounds import Rounds
from planner.solver.scale import microseconds_up
from planner.solver.search import Search
from planner.solver.standings import Standings
from planner.spec.request import PlanRequest

NEAR = 0.99
"""By default the search ends when no plan needs less than this part of the best one's time."""


class _Below(Standings):
    """One rank, whose plan has to beat a given time, and the one in hand by some part of its time."""

    def __init__(self, most_us: int, near: float) -> None:
        super().__init__(1, prefer_simple=False)
        self.best_us = most_us
        self._part = near

    @property
    def limit_us(self) -> int:
        return int(self.best_us * self._part) if self.are_full else self.best_us

    def worth_us(self, family: tuple[object, ...], score: int) -> int:
        return self.limit_us


class _BelowSearch(Search):
    """A search that has its limit from the start, and so needs no first plans."""

    def __init__(
        self, request: PlanRequest, limit_s: float, time_limit_s: float, near: float, enough: bool
    ) -> None:
        super().__init__(request, 1, time_limit_s, os.cpu_count() or 1, None, enough)
        self._rounds = Rounds(self._scan, request, limit_s)
        self._standings = _Below(min(int(microseconds_up(limit_s)), NEVER), near)

    @property
    def _has_enough(self) -> bool:
        return self._enough and self._standings.are_full

    def _first_plans(self) -> None:
        pass

    def _refined_below_us(self, entry: Entry) -> int:
        return self._standings.limit_us

    def _rank(self) -> list[Entry]:
        priced = [entry for entry in self._entries if entry.plan is not None]
        return sorted(
            priced, key=lambda entry: (entry.objective_us, simplicity(entry.plan), repr(entry.plan))
        )[:1]


def best_below(
    request: PlanRequest,
    limit_s: float,
    time_limit_s: float = 60.0,
    near: float = NEAR,
    *,
    enough: bool = False,
) -> Estimate | None:
    """Return a plan that no other beats by more than 1 %, or None when no plan takes less than the limit.

    Parameters
    ----------
    limit_s
        Objective that the plan has to beat: the step time, weighted where the request's goal says so. [s]
    time_limit_s
        Search time after which the best plan so far is returned. [s]
    near
        Part of the plan's time that no other plan goes below; 1 finds the fastest.
    enough
        Take the first plan that is found.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C ended the search.
    """
    search = _BelowSearch(request, limit_s, time_limit_s, near, enough)
    found = search.run().best
    if search.was_interrupted:
        raise KeyboardInterrupt
    return found
