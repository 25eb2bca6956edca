"""Where the range of a degree ends: the largest value that a rule over it alone, or the problem, leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost.words import setting_words
from planner.explain.neighbours import candidates
from planner.explain.sentences import lower_first
from planner.explain.sides import Side
from planner.rules import TABULAR_RULES, mask
from planner.spec import Plan, PlanRequest

DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
"""Degrees of which people ask how far they go."""


def end_words(plan: Plan, field: str, sides: Sequence[Side], request: PlanRequest) -> list[str]:
    """Say where a degree ends, unless the alternatives of it say so already; at most one clause.

    Parameters
    ----------
    sides
        The alternatives that are told.
    """
    if field == "micro_batch":
        return _whole_share(plan, sides)
    if field not in DEGREES:
        return []
    values = np.asarray(candidates(plan, field, request))
    alone = [rule for rule in TABULAR_RULES if rule.scope == (field,)]
    allowed = mask(alone, request, {field: values}) & (values <= _whole(field, request))
    here = int(getattr(plan, field))
    most = max(here, *values[allowed].tolist())
    beyond = next((value for value in values.tolist() if value > most), None)
    told = max((side.value for side in sides), default=here)
    if told > most:
        return []
    name = setting_words(field, most)
    if beyond is None:
        return [f"{name} is {_all_words(field, request)}"] if most == here > 1 else []
    changed = plan.model_copy(update={field: beyond})
    broken = next((rule for rule in alone if not rule.admits(changed, request)), None)
    if broken is None:
        return [f"{name} is the most: the model has {request.model.num_layers} layers"]
    return [f"{name} is the most: {lower_first(broken.broken_sentence(changed, request))}"]


def _whole_share(plan: Plan, sides: Sequence[Side]) -> list[str]:
    """That a micro-batch is all that a replica trains."""
    if (
        plan.micro_batch == 1
        or plan.num_microbatches > 1
        or any(side.value > plan.micro_batch for side in sides)
    ):
        return []
    return [f"b={plan.micro_batch} is the most: a replica trains no more sequences"]


def _whole(field: str, request: PlanRequest) -> int:
    """The largest value that the model leaves room for."""
    whole = {"pipeline_parallel": request.model.num_layers, "expert_parallel": request.model.num_experts}
    return whole.get(field, request.cluster.num_gpus)


def _all_words(field: str, request: PlanRequest) -> str:
    if field == "expert_parallel":
        return f"the most: the model has {request.model.num_experts} experts"
    return f"the most: there are {request.cluster.num_gpus} GPUs"
