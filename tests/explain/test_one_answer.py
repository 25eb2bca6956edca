"""The best plans with one setting fixed: every answer tells those that the solver gives for the same pin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from toys import tiny_dense as tiny
from toys import tiny_moe, toy_cluster, vary

from planner.explain import why as why_module
from planner.explain import why_not as why_not_module
from planner.explain.answer import NOT_SEARCHED_ON_NOTE, answer
from planner.explain.binds import price_of_limits
from planner.explain.changes import with_hbm_bytes
from planner.explain.leanest import leanest
from planner.explain.optimum import (
    RANKED_FIELDS,
    Asked,
    Optima,
    Optimum,
    Ranking,
    better_answer,
    near_plan,
    preferred,
)
from planner.explain.side_words import described
from planner.explain.why import INTERRUPTED, LATE, Reason, reasons
from planner.explain.why_not import INTERRUPTED as WHY_NOT_INTERRUPTED
from planner.explain.why_not import UNTRIED, why_not
from planner.request import read_pins
from planner.solver import conditional, solve
from planner.solver.conditional import Found, InterruptedSearch, best_of_each
from planner.solver.evaluate import evaluate
from planner.solver.result import Estimate, PlanResult
from planner.spec import Pin, Plan, PlanRequest


def optima(
    request: PlanRequest, asked: list[Asked], best: Estimate, pool: list[Estimate], seconds: float = 30.0
) -> dict[Asked, Optimum]:
    """What is found in the time given."""
    found = Optima(request, best, pool, seconds)
    found.ask(asked)
    return found.found


OPTIONS = {
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "zero_stage": "zero",
    "micro_batch": "micro-batch",
}
"""Options that pin a field."""


def test_the_best_plans_with_one_setting_fixed_are_the_solvers(tiny_dense: PlanRequest, plan: Plan) -> None:
    """Searched together, each is the plan that the same option gives."""
    best = solve(tiny_dense, top=1).best
    assert best is not None
    asked = [("tensor_parallel", 4), ("pipeline_parallel", 4), ("zero_stage", 0), ("micro_batch", 4)]
    found = optima(tiny_dense, asked, best, [best, evaluate(plan, tiny_dense)])
    for field, value in asked:
        pins = read_pins({OPTIONS[field]: str(value)})
        expected = solve(tiny_dense.model_copy(update={"pins": pins}), top=1).best
        assert expected is not None
        optimum = found[field, value]
        assert optimum.is_proven
        assert optimum.best is not None
        assert optimum.best.plan == expected.plan


def test_a_pin_on_the_setting_gives_way_and_the_others_stay(tiny_dense: PlanRequest) -> None:
    pinned = tiny_dense.model_copy(update={"pins": read_pins({"tp": "2", "pp": "2"})})
    best = solve(pinned, top=1).best
    assert best is not None
    found = optima(pinned, [("tensor_parallel", 4)], best, [])["tensor_parallel", 4].best
    assert found is not None
    assert (found.plan.tensor_parallel, found.plan.pipeline_parallel) == (4, 2)


def test_where_nothing_with_a_setting_fits_the_leanest_plan_is_told(tiny_dense: PlanRequest) -> None:
    """On one GPU with one byte more than the leanest plan needs, which recomputes."""
    alone = vary(tiny_dense, limits={"offloads": ("none",)}).model_copy(update={"cluster": toy_cluster(1)})
    lean = leanest(alone, 5.0).plan
    assert lean is not None
    assert lean.plan.recompute == "full"
    small = with_hbm_bytes(alone, lean.peak_memory_bytes + 1.0)
    best = solve(small, top=1).best
    assert best is not None
    found = optima(small, [("recompute", "none")], best, [])["recompute", "none"]
    assert found.best is None
    assert found.is_proven
    assert found.why_none.startswith("the leanest, t=1 p=1 d=1 ZeRO-0 b=1 m=16, needs ")
    found_reasons = reasons(best, small, resolve=True, seconds=5)
    recompute = next(each for each in found_reasons if each.field == "recompute")
    assert f"no legal plan with recompute none fits: {found.why_none}" in recompute.sentence


def test_a_lifted_limit_is_answered_as_the_solver_would(tiny_dense: PlanRequest) -> None:
    """Without one of two pins the solver's own plan is named, or that the plan would stay."""
    pinned = tiny_dense.model_copy(update={"pins": read_pins({"zero": "0", "dp": "1"})})
    best, free = solve(pinned, top=1).best, solve(tiny_dense, top=1).best
    assert best is not None
    assert free is not None
    sentences = dict(zip(("zero", "dp"), list(price_of_limits(best, pinned, 30.0))[-2:], strict=True))
    for option, sentence in sentences.items():
        rest = tuple(pin for pin in pinned.pins if option not in pin.option)
        expected = solve(pinned.model_copy(update={"pins": rest}), top=1).best
        assert expected is not None
        gains = expected.step_time_s < 0.99 * best.step_time_s
        assert ("the best plan would be" in sentence) == gains
        assert not gains or described(expected.plan) in sentence
    assert better_answer(free, tiny_dense, 30.0) == Optimum(None)


