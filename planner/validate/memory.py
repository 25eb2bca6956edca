"""Which predicted memory figure a measured one is compared with, and in which unit the row states it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.cost.terms import Memory
from planner.spec.framework import MemoryHabits
from planner.units import GB, GIB

GIB_SOURCES = ("simumax", "nanotron", "h200_202506")
"""Sources whose ``peak_memory_gb`` was printed by torch in GiB and copied as it stands."""


def measured_memory_bytes(row: Mapping[str, Any]) -> float | None:
    """Return the row's measured peak memory, None where it states none. [byte]."""
    stated = (row.get("measured") or {}).get("peak_memory_gb")
    return None if stated is None else float(stated) * stated_unit_bytes(row)


def stated_unit_bytes(row: Mapping[str, Any]) -> float:
    """Return what the row's source calls a GB: 2^30 where torch's figures were copied, else 1e9. [byte]."""
    source = f"{row.get('source', '')} {row.get('framework', '')}".lower()
    return GIB if any(name in source for name in GIB_SOURCES) else GB


def compared_memory(stages: Sequence[Memory], row: Mapping[str, Any], habits: MemoryHabits) -> float:
    """Return the predicted figure of the kind and the rank that the row's figure has. [byte].

    ``memory_kind`` of the row decides between allocated, reserved and device memory; unknown means what the
    framework's log prints. The rank is the fullest one, or the first where the log comes from rank 0.
    """
    kind = (row.get("measured") or {}).get("memory_kind")
    if kind not in ("allocated", "reserved", "device"):
        kind = habits.reported
    figures = [
        float({"allocated": one.allocated_bytes, "reserved": one.reserved_bytes, "device": one.total}[kind])
        for one in stages
    ]
    return figures[0] if habits.reported_rank == "first" else max(figures)
