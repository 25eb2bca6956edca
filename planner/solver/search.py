"""The search: scan for candidates, price the promising ones exactly, let the master choose and prove.

Best first: candidates wait in order of their bounds, the cheapest is priced, and a plan is the best as soon
as its
price is not above the next bound. The master then chooses rank after rank: the best plan, then the
best that is not a variant of those before it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from planner.rules import broken_rules
from planner.solver.evaluate import evaluate
from planner.solver.master import Master
from planner.solver.price import SettingPrice
from planner.solver.result import Estimate, PlanResult, Status
from planner.solver.scale import MICROSECOND_S, gap_pct, microseconds_down, microseconds_up
from planner.solver.scan import Candidates, Scan
from planner.solver.space import FIELDS, Rows
from planner.solver.stages import best_layout, is_exhaustive
from planner.solver.tables import Floats
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

FAMILY = (
    "tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel", "recompute", "precision",
)  # fmt: skip
"""Two plans with the same values here are variants of one plan; the answer shows the best variant."""
WIDEN = 1.08
"""Each round of the scan takes work rows up to this factor above the round before."""
NEVER = 2**50
"""Objective of a setting without a legal layout. [us]"""
NEAR_BEST = 1.01
"""Plans within 1 % count as equally fast when the simplest is preferred."""

BALANCED_NOTE = (
    "Layers are balanced over the stages by a fixed rule (work near the mean, both model ends counted); "
    "other uneven layouts of large pipelines were not searched."
)

OnPlan = Callable[[Estimate, float], None]


@dataclass
class Entry:
    """One candidate: a bound until it is priced, then its objective and plan (None: no legal layout)."""

    source: Candidates
    index: int
    bound_us: int
    family: tuple[object, ...]
    values: dict[str, object] = field(default_factory=dict)
    priced: bool = False
    objective_us: int = NEVER
    plan: Plan | None = None


class Search:
    """One run of the solver."""

    def __init__(
        self, request: PlanRequest, top: int, time_limit_s: float, workers: int, on_plan: OnPlan | None
    ) -> None:
        self._request = request
        self._top = top
        self._start = time.monotonic()
        self._deadline = self._start + time_limit_s
        self._workers = workers
        self._on_plan = on_plan
        self._scan = Scan(request)
        self._entries: list[Entry] = []
        self._heap: list[tuple[int, int]] = []
        self._next_row = 0
        self._threshold_s = 0.0
        self._best: dict[tuple[object, ...], int] = {}
        self._stopped = False
        self._balanced = False

    def run(self) -> PlanResult:
        """Find, prove and rank."""
        try:
            self._price_until_proven()
        except KeyboardInterrupt:
            self._stopped = True
        chosen = self._rank()
        return self._result(chosen)

    def _result(self, chosen: list[Entry]) -> PlanResult:
        plans = tuple(evaluate(entry.plan, self._request) for entry in chosen if entry.plan is not None)
        status: Status = "optimal" if plans else "infeasible"
        gap = 0.0 if plans else None
        if self._stopped:
            status = "feasible" if plans else "time-limit"
        if plans and self._stopped:
            gap = gap_pct(min(self._best.values()), min(self._bound_us(), min(self._best.values())))
        return PlanResult(
            status=status, plans=plans, gap_pct=gap,
            solve_s=time.monotonic() - self._start, num_settings=self._scan.num_settings,
            notes=(BALANCED_NOTE,) if self._balanced else (),
        )  # fmt: skip

    def _limit_us(self) -> int:
        """What a candidate must beat to be shown: the last plan's price, 1 % more for simplicity."""
        best = sorted(self._best.values())
        if len(best) < self._top:
            return NEVER
        return int(best[self._top - 1] * (NEAR_BEST if self._request.prefer_simple else 1.0)) + 1

    def _bound_us(self) -> int:
        """Lower bound of everything that is not priced."""
        waiting = self._heap[0][0] if self._heap else NEVER
        return min(waiting, self._unscanned_us())

    def _unscanned_us(self) -> int:
        steady = self._scan.steady_s
        return int(microseconds_down(steady[self._next_row])) if self._next_row < len(steady) else NEVER

    def _price_until_proven(self) -> None:
        """Scan and price until no candidate's bound is below the last price that matters."""
        while self._bound_us() < self._limit_us():
            if time.monotonic() > self._deadline:
                self._stopped = True
                return
            if not self._heap or self._heap[0][0] >= self._unscanned_us():
                self._widen()
                continue
            bound, number = heapq.heappop(self._heap)
            if bound < self._worth_us(self._entries[number]):
                self._price(self._entries[number])

    def _worth_us(self, entry: Entry) -> int:
        """Price below which the candidate would change the answer."""
        known = self._best.get(entry.family, NEVER)
        near = NEAR_BEST if self._request.prefer_simple else 1.0
        return min(self._limit_us(), int(known * near) + 1)

    def _widen(self) -> None:
        """Scan the next work rows."""
        steady = self._scan.steady_s
        self._threshold_s = max(self._threshold_s, float(steady[self._next_row])) * WIDEN
        limit_s = (self._limit_us() + 1) * MICROSECOND_S
        stop = int(np.searchsorted(steady, min(self._threshold_s, limit_s), side="right"))
        stop = max(stop, self._next_row + 1)
        weighted = self._request.goal in WEIGHTED_GOALS
        found = self._scan.expand(np.arange(self._next_row, stop), np.inf if weighted else limit_s)
        self._next_row = stop
        self._add(found)

    def _add(self, found: Candidates) -> None:
        columns = [found.rows.values(name).tolist() for name in FAMILY]
        bounds = microseconds_down(found.bound_s * goal_weight(found.rows, self._request)).tolist()
        for index, (bound, family) in enumerate(zip(bounds, zip(*columns, strict=True), strict=True)):
            heapq.heappush(self._heap, (bound, len(self._entries)))
            self._entries.append(Entry(found, index, bound, family))

    def _price(self, entry: Entry) -> None:
        rows = entry.source.rows
        entry.values = {name: rows.domains[name][rows.codes[name][entry.index]].item() for name in FIELDS}
        price = SettingPrice(entry.values, entry.source.work, entry.index, self._request)
        entry.priced = True
        self._balanced |= not is_exhaustive(price)
        weight = float(goal_weight(rows.take(np.array([entry.index])), self._request)[0])
        found = best_layout(price, int(min(self._worth_us(entry) / weight + 1, NEVER)))
        if found is None:
            return
        plan = price.plan(found[1])
        if broken_rules(plan, self._request):
            return
        entry.plan, entry.objective_us = plan, int(microseconds_up(found[0] * weight))
        improved = entry.objective_us < min(self._best.values(), default=NEVER)
        self._best[entry.family] = min(entry.objective_us, self._best.get(entry.family, NEVER))
        if improved and self._on_plan is not None:
            self._on_plan(evaluate(plan, self._request), time.monotonic() - self._start)

    def _rank(self) -> list[Entry]:
        """Let the master choose among the priced plans, rank after rank."""
        entries = [entry for entry in self._entries if entry.plan is not None]
        entries = [entry for entry in entries if entry.objective_us <= self._limit_us()]
        entries.sort(key=lambda entry: (entry.objective_us, simplicity(entry.plan), repr(entry.plan)))
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


