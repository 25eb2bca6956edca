"""What if: how far each number of the problem may move before another plan wins; what standing still costs.

The winner is found again at a ladder of factors in both directions; the first rung where a plan other than
today's wins is reported. Robustness is the largest loss of today's plan against the best one over all rungs
within the model's own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from planner.cost.step import step_time
from planner.cost.words import plan_words
from planner.errors import BadInput
from planner.explain.changes import (
    PARAMETERS,
    Parameter,
    with_compute_rate,
    with_domain_rate,
    with_network_rate,
)
from planner.explain.loss import percent
from planner.explain.neighbours import adapted, adapted_price
from planner.explain.optimum import NEAR_PCT, better_plan, near_plan, preferred
from planner.explain.sides import MEMORY_RULE
from planner.spec import Plan, PlanRequest
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.solver.result import Estimate

UP = (1.25, 1.5, 2.0, 4.0)
DOWN = (0.8, 0.67, 0.5, 0.25)
WIDEST = 62
"""Characters of a line of the table's last column."""
ERROR = 0.1
"""Relative error of a rate that a robust plan should survive: the model's own error band."""
SAME_FIELDS = (
    "tensor_parallel", "pipeline_parallel", "virtual_stages", "context_parallel", "expert_parallel",
    "expert_tensor_parallel", "zero_stage", "micro_batch", "schedule", "recompute", "offload", "precision",
    "rank_order",
)  # fmt: skip
"""Fields by which people tell plans apart; data parallelism and micro-batches follow from them."""


@dataclass(frozen=True)
class Row:
    """One parameter, one direction: the first factor at which another plan wins (None: none tried)."""

    parameter: str
    now: str
    direction: str
    factor: float | None = None
    tried: float = 1.0
    winner: Plan | None = None
    then: str = ""
    """The number at this factor."""
    gain_pct: float = 0.0
    """How much slower today's plan is than the new winner there; infinite where it cannot run. [%]"""
    why_lost: str = ""
    """Why today's plan cannot run there."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "parameter": self.parameter,
            "direction": self.direction,
            "factor": self.factor,
            "then": self.then,
            "tried_up_to": self.tried,
            "winner": plan_words(self.winner) if self.winner else None,
            "gain_pct": None if self.gain_pct == float("inf") else self.gain_pct,
        }

    def words(self) -> tuple[str, str, str, str]:
        """Cells of the printed table."""
        if self.factor is None:
            return (
                self.parameter,
                self.now,
                self.direction,
                f"the plan stays {'up' if self.tried > 1 else 'down'} to x{self.tried:g}",
            )
        if self.winner is None:
            return self.parameter, self.now, self.then, "nothing fits any more"
        loss = self.why_lost or f"{self.gain_pct:.1f} % faster"
        return self.parameter, self.now, self.then, f"{plan_words(self.winner)} ({loss})"


@dataclass(frozen=True)
class Sensitivity:
    """The table and the robustness figure of one plan."""

    rows: tuple[Row, ...] = field(default=())
    regret_pct: float = 0.0
    """Largest loss against the best plan when a rate is wrong by ``ERROR``. [%]"""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"rows": [row.as_dict() for row in self.rows], "regret_pct": self.regret_pct}

    def text(self) -> str:
        """The printed table."""
        table = tabulate(
            [row.words() for row in self.rows], ("number", "now", "change", "then"), tablefmt="simple",
            maxcolwidths=[None, None, None, WIDEST],
        )  # fmt: skip
        return f"{table}\n{self.robustness}"

    @property
    def robustness(self) -> str:
        """What the plan loses at most when a rate is wrong."""
        return (
            f"Robustness: with any rate off by {100 * ERROR:.0f} %, this plan is at most "
            f"{self.regret_pct:.1f} % slower than the best one."
        )


def same_plan(first: Plan, second: Plan) -> bool:
    """Whether people would call two plans the same (data-parallel degree and micro-batch count aside)."""
    return all(getattr(first, name) == getattr(second, name) for name in SAME_FIELDS)


def sensitivity_of(
    best: Estimate, request: PlanRequest, *, ranked: Sequence[Estimate] = (), seconds: float = 10.0
) -> Sensitivity:
    """Turn every parameter of the problem both ways and search again.

    Parameters
    ----------
    ranked
        Other good plans: where one of them beats today's plan, nothing has to be searched to know it.
    seconds
        Time limit of each search. [s]
    """
    turning = _Turning(best, seconds, [other.plan for other in ranked if other.plan != best.plan])
    rows = []
    for parameter in PARAMETERS:
        for direction in ("up", "down"):
            row = turning.first_change(request, parameter, direction)
            if row is not None:
                rows.append(row)
    return Sensitivity(tuple(rows), regret_pct(best, request, seconds))


def regret_pct(best: Estimate, request: PlanRequest, seconds: float = 10.0) -> float:
    """Largest loss of the plan against the best one when one rate is off by ``ERROR``, up or down. [%]."""
    from planner.solver.evaluate import evaluate

    worst = 0.0
    for scaled in (with_compute_rate, with_domain_rate, with_network_rate):
        for factor in (1 - ERROR, 1 + ERROR):
            changed = scaled(request, factor)
            if changed is None:
                continue
            ours = evaluate(best.plan, changed)
            other = better_plan(ours, changed, seconds, worst, near_pct=0.0)
            if other is not None:
                worst = max(worst, percent(other, ours))
    return worst


@dataclass
class _Rung:
    """One factor: the request that results, and today's plan there (None where it has no counterpart)."""

    factor: float
    request: PlanRequest
    ours: Estimate | None
    _seconds: dict[Plan, float] = field(default_factory=dict)
    _found: list[Estimate | None] = field(default_factory=list)

    @property
    def is_legal(self) -> bool:
        return self.ours is not None and self.ours.is_legal

    def fastest(self, pool: Sequence[Plan]) -> Estimate | None:
        """The fastest legal plan of a pool, if it beats today's by more than 1 % wherever that can run."""
        limit_s = inf
        if self.ours is not None and self.ours.is_legal:
            limit_s = self.ours.step_time_s / self.ours.plan.global_batch * (1.0 - NEAR_PCT / 100.0)
        for plan in sorted(pool, key=self._seconds_per_sequence):
            if self._seconds_per_sequence(plan) >= limit_s:
                break
            other = adapted_price(plan, self.request)
            if other is not None and other.is_legal:
                return other
        return None

    def _seconds_per_sequence(self, plan: Plan) -> float:
        """Step time over batch of a plan fitted to the request; infinite without a counterpart or a price."""
        if plan not in self._seconds:
            ours = adapted(plan, self.request)
            try:
                step_s = inf if ours is None else float(step_time(ours, self.request).total)
            except BadInput:  # a schedule that cannot run so many micro-batches has no price
                step_s = inf
            self._seconds[plan] = step_s if ours is None else step_s / ours.global_batch
        return self._seconds[plan]

    def loss_pct(self, rival: Estimate | None) -> float:
        """How much slower today's plan is than another one; infinite where it cannot run. [%]."""
        if rival is None or self.ours is None or not self.ours.is_legal:
            return inf
        return percent(rival, self.ours)

    def rival(self, pool: list[Plan], seconds: float) -> Estimate | None:
        """The best plan where it is faster than today's by more than 1 %, or today's cannot run.

        It is searched once and joins the pool, whose plans limit the search.
        """
        if not self._found:
            self._found.append(self._searched(pool, seconds))
            for each in self._found:
                if each is not None and not any(same_plan(each.plan, other) for other in pool):
                    pool.append(each.plan)
        return self._found[0]

    def _searched(self, pool: Sequence[Plan], seconds: float) -> Estimate | None:
        known = self.fastest(pool)
        if known is not None:
            return better_plan(known, self.request, seconds, by_pct=0.0) or known
        if self.ours is not None and self.is_legal:
            return better_plan(self.ours, self.request, seconds)
        return near_plan(self.request, self.ours, seconds)


