"""Up to which step time a setting still matters: overall, and for variants of plans already in hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.solver.space import Rows
from planner.solver.tables import Floats

FAMILY = (
    "tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel", "recompute", "precision",
)  # fmt: skip
"""Two plans with the same values here are variants of one plan; the answer shows the best variant."""

Family = tuple[object, ...]
"""Values of these fields."""


@dataclass(frozen=True)
class Limits:
    """Step times above which no plan can be shown. [s]."""

    overall_s: float = np.inf
    families_s: Mapping[Family, float] = field(default_factory=dict)
    """Of families with a plan, where it is less."""

    def of(self, rows: Rows) -> Floats:
        """The limit of every row; rows that do not say their family yet have the overall one. [s]."""
        limits = np.full(len(rows), self.overall_s)
        if not self.families_s or not set(FAMILY) <= set(rows.codes):
            return limits
        _, first, inverse = np.unique(rows.key(FAMILY), return_index=True, return_inverse=True)
        columns = [rows.take(first).values(name).tolist() for name in FAMILY]
        own = [self.families_s.get(family, np.inf) for family in zip(*columns, strict=True)]
        return np.asarray(np.minimum(limits, np.array(own, dtype=np.float64)[inverse]))
