"""What the solver hands back: priced plans, how sure it is, and what it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from planner.cost.terms import Memory, StepTime
from planner.spec.plan import Plan

if TYPE_CHECKING:
    from planner.rules import Violation

Status = Literal["optimal", "feasible", "infeasible", "time-limit"]
"""``optimal``: no legal plan is better (the bound meets). ``feasible``: stopped early, ``gap_pct`` says how
far
the bound is. ``infeasible``: no legal plan exists. ``time-limit``: stopped before any plan was found."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The price of one plan: time, memory of every pipeline rank, broken rules."""

    plan: Plan
    time: StepTime
    stages: tuple[Memory, ...]
    violations: tuple[Violation, ...]
    fits: bool
    tokens_per_s_per_gpu: float
    mfu: float
    """Model FLOP/s over the dense peak, as a fraction."""
    error_band_pct: float
    """Relative error to expect of ``step_time_s``."""
    notes: tuple[str, ...] = ()

    @property
    def step_time_s(self) -> float:
        """Seconds of one optimizer step."""
        return float(self.time.total)

    @property
    def worst_stage(self) -> int:
        """Pipeline rank with the largest peak memory."""
        totals = [float(stage.total) for stage in self.stages]
        return totals.index(max(totals))

    @property
    def peak_memory_bytes(self) -> float:
        """Peak memory of the fullest pipeline rank."""
        return float(self.stages[self.worst_stage].total)

    @property
    def is_legal(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """The solver's answer. ``plans`` is best first; their order is the goal's, with stated tie-breaks."""

    status: Status
    plans: tuple[Estimate, ...] = ()
    gap_pct: float | None = None
    """How much better than the first plan a plan could still be; 0 when proven, None without a plan."""
    solve_s: float = 0.0
    num_settings: int = 0
    """Legal settings that the answer covers (before the stage layouts of each are counted)."""
    conflict: tuple[Any, ...] = ()
    relaxations: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    """Whether Ctrl-C ended the search: the plans are the best so far, as after a time limit."""

    @property
    def best(self) -> Estimate | None:
        """The first plan, if there is one."""
        return self.plans[0] if self.plans else None


def uninterrupted(result: PlanResult) -> PlanResult:
    """The same result, for what needs more than the best plan so far.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C ended the search.
    """
    if result.interrupted:
        raise KeyboardInterrupt
    return result
