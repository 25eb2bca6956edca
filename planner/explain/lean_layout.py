"""Layers over pipeline ranks so that the fullest rank needs little: the layout of plans that hardly fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from planner.cost.orders import BIDIRECTIONAL
from planner.cost.setting import Settings
from planner.cost.stage import with_stages
from planner.explain.changes import with_hbm_bytes
from planner.solver.capacity import most_layers, rank_memory
from planner.spec import Plan, PlanRequest
from planner.spec.plan import StagePlan

BISECTIONS = 12
"""The least memory is the end of an interval halved this often: 1 part in 4000 of the even layout's."""
DOUBLINGS = 8
"""From the usable memory up, until the layers fit."""


def lean_layouts(plan: Plan, request: PlanRequest) -> list[Plan]:
    """The plan with even stages, and with its layers where there is most room, if the framework can do that.

    Ranks differ in room because the first keep more micro-batches in flight and the ends hold embedding and
    head. Every layer is recomputed where any is.
    """
    even = with_stages(plan, request.model)
    many = plan.pipeline_parallel > 1 and plan.virtual_stages == 1
    if not many or plan.schedule in BIDIRECTIONAL or request.framework.limits.uneven_stages != "any":
        return [even]
    counts = _spread(plan, request)
    if counts is None or counts == [stage.layers for stage in even.stages]:
        return [even]
    stages = tuple(
        StagePlan(chunk_layers=(count,), recompute_layers=count if plan.recompute != "none" else 0)
        for count in counts
    )
    return [even, plan.model_copy(update={"stages": stages})]


def _spread(plan: Plan, request: PlanRequest) -> list[int] | None:
    """Layers of every rank under about the least memory that holds them all, or None where none does."""
    setting = _as_settings(plan)
    memory, layers = rank_memory(setting, request), request.model.num_layers

    def room(usable_bytes: float) -> npt.NDArray[np.float64]:
        hbm_bytes = usable_bytes + request.cluster.reserved_hbm_bytes
        return most_layers(setting, with_hbm_bytes(request, hbm_bytes), memory)[:, 0]

    def holds(usable_bytes: float) -> bool:
        counts = room(usable_bytes)
        return bool(np.all(counts >= 1) and np.sum(counts) >= layers)

    high = request.cluster.usable_hbm_bytes
    for _ in range(DOUBLINGS):
        if holds(high):
            break
        high *= 2
    else:
        return None
    low = 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return _filled(room(high), layers)


def _filled(room: npt.NDArray[np.float64], layers: int) -> list[int]:
    """Counts within the room that add up to the layers: what is too much leaves the ranks with most."""
    counts = np.minimum(room, layers).astype(int)
    while counts.sum() > layers:
        counts[np.argmax(counts)] -= 1
    return [int(count) for count in counts]


def _as_settings(plan: Plan) -> Settings:
    """The plan's setting as arrays of one."""
    fields: dict[str, Any] = {name: getattr(plan, name) for name in Settings.__dataclass_fields__}
    counts = {
        name: np.array([value])
        for name, value in fields.items()
        if isinstance(value, int) and name != "zero_stage"
    }
    return Settings(**(fields | counts))
