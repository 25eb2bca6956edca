"""The search: scan for candidates, price the promising ones exactly, let the master choose and prove.

Best first: candidates wait in order of their bounds, the cheapest is priced, and a plan is the best as soon
as its price is not above the next bound. The master then chooses rank after rank: the best plan, then the
best that is not a variant of those before it.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from planner.rules import broken_rules
from planner.solver.alike import Index
from planner.solver.deadline import OutOfTime
from planner.solver.entry import Entry
from planner.solver.evaluate import evaluate
from planner.solver.layouts import near_even
from planner.solver.limits import FAMILY, Family
from planner.solver.master import Master
from planner.solver.preference import NEVER, WEIGHTED_GOALS, goal_weight, least_simplicity, simplicity
from planner.solver.price import SHAPE, Known, SettingPrice
from planner.solver.rank_loads import Loads
from planner.solver.result import Estimate, PlanResult, Status
from planner.solver.rounds import Rounds
from planner.solver.scale import MICROSECOND_S, gap_pct, microseconds_down, microseconds_up
from planner.solver.scan import Candidates, Scan
from planner.solver.sieve import alike_keys, sifted
from planner.solver.space import Rows
from planner.solver.stage_model import refine
from planner.solver.stages import best_layout, floor_s, is_exhaustive, shares_of
from planner.solver.standings import NEAR_BEST, Standings, undominated
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

FIRST_ROWS, MOST_ROWS = 16, 1024
"""Work rows of the first look for plans; four times as many while there is none for every rank."""
KINDS = ("tensor_parallel", "context_parallel", "expert_parallel", "precision", "micro_batch")
"""Of work rows that agree in these, the first look takes the fastest."""
MOST_TRIED, TRIES = 1024, 2
"""Kinds of settings of a first look, and how many of one family are priced."""
FAR = 1.1
"""Above the best bound by this factor, the limit is worth pricing a few more plans of every family."""

CLOSE = 1.04
"""Slower than the best plan, settings whose bound is so near to the limit rarely have one that lowers it."""

MOST_OPEN = 4
"""Settings whose search over layouts may end without a proof before the rest is left to the gap."""
FAR_ABOVE = 16
"""Without a plan yet, layouts up to this factor above a setting's bound are looked for, times its ranks."""
ROUNDED_US = 1
"""A bound is rounded down by less than this. [us]"""
MET = 2e-7
"""Relative gap that is rounding of the stage model's coefficients."""

OnPlan = Callable[[Estimate, float], None]


