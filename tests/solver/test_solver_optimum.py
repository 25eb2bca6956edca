"""The solver against brute force, the independent checker, and laws that any right answer obeys."""

from __future__ import annotations

import pytest
from checker import faults, price_faults
from reference import priced_plans
from small import hybrid_request, small_requests
from toys import tiny_dense, tiny_hybrid, tiny_moe, vary

from planner.solver import evaluate, solve
from planner.solver.scale import TIME_TOLERANCE_S
from planner.spec import Pin, PlanRequest


def agrees_with_brute_force(request: PlanRequest) -> bool:
    """Whether status, optimum, legality and price of the answer are brute force's; some plan exists."""
    known = priced_plans(request)
    answer = solve(request, top=3, workers=1)
    assert answer.status == ("optimal" if known else "infeasible")
    assert bool(answer.plans) == bool(known)
    for found in answer.plans:
        assert faults(found.plan, request) == []
        assert price_faults(found.plan, request, found.step_time_s, found.peak_memory_bytes) == []
        assert found.violations == ()
    if known:
        assert answer.plans[0].step_time_s == pytest.approx(known[0][0], abs=TIME_TOLERANCE_S, rel=0)
    return bool(known)


def test_the_optimum_equals_brute_force_on_40_random_requests() -> None:
    solvable = [agrees_with_brute_force(request) for _, request in small_requests(40)]
    assert 10 < sum(solvable) < 40, "the requests should mix solvable and infeasible ones"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_the_optimum_equals_brute_force_on_500_more(block: int) -> None:
    requests = small_requests(50, first_seed=10_000 * (block + 1))
    solvable = [agrees_with_brute_force(request) for _, request in requests]
    assert 5 < sum(solvable) < 50, "the requests should mix solvable and infeasible ones"


def test_the_optimum_equals_brute_force_on_random_patterns_of_layers() -> None:
    requests = small_requests(6, first_seed=13, make=hybrid_request)
    solvable = [agrees_with_brute_force(request) for _, request in requests]
    assert 2 < sum(solvable) < 6, "the requests should mix solvable and infeasible ones"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_the_optimum_equals_brute_force_on_200_more_patterns(block: int) -> None:
    requests = small_requests(50, first_seed=10_000 * (block + 1), make=hybrid_request)
    solvable = [agrees_with_brute_force(request) for _, request in requests]
    assert 5 < sum(solvable) < 50, "the requests should mix solvable and infeasible ones"


@pytest.mark.parametrize("make", [tiny_dense, tiny_moe, tiny_hybrid])
def test_every_plan_returned_is_sound_and_differs(make: object) -> None:
    request = make()  # type: ignore[operator]
    answer = solve(request, top=5)
    assert answer.status == "optimal"
    assert answer.gap_pct == 0.0
    assert len(answer.plans) == 5
    for found in answer.plans:
        assert faults(found.plan, request) == []
        assert evaluate(found.plan, request).step_time_s == found.step_time_s
    assert len({found.plan for found in answer.plans}) == 5


def test_one_and_two_workers_give_the_same_answer() -> None:
    request = tiny_moe()
    assert solve(request, workers=1).plans == solve(request, workers=2).plans


def test_more_memory_and_fewer_pins_never_slow_the_best_plan() -> None:
    request = tiny_dense().model_copy(update={"prefer_simple": False})
    free = solve(request, top=1).plans[0].step_time_s
    pin = Pin(field="tensor_parallel", allowed=(4,), option="--tp 4")
    pinned = solve(request.model_copy(update={"pins": (pin,)}), top=1).plans[0]
    assert pinned.plan.tensor_parallel == 4
    assert pinned.step_time_s >= free
    memory = request.cluster.accelerator.memory
    tight = memory.model_copy(update={"hbm_bytes": 3.02e9})
    accelerator = request.cluster.accelerator.model_copy(update={"memory": tight})
    less = vary(request, cluster={"accelerator": accelerator})
    answer = solve(less, top=1)
    assert not answer.plans or answer.plans[0].step_time_s >= free


def test_an_impossible_request_is_infeasible() -> None:
    pin = Pin(field="tensor_parallel", allowed=(3,), option="--tp 3")
    answer = solve(tiny_dense().model_copy(update={"pins": (pin,)}))
    assert answer.status == "infeasible"
    assert answer.plans == ()
    assert answer.gap_pct is None


def test_a_simple_plan_is_preferred_within_one_per_cent() -> None:
    request = tiny_dense()
    simple = solve(request, top=1).plans[0]
    fastest = solve(request.model_copy(update={"prefer_simple": False}), top=1).plans[0]
    assert fastest.step_time_s <= simple.step_time_s <= 1.01 * fastest.step_time_s + TIME_TOLERANCE_S


def test_no_time_returns_without_a_false_proof() -> None:
    answer = solve(tiny_moe(), time_limit_s=1e-9)
    assert answer.status in {"time-limit", "feasible"}
