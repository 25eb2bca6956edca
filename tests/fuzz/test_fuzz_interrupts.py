"""Ctrl-C at every step of the work: the plans found so far with a gap that holds, or that there is none."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from checker import faults
from toys import tiny_dense

from planner.explain import answer as answer_module
from planner.explain.answer import INTERRUPTED_NOTE, answer
from planner.report.json import answer_report, dumps
from planner.report.table import answer_text
from planner.solver import search as search_module
from planner.solver import solve
from planner.solver.cp_sat import cp_model, new_solver
from planner.solver.search import Search
from planner.spec import Pin, PlanRequest


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int) -> list[int]:
    """Raise ``KeyboardInterrupt`` at one call of a function; the calls made stand in the list."""
    function: Callable[..., Any] = getattr(owner, name)
    calls: list[int] = []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        calls.append(len(calls) + 1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, interrupted)
    return calls


@pytest.fixture
def listening() -> Iterator[None]:
    """Python's own answer to Ctrl-C, which a shell switches off for what it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_ctrl_c_still_reaches_python_after_a_solve() -> None:
    model = cp_model.CpModel()
    model.maximize(model.new_int_var(0, 7, "x"))
    assert new_solver().solve(model) == cp_model.OPTIMAL
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 1.0)


def fastest() -> PlanRequest:
    """A request of half a second whose best plan is the fastest one."""
    return tiny_dense().model_copy(update={"prefer_simple": False})


@pytest.fixture(scope="module")
def least_s() -> float:
    """The least step time of that request. [s]"""
    return solve(fastest(), top=1, workers=1).plans[0].step_time_s


@pytest.mark.parametrize("step", ["_consider", "_raise", "_price", "_sift", "_add", "_dive", "_accept"])
def test_the_gap_after_ctrl_c_covers_the_best_plan(
    monkeypatch: pytest.MonkeyPatch, least_s: float, step: str
) -> None:
    request = fastest()
    for at in (1, 2, 4, 12):
        with monkeypatch.context() as patch:
            interrupt(patch, Search, step, at)
            result = solve(request, top=2, workers=1)
        assert bool(result.plans) == (result.status in {"feasible", "optimal"}), result.status
        for found in result.plans:
            assert not faults(found.plan, request)
        if result.plans:
            assert result.gap_pct is not None
            found_s = result.plans[0].step_time_s
            assert found_s * (1 - result.gap_pct / 100) <= least_s + 2e-6, "a better plan is outside the gap"


def test_ctrl_c_while_ranking_ranks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    request = tiny_dense()
    whole = solve(request, top=3, workers=1)
    interrupt(monkeypatch, Search, "_rank", 1)
    result = solve(request, top=3, workers=1)
    assert result.plans == whole.plans
    assert result.status == "feasible" and result.gap_pct is not None


def test_ctrl_c_before_the_first_setting_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, search_module, "Scan", 1)
    result = solve(tiny_dense(), workers=1)
    assert (result.status, result.plans, result.gap_pct) == ("time-limit", (), None)


@pytest.mark.parametrize("series", [{"goal": "memory"}, {"max_step_time_s": 10.0}, {"robust": True}])
@pytest.mark.parametrize("at", [1, 2])
def test_one_ctrl_c_ends_a_series_of_searches(
    monkeypatch: pytest.MonkeyPatch, series: dict[str, Any], at: int
) -> None:
    request = tiny_dense().model_copy(update=series)
    prices = interrupt(monkeypatch, Search, "_price", at)
    result = solve(request, top=1, workers=1)
    assert len(prices) == at, "a search went on after Ctrl-C"
    assert result.status in {"feasible", "time-limit"}
    assert bool(result.plans) == (result.status == "feasible")
    for found in result.plans:
        assert not faults(found.plan, request)


def test_ctrl_c_in_the_explanation_keeps_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    request = tiny_dense()
    result = solve(request, top=2, workers=1)
    interrupt(monkeypatch, answer_module, "reasons", 1)
    found = answer(request, result)
    assert found.result.plans == result.plans
    assert found.result.notes[-1] == INTERRUPTED_NOTE
    assert INTERRUPTED_NOTE in " ".join(answer_text(found).split())
    dumps(answer_report(found))


def test_ctrl_c_while_a_conflict_is_sought_still_says_that_nothing_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pin = Pin(field="tensor_parallel", allowed=(3,), option="--tp 3")
    request = tiny_dense().model_copy(update={"pins": (pin,)})
    result = solve(request, workers=1)
    from planner.explain import conflict

    interrupt(monkeypatch, conflict, "explain_conflict", 1)
    found = answer(request, result)
    assert found.exit_code == 3 and found.conflict is None
    assert "Nothing fits" in answer_text(found)
    dumps(answer_report(found))
