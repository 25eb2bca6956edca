"""What is sifted out before it is priced or searched was never the answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from toys import tiny_dense as dense
from toys import tiny_moe

from planner.explain import leanest as module
from planner.explain.answer import find
from planner.explain.changes import with_hbm_bytes
from planner.explain.lean_space import LeanSpace
from planner.explain.leanest import LEAN_ENOUGH, any_plan, leanest, narrowed
from planner.solver import solve
from planner.spec import PlanRequest

TOYS = pytest.mark.parametrize("toy", [dense, tiny_moe])
"""Requests that hold many settings."""


def fastest(request: PlanRequest) -> PlanRequest:
    """The request whose answer is the fastest plan."""
    return request.model_copy(update={"prefer_simple": False})


@TOYS
def test_sifting_loses_no_leaner_plan(
    toy: Callable[[], PlanRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every setting that is priced, or never."""
    request = toy()
    monkeypatch.setattr(module, "SIFTED_EVERY", 1)
    often = leanest(request, 60.0)
    monkeypatch.setattr(module, "SIFTED_EVERY", 10**9)
    never = leanest(request, 60.0)
    assert often.plan is not None
    assert never.plan is not None
    assert often.bound_bytes == never.bound_bytes
    assert often.plan.peak_memory_bytes * LEAN_ENOUGH <= never.plan.peak_memory_bytes


@TOYS
@pytest.mark.parametrize("factor", [0.9, 1.0, 1.02, 1.2])
def test_a_narrowed_request_has_the_same_best_plan(toy: Callable[[], PlanRequest], factor: float) -> None:
    """With a little less HBM than the leanest plan needs, and with a little more."""
    request = fastest(toy())
    lean = leanest(request, 60.0).plan
    assert lean is not None
    tight = with_hbm_bytes(request, factor * lean.peak_memory_bytes + request.cluster.reserved_hbm_bytes + 1)
    few, expected = narrowed(tight, 60.0), solve(tight, top=1).best
    assert (expected is None) == (factor < 1.0)
    if expected is None:
        assert few is None or solve(few, top=1).best is None
        return
    assert few is not None
    found = solve(few, top=1).best
    assert found is not None
    assert found.step_time_s == expected.step_time_s
    assert sum(len(table.rows) for table in LeanSpace(few).tables()) <= sum(
        len(table.rows) for table in LeanSpace(tight).tables()
    )


@pytest.mark.slow
@TOYS
def test_the_goal_of_least_memory_is_as_lean_as_without_narrowing(toy: Callable[[], PlanRequest]) -> None:
    """Both find the least peak to 1 %."""
    request = toy().model_copy(update={"goal": "memory"})
    narrow, plain = find(request, 1, 60.0).best, solve(request, top=1).best
    assert narrow is not None
    assert plain is not None
    assert narrow.peak_memory_bytes == pytest.approx(plain.peak_memory_bytes, rel=0.0101)


def test_what_the_state_alone_excludes_is_excluded_without_a_look_at_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = with_hbm_bytes(dense(), dense().cluster.reserved_hbm_bytes + 1.0)
    monkeypatch.setattr(LeanSpace, "completed", lambda *arguments: pytest.fail("looked at"))
    verdict = any_plan(request, 60.0)
    assert verdict.is_impossible
    assert verdict.num_settings > 0
