"""What the search does not look at twice changes no answer: known chains, dominated plans."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import small_requests

from planner.solver.alike import bounded
from planner.solver.chain_pool import ChainPool
from planner.solver.layouts import every_layout
from planner.solver.price import Layout, SettingPrice
from planner.solver.scan import Scan
from planner.solver.stages import best_layout, shares_of
from planner.solver.standings import Standings, undominated
from planner.spec import PlanRequest


def piped_prices(number: int, first_seed: int) -> Iterator[tuple[PlanRequest, SettingPrice]]:
    """Settings with a pipeline whose layouts are listed, at most three a request."""
    for _, request in small_requests(number, first_seed=first_seed):
        scan = Scan(request)
        found = scan.expand(np.arange(len(scan.steady_s)))
        piped = np.flatnonzero(found.rows.values("pipeline_parallel") > 1)
        for index in piped[:: max(len(piped) // 3, 1)].tolist():
            values = {field: found.rows.value(field, index) for field in found.rows.codes}
            price = SettingPrice(values, found.work, index, request)
            if every_layout(price) is not None:
                yield request, price


def test_bounds_from_before_a_chain_was_learnt_lead_to_the_same_layout() -> None:
    compared = learnt = 0
    for request, price in piped_prices(14, first_seed=3100):
        early = bounded(price.alike, shares_of(price), np.array([1e9]), price.chains)[1][0]
        assert early is not None
        known = price.chains.number(*price.alike.shape)
        listed = every_layout(price)
        for layers in [] if listed is None else listed[:4].tolist():
            price.learn(Layout(tuple(layers), (0,) * price.p))
        learnt += price.chains.number(*price.alike.shape) > known
        fresh = SettingPrice(price.values, price.work, price.index, request)
        whole, resumed = best_layout(fresh, 10**15), best_layout(price, 10**15, early)
        assert (whole is None) == (resumed is None)
        if whole is not None and resumed is not None:
            assert resumed[0] == pytest.approx(whole[0], rel=1e-12)
            compared += 1
    assert compared > 5
    assert learnt > 2


def test_chains_from_some_place_on_and_those_before_are_all_chains() -> None:
    rng = np.random.default_rng(7)
    pool = ChainPool()
    for _ in range(6):
        times = rng.uniform(0.5, 2.0, size=(3, 4, 2))
        forward, inputs, weights = (tuple(map(tuple, phase)) for phase in times.tolist())
        pool.learn("interleaved", (forward, inputs, weights), 8)
    number = pool.number("interleaved", 4, 2, 8)
    passes = rng.uniform(0.5, 2.0, size=(5, 8, 3))
    whole = pool.longest(passes, "interleaved", 4, 2, 8)
    for start in range(number + 1):
        later = pool.longest(passes, "interleaved", 4, 2, 8, start=start)
        assert np.all(later <= whole)
        assert (start > 0) or np.array_equal(later, whole)
    assert np.all(pool.longest(passes, "interleaved", 4, 2, 8, start=number) == 0)


plans = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1_000, 1_030)), min_size=1, max_size=25
)


@settings(deadline=None, max_examples=150)
@given(plans=plans, top=st.integers(1, 4), prefer_simple=st.booleans())
def test_the_ranks_are_the_same_without_dominated_plans(
    plans: list[tuple[int, int, int]], top: int, prefer_simple: bool
) -> None:
    plans = sorted(plans, key=lambda plan: (plan[2], plan[1]))
    kept = undominated([(family,) for family, _, _ in plans], [score for _, score, _ in plans])
    every, few = Standings(top, prefer_simple), Standings(top, prefer_simple)
    for family, score, objective in plans:
        every.add((family,), score, objective)
    for family, score, objective in (plans[index] for index in kept):
        few.add((family,), score, objective)
    assert few.picks == every.picks
    assert {plan[0] for plan in plans} == {plans[index][0] for index in kept}
