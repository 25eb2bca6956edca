"""The search: scan for candidates, price the promising ones exactly, let the master choose and prove.

Rank after rank: the best plan first, then the best that is not alike to those before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np

from planner.cost.stage import with_stages
from planner.cost.step import step_time
from planner.rules import broken_rules
from planner.solver.evaluate import evaluate
from planner.solver.master import Master
from planner.solver.result import Estimate, PlanResult
from planner.solver.scale import gap_pct, microseconds_down, microseconds_up
from planner.solver.scan import Candidates, Scan
from planner.solver.space import FIELDS
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

FAMILY = (
    "tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel", "recompute", "precision",
)  # fmt: skip
"""Two plans with the same values here are variants of one plan; the answer shows the best variant."""
WIDEN = 1.12
"""Each round of the scan takes work rows up to this factor above the round before."""
ILLEGAL = 2**50
"""Objective of a row without a legal layout. [us]"""

OnPlan = Callable[[Estimate, float], None]


@dataclass
class Pool:
    """Candidates so far with what is known of each: a bound, then an exact price."""

    candidates: Candidates
    objective_us: list[int]
    plans: dict[int, Plan | None]
    families: list[tuple[object, ...]]


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
        self._best: dict[tuple[object, ...], tuple[int, Plan]] = {}

    def run(self) -> PlanResult:
        """Find, prove and rank."""
        pool = self._collect()
        ranked = self._rank(pool)
        status = "optimal" if ranked else "infeasible"
        return PlanResult(
            status=status,
            plans=tuple(evaluate(plan, self._request) for plan in ranked),
            gap_pct=0.0 if ranked else None,
            solve_s=time.monotonic() - self._start,
            num_settings=len(pool.objective_us),
        )

    def _limit_us(self) -> int:
        """Price of the last plan that would be shown; what cannot beat it is of no interest."""
        best = sorted(price for price, _ in self._best.values())
        return best[self._top - 1] if len(best) >= self._top else ILLEGAL

    def _collect(self) -> Pool:
        """Scan in rounds until the next work row cannot lead to a plan that is shown."""
        steady = self._scan.steady_s
        pool = Pool(self._scan.expand(np.zeros(0, dtype=np.int64)), [], {}, [])
        start, threshold = 0, 0.0
        while start < len(steady):
            threshold = max(threshold, steady[start]) * WIDEN
            stop = int(np.searchsorted(steady, min(threshold, self._limit_us() * 1e-6), side="right"))
            if stop <= start:
                break
            found = self._scan.expand(np.arange(start, stop), self._limit_us() * 1e-6)
            start = stop
            self._add(pool, found)
        return pool

    def _add(self, pool: Pool, found: Candidates) -> None:
        order = np.argsort(found.bound_s, kind="stable")
        found = found.take(order)
        rows = found.rows
        columns = [rows.values(field).tolist() for field in FAMILY]
        families = list(zip(*columns, strict=True))
        bounds = microseconds_down(found.bound_s).tolist()
        fields = {field: rows.values(field).tolist() for field in FIELDS}
        kept = []
        for index, bound in enumerate(bounds):
            limit = self._limit_us()
            if bound > limit or (self._best and time.monotonic() > self._deadline):
                break
            if bound > self._best.get(families[index], (ILLEGAL,))[0]:
                continue
            plan = with_stages(Plan(**{field: fields[field][index] for field in FIELDS}), self._request.model)
            if broken_rules(plan, self._request):
                continue
            price = microseconds_up(float(step_time(plan, self._request).total))
            kept.append((index, price, plan))
            if price < self._best.get(families[index], (ILLEGAL,))[0]:
                self._best[families[index]] = (price, plan)
        chosen = np.array([index for index, _, _ in kept], dtype=np.int64)
        offset = len(pool.objective_us)
        joined = found.take(chosen)
        if offset:
            joined = Candidates(
                type(rows).concatenate([pool.candidates.rows, joined.rows]),
                np.concatenate([pool.candidates.bound_s, joined.bound_s]),
            )
        pool.candidates = joined
        for number, (index, price, plan) in zip(count(offset), kept, strict=False):
            pool.objective_us.append(price)
            pool.plans[number] = plan
            pool.families.append(families[index])

    def _rank(self, pool: Pool) -> list[Plan]:
        if not pool.objective_us:
            return []
        master = Master(pool.candidates.rows, self._scan.space, self._workers)
        ranked: list[Plan] = []
        while len(ranked) < self._top:
            choice = master.minimize(pool.objective_us, None, 10.0)
            if choice.row is None:
                break
            plan = pool.plans[choice.row]
            if plan is None:
                break
            ranked.append(plan)
            alike = [i for i, family in enumerate(pool.families) if family == pool.families[choice.row]]
            master.exclude(alike)
        return ranked
