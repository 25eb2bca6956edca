"""Layers over stages, schedules against ranks and micro-batches, recompute, the bubble budget."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.cost.schedule import bubble
from planner.cost.stage import V_SHAPED
from planner.rules.rule import Column, divides, implies, is_in, rule
from planner.rules.words import counted, stages_words
from planner.spec.plan import SCHEDULES, Plan
from planner.spec.request import PlanRequest

ONE_CHUNK = ("none", "gpipe", "1f1b", "zb-h1", "zb-h2", "dualpipe")
"""Schedules with one chunk a rank (of each model copy, for DualPipe)."""
NEEDS_STAGES_IN_FLIGHT = ("gpipe", "1f1b", "zb-h1", "zb-h2")


def bubble_fraction(
    schedule: Column, pipeline_parallel: Column, virtual_stages: Column, num_microbatches: Column
) -> Column:
    """Idle time of a pipeline relative to its ideal time, for equal stages whose F, D and W are equal. [1].

    Notes
    -----
    (p - 1)/m for GPipe and 1F1B, (p - 1)/(m v) interleaved; the other schedules as ``cost.schedule.bubble``.
    """
    m: Column = np.asarray(num_microbatches)
    fraction: Column = 0.0
    for name in SCHEDULES:
        if not np.any(schedule == name):
            continue
        idle = bubble(name, 1.0, 1.0, 1.0, pipeline_parallel, virtual_stages, m)
        fraction = np.where(schedule == name, idle / (3.0 * m), fraction)
    return fraction


@rule(source="framework limit: the schedules that it implements")
def framework_has_the_schedule(request: PlanRequest, schedule: Column) -> Column:
    """{request.framework.name} has no schedule {schedule}."""
    return is_in(schedule, ("none", *request.framework.limits.schedules))


def _ranks(plan: Plan, _request: PlanRequest) -> dict[str, Any]:
    return {"ranks": counted(plan.pipeline_parallel, "pipeline rank")}


@rule(
    source="definition of a pipeline: a schedule exactly when there is more than one rank",
    numbers=_ranks,
)
def pipelines_and_only_pipelines_have_a_schedule(
    request: PlanRequest, schedule: Column, pipeline_parallel: Column
) -> Column:
    """{ranks} and schedule {schedule} do not go together: one rank takes 'none', more take a pipeline
    schedule.
    """
    return (schedule == "none") == (np.asarray(pipeline_parallel) == 1)


@rule(
    source="Megatron-LM parallel_state.py (virtual stages need pp > 1); PyTorch schedules.py (ZBV: 2 stages)"
)
def chunks_suit_the_schedule(request: PlanRequest, virtual_stages: Column, schedule: Column) -> Column:
    """Schedule {schedule} does not run {virtual_stages} chunks a rank (interleaved takes 2 or more,
    V-shaped schedules 2, the others 1).
    """
    v = np.asarray(virtual_stages)
    suits = implies(is_in(schedule, ONE_CHUNK), v == 1)
    suits = np.logical_and(suits, implies(schedule == "interleaved", v >= 2))
    return np.logical_and(suits, implies(is_in(schedule, tuple(sorted(V_SHAPED))), v == 2))


def _stages(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    name, uneven = request.framework.name, request.framework.limits.uneven_stages
    p, v = plan.pipeline_parallel, plan.virtual_stages
    ends = " (with embedding and loss at the ends)" if uneven == "any" and v > 1 else ""
    limit = "has only equal stages"
    if uneven == "ends":
        limit = f"needs layers to divide by the {v} chunks of a rank"
    return {"stages": stages_words(p, v), "with_ends": ends, "framework_limit": f"{name} {limit}"}


@rule(
    source="every stage holds a layer, but for the first and last, which hold the embedding and the loss",
    numbers=_stages,
)
def every_stage_holds_something(
    request: PlanRequest, pipeline_parallel: Column, virtual_stages: Column
) -> Column:
    """{request.model.num_layers} layers{with_ends} are too few for {stages}."""
    p, stages = np.asarray(pipeline_parallel), np.asarray(pipeline_parallel) * virtual_stages
    uneven = request.framework.limits.uneven_stages == "any"
    ends = np.where(np.logical_and(uneven, np.asarray(virtual_stages) > 1), 2, 0)
    return np.logical_and(p <= request.model.num_layers, stages <= request.model.num_layers + ends)


@rule(
    source="Megatron-LM arguments.py and transformer_config.py: layers % (p v), first/last counts % v",
    numbers=_stages,
)
def layers_divide_over_stages(
    request: PlanRequest, pipeline_parallel: Column, virtual_stages: Column
) -> Column:
    """{request.model.num_layers} layers do not split over {stages}: {framework_limit}."""
    layers, uneven = request.model.num_layers, request.framework.limits.uneven_stages
    if uneven == "even":
        return divides(np.asarray(pipeline_parallel) * virtual_stages, layers)
    if uneven == "ends":
        return divides(virtual_stages, np.where(np.asarray(pipeline_parallel) > 0, layers, 0))
    return np.ones(np.broadcast(pipeline_parallel, virtual_stages).shape, dtype=bool)


@rule(source="DualPipe: ranks in pairs, DeepSeek DualPipe repository", field="pipeline_parallel")
def dualpipe_ranks_are_even(request: PlanRequest, schedule: Column, pipeline_parallel: Column) -> Column:
    """DualPipe feeds the pipeline from both ends and needs an even number of ranks, not
    {pipeline_parallel}.
    """
    return implies(schedule == "dualpipe", divides(2, pipeline_parallel))


@rule(source="DeepSeek DualPipe repository: chunks >= 2 ranks, even for DualPipe", field="num_microbatches")
def dualpipe_has_enough_microbatches(
    request: PlanRequest, schedule: Column, num_microbatches: Column, pipeline_parallel: Column
) -> Column:
    """{schedule} over {pipeline_parallel} ranks needs twice as many micro-batches or more (DualPipe: an
    even number), not {num_microbatches}.
    """
    m = np.asarray(num_microbatches)
    enough = m >= 2 * np.asarray(pipeline_parallel)
    even = implies(schedule == "dualpipe", divides(2, m))
    return implies(is_in(schedule, ("dualpipe", "dualpipe-v")), np.logical_and(enough, even))


@rule(source="Megatron-LM schedules.py (m % p, m >= p); PyTorch schedules.py (m % rounds)")
def microbatches_fill_interleaved_rounds(
    request: PlanRequest, num_microbatches: Column, schedule: Column, pipeline_parallel: Column
) -> Column:
    """The interleaved schedule over {pipeline_parallel} ranks runs micro-batches in full rounds, and
    {num_microbatches} are not a whole number of them.
    """
    m, p = np.asarray(num_microbatches), np.asarray(pipeline_parallel)
    if request.framework.limits.interleaved_multiple_of_stages:
        fits = divides(p, m)
    else:
        fits = divides(np.maximum(m // p, 1), m)
    return implies(schedule == "interleaved", fits)


def _least_microbatches(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    limits, p = request.framework.limits, plan.pipeline_parallel
    if limits.microbatches_multiple_of_stages:
        return {"wanted": f"a multiple of {p}"}
    return {"wanted": f"{p if limits.microbatches_at_least_stages else p - 1} or more"}


@rule(
    source="PyTorch schedules.py: m >= stages for 1F1B and GPipe; nanotron: m >= p - 1; MaxText: m % p",
    numbers=_least_microbatches,
)
def microbatches_cover_the_pipeline(
    request: PlanRequest, num_microbatches: Column, schedule: Column, pipeline_parallel: Column
) -> Column:
    """{num_microbatches} micro-batches do not cover {pipeline_parallel} pipeline ranks: {schedule} needs
    {wanted} in {request.framework.name}.
    """
    limits, m, p = request.framework.limits, np.asarray(num_microbatches), np.asarray(pipeline_parallel)
    simple = is_in(schedule, NEEDS_STAGES_IN_FLIGHT)
    fits = implies(np.logical_and(simple, limits.microbatches_at_least_stages), m >= p)
    fits = np.logical_and(
        fits, implies(np.logical_and(simple, limits.microbatches_at_least_stages_less_one), m >= p - 1)
    )
    return np.logical_and(fits, implies(limits.microbatches_multiple_of_stages, divides(p, m)))


def _bubble(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    bubble = float(
        bubble_fraction(plan.schedule, plan.pipeline_parallel, plan.virtual_stages, plan.num_microbatches)
    )
    budget = float("inf") if request.max_bubble is None else request.max_bubble
    return {
        "bubble": f"{100 * bubble:.1f}",
        "budget": f"{100 * budget:g}",
        "micro_batches": counted(plan.num_microbatches, "micro-batch", "es"),
        "path": stages_words(plan.pipeline_parallel, plan.virtual_stages),
        "leave": "leaves" if plan.num_microbatches == 1 else "leave",
    }


@rule(source="chapter 12.2.2: m >= 4 (p - 1) keeps the bubble below 25 %", numbers=_bubble)
def bubble_stays_within_budget(
    request: PlanRequest,
    num_microbatches: Column,
    schedule: Column,
    pipeline_parallel: Column,
    virtual_stages: Column,
) -> Column:
    """{micro_batches} through {path} ({schedule}) {leave} a bubble of {bubble} % of the ideal time; the
    budget is {budget} % (--max-bubble).
    """
    bubble = bubble_fraction(schedule, pipeline_parallel, virtual_stages, num_microbatches)
    return bubble <= (np.inf if request.max_bubble is None else request.max_bubble + 1e-12)


@rule(source="framework limit: the kinds of recomputation that it implements")
def framework_has_the_recompute(request: PlanRequest, recompute: Column) -> Column:
    """{request.framework.name} has no recompute '{recompute}'."""
    return is_in(recompute, ("none", *request.framework.limits.recompute))


SCHEDULE_RULES = (
    framework_has_the_schedule,
    pipelines_and_only_pipelines_have_a_schedule,
    chunks_suit_the_schedule,
    every_stage_holds_something,
    layers_divide_over_stages,
    dualpipe_ranks_are_even,
    dualpipe_has_enough_microbatches,
    microbatches_fill_interleaved_rounds,
    microbatches_cover_the_pipeline,
    bubble_stays_within_budget,
    framework_has_the_recompute,
)
