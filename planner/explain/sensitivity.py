"""What if: how far each number of the problem may move before another plan wins; what standing still costs.

The winner is found again at a ladder of factors in both directions; the first rung where a plan other than
today's wins is reported. Robustness is the largest loss of today's plan against the best one over all rungs
within the model's own error.
"""

from __future__ import annotations

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
            return self.parameter, self.now, self.direction, f"the plan stays up to x{self.tried:g}"
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
        return (
            f"{table}\nRobustness: with any rate off by {100 * ERROR:.0f} %, this plan is at most "
            f"{self.regret_pct:.1f} % slower than the best one."
        )


def same_plan(first: Plan, second: Plan) -> bool:
    """Whether people would call two plans the same (data-parallel degree and micro-batch count aside)."""
    return all(getattr(first, name) == getattr(second, name) for name in SAME_FIELDS)


def sensitivity_of(best: Estimate, request: PlanRequest, *, seconds: float = 10.0) -> Sensitivity:
    """Turn every parameter of the problem both ways and search again."""
    rows = []
    for parameter in PARAMETERS:
        for direction in ("up", "down"):
            row = _first_change(best, request, parameter, direction, seconds)
            if row is not None:
                rows.append(row)
    return Sensitivity(tuple(rows), regret_pct(best, request, seconds))


def regret_pct(best: Estimate, request: PlanRequest, seconds: float = 10.0) -> float:
    """Largest loss of the plan against the best one when one rate is off by ``ERROR``, up or down. [%]."""
    from planner.solver import solve, uninterrupted
    from planner.solver.evaluate import evaluate

    worst = 0.0
    for scaled in (with_compute_rate, with_domain_rate, with_network_rate):
        for factor in (1 - ERROR, 1 + ERROR):
            changed = scaled(request, factor)
            if changed is None:
                continue
            other = uninterrupted(solve(changed, top=1, time_limit_s=seconds)).best
            if other is not None:
                worst = max(worst, percent(other, evaluate(best.plan, changed)))
    return worst


def _first_change(
    best: Estimate, request: PlanRequest, parameter: Parameter, direction: str, seconds: float
) -> Row | None:
    """Return the first rung at which another plan wins; the far end is tried first."""
    ladder = UP if direction == "up" else DOWN
    now = parameter.value(request)
    if parameter.scaled(request, ladder[-1]) is None:
        return None
    last = _winner(best, request, parameter, ladder[-1], seconds)
    if last is None:
        return Row(parameter.name, now, direction, tried=ladder[-1])
    for factor in ladder[:-1]:
        found = _winner(best, request, parameter, factor, seconds)
        if found is not None:
            break
    else:
        factor, found = ladder[-1], last
    scaled = parameter.scaled(request, factor)
    then = parameter.value(scaled) if scaled is not None else ""
    winner, gain = found
    return Row(parameter.name, now, direction, factor, factor, winner, then, gain)


def _winner(
    best: Estimate, request: PlanRequest, parameter: Parameter, factor: float, seconds: float
) -> tuple[Plan | None, float] | None:
    """Another plan that wins at this factor and today's loss against it, or None when today's plan stays."""
    from planner.explain.neighbours import adapted_price
    from planner.solver import solve, uninterrupted

    scaled = parameter.scaled(request, factor)
    if scaled is None:
        return None
    other = uninterrupted(solve(scaled, top=1, time_limit_s=seconds)).best
    if other is None:
        return None, float("inf")
    if same_plan(best.plan, other.plan):
        return None
    priced = adapted_price(best.plan, scaled)
    if priced is None or not priced.is_legal:
        return other.plan, float("inf")
    gain = percent(other, priced)
    return (other.plan, gain) if gain > 0 else None