def test_what_the_ranking_proves_of_plans_that_it_does_not_show(tiny_dense: PlanRequest) -> None:
    """No plan of another family beats the last one shown by more than simplicity may cost, 1 %."""
    ranked = solve(tiny_dense, top=3)
    best = ranked.plans[0]
    ranking = Ranking(ranked.plans, proven=ranked.status == "optimal")
    bound = best.step_time_s * (1 + ranking.least_pct(best) / 100)
    shown = {family(each.plan) for each in ranked.plans}
    others = [each for each in solve(tiny_dense, top=8).plans if family(each.plan) not in shown]
    assert others
    assert all(each.step_time_s >= bound * (1 - 1e-9) for each in others)
    assert Ranking(ranked.plans).least_pct(best) == 0.0


def family(plan: Plan) -> tuple[object, ...]:
    """What sets ranked plans apart (``planner.solver``)."""
    degrees = (plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel, plan.expert_parallel)
    return (*degrees, plan.recompute, plan.precision)


def solved(request: PlanRequest, field: str, value: Any) -> Estimate | None:
    """The answer with one field pinned."""
    pin = Pin(field=field, allowed=(value,), option=f"{field} {value}")
    return solve(request.model_copy(update={"pins": (pin,)}), top=1).best


def told(found: Sequence[Reason]) -> dict[Asked, Plan]:
    """The best plan with each degree, where one was searched."""
    sides = [(reason.field, side) for reason in found for side in reason.sides]
    return {
        (field, side.value): side.optimum.best.plan
        for field, side in sides
        if field in RANKED_FIELDS and side.optimum is not None and side.optimum.best is not None
    }


def test_the_main_answer_tells_the_best_plan_that_a_pinned_degree_has(tiny_dense: PlanRequest) -> None:
    ranked = solve(tiny_dense, top=2)
    short = told(reasons(ranked.plans[0], tiny_dense, ranked=ranked.plans, proven=True, seconds=60))
    assert {"tensor_parallel", "pipeline_parallel"} <= {field for field, _ in short}
    (field, value), plan = next(iter(short.items()))
    expected = solved(tiny_dense, field, value)
    assert expected is not None
    assert plan == expected.plan


@pytest.mark.slow
def test_every_answer_tells_the_same_best_plan_with_another_degree() -> None:
    """The main answer, ``why`` and ``why-not``."""
    request = tiny()
    ranked = solve(request, top=3)
    best = ranked.plans[0]
    short = told(reasons(best, request, ranked=ranked.plans, proven=True, seconds=60))
    long = told(reasons(best, request, ranked=ranked.plans, proven=True, resolve=True, seconds=60))
    assert {"tensor_parallel", "pipeline_parallel", "context_parallel"} <= {field for field, _ in long}
    assert short.items() <= long.items()
    assert short
    options = {"tensor_parallel": "tp", "pipeline_parallel": "pp", "context_parallel": "cp"}
    for (field, value), plan in short.items():
        expected = solved(request, field, value)
        assert expected is not None
        assert plan == expected.plan
    field, value = next(iter(short))
    pins = read_pins({options[field]: str(value)})
    kept = why_not(request.model_copy(update={"pins": pins}), seconds=60).completion
    assert kept is not None
    assert kept.plan == short[field, value]


@pytest.mark.parametrize("toy", [tiny, tiny_moe])
def test_a_ranked_plan_is_called_the_best_with_a_degree_only_where_it_is(
    toy: Callable[[], PlanRequest],
) -> None:
    """A plan can be ranked for being simpler than one with another degree, within 1 %."""
    request_ = toy()
    ranked = solve(request_, top=6)
    ranking = Ranking(ranked.plans, proven=ranked.status == "optimal")
    for each in ranked.plans[1:]:
        for field in RANKED_FIELDS:
            value = getattr(each.plan, field)
            known = ranking.best_with(field, value)
            if known is not None and value != getattr(ranked.plans[0].plan, field):
                expected = solved(request_, field, value)
                assert expected is not None
                assert known.plan == expected.plan


def test_the_ranking_alone_does_not_prove_the_best_with_a_degree(tiny_dense: PlanRequest, plan: Plan) -> None:
    """Times as multiples of the first; the second has the value that is asked for."""

    def ranking(*times: float, proven: bool = True) -> Ranking:
        first, second = evaluate(plan, tiny_dense), plan.model_copy(update={"tensor_parallel": 4})
        plans = [first, evaluate(second.model_copy(update={"data_parallel": 1}), tiny_dense)]
        plans += [first] * (len(times) - 2)
        speeds = [1.0 / seconds / each.plan.num_gpus for seconds, each in zip(times, plans, strict=True)]
        changed = [replace(p, tokens_per_s_per_gpu=s) for p, s in zip(plans, speeds, strict=True)]
        return Ranking(tuple(changed), proven)

    asked = ("tensor_parallel", 4)
    assert ranking(1.0, 1.05, 1.08).best_with(*asked) is not None
    assert ranking(1.0, 1.05, 1.08, proven=False).best_with(*asked) is None
    assert ranking(1.0, 1.05, 1.055).best_with(*asked) is None  # all left may be near one not shown
    assert ranking(1.0, 1.05, 1.045, 1.08).best_with(*asked) is None  # the fastest left was another
    assert ranking(1.0, 1.05).best_with(*asked) is None


