"""Everything a planning question says: model, cluster, workload, framework, goals and pins."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.spec.cluster import Cluster
from planner.spec.framework import FrameworkProfile
from planner.spec.model import Model
from planner.spec.workload import Workload

Goal = Literal["step-time", "memory", "cost", "tokens-per-s"]


class Pin(BaseModel):
    """The user's word on one plan field: only ``allowed`` values, or none of ``forbidden``.

    ``option`` is how the user said it (``--tp 8``) and appears in conflicts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    field: str
    allowed: tuple[int | str | bool, ...] | None = None
    minimum: int | None = None
    maximum: int | None = None
    forbidden: tuple[int | str | bool, ...] = ()
    option: str = ""

    def admits(self, value: int | str | bool) -> bool:
        """Whether the field may take this value."""
        if value in self.forbidden or (self.allowed is not None and value not in self.allowed):
            return False
        if self.minimum is not None and isinstance(value, int) and value < self.minimum:
            return False
        return not (self.maximum is not None and isinstance(value, int) and value > self.maximum)


class PlanRequest(BaseModel):
    """One question to the planner."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: Model
    cluster: Cluster
    workload: Workload
    framework: FrameworkProfile
    pins: tuple[Pin, ...] = ()
    goal: Goal = "step-time"
    max_bubble: float | None = Field(default=0.25, gt=0)
    """Bubble budget relative to the ideal time; None lifts it. The chapter's m >= 4(p-1)."""
    allow_tensor_parallel_across_nodes: bool = False
    allow_idle: bool = False
    """Fewer GPUs than the cluster has may be used."""
    max_step_time_s: float | None = None
    """Target: with it, the fewest GPUs that reach it are sought."""
    robust: bool = False
    prefer_simple: bool = True
    """Among plans within 1 %, fewer dimensions, no recompute, the commoner schedule."""
    assumptions: tuple[str, ...] = ()
    """What was filled in for the user, one sentence each, with the option that changes it."""
