"""What would change the plan: numbers turned, rungs searched, the words of a row."""

from __future__ import annotations

import pytest

from planner.explain.changes import with_batch, with_domain_size, with_gpus, with_hbm_bytes, with_seq_length
from planner.explain.sensitivity import Row, _Rung, _Turning, _why_lost, sensitivity_of
from planner.solver import solve
from planner.solver.evaluate import evaluate
from planner.spec import Plan, PlanRequest
from planner.units import format_bytes


class Asked:
    """A rung that counts how often it is searched."""

    def __init__(self, beaten: bool) -> None:
        self.is_legal, self.beaten, self.searches = True, beaten, 0

    def fastest(self, pool: object) -> None:
        return None

    def rival(self, pool: object, seconds: float) -> object:
        self.searches += 1
        return object() if self.beaten else None


@pytest.mark.parametrize(
    ("beaten", "admits_more", "first", "searches"),
    [
        ((False, False, False, False), False, 4, (0, 0, 0, 1)),  # the far end settles it
        ((False, False, False, True), False, 3, (0, 0, 1, 1)),
        ((False, True, True, True), False, 1, (1, 1, 1, 1)),
        ((True, True, True, True), True, 0, (1, 0, 0, 0)),  # the near end settles it
    ],
)
def test_as_few_rungs_as_can_be_are_searched(
    tiny_dense: PlanRequest,
    plan: Plan,
    beaten: tuple[bool, ...],
    admits_more: bool,
    first: int,
    searches: tuple[int, ...],
) -> None:
    rungs = [Asked(each) for each in beaten]
    turning = _Turning(evaluate(plan, tiny_dense), 1.0, [])
    assert turning._first_beaten(rungs, admits_more) == first  # type: ignore[arg-type]
    assert tuple(rung.searches for rung in rungs) == searches


def test_a_row_says_why_todays_plan_cannot_run(tiny_dense: PlanRequest, plan: Plan) -> None:
    """With less HBM than the plan needs the row says how much that is."""
    small = with_hbm_bytes(tiny_dense, evaluate(plan, tiny_dense).peak_memory_bytes - 1.0)
    rung = _Rung(0.8, small, evaluate(plan, small))
    needed = f"today's plan needs {format_bytes(evaluate(plan, small).peak_memory_bytes)}"
    assert _why_lost(rung) == needed
    assert _why_lost(_Rung(2.0, tiny_dense, evaluate(plan, tiny_dense))) == ""
    row = Row("HBM", "1 GB", "down", 0.8, 0.8, plan, "0.8 GB", rung.loss_pct(None), needed)
    assert row.words()[-1].endswith(f"({needed})")


@pytest.mark.slow
def test_sensitivity_finds_a_change_or_says_how_far_it_looked(tiny_dense: PlanRequest) -> None:
    best = solve(tiny_dense, top=1).best
    assert best is not None
    found = sensitivity_of(best, tiny_dense, seconds=5)
    assert {row.parameter for row in found.rows} >= {"HBM", "network bandwidth", "global batch", "GPUs"}
    assert found.regret_pct >= 0
    assert "Robustness" in found.text()
    for row in found.rows:
        assert row.factor is not None or row.tried in (4.0, 0.25)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (0.8, 832),  # 13 sixteenths of 1024: 64 divides it, as it divides 1024
        (1.25, 1280),
        (0.67, 704),  # 11 sixteenths
        (4.0, 4096),
    ],
)
def test_a_turned_batch_keeps_its_divisors(tiny_dense: PlanRequest, factor: float, expected: int) -> None:
    workload = tiny_dense.workload.model_copy(update={"global_batch": 1024, "seq_length": 1024})
    request = tiny_dense.model_copy(update={"workload": workload})
    more, longer = with_batch(request, factor), with_seq_length(request, factor)
    assert more is not None
    assert longer is not None
    assert more.workload.global_batch == longer.workload.seq_length == expected


def test_whole_nodes_and_whole_domains_are_turned(tiny_dense: PlanRequest) -> None:
    """8 GPUs in nodes of 4: 10 are no whole number of nodes, 12 are; a domain of 4 can be 8, not 16."""
    assert with_gpus(tiny_dense, 1.25) is None
    wider = with_gpus(tiny_dense, 1.5)
    assert wider is not None
    assert wider.cluster.num_gpus == 12
    assert with_domain_size(tiny_dense, 1.1) is None
    assert with_domain_size(tiny_dense, 4.0) is None
    double = with_domain_size(tiny_dense, 2.0)
    assert double is not None
    assert double.cluster.nvlink_domain == 8
