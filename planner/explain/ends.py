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
        return [f"{name} is {_all_words(field, request)}"] if most > 1 and told <= most == here else []
    changed = plan.model_copy(update={field: beyond})
    broken = next((rule for rule in alone if not rule.admits(changed, request)), None)
    if broken is None:
        return [f"{name} is the most: the model has {request.model.num_layers} layers"]
    return [f"{name} is the most: {lower_first(broken.broken_sentence(changed, request))}"]


def _whole(field: str, request: PlanRequest) -> int:
    """The largest value that the model leaves room for."""
    whole = {"pipeline_parallel": request.model.num_layers, "expert_parallel": request.model.num_experts}
    return whole.get(field, request.cluster.num_gpus)


def _all_words(field: str, request: PlanRequest) -> str:
    if field == "expert_parallel":
        return f"the most: the model has {request.model.num_experts} experts"
    return f"the most: there are {request.cluster.num_gpus} GPUs"
