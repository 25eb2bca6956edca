"""What a choice breaks or loses, and what would make it win, on a toy problem."""

from __future__ import annotations

import pytest

from planner.api import question
from planner.explain.changes import (
    DOMAIN_SIZE,
    PARAMETERS,
)
from planner.explain.why_not import first_winning, why_not, why_not_plan
from planner.report.table import why_not_text
from planner.request import read_pins
from planner.solver import solve
from planner.spec import Plan, PlanRequest


def test_why_not_names_the_loss_term_by_term(tiny_dense: PlanRequest) -> None:
    request = tiny_dense.model_copy(update={"pins": read_pins({"pp": "4"})})
    found = why_not(request, seconds=5)
    assert found.best is not None
    assert found.completion is not None
    assert found.completion.plan.pipeline_parallel == 4
    assert found.loss_pct is not None
    assert found.loss_pct >= 0
    change = found.completion.step_time_s - found.best.step_time_s
    assert sum(row.change for row in found.terms) == pytest.approx(change)
    assert "Where the time differs" in why_not_text(found)


def test_why_not_prices_a_choice_whose_rule_can_be_lifted(tiny_dense: PlanRequest) -> None:
    request = tiny_dense.model_copy(update={"pins": read_pins({"tp": "8"})})
    found = why_not(request, seconds=5)
    assert found.lifted == ("--allow-tp-across-nodes",)
    assert found.completion is not None
    assert found.completion.plan.tensor_parallel == 8
    # nodes of 4 GPUs
    assert found.sentences[0].startswith(
        "--tp 8 is not allowed: 8 tensor ranks do not fit evenly into the fast"
    )
    assert "as if --allow-tp-across-nodes were given" in found.sentences[0]


def test_why_not_explains_a_choice_that_nothing_keeps(tiny_dense: PlanRequest) -> None:
    request = tiny_dense.model_copy(update={"pins": read_pins({"tp": "3"})})
    found = why_not(request, seconds=5)
    assert found.completion is None
    assert found.conflict is not None
    assert "pin:--tp 3" in found.conflict.names


def test_why_not_a_whole_plan(tiny_dense: PlanRequest, plan: Plan) -> None:
    found = why_not_plan(plan, tiny_dense, seconds=5)
    assert found.completion is not None
    assert found.completion.plan == plan


@pytest.mark.slow
def test_changes_that_make_a_choice_win_do() -> None:
    """Two far pipeline ranks for 8B on 16 GPUs: under each change that was found no plan is 1 % faster."""
    request = question({"model": "llama-3-8b", "gpus": 16, "pp": 2, "rank_order": "tp-cp-ep-dp-pp"})
    found = why_not(request, seconds=20)
    changes = [
        changed
        for parameter in (*PARAMETERS, DOMAIN_SIZE)
        for upwards in (True, False)
        if (changed := first_winning(found, parameter, upwards)) is not None
    ]
    assert changes
    assert sum("would be the best" in sentence for sentence in found.wins_with) > 0
    for changed in changes:
        best = solve(changed.model_copy(update={"prefer_simple": False}), top=1).best
        kept = solve(changed.model_copy(update={"prefer_simple": False, "pins": request.pins}), top=1).best
        assert best is not None
        assert kept is not None
        assert kept.plan.pipeline_parallel == 2
        assert kept.step_time_s <= 1.0102 * best.step_time_s


def test_where_no_change_makes_a_choice_win_the_answer_says_so(tiny_dense: PlanRequest) -> None:
    """Recompute costs time and buys memory, of which a toy has plenty however it is turned."""
    request = tiny_dense.model_copy(update={"pins": read_pins({"recompute": "full"})})
    (sentence,) = why_not(request, seconds=5).wins_with
    assert sentence.startswith("No change by up to a factor of 8 was found")
