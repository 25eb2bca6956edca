"""A candidate of the search, from its first bound to its plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from planner.solver.preference import NEVER
from planner.solver.scan import Candidates
from planner.solver.space import FIELDS
from planner.spec.plan import Plan

FAMILY = (
    "tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel", "recompute", "precision",
)  # fmt: skip
"""Two plans with the same values here are variants of one plan; the answer shows the best variant."""
SHARED = tuple(name for name in FIELDS if name not in ("zero_stage", "shard_group_size", "offload"))
"""Fields that the layers' work depends on."""


@dataclass
class Entry:
    """One candidate: a bound until it is priced, then its objective and plan (None: no legal layout)."""

    source: Candidates
    index: int
    bound_us: int
    family: tuple[object, ...]
    score: int
    """Of the simplest of its layouts."""
    least_us: int
    """Lower bound of the layout that stands for it (``best_layout``)."""
    alike: int
    """Key of the fields that candidates with the same layouts and chains share."""
    values: dict[str, Any] = field(default_factory=dict)
    priced: bool = False
    objective_us: int = NEVER
    plan: Plan | None = None
    exhaustive: bool = True
    """Whether every layout was looked at, or bounded; otherwise ``bound_us`` is what is known of the rest."""