class Search:
    """One run of the solver."""

    def __init__(
        self,
        request: PlanRequest,
        top: int,
        time_limit_s: float,
        workers: int,
        on_plan: OnPlan | None,
        enough: bool = False,
    ) -> None:
        self._request = request
        self._top = top
        self._start = time.monotonic()
        self._deadline = self._start + time_limit_s
        self._workers = workers
        self._on_plan = on_plan
        self._enough = enough
        self._scan = Scan(request, deadline=self._deadline)
        self._rounds = Rounds(self._scan, request)
        self._proven_us = 0
        self._entries: list[Entry] = []
        self._heap: list[tuple[int, int]] = []
        self._standings = Standings(top, request.prefer_simple)
        self._floors_s: dict[tuple[int, ...], float] = {}
        self._passed: list[int] = []
        self._known = Known()
        self._alike: defaultdict[int, list[Entry]] = defaultdict(list)
        self._in_vain_by_work: defaultdict[tuple[tuple[int, ...], Family], list[Loads]] = defaultdict(list)
        self._stopped = False
        self.was_interrupted = False

    def run(self) -> PlanResult:
        """Find, prove and rank."""
        try:
            self._first_plans()
            self._price_until_proven()
            self._refine()
        except KeyboardInterrupt:
            self.was_interrupted = True
        except OutOfTime:
            self._stopped = True
        return self._result(self._ranked())

    def _ranked(self) -> list[Entry]:
        """Rank what was found; the ranking is short, so it starts again where it was interrupted."""
        try:
            return self._rank()
        except KeyboardInterrupt:
            self.was_interrupted = True
            return self._rank()

    def _result(self, chosen: list[Entry]) -> PlanResult:
        plans = tuple(evaluate(entry.plan, self._request) for entry in chosen if entry.plan is not None)
        best, bound = self._standings.best_us, self._layouts_bound_us()
        stopped = self._stopped or self.was_interrupted
        if stopped:
            bound = min(bound, self._proven_us)
        met = not stopped and bound >= best * (1 - MET)
        status: Status = "optimal" if plans else "infeasible"
        if not met:
            status = "feasible" if plans else "time-limit"
        gap = None if not plans else 0.0 if met else gap_pct(chosen[0].objective_us, min(bound, best))
        return PlanResult(
            status=status, plans=plans, gap_pct=gap,
            solve_s=time.monotonic() - self._start, num_settings=self._scan.num_settings,
        )  # fmt: skip

    def _bound_us(self) -> int:
        """Lower bound of everything that is not priced."""
        waiting = self._heap[0][0] if self._heap else NEVER
        return min(waiting, self._rounds.least_us)

    def _layouts_bound_us(self) -> int:
        """Lower bound of the layouts that were not looked at, of settings that were looked at."""
        return min((entry.bound_us for entry in self._open_entries()), default=NEVER)

    def _open_entries(self) -> list[Entry]:
        """Settings with layouts that could still be better than the best plan.

        One that was put aside is among them: what its balanced layout takes at least says nothing of others.
        """
        return [
            entry
            for entry in self._entries
            if not entry.exhaustive and entry.bound_us < self._refined_below_us(entry)
        ]

    def _refined_below_us(self, entry: Entry) -> int:
        """Below which price the layouts of a setting that were not looked at matter."""
        return self._standings.best_us

    def _refine(self) -> None:
        """Search all layouts of the settings that could still be the best, most promising first.

        Of equals the one with the widest sharding: where it has nothing better, the others rarely have.
        """
        given_up = 0
        entries = self._open_entries()
        for entry in entries:
            entry.values = entry.values or entry.fields
        for entry in sorted(entries, key=lambda entry: (entry.bound_us, -entry.values["shard_group_size"])):
            best = self._refined_below_us(entry)
            if self._stopped or entry.bound_us >= best or given_up == MOST_OPEN:
                return
            if time.monotonic() > self._deadline:
                self._stopped = True
                return
            self._refine_entry(entry, best)
            given_up += not entry.exhaustive

    def _refine_entry(self, entry: Entry, best_us: int) -> None:
        price = self._setting_price(entry, entry.values)
        weight = self._weight(entry)
        most = FAR_ABOVE * entry.bound_us * price.p + 1
        worth_s = min(best_us, most) * MICROSECOND_S / weight
        in_vain = self._in_vain_by_work[entry.work_key, entry.family] if best_us < NEVER else None
        found = refine(price, worth_s, in_vain, self._deadline)
        entry.bound_us = max(entry.bound_us, int(microseconds_down(found.bound_s * weight)))
        if found.layout is not None:
            self._accept(entry, price.plan(found.layout), found.seconds * weight)
        if entry.bound_us + ROUNDED_US >= min(self._standings.best_us, best_us, most) * (1 - MET):
            entry.exhaustive = True

    def _weight(self, entry: Entry) -> float:
        if self._request.goal not in WEIGHTED_GOALS:
            return 1.0
        return float(goal_weight(entry.source.rows.take(np.array([entry.index])), self._request)[0])

    def _accept(self, entry: Entry, plan: Plan, objective_s: float) -> None:
        """Keep a plan that breaks no rule and tell who listens when it is the best."""
        if broken_rules(plan, self._request):
            return
        best = self._standings.best_us
        entry.plan, entry.objective_us = plan, int(microseconds_up(objective_s))
        self._standings.add(entry.family, simplicity(plan), entry.objective_us)
        if entry.objective_us < best and self._on_plan is not None:
            self._on_plan(evaluate(plan, self._request), time.monotonic() - self._start)

    @property
    def _has_enough(self) -> bool:
        """Whether a first plan was asked for and found."""
        return self._enough and self._standings.best_us < NEVER

    def _price_until_proven(self) -> None:
        """Scan and price until no candidate's bound is below the price at which it would matter."""
        while self._is_open():
            if time.monotonic() > self._deadline or self._has_enough:
                self._stopped = True
                return
            if self._bound_us() >= self._standings.limit_us:
                self._heap = [(self._entries[number].least_us, number) for number in self._passed]
                heapq.heapify(self._heap)
                self._passed = []
            elif not self._heap or self._heap[0][0] >= self._rounds.least_us:
                self._add(*self._rounds.next(self._standings.limits(), self._standings.best_us))
                if self._heap and self._standings.limit_us > FAR * self._heap[0][0]:
                    self._dive()
            else:
                self._consider(self._heap[0][1])
                heapq.heappop(self._heap)

    def _is_open(self) -> bool:
        """Whether something may still change the ranks.

        Nothing is between places at this moment, so the bound holds wherever the search is interrupted next.
        """
        self._proven_us = self._bound_us()
        return self._proven_us < self._standings.limit_us or self._is_waiting()

    def _first_plans(self) -> None:
        """Look for a plan of every rank among settings of low bounds, so that the scan has a limit."""
        self._proven_us = self._bound_us()
        rows, kinds = FIRST_ROWS, self._scan.work.key(KINDS)
        leading = np.sort(np.unique(kinds, return_index=True)[1])
        while not (self._standings.are_full or self._has_enough) and time.monotonic() < self._deadline:
            found = self._scan.expand(leading[:rows], sample=((*FAMILY, "schedule"), MOST_TRIED))
            self._add(found, np.arange(len(found.rows)))
            self._dive(is_quick=self._top > 1)
            if rows >= min(len(leading), MOST_ROWS):
                return
            rows *= 4

    def _consider(self, number: int) -> None:
        """Price a candidate if it would change the answer at its bound, else put it aside."""
        entry = self._entries[number]
        if entry.plan is not None:
            return
        if entry.least_us < self._worth_us(entry):
            self._raise(entry)
        if entry.least_us < self._worth_us(entry) and entry.sifted_us < self._worth_us(entry):
            self._sift(entry)
        if entry.least_us < self._worth_us(entry):
            self._price(entry)
        if entry.plan is None:
            self._passed.append(number)

    def _sift(self, first: Entry) -> None:
        """Bound the layouts of waiting candidates alike that would change the ranks, all at once."""
        waiting = [entry for entry in self._alike[first.alike] if entry is first or not entry.priced]
        waiting = [
            entry for entry in waiting if max(entry.least_us, entry.sifted_us - 1) < self._worth_us(entry)
        ]
        groups: defaultdict[Any, list[Entry]] = defaultdict(list)
        is_listed = is_exhaustive(self._setting_price(first, first.fields))
        for entry in waiting:
            entry.exhaustive = is_listed
            price = None if is_listed else self._setting_price(entry, entry.fields)
            groups[id(entry.source), () if price is None else near_even(price)].append(entry)
        for entries in groups.values():
            self._sift_together(entries)

    def _sift_together(self, entries: list[Entry]) -> None:
        """Bound the layouts of candidates of one source that share them."""
        shares = shares_of(self._setting_price(entries[0], entries[0].fields))
        source, chosen = entries[0].source, np.array([entry.index for entry in entries])
        weights = goal_weight(source.rows.take(chosen), self._request)
        worths = [self._worth_us(entry) for entry in entries]
        worth_s = (np.array(worths) + 1) * MICROSECOND_S / weights
        bounds, closes = sifted(shares, source, chosen, worth_s, self._known, self._request)
        least = microseconds_down(np.minimum(bounds * weights, NEVER * MICROSECOND_S)).tolist()
        for entry, bound, worth, close in zip(entries, least, worths, closes, strict=True):
            entry.least_us, entry.close, entry.sifted_us = max(entry.least_us, bound), close, worth

    def _raise(self, entry: Entry) -> None:
        """Raise the candidate's bound to the work of its balanced layout, where that one stands for it.

        Settings that differ in sharding alone share it.
        """
        rows, at = entry.source.rows, entry.index
        if self._known.shares.get(tuple(rows.value(name, at) for name in SHAPE)) is not None:
            return
        group = entry.work_key
        if group not in self._floors_s:
            price = self._setting_price(entry, entry.fields)
            if is_exhaustive(price):
                return
            self._floors_s[group] = floor_s(price)
        entry.exhaustive = False
        entry.least_us = max(
            entry.least_us, int(microseconds_down(self._floors_s[group] * self._weight(entry)))
        )

    def _setting_price(self, entry: Entry, values: dict[str, Any]) -> SettingPrice:
        source, at = entry.source, entry.index
        around = float(source.fixed[at]), float(source.growth[at])
        return SettingPrice(values, source.work, at, self._request, self._known, around)

    def _is_waiting(self) -> bool:
        """Whether one that was put aside would change the answer now that others are priced.

        The ranks are chosen one after the other, so with the plans at hand they stay as they are when no
        candidate left, at its bound and its least score, would be chosen at any rank.
        """
        return any(
            self._entries[number].least_us < self._worth_us(self._entries[number]) for number in self._passed
        )

    def _dive(self, is_quick: bool = False) -> None:
        """Price the most promising candidates of every family that would change the ranks.

        A quick look is content with any plan of a family, and with one for every rank.
        """
        tried: dict[tuple[object, ...], int] = {}
        for _, number in sorted(self._heap):
            entry = self._entries[number]
            is_done = self._has_enough or (is_quick and self._standings.are_full)
            is_close = entry.bound_us >= max(self._standings.best_us, self._standings.limit_us / CLOSE)
            if is_done or is_close or time.monotonic() > self._deadline:
                return
            if is_quick and self._standings.has(entry.family):
                continue
            tried[entry.family] = tried.get(entry.family, 0) + 1
            if tried[entry.family] <= TRIES:
                self._consider(number)

    def _worth_us(self, entry: Entry) -> int:
        return self._standings.worth_us(entry.family, entry.score)

    def _add(self, found: Candidates, new: Index) -> None:
        """Let new candidates wait."""
        bounds = microseconds_down(found.bound_s * goal_weight(found.rows, self._request)).tolist()
        scores = least_simplicity(found.rows).tolist()
        families = self._families(found.rows)
        alike = alike_keys(found.rows).tolist()
        every = list(zip(bounds, families, scores, alike, strict=True))
        for index in new.tolist():
            bound, family, score, key = every[index]
            heapq.heappush(self._heap, (bound, len(self._entries)))
            entry = Entry(found, index, bound, family, score, bound, key)
            self._entries.append(entry)
            self._alike[key].append(entry)

    def _families(self, rows: Rows) -> list[Family]:
        """Of which plans each setting is a variant."""
        return list(zip(*(rows.values(name).tolist() for name in FAMILY), strict=True))

    def _price(self, entry: Entry) -> None:
        entry.values = entry.fields
        price = self._setting_price(entry, entry.values)
        entry.priced = True
        entry.exhaustive = is_exhaustive(price)
        weight = self._weight(entry)
        worth = self._worth_us(entry)
        found = best_layout(price, int(min(worth / weight + 1, NEVER)), entry.close)
        entry.close, entry.sifted_us = None, 0
        entry.least_us = max(entry.least_us, worth)
        if found is not None:
            self._accept(entry, price.plan(found[1]), found[0] * weight)

    def _rank(self) -> list[Entry]:
        """Let the master choose among the priced plans, rank after rank."""
        entries = [entry for entry in self._entries if entry.plan is not None]
        entries = [entry for entry in entries if entry.objective_us <= self._standings.limit_us]
        entries.sort(key=lambda entry: (entry.objective_us, simplicity(entry.plan), repr(entry.plan)))
        scores = [simplicity(entry.plan) for entry in entries]
        entries = [entries[row] for row in undominated([entry.family for entry in entries], scores)]
        if not entries:
            return []
        rows = Rows.concatenate([entry.source.rows.take(np.array([entry.index])) for entry in entries])
        master = Master(rows, self._scan.space, self._workers)
        objectives = [entry.objective_us for entry in entries]
        scores = [simplicity(entry.plan) for entry in entries]
        chosen: list[Entry] = []
        while len(chosen) < min(self._top, len({entry.family for entry in entries})):
            row = master.best(objectives, scores if self._request.prefer_simple else None, NEAR_BEST)
            if row is None:
                break
            chosen.append(entries[row])
            master.exclude(i for i, entry in enumerate(entries) if entry.family == entries[row].family)
        return chosen
