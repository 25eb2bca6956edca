"""The rank map that accompanies every launch: which global rank is which coordinate, as CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, fields

from planner.spec.plan import Plan
from planner.spec.ranks import Coordinate, coordinates


def rank_map_csv(plan: Plan, gpus_per_node: int) -> str:
    """Return the rank map as CSV, one row a global rank."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(field.name for field in fields(Coordinate))
    writer.writerows(astuple(coordinate) for coordinate in coordinates(plan, gpus_per_node))
    return buffer.getvalue()
