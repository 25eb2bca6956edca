"""What if: how far each number of the problem may move before another plan wins; what standing still costs.

The winner is found again at a ladder of factors in both directions; the first rung where a plan other than
today's wins is reported. Robustness is the largest loss of today's plan against the best one over all rungs
within the model's own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from planner.cost.words import plan_words
from planner.explain.changes import (
    PARAMETERS,
    Parameter,
    with_compute_rate,
    with_domain_rate,
    with_network_rate,
)
from planner.explain.loss import percent
from planner.explain.neighbours import adapted_price
from planner.explain.optimum import NEAR_PCT, better_plan, near_plan
from planner.spec import Plan, PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate

UP = (1.25, 1.5, 2.0, 4.0)
DOWN = (0.8, 0.67, 0.5, 0.25)
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
        loss = "today's plan cannot run" if self.gain_pct == float("inf") else f"{self.gain_pct:.1f} % faster"
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
            [row.words() for row in self.rows], ("number", "now", "change", "then"), tablefmt="simple"
        )
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


@dataclass(frozen=True)
class _Rung:
    """One factor: the request that results, and today's plan there (None where it has no counterpart)."""

    factor: float
    request: PlanRequest
    ours: Estimate | None

    @property
    def is_legal(self) -> bool:
        return self.ours is not None and self.ours.is_legal


@dataclass(frozen=True)
class _Turning:
    """Searches around one plan; ``pool`` holds plans that were the best somewhere."""

    best: Estimate
    seconds: float
    pool: list[Plan]

    def first_change(self, request: PlanRequest, parameter: Parameter, direction: str) -> Row | None:
        """Return the first rung at which another plan wins: the far end is tried, then the near ones."""
        rungs, now = self._rungs(request, parameter, direction), parameter.value(request)
        if not rungs:
            return None
        if not self._is_beaten(rungs[-1]):
            return Row(parameter.name, now, direction, tried=rungs[-1].factor)
        for rung in rungs:
            found = self._winner(rung)
            if found is not None:
                winner, gain = found
                self.pool.extend([winner] if winner else [])
                then = parameter.value(rung.request)
                return Row(parameter.name, now, direction, rung.factor, rung.factor, winner, then, gain)
        return Row(parameter.name, now, direction, tried=rungs[-1].factor)

    def _rungs(self, request: PlanRequest, parameter: Parameter, direction: str) -> list[_Rung]:
        """The ladder up to the first factor at which today's plan cannot run."""
        found: list[_Rung] = []
        for factor in UP if direction == "up" else DOWN:
            scaled = parameter.scaled(request, factor)
            if scaled is not None and (not found or found[-1].is_legal):
                found.append(_Rung(factor, scaled, adapted_price(self.best.plan, scaled)))
        return found

    def _is_beaten(self, rung: _Rung) -> bool:
        """Whether today's plan cannot run, or some plan is faster by more than 1 %."""
        if rung.ours is None or not rung.is_legal:
            return True
        for plan in self.pool:
            other = adapted_price(plan, rung.request)
            if other is not None and other.is_legal and percent(rung.ours, other) < -NEAR_PCT:
                return True
        return better_plan(rung.ours, rung.request, self.seconds, near_pct=100.0) is not None

    def _winner(self, rung: _Rung) -> tuple[Plan | None, float] | None:
        """Another plan that wins at this factor and today's loss against it, or None: today's plan stays.

        Today's plan stays while it is legal and no other is faster by more than 1 %.
        """
        if rung.ours is None or not rung.is_legal:
            other = near_plan(rung.request, rung.ours, self.seconds)
            stays = other is not None and same_plan(self.best.plan, other.plan)
            return None if stays else (other.plan if other else None, float("inf"))
        other = better_plan(rung.ours, rung.request, self.seconds)
        if other is None or same_plan(self.best.plan, other.plan):
            return None
        return other.plan, percent(other, rung.ours)
