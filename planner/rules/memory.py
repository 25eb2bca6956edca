"""Memory: the fullest pipeline rank fits into HBM. Priced by ``planner.cost.memory``."""

from __future__ import annotations

from typing import Any

from planner.cost.memory import memory
from planner.rules.rule import rule
from planner.rules.stages import STAGE_RULES
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest
from planner.units import format_bytes


def has_priceable_stages(plan: Plan, request: PlanRequest) -> bool:
    """Whether the stages' shape allows a price at all."""
    shape = STAGE_RULES[:2]
    return all(statement.admits(plan, request) for statement in shape)


def _fullest(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    stages = memory(plan, request)
    rank = max(range(len(stages)), key=lambda index: float(stages[index].total))
    needed, usable = float(stages[rank].total), request.cluster.usable_hbm_bytes
    terms = sorted(stages[rank].as_dict().items(), key=lambda term: -term[1])
    largest = ", ".join(
        f"{name.removesuffix('_bytes').replace('_', ' ')} {format_bytes(value)}"
        for name, value in terms[:4]
        if value
    )
    return {
        "rank": rank,
        "needed": format_bytes(needed),
        "usable": format_bytes(usable),
        "missing": format_bytes(needed - usable),
        "largest": largest,
    }


@rule(source="HBM of the accelerator; cost/memory.py", field="micro_batch", numbers=_fullest)
def every_stage_fits_in_memory(request: PlanRequest, plan: Plan) -> bool:
    """Pipeline rank {rank} needs {needed} and the GPU has {usable}: {missing} are missing ({largest})."""
    if not has_priceable_stages(plan, request):
        return True
    return max(float(stage.total) for stage in memory(plan, request)) <= request.cluster.usable_hbm_bytes


MEMORY_RULES = (every_stage_fits_in_memory,)
