"""What makes one plan better than another beside its step time: the goal's weight, and simplicity."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from planner.solver.space import FIELDS, Rows
from planner.solver.tables import Floats
from planner.spec.plan import DEFAULT_ORDER, SCHEDULES, Plan
from planner.spec.request import PlanRequest

NEVER = 2**50
"""Objective of a setting without a legal layout. [us]"""
WEIGHTED_GOALS = ("cost", "tokens-per-s")


def goal_weight(rows: Rows, request: PlanRequest) -> Floats:
    """What the step time of each row is multiplied by under the request's goal. [1].

    Time per token relative to the smallest batch for ``tokens-per-s``; times the share of GPUs used for
    ``cost`` (a GPU-hour has one price). Steady work, B t c / (N b), bounds all of them alike.
    """
    if request.goal not in WEIGHTED_GOALS:
        return np.ones(len(rows))
    batch = np.prod(
        [rows.values(name) for name in ("data_parallel", "micro_batch", "num_microbatches")], axis=0
    )
    weight = request.workload.global_batch / batch
    if request.goal == "cost":
        degrees = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
        weight = weight * np.prod([rows.values(name) for name in degrees], axis=0) / request.cluster.num_gpus
    return np.asarray(weight, dtype=np.float64)


SCHEDULE_RANK = {"none": 0, "1f1b": 0, "gpipe": 1, "interleaved": 1, "zb-h1": 2, "zb-h2": 3, "zb-v": 3}
"""How common a schedule is; those not named come last."""


def simplicity(plan: Plan | None) -> int:
    """Order of plans that are equally fast: fewer dimensions, then no recompute, then the commoner schedule.

    Then, in this order: fewer chunks a rank (by doublings), no offload, the default rank order, one sharding
    group, low ZeRO stage, equal stages.
    """
    if plan is None:
        return NEVER
    fields = {field: np.asarray(getattr(plan, field)) for field in FIELDS}
    return int(_score(fields)) + int(len({stage.layers for stage in plan.stages}) > 1)


def least_simplicity(rows: Rows) -> npt.NDArray[np.int64]:
    """``simplicity`` of the settings with equal stages: no layout of them is simpler."""
    return _score({field: rows.values(field) for field in FIELDS})


def _score(fields: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """Digits of base 8, the first weighs most; the last is left for the stages."""
    degrees = ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel")
    replicas = fields["data_parallel"] * fields["context_parallel"]
    recompute, schedule = fields["recompute"], fields["schedule"]
    ranks = [(SCHEDULE_RANK.get(name, 4), name) for name in SCHEDULES]
    digits = (
        sum(np.asarray(fields[degree] > 1, dtype=np.int64) for degree in degrees),
        (recompute == "selective") * 1 + (recompute == "full") * 2,
        sum((schedule == name) * rank for rank, name in ranks),
        np.floor(np.log2(fields["virtual_stages"])).astype(np.int64),
        fields["offload"] != "none",
        fields["rank_order"] != DEFAULT_ORDER,
        (fields["zero_stage"] > 0) & (fields["shard_group_size"] < replicas),
        np.maximum(fields["zero_stage"] - 1, 0),
    )
    score: npt.NDArray[np.int64] = np.zeros(np.shape(replicas), dtype=np.int64)
    for digit in digits:
        score = score * 8 + digit
    return score * 8
