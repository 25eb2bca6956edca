"""What follows the makespan is bounded by what the pace-setting rank can at most hide it behind."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solver.bounds import largest_shares, with_recompute
from planner.solver.space import Rows
from planner.solver.tables import Phases, WorkTimes
from planner.spec.model import LayerKind

DENSE, EXPERTS = LayerKind(), LayerKind(moe=True)
seconds = st.just(0.0) | st.floats(min_value=1e-9, max_value=3.0)  # nothing, or at least a nanosecond
phase = st.tuples(seconds, seconds, seconds, seconds)


def phases(times: tuple[float, float, float, float]) -> Phases:
    return Phases(*(np.array([each]) for each in times))


def rows(p: int, v: int) -> Rows:
    values = {"pipeline_parallel": p, "virtual_stages": v}
    domains = {field: np.array([value]) for field, value in values.items()}
    return Rows(domains, {field: np.zeros(1, dtype=np.int64) for field in values})


def test_the_most_lopsided_component_counts() -> None:
    """Layers spend 1 of 4 s forward, the head 3 of 4 s; with recompute a layer spends 4 of 5 s backward."""
    layer, head, nothing = phases((1, 2, 1, 1)), phases((3, 1, 0, 0)), phases((0, 0, 0, 0))
    work = WorkTimes({DENSE: layer}, nothing, head, nothing, {DENSE: 4})
    forward, backward = largest_shares(work, np.ones(1))
    assert forward.tolist() == [0.75]
    assert backward.tolist() == [0.8]


@settings(deadline=None, max_examples=300)
@given(
    dense=phase, experts=phase, first=phase, last=phase, engine=phase, v=st.integers(1, 3),
    held=st.tuples(st.integers(0, 5), st.integers(0, 5)), ends=st.tuples(st.booleans(), st.booleans()),
    again=st.sampled_from([0, 1]), surely=st.integers(0, 2), recomputed=st.floats(0.0, 1.0),
)  # fmt: skip
def test_no_rank_spends_a_larger_part_forward_or_backward(
    dense: tuple[float, float, float, float], experts: tuple[float, float, float, float],
    first: tuple[float, float, float, float], last: tuple[float, float, float, float],
    engine: tuple[float, float, float, float], v: int, held: tuple[int, int], ends: tuple[bool, bool],
    again: int, surely: int, recomputed: float,
) -> None:  # fmt: skip
    """A rank recomputes what is certain (``surely`` layers of each chunk that it holds) or more of them."""
    kinds = {DENSE: phases(dense), EXPERTS: phases(experts)}
    work = WorkTimes(kinds, phases(first), phases(last), phases(engine), {DENSE: 30, EXPERTS: 30})
    least = with_recompute(rows(4, v), work, np.full(1, float(surely * again)))
    forward, backward = largest_shares(least, np.full(1, float(again)))
    again_s = sum(count * times[3] for count, times in zip(held, (dense, experts), strict=True))
    chunks = v - (ends[0] or ends[1]) * (v > 1)
    certain = min(surely, 1 if v == 1 else 60 // (4 * v)) * chunks if again else 0
    if sum(held) < certain:
        return
    certain_s = certain * min(dense[3], experts[3])
    parts = [*[dense] * held[0], *[experts] * held[1], *[first] * ends[0], *[last] * ends[1], engine]
    ahead = sum(times[0] for times in parts)
    behind = sum(times[1] + times[2] for times in parts)
    behind += certain_s + again * recomputed * (again_s - certain_s)
    whole = ahead + behind
    assert ahead <= forward[0] * whole * (1 + 1e-9) + 1e-12
    assert behind <= backward[0] * whole * (1 + 1e-9) + 1e-12
