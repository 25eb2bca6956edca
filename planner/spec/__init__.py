"""What is said: frozen, validated descriptions. No computation beyond derived sizes."""

from planner.spec.cluster import Accelerator, Cluster, CollectiveCurve, GemmCurve, Link
from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits
from planner.spec.model import LayerKind, Model
from planner.spec.plan import Plan, StagePlan
from planner.spec.request import Pin, PlanRequest
from planner.spec.workload import Workload

__all__ = [
    "Accelerator", "Cluster", "CollectiveCurve", "FrameworkProfile", "GemmCurve", "LayerKind", "Limits",
    "Link", "MemoryHabits", "Model", "Pin", "Plan", "PlanRequest", "StagePlan", "TimeHabits", "Workload",
]  # fmt: skip
