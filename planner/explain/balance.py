"""A plan with the layers spread over its pipeline as the solver would spread them."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.solver.price import SettingPrice
from planner.solver.space import FIELDS, Rows
from planner.solver.stages import best_layout
from planner.solver.tables import work_times
from planner.spec import Plan, PlanRequest

NEVER_US = 2**62
"""A price that every layout is below."""


def balanced(plan: Plan, request: PlanRequest) -> Plan | None:
    """The same setting with its best layout: layers by stage, and the least recompute; None if none fits.

    A setting with recompute of which no layer needs it has none either: what fits without is another setting.
    """
    values: dict[str, Any] = {field: getattr(plan, field) for field in FIELDS}
    rows = Rows(
        {field: np.array([value]) for field, value in values.items()},
        {field: np.zeros(1, dtype=np.int64) for field in FIELDS},
    )
    price = SettingPrice(values, work_times(rows, request), 0, request)
    found = best_layout(price, NEVER_US)
    return None if found is None else price.plan(found[1])
