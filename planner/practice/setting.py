"""The world of plan questions: a model on H100s under a plain framework, few enough plans to prove fast."""

from __future__ import annotations

from functools import lru_cache

from planner.catalog import load_cluster, load_model
from planner.spec import FrameworkProfile, Limits, Pin, PlanRequest, Workload

SPACE = (
    "t, p, d, ZeRO 0, 1 or 3 (3 only without a pipeline), micro-batch b, 1F1B with equal stages, recompute "
    "none "
    "or full, sequence parallelism; bf16, fp32 gradients, Adam; no context parallelism"
)
"""What a plan may choose, in words."""

TEXTBOOK = FrameworkProfile(
    name="textbook",
    limits=Limits(
        schedules=("none", "1f1b"),
        zero_stages=(0, 1, 3),
        zero_stages_with_pipeline=(0, 1),
        uneven_stages="even",
        recompute=("none", "full"),
        partial_recompute=False,
        offloads=("none",),
    ),
)
"""Limits that a candidate can hold in the head; memory and time habits are the defaults."""


@lru_cache(maxsize=64)
def plan_request(model: str, gpus: int, global_batch: int, seq_length: int) -> PlanRequest:
    """Return a planning request on H100s within ``SPACE``."""
    return PlanRequest(
        model=load_model(model),
        cluster=load_cluster("h100-sxm-80gb", gpus),
        workload=Workload(global_batch=global_batch, seq_length=seq_length),
        framework=TEXTBOOK,
        pins=(Pin(field="context_parallel", allowed=(1,), option="no context parallelism"),),
    )
