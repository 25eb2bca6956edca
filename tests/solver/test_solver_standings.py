"""Limits of the search: whatever is found later, no plan above them is ever chosen."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solver.limits import FAMILY, Limits
from planner.solver.scale import MICROSECOND_S
from planner.solver.space import Rows
from planner.solver.standings import Standings

plans = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1_000, 1_100)), min_size=1, max_size=25
)


@settings(deadline=None, max_examples=400)
@given(plans=plans, top=st.integers(1, 4), prefer_simple=st.booleans(), known=st.integers(0, 25))
def test_no_plan_above_its_limit_is_ever_chosen(
    plans: list[tuple[int, int, int]], top: int, prefer_simple: bool, known: int
) -> None:
    """Limits of the first plans hold for those chosen from all of them; near ones count up to 1 %."""
    standings = Standings(top, prefer_simple)
    for family, score, objective in plans[:known]:
        standings.add((family,), score, objective)
    limits = standings.limits()
    for family, score, objective in plans[known:]:
        standings.add((family,), score, objective)
        assert standings.limits().overall_s <= limits.overall_s
    for pick in standings.picks:
        limit_s = min(limits.overall_s, limits.families_s.get(pick.family, np.inf))
        assert pick.objective_us * MICROSECOND_S <= limit_s


def test_a_variant_that_makes_its_family_the_simplest_raises_the_last_rank_but_not_the_limit() -> None:
    """A (9.00 s) and B (9.05 s, simpler): B is first, then A. A as simple at 9.02 s comes first, then B.

    The last rank's plan is slower then, so what that rank has to beat now is no limit for later plans.
    """
    standings = Standings(2, prefer_simple=True)
    standings.add(("A",), 2, 9_000_000)
    standings.add(("B",), 1, 9_050_000)
    assert [pick.family for pick in standings.picks] == [("B",), ("A",)]
    before, last = standings.limit_us, standings.picks[-1].near_us
    standings.add(("A",), 0, 9_020_000)
    assert [pick.family for pick in standings.picks] == [("A",), ("B",)]
    assert standings.picks[-1].near_us > last
    assert standings.limit_us <= before


def test_rows_get_the_limit_of_their_family() -> None:
    domains = {name: np.array([1, 2]) for name in FAMILY}
    codes = {name: np.array([0, 1, 1]) for name in FAMILY}
    rows = Rows(domains, codes | {"tensor_parallel": np.array([0, 0, 1])})
    limits = Limits(3.0, {(1,) * 6: 2.0, (2,) * 6: 4.0})
    assert limits.of(rows).tolist() == [2.0, 3.0, 3.0]
    some = Rows(domains, {"tensor_parallel": codes["tensor_parallel"]})
    assert limits.of(some).tolist() == [3.0, 3.0, 3.0]