WEIGHTED_GOALS = ("cost", "tokens-per-s")


def goal_weight(rows: Rows, request: PlanRequest) -> Floats:
    """What the step time of each row is multiplied by under the request's goal. [1].

    Time per token relative to the smallest batch for ``tokens-per-s``; times the share of GPUs used for
    ``cost`` (a GPU-hour has one price). Steady work, B t c / (N b), bounds all of them alike.
    """
    if request.goal not in WEIGHTED_GOALS:
        return np.ones(len(rows))
    batch = np.prod(
        [rows.values(name) for name in ("data_parallel", "micro_batch", "num_microbatches")], axis=0
    )
    weight = request.workload.global_batch / batch
    if request.goal == "cost":
        degrees = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
        weight = weight * np.prod([rows.values(name) for name in degrees], axis=0) / request.cluster.num_gpus
    return np.asarray(weight, dtype=np.float64)


SCHEDULE_RANK = {"none": 0, "1f1b": 0, "gpipe": 1, "interleaved": 1, "zb-h1": 2, "zb-h2": 3, "zb-v": 3}
"""How common a schedule is; those not named come last."""


def simplicity(plan: Plan | None) -> int:
    """Order of plans that are equally fast: fewer dimensions, then no recompute, then the commoner schedule.

    Then, in this order: no offload, one sharding group, low ZeRO stage, equal stages.
    """
    if plan is None:
        return NEVER
    degrees = (plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel, plan.expert_parallel)
    replicas = plan.data_parallel * plan.context_parallel
    digits = (
        sum(degree > 1 for degree in degrees),
        ("none", "selective", "full").index(plan.recompute),
        SCHEDULE_RANK.get(plan.schedule, 4),
        int(plan.offload != "none"),
        int(plan.zero_stage > 0 and plan.shard_group_size < replicas),
        max(plan.zero_stage - 1, 0),
        int(len({stage.layers for stage in plan.stages}) > 1),
    )
    score = 0
    for digit in digits:
        score = score * 8 + digit
    return score
