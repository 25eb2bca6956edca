"""Families of measured rows: each is judged by its own figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.validate.compare import RowResult
    from planner.validate.measured import Case, Row

SIXTEEN_BIT = frozenset({"bf16", "fp16"})
"""Formats without scaled products."""


@dataclass(frozen=True)
class FamilyRow:
    """A row with what was read from it and predicted for it."""

    row: Row
    case: Case | None
    result: RowResult

    def word(self, table: str, key: str) -> Any:
        """Value of one key of the row's tables, None where it is not stated."""
        value = self.row.get(table)
        return value.get(key) if isinstance(value, dict) else None


def _tier_a(row: FamilyRow) -> bool:
    return bool(row.row.get("tier", "A") == "A")


def _in_sweep(row: FamilyRow) -> bool:
    return bool(row.row.get("group"))


def _hybrids(row: FamilyRow) -> bool:
    return row.case is not None and row.case.request.model.is_hybrid


def _pretraining(row: FamilyRow) -> bool:
    """Without layers of linear mixers, which have a band of their own."""
    return row.case is not None and not row.case.request.workload.frozen_weights and not _hybrids(row)


def _dense_sixteen_bit(row: FamilyRow) -> bool:
    if row.case is None or _in_sweep(row) or not _tier_a(row) or not _pretraining(row):
        return False
    hardware = row.case.request.cluster.accelerator.name
    is_dense = not row.case.request.model.is_moe and row.case.plan.precision == "bf16"
    return is_dense and hardware.startswith(("a100", "h100"))


def _dense_without_sweep_source(row: FamilyRow) -> bool:
    """Without the runs of the sweep's own cluster, where many points are failures of a run."""
    return _dense_sixteen_bit(row) and row.row.get("framework") != "nanotron"


def _tier_a_pretraining(row: FamilyRow) -> bool:
    return _tier_a(row) and not _in_sweep(row) and _pretraining(row)


def _low_precision(row: FamilyRow) -> bool:
    return _tier_a_pretraining(row) and row.case is not None and row.case.plan.precision not in SIXTEEN_BIT


def _experts(row: FamilyRow) -> bool:
    return _tier_a_pretraining(row) and row.case is not None and row.case.request.model.is_moe


def _adapters(row: FamilyRow) -> bool:
    return row.case is not None and row.case.request.workload.frozen_weights


def _sequence_parallel_paper(row: FamilyRow) -> bool:
    return "2205.05198" in str(row.row.get("source", ""))


FAMILIES: dict[str, Callable[[FamilyRow], bool]] = {
    "all": lambda row: not _in_sweep(row),
    "dense bf16 on A100 and H100": _dense_sixteen_bit,
    "dense bf16 on A100 and H100, sweep rows left out": _dense_without_sweep_source,
    "tier A pre-training": _tier_a_pretraining,
    "low precision": _low_precision,
    "mixture of experts": _experts,
    "state space or linear attention": _hybrids,
    "adapters (LoRA)": _adapters,
    "sequence-parallel paper": _sequence_parallel_paper,
    "sweep": _in_sweep,
}
"""Name of a family and the rows that belong to it; a row may belong to several."""
