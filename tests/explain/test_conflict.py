"""Minimal conflicts: infeasible together, feasible without any one member; relaxations work when applied."""

from __future__ import annotations

import pytest

from planner.explain.changes import with_hbm_bytes
from planner.explain.conflict import MEMORY, explain_conflict, least_memory, lifted
from planner.request import read_pins
from planner.solver import solve
from planner.solver.core import RuleCore
from planner.spec import PlanRequest


def pinned(request: PlanRequest, **pins: str) -> PlanRequest:
    return request.model_copy(update={"pins": read_pins(pins)})


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        # 8 heads over 3 ranks
        ({"tp": "3"}, {"attention_heads_divide_over_tensor_ranks", "pin:--tp 3"}),
        # nodes of 4 GPUs
        ({"tp": "8"}, {"tensor_ranks_stay_inside_the_fast_domain", "pin:--tp 8"}),
        # 2 x 4 x 4 = 32 GPUs, of which there are 8
        ({"tp": "2", "pp": "4", "dp": "4"}, {"ranks_fill_the_cluster", "pin:--pp 4", "pin:--dp 4"}),
        ({"ep": "2"}, {"expert_parallelism_needs_experts", "pin:--ep 2"}),
    ],
)
def test_conflicts_among_rules(tiny_dense: PlanRequest, pins: dict[str, str], expected: set[str]) -> None:
    request = pinned(tiny_dense, **pins)
    core = RuleCore(request)
    assert set(core.conflict) == expected
    assert not core.is_satisfiable(core.conflict)
    for member in core.conflict:
        assert core.is_satisfiable(name for name in core.conflict if name != member)


def test_a_feasible_request_has_no_conflict(tiny_dense: PlanRequest) -> None:
    assert RuleCore(pinned(tiny_dense, tp="2", pp="2")).conflict == ()


def test_every_member_has_its_numbers_and_the_paragraph_names_them(tiny_dense: PlanRequest) -> None:
    found = explain_conflict(pinned(tiny_dense, tp="3"), seconds=5)
    assert "8 attention heads do not split evenly over 3 tensor ranks" in found.paragraph
    assert "you asked for --tp 3" in found.paragraph
    assert all(member.source for member in found.members)


def test_relaxations_are_feasible_when_applied(tiny_dense: PlanRequest) -> None:
    found = explain_conflict(pinned(tiny_dense, tp="8"), seconds=5)
    kinds = {relaxation.kind for relaxation in found.relaxations}
    assert kinds == {"pin", "domain"}
    wide = pinned(tiny_dense, tp="8").model_copy(update={"allow_tensor_parallel_across_nodes": True})
    assert solve(wide, top=1).best is not None
    for relaxation in found.relaxations:
        assert relaxation.plan.is_legal
        assert relaxation.plan.fits


def too_small(request: PlanRequest) -> PlanRequest:
    """The request on GPUs with a little less memory than the leanest plan needs."""
    least = least_memory(request, 5)
    assert least is not None
    return with_hbm_bytes(request, least.peak_memory_bytes * 0.97)


def test_memory_conflict_is_infeasible_and_each_member_necessary(tiny_dense: PlanRequest) -> None:
    request = too_small(pinned(tiny_dense, tp="1", recompute="none"))
    assert solve(request, top=1).best is None
    found = explain_conflict(request, seconds=5)
    assert MEMORY in found.names
    assert "missing" in found.paragraph
    for name in found.names:
        assert solve(lifted(request, name), top=1).best is not None, name


@pytest.mark.slow
def test_hbm_relaxation_is_enough_and_names_accelerators(tiny_dense: PlanRequest) -> None:
    request = too_small(tiny_dense)
    found = explain_conflict(request, seconds=5)
    hbm = next(relaxation for relaxation in found.relaxations if relaxation.kind == "hbm")
    assert hbm.change.startswith("--hbm ")
    assert "have)" in hbm.sentence
    assert hbm.plan.fits
