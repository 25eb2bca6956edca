"""Chains that stay on one rank between the way to it and the way out, where both ends are entered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.critical_path import Chain, chains_in_order
from planner.cost.orders import num_chunks
from planner.cost.schedule import simulate
from planner.spec.plan import Schedule

TWO_ENDED = ("dualpipe", "dualpipe-v")


def length(chain: Chain, passes: list[list[list[float]]]) -> float:
    return sum(times * passes[phase][rank][chunk] for (rank, chunk, phase), times in chain.items())


@pytest.mark.parametrize(("p", "m"), [(4, 32), (8, 60), (16, 120)])
def test_equal_stages_of_dualpipe_are_bounded_exactly(p: int, m: int) -> None:
    """One second for each of F, D and W: 3 m of work and p / 2 - 1 seconds of bubble at least."""
    passes = [[[1.0]] * p] * 3
    makespan = simulate("dualpipe", *passes, m).makespan_s
    assert makespan == pytest.approx(3 * m + p / 2 - 1)
    assert max(length(chain, passes) for chain in chains_in_order("dualpipe", p, 1, m)) == makespan


@settings(deadline=None, max_examples=150)
@given(
    data=st.data(),
    schedule=st.sampled_from(TWO_ENDED),
    p=st.sampled_from([2, 4, 6, 8]),
    more=st.integers(0, 6),
)
def test_no_chain_is_longer_than_the_makespan(
    data: st.DataObject, schedule: Schedule, p: int, more: int
) -> None:
    chunks = 1 if schedule == "dualpipe" else num_chunks(schedule, 2)
    seconds = st.floats(0.05, 3.0)
    rank = st.lists(seconds, min_size=chunks, max_size=chunks)
    passes = [data.draw(st.lists(rank, min_size=p, max_size=p)) for _ in range(3)]
    m = 2 * p + 2 * more
    makespan = simulate(schedule, *passes, m).makespan_s
    for chain in chains_in_order(schedule, p, chunks, m):
        assert length(chain, passes) <= makespan * (1 + 1e-9)
