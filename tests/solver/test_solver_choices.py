"""A superset of choices never slows the best plan: schedules, memory, lifted pins, idle GPUs, bubbles."""

from __future__ import annotations

from typing import Any

import pytest
from small import SCHEDULES, small_requests
from toys import vary

from planner.solver import solve
from planner.solver.scale import TIME_TOLERANCE_S
from planner.spec import Pin, PlanRequest

REQUESTS = 12


def best_s(request: PlanRequest) -> float:
    """Step time of the proven best plan, infinite where there is none. [s]."""
    answer = solve(request, top=1, workers=1)
    assert answer.status in {"optimal", "infeasible"}
    return answer.plans[0].step_time_s if answer.plans else float("inf")


def never_slower(pairs: list[tuple[PlanRequest, PlanRequest]]) -> tuple[int, int]:
    """How many of the pairs (fewer, more choices) have a plan, and how many are faster with more."""
    solved = faster = 0
    for fewer, more in pairs:
        less_s, more_s = best_s(fewer), best_s(more)
        assert more_s <= less_s + TIME_TOLERANCE_S, (fewer, more)
        solved += more_s < float("inf")
        faster += more_s < less_s
    return solved, faster


def with_limits(request: PlanRequest, **limits: Any) -> PlanRequest:
    return vary(request, limits=limits)


@pytest.mark.parametrize("first", [100, pytest.param(5000, marks=pytest.mark.slow)])
def test_more_choices_of_the_framework_never_slow_the_best_plan(first: int) -> None:
    requests = [request for _, request in small_requests(REQUESTS, first)]
    more: list[dict[str, Any]] = [
        {"schedules": ("none", *SCHEDULES)},
        {"zero_stages": (0, 1, 2, 3), "hybrid_sharding": True},
        {"uneven_stages": "any", "recompute": ("none", "full"), "partial_recompute": True},
        {"context_parallel_kinds": ("ring", "all_gather", "all_to_all"), "offloads": ("none", "optimizer")},
    ]
    pairs = [(one, with_limits(one, **more[index % len(more)])) for index, one in enumerate(requests)]
    solved, faster = never_slower(pairs)
    assert solved >= REQUESTS // 2 and faster > 0, "the pairs show nothing"


@pytest.mark.parametrize("first", [200, pytest.param(6000, marks=pytest.mark.slow)])
def test_a_lifted_pin_never_slows_the_best_plan(first: int) -> None:
    pins = (
        Pin(field="tensor_parallel", allowed=(1,), option="--tp 1"),
        Pin(field="pipeline_parallel", minimum=2, option="--pp 2:"),
        Pin(field="recompute", allowed=("full",), option="--recompute full"),
        Pin(field="zero_stage", forbidden=(0,), option="--zero !0"),
    )
    requests = [request for _, request in small_requests(REQUESTS, first)]
    pairs = [
        (one.model_copy(update={"pins": (pins[index % len(pins)],)}), one)
        for index, one in enumerate(requests)
    ]
    solved, faster = never_slower(pairs)
    assert solved >= REQUESTS // 2 and faster > 0, "the pins bind nowhere"


@pytest.mark.parametrize("first", [300, pytest.param(7000, marks=pytest.mark.slow)])
def test_more_memory_or_bubble_or_idle_gpus_never_slow_the_best_plan(first: int) -> None:
    requests = [request for _, request in small_requests(REQUESTS, first)]
    pairs = [
        (one, (with_more_memory(one), looser(one), idle(one))[index % 3])
        for index, one in enumerate(requests)
    ]
    solved, _ = never_slower(pairs)
    assert solved >= REQUESTS // 2


def with_more_memory(request: PlanRequest) -> PlanRequest:
    memory = request.cluster.accelerator.memory
    larger = memory.model_copy(update={"hbm_bytes": 2 * memory.hbm_bytes})
    accelerator = request.cluster.accelerator.model_copy(update={"memory": larger})
    return request.model_copy(
        update={"cluster": request.cluster.model_copy(update={"accelerator": accelerator})}
    )


def looser(request: PlanRequest) -> PlanRequest:
    return request.model_copy(update={"max_bubble": None})


def idle(request: PlanRequest) -> PlanRequest:
    return request.model_copy(update={"allow_idle": True})
