"""Several parts of a space searched together give what each of them gives alone."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest
from small import small_requests
from toys import tiny_dense

from planner.rules import TABULAR_RULES
from planner.solver import solve
from planner.solver.conditional import Breaking, Choice, InterruptedSearch, Part, best_of_each
from planner.solver.entry import Entry
from planner.solver.result import Estimate
from planner.solver.search import Search
from planner.solver.space import candidate_values
from planner.spec import Pin, Plan, PlanRequest

FIELDS = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "zero_stage", "micro_batch", "schedule")
"""Fields whose pins say no more than the value."""


def alone(request: PlanRequest, field: str, value: object) -> Estimate | None:
    """The solver's plan with one field pinned."""
    pin = Pin(field=field, allowed=(value,), option=f"{field} {value}")
    return solve(request.model_copy(update={"pins": (*request.pins, pin)}), top=1).best


def assert_together_as_alone(request: PlanRequest) -> None:
    """Every value of every field, at once and one by one."""
    values = candidate_values(request)
    asked = [(field, value) for field in FIELDS for value in list(values[field])[:4]]
    choices = [Choice(field=field, value=value, limit_s=inf) for field, value in asked]
    for each, found in zip(asked, best_of_each(request, choices), strict=True):
        expected = alone(request, *each)
        assert (found.best is None) == (expected is None), each
        if found.best is not None and expected is not None:
            assert found.best.step_time_s == pytest.approx(expected.step_time_s, rel=2e-6), each
            assert getattr(found.best.plan, each[0]) == each[1]
            assert found.best.is_legal


@pytest.mark.parametrize(("seed", "request_"), list(small_requests(3)))
def test_choices_together_are_the_solvers_plans(seed: int, request_: PlanRequest) -> None:
    assert_together_as_alone(request_)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "request_"), list(small_requests(30, first_seed=100)))
def test_choices_of_more_requests(seed: int, request_: PlanRequest) -> None:
    assert_together_as_alone(request_)
    assert_together_as_alone(request_.model_copy(update={"prefer_simple": False}))


def test_a_limit_hides_what_does_not_beat_it() -> None:
    """The whole space below a little more than its best plan's time, and below exactly that."""
    request = tiny_dense().model_copy(update={"prefer_simple": False})
    best = solve(request, top=1).best
    assert best is not None
    [above] = best_of_each(request, [Part(limit_s=best.step_time_s * 1.001)])
    [below] = best_of_each(request, [Part(limit_s=best.step_time_s * 0.999)])
    assert above.best is not None
    assert above.best.step_time_s == pytest.approx(best.step_time_s, rel=1e-6)
    assert below.best is None
    assert below.is_proven


def test_only_plans_that_break_a_lifted_rule_count() -> None:
    """Nodes have 4 GPUs: where tensor ranks may cross them, the part that does so has eight of them."""
    request = tiny_dense()
    rule = next(each for each in TABULAR_RULES if each.name == "tensor_ranks_stay_inside_the_fast_domain")
    lifted = request.model_copy(update={"allow_tensor_parallel_across_nodes": True})
    [found] = best_of_each(lifted, [Breaking(limit_s=inf, rule=rule, request=request)])
    expected = alone(lifted, "tensor_parallel", 8)
    assert found.best is not None
    assert expected is not None
    assert found.best.plan.tensor_parallel == 8
    assert found.best.step_time_s == pytest.approx(expected.step_time_s, rel=1e-6)


def test_a_value_counts_only_where_it_means_something() -> None:
    """Sequence parallelism needs tensor ranks, a ring context ranks, a sharding group more replicas."""
    plain = Plan(data_parallel=8, num_microbatches=2, zero_stage=1, shard_group_size=8)
    off = Choice(field="sequence_parallel", value=False, limit_s=1.0)
    assert not off.is_answered_by(plain)
    assert off.is_answered_by(plain.model_copy(update={"tensor_parallel": 2}))
    kind = Choice(field="context_parallel_kind", value="ring", limit_s=1.0)
    assert not kind.is_answered_by(plain.model_copy(update={"context_parallel_kind": "ring"}))
    whole = Choice(field="shard_group_size", value=8, limit_s=1.0)
    assert not whole.is_answered_by(plain)
    assert whole.is_answered_by(plain.model_copy(update={"data_parallel": 16, "num_microbatches": 1}))


def test_what_is_proven_before_an_interruption_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Best first: parts of low limits are settled early, and what is said of them then holds."""
    request = tiny_dense()
    best = solve(request, top=1).best
    assert best is not None
    values = [("tensor_parallel", 1, 0.9), ("tensor_parallel", 4, 2.0), ("pipeline_parallel", 4, 3.0)]
    parts = [Choice(field=field, value=v, limit_s=part * best.step_time_s) for field, v, part in values]
    whole, price, settled = best_of_each(request, parts), Search._price, 0
    for last in (1, 3, 6, 10):
        left = iter(range(last))

        def interrupted(search: Search, entry: Entry, left: Iterator[int] = left) -> None:
            price(search, entry)
            if next(left, None) is None:
                raise KeyboardInterrupt

        monkeypatch.setattr(Search, "_price", interrupted)
        try:
            found = best_of_each(request, parts)
        except InterruptedSearch as stopped:
            found = stopped.found
        settled += sum(each.is_proven for each in found)
        assert all(each == end for each, end in zip(found, whole, strict=True) if each.is_proven)
    assert settled
