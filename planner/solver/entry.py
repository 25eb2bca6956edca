"""A candidate of the search, from its first bound to its plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from planner.cost.offload import IN_LAYERS
from planner.solver.alike import Close
from planner.solver.preference import NEVER
from planner.solver.scan import Candidates
from planner.solver.space import FIELDS
from planner.spec.plan import Plan

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
    sifted_us: int = 0
    """Objective up to which its layouts were bounded, together with those of candidates alike."""
    close: Close | None = None
    """Of these, the layouts that may be below it."""
    priced: bool = False
    objective_us: int = NEVER
    plan: Plan | None = None
    exhaustive: bool = True
    """Whether every layout was looked at, or bounded; otherwise ``bound_us`` is what is known of the rest."""

    @property
    def fields(self) -> dict[str, Any]:
        """Value of every field."""
        return {name: self.source.rows.value(name, self.index) for name in FIELDS}

    @property
    def work_key(self) -> tuple[int, ...]:
        """Key of the settings whose stages work alike.

        ZeRO-2 and 3 add to a layer's work by their groups, offload inside layers by its copies.
        """
        rows, at = self.source.rows, self.index
        group = tuple(int(rows.codes[name][at]) for name in SHARED)
        copied = rows.value("offload", at)
        group = (*group, sorted(IN_LAYERS).index(copied) if copied in IN_LAYERS else -1)
        stage = rows.value("zero_stage", at)
        return (*group, stage, int(rows.codes["shard_group_size"][at])) if stage >= 2 else group