def test_the_plan_that_wins_after_a_change_is_the_solvers(tiny_dense: PlanRequest, plan: Plan) -> None:
    """Searched below what is known, and near it."""
    expected = solve(tiny_dense, top=1).best
    assert expected is not None
    known = evaluate(plan, tiny_dense)
    assert preferred(known, tiny_dense, 60.0).plan == expected.plan
    assert preferred(expected, tiny_dense, 60.0).plan == expected.plan
    near = near_plan(tiny_dense, known, 60.0)
    assert near is not None
    assert near.plan == expected.plan


def test_without_time_the_main_answer_says_what_the_ranking_says(tiny_dense: PlanRequest) -> None:
    ranked = solve(tiny_dense, top=3)
    best = ranked.plans[0]
    found = reasons(best, tiny_dense, ranked=ranked.plans, proven=True, seconds=0)
    assert not told(found)
    assert "none of the first 3 plans has it" in " ".join(reason.sentence for reason in found)
    searched = reasons(best, tiny_dense, ranked=ranked.plans, proven=True, resolve=True, seconds=0)
    assert "was found in the time given" in " ".join(reason.sentence for reason in searched)


def cut_short(results: list[list[Found]]) -> Any:
    """``best_of_each`` after which Ctrl-C comes: the plans are there, and none is proven."""

    def search(*arguments: Any) -> list[Found]:
        results.append([Found(found.best, is_proven=False) for found in best_of_each(*arguments)])
        raise InterruptedSearch(results[-1])

    return search


def test_what_was_found_before_ctrl_c_is_told(
    tiny_dense: PlanRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[list[Found]] = []
    monkeypatch.setattr(conditional, "best_of_each", cut_short(results))
    ranked = solve(tiny_dense, top=3)
    found = answer(tiny_dense, ranked, full=True, seconds=60)
    assert len(results) == 1
    known = [each.best.plan for each in results[0] if each.best is not None]
    assert known
    assert set(told(found.reasons).values()) <= {*known, *(each.plan for each in ranked.plans)}
    assert found.reasons[-1].sentence == INTERRUPTED
    assert NOT_SEARCHED_ON_NOTE in found.result.notes
    assert "best plan found in the time given" in " ".join(found.explanation)


def test_why_not_ends_with_its_time(tiny_dense: PlanRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict stands, and it is said that not all changes were tried."""
    monkeypatch.setattr(why_not_module, "_find", lambda request, seconds: solve(request, top=1))
    monkeypatch.setattr(why_not_module, "race", lambda *plans: "wins")
    request = tiny_dense.model_copy(update={"pins": read_pins({"pp": "4"})})
    found = why_not(request, seconds=0.0)
    assert found.completion is not None
    assert found.sentences[-1] == UNTRIED
    assert not found.wins_with


@pytest.mark.parametrize(("at", "sentence"), [(1, "was found so far"), (2, "is p=4"), (3, "is p=4")])
def test_why_not_says_what_was_known_before_ctrl_c(
    at: int, sentence: str, tiny_dense: PlanRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first search, in the second, and while changes are tried."""
    searches: list[PlanRequest] = []

    def find(request: PlanRequest, seconds: float) -> PlanResult:
        searches.append(request)
        found = solve(request, top=1)
        cut = replace(found, status="feasible", gap_pct=1.0, interrupted=True)
        return cut if len(searches) == at else found

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(why_not_module, "_find", find)
    monkeypatch.setattr(why_not_module, "_winning_change", interrupted)
    request = tiny_dense.model_copy(update={"pins": read_pins({"pp": "4"})})
    found = why_not(request, seconds=60)
    assert len(searches) == min(at, 2)
    assert found.interrupted
    assert found.sentences[-1] == WHY_NOT_INTERRUPTED
    assert sentence.replace("is p=4", "The best plan with") in found.sentences[0]


def test_neighbours_that_there_is_no_time_for_are_left_out(
    tiny_dense: PlanRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were priced are told, and that others were not."""
    ranked, clock = solve(tiny_dense, top=3), count()
    monkeypatch.setattr(why_module.time, "monotonic", lambda: float(next(clock)))
    found = reasons(ranked.plans[0], tiny_dense, ranked=ranked.plans, proven=False, seconds=3.0)
    whole = reasons(ranked.plans[0], tiny_dense, ranked=ranked.plans, proven=False, seconds=1e6)
    sides = sum(len(reason.sides) for reason in found)
    assert 0 < sides <= 3
    assert sides < sum(len(reason.sides) for reason in whole)
    assert LATE in [reason.sentence for reason in found]
    assert LATE not in [reason.sentence for reason in whole]
