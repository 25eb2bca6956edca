"""The sentence under an answer says what was shown, and claims no coverage that there was not."""

from __future__ import annotations

from typing import Any

import pytest

from planner.api import question
from planner.explain.answer import find
from planner.report.proof import proof_line
from planner.solver import PlanResult
from planner.spec import PlanRequest


@pytest.fixture(scope="module")
def request_() -> PlanRequest:
    return question({"model": "llama-3-8b", "gpus": 8})


def test_rules_in_conflict_are_not_said_to_cover_settings() -> None:
    conflicting = question({"model": "llama-3-8b", "gpus": 8, "tp": 3})
    found = find(conflicting, 1, 60.0)
    line = proof_line(found, conflicting)
    assert found.status == "infeasible"
    assert "0 settings" not in line
    assert line.startswith("Proof: no setting is legal and fits: rules")


def test_memory_that_excludes_settings_is_said_with_their_number() -> None:
    too_large = question({"model": "llama-3-70b", "gpus": 8, "pp": 1, "zero": 0})
    found = find(too_large, 1, 60.0)
    assert found.status == "infeasible"
    assert f"{found.num_settings:,} settings covered" in proof_line(found, too_large)


@pytest.mark.parametrize("known", [{"status": "time-limit"}, {"status": "feasible", "gap_pct": 3.0}])
def test_a_search_that_bounded_nothing_claims_no_settings(
    known: dict[str, Any], request_: PlanRequest
) -> None:
    line = proof_line(PlanResult(solve_s=0.1, **known), request_)
    assert line.startswith("Not proven: ")
    assert "settings covered" not in line