@dataclass(frozen=True)
class _Turning:
    """Searches around one plan; ``pool`` holds plans that were the best somewhere."""

    best: Estimate
    seconds: float
    pool: list[Plan]

    def first_change(self, request: PlanRequest, parameter: Parameter, direction: str) -> Row | None:
        """Return the first rung at which another plan wins.

        A plan that is beaten at one factor is taken to be beaten at those beyond it.
        """
        rungs, now = self._rungs(request, parameter, direction), parameter.value(request)
        if not rungs:
            return None
        stays = Row(parameter.name, now, direction, tried=rungs[-1].factor)
        for rung in rungs[self._first_beaten(rungs, parameter.admits_more and direction == "up") :]:
            rival = rung.rival(self.pool, self.seconds)
            if rival is None and rung.is_legal:
                continue
            rival = rival and preferred(rival, rung.request, self.seconds)
            if rival is None or not same_plan(self.best.plan, rival.plan):
                return replace(
                    stays,
                    factor=rung.factor,
                    tried=rung.factor,
                    winner=None if rival is None else rival.plan,
                    then=parameter.value(rung.request),
                    gain_pct=rung.loss_pct(rival),
                    why_lost=_why_lost(rung),
                )
        return stays

    def _rungs(self, request: PlanRequest, parameter: Parameter, direction: str) -> list[_Rung]:
        """The ladder up to the first factor at which today's plan cannot run."""
        found: list[_Rung] = []
        for factor in UP if direction == "up" else DOWN:
            scaled = parameter.scaled(request, factor)
            if scaled is not None and (not found or found[-1].is_legal):
                found.append(_Rung(factor, scaled, adapted_price(self.best.plan, scaled)))
        return found

    def _first_beaten(self, rungs: list[_Rung], admits_more: bool) -> int:
        """Number of the first rung at which today's plan is beaten, or how many rungs there are.

        Where more of the parameter makes many more plans legal, the near end is looked at first and the far
        end last, as it is by far the largest search; else the far end, and then those before it.
        """
        if admits_more:
            return next((n for n, rung in enumerate(rungs) if self._is_beaten(rung)), len(rungs))
        if not self._is_beaten(rungs[-1]):
            return len(rungs)
        first = len(rungs) - 1
        while first > 0 and self._is_beaten(rungs[first - 1]):
            first -= 1
        return first

    def _is_beaten(self, rung: _Rung) -> bool:
        """Whether today's plan cannot run, or some plan is faster by more than 1 %."""
        return (
            not rung.is_legal
            or rung.fastest(self.pool) is not None
            or rung.rival(self.pool, self.seconds) is not None
        )


def _why_lost(rung: _Rung) -> str:
    """Why today's plan cannot run at a rung; nothing where it can."""
    if rung.ours is None:
        return "today's degrees do not divide it"
    if rung.is_legal:
        return ""
    broken = {violation.rule for violation in rung.ours.violations}
    if broken == {MEMORY_RULE}:
        return f"today's plan needs {format_bytes(rung.ours.peak_memory_bytes)}"
    return "today's plan is not allowed"
