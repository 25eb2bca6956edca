"""The best plan in each of several parts of a space, such as with one setting fixed: one search for all.

The parts overlap, so that their settings are bounded together: each counts up to the largest limit of the
parts that it belongs to, and a plan stands for all of them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.rules import Rule
from planner.solver.entry import Entry
from planner.solver.evaluate import evaluate
from planner.solver.limits import Family, Limits
from planner.solver.preference import NEVER, simplicity
from planner.solver.result import Estimate
from planner.solver.rounds import Rounds
from planner.solver.scale import MICROSECOND_S, microseconds_up
from planner.solver.search import MOST_OPEN, Search
from planner.solver.space import MEANT_WITHIN, Rows
from planner.solver.standings import NEAR_BEST, Standings
from planner.solver.tables import Floats
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

REPLICAS = ("data_parallel", "context_parallel", "shard_group_size")
"""The ranks that hold the same model, and over how many of them its state is split."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the space, by default all of it, and the step time that a plan in it has to beat. [s]."""

    limit_s: float

    def holds(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Rows that belong to the part, or do not say yet whether they do."""
        return np.ones(len(rows), dtype=bool)


@dataclass(frozen=True, kw_only=True)
class Choice(Part):
    """Plans with one value of a field.

    Only settings count for which the value means something: a kind of context parallelism where there are
    context ranks, a sharding group where it is a part of the replicas.
    """

    field: str
    value: Any

    def holds(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Rows that have the value, or do not say yet what they have."""
        known = {name: rows.values(name) for name in self._fields if name in rows.codes}
        return np.asarray(np.broadcast_to(self._admits(known), len(rows)))

    def is_answered_by(self, plan: Plan) -> bool:
        """Whether the plan has the value, and it means something there."""
        return bool(self._admits({name: getattr(plan, name) for name in self._fields}))

    @property
    def _fields(self) -> tuple[str, ...]:
        degree = MEANT_WITHIN.get(self.field, self.field)
        return (self.field, degree, *(REPLICAS if self.field == "shard_group_size" else ()))

    def _admits(self, known: Mapping[str, Any]) -> Any:
        held: Any = np.True_
        if self.field in known:
            held = known[self.field] == self.value
        degree = MEANT_WITHIN.get(self.field, "")
        if degree in known:
            held = held & (known[degree] > 1)
        if self.field == "shard_group_size" and set(REPLICAS) <= set(known):
            data, context, group = (known[name] for name in REPLICAS)
            held = held & (group < data * context)
        return held


@dataclass(frozen=True, kw_only=True)
class Breaking(Part):
    """Plans that break a rule over fields as another request has it."""

    rule: Rule
    request: PlanRequest

    def holds(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Rows that break the rule, or do not say yet whether they do."""
        if not set(self.rule.scope) <= set(rows.codes):
            return super().holds(rows)
        columns = {name: rows.values(name) for name in self.rule.scope}
        return np.asarray(~np.broadcast_to(self.rule.admits_columns(self.request, columns), len(rows)))


@dataclass(frozen=True)
class Found:
    """The best plan below the limit of a part, and whether that is proven."""

    best: Estimate | None
    is_proven: bool


class InterruptedSearch(KeyboardInterrupt):
    """Ctrl-C ended the search; ``found`` has the best plans so far, none of them proven."""

    def __init__(self, found: list[Found]) -> None:
        super().__init__()
        self.found = found


@dataclass(frozen=True)
class _PartLimits(Limits):
    """Of every row the largest limit of the parts that it may belong to."""

    parts: tuple[Part, ...] = ()

    def of(self, rows: Rows) -> Floats:
        limits = np.zeros(len(rows))
        for part in self.parts:
            limits = np.maximum(limits, np.where(part.holds(rows), part.limit_s, 0.0))
        return np.asarray(np.minimum(limits, self.overall_s))


class _Standings(Standings):
    """One rank a part; the family of a plan is the parts that it belongs to, by number."""

    def __init__(self, parts: Sequence[Part], prefer_simple: bool) -> None:
        super().__init__(1, prefer_simple)
        self._parts = parts
        near = NEAR_BEST if prefer_simple else 1.0
        self._most_us = [_limit_us(each, near) for each in parts]
        self._each = [Standings(1, prefer_simple) for _ in parts]

    def limit_of(self, number: int) -> int:
        """What a candidate must beat to stand for a part, now or when more plans are known. [us]."""
        return min(self._most_us[number], self._each[number].limit_us)

    def fastest_of(self, number: int) -> int:
        """The fastest plan of a part, or the part's limit. [us]."""
        return min(self._most_us[number], self._each[number].best_us)

    @property
    def limit_us(self) -> int:
        return max(self.limit_of(number) for number in range(len(self._parts)))

    def limits(self) -> Limits:
        parts = tuple(
            replace(part, limit_s=(self.limit_of(number) + 1) * MICROSECOND_S)
            for number, part in enumerate(self._parts)
        )
        return _PartLimits(max(part.limit_s for part in parts), parts=parts)

    def worth_us(self, family: Family, score: int) -> int:
        return max(
            (min(self._most_us[n], self._each[n].worth_us((), score)) for n in _numbers(family)), default=0
        )

    def add(self, family: Family, score: int, objective_us: int) -> None:
        for number in _numbers(family):
            self._each[number].add((), score, objective_us)


class _Conditional(Search):
    """A search whose ranks are parts, each with its own limit from the start."""

    def __init__(self, request: PlanRequest, parts: Sequence[Part], time_limit_s: float) -> None:
        super().__init__(request, 1, time_limit_s, os.cpu_count() or 1, None)
        self._parts = parts
        self._rounds = Rounds(self._scan, request, max(part.limit_s for part in parts))
        self._ranks = _Standings(parts, request.prefer_simple)
        self._standings = self._ranks

    def found(self) -> list[Found]:
        """Search, then say what there is for every part."""
        self.run()
        left = self._open_entries()
        return [
            Found(self._best_of(number), self._is_searched(number) and not self._is_any_open(left, number))
            for number in range(len(self._parts))
        ]

    def _is_searched(self, number: int) -> bool:
        """Whether nothing that the search did not get to could stand for a part."""
        if not self._stopped and not self.was_interrupted:
            return True
        limit_us = self._ranks.limit_of(number)
        return self._proven_us >= limit_us and not any(
            entry.plan is None and number in entry.family and entry.least_us < limit_us
            for entry in self._entries
        )

    def _is_any_open(self, entries: list[Entry], number: int) -> bool:
        """Whether one of these settings could still stand for a part."""
        limit_us = self._ranks.fastest_of(number)
        return any(number in entry.family and entry.bound_us < limit_us for entry in entries)

    def _best_of(self, number: int) -> Estimate | None:
        """The plan that ``solve`` would choose of those found in a part."""
        plans = [
            (entry.objective_us, simplicity(entry.plan), entry.plan)
            for entry in self._entries
            if entry.plan is not None and number in entry.family
        ]
        fastest = min((objective for objective, _, _ in plans), default=NEVER)
        if fastest >= _limit_us(self._parts[number]):
            return None
        slowest = int(fastest * NEAR_BEST) if self._request.prefer_simple else fastest
        near = [each for each in plans if each[0] <= slowest]
        _, _, plan = min(near, key=lambda each: (each[1], each[0], repr(each[2])))
        return evaluate(plan, self._request)

    def _first_plans(self) -> None:
        pass

    def _rank(self) -> list[Entry]:
        return []

    def _families(self, rows: Rows) -> list[Family]:
        held = np.stack([part.holds(rows) for part in self._parts], axis=1)
        return [tuple(np.flatnonzero(row).tolist()) for row in held]

    def _refined_below_us(self, entry: Entry) -> int:
        return max((self._ranks.fastest_of(number) for number in _numbers(entry.family)), default=0)

    def _refine(self) -> None:
        """Search all layouts of the settings that could still stand for a part, a few of each in vain."""
        given_up: Counter[int] = Counter()
        for entry in sorted(self._open_entries(), key=lambda entry: entry.bound_us):
            parts = [
                number
                for number in _numbers(entry.family)
                if entry.bound_us < self._ranks.fastest_of(number) and given_up[number] < MOST_OPEN
            ]
            if not parts:
                continue
            if time.monotonic() > self._deadline:
                self._stopped = True
                return
            entry.values = entry.values or entry.fields
            self._refine_entry(entry, max(self._ranks.fastest_of(number) for number in parts))
            given_up.update([] if entry.exhaustive else parts)


def best_of_each(request: PlanRequest, parts: Sequence[Part], time_limit_s: float = 60.0) -> list[Found]:
    """Return for every part the plan that ``solve`` prefers in it, if it takes less than the limit.

    Parameters
    ----------
    request
        Its space holds all parts.
    time_limit_s
        Search time for all of them together, after which the best plans so far are returned. [s]

    Raises
    ------
    InterruptedSearch
        Ctrl-C ended the search.
    """
    search = _Conditional(request, parts, time_limit_s)
    found = search.found()
    if search.was_interrupted:
        raise InterruptedSearch(found)
    return found


def _limit_us(part: Part, near: float = 1.0) -> int:
    """What the fastest plan of a part has to beat, and by this factor more what counts as nearly so. [us]."""
    return int(microseconds_up(min(part.limit_s * near, NEVER * MICROSECOND_S)))


def _numbers(family: Family) -> list[int]:
    return [number for number in family if isinstance(number, int)]
