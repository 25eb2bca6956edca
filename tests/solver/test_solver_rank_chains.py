"""The chains through each rank are chains: no layout's simulated makespan is below their bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.schedule import simulate
from planner.cost.stage import stage_order
from planner.solver.rank_chains import CHAINED, chain_bound
from planner.solver.space import Rows
from planner.solver.tables import Phases, WorkTimes
from planner.spec.model import LayerKind
from planner.spec.plan import Schedule


def setting(schedule: Schedule, p: int, v: int, m: int) -> Rows:
    values = {
        "schedule": schedule, "pipeline_parallel": p, "virtual_stages": v, "num_microbatches": m,
    }  # fmt: skip
    domains = {field: np.array([value]) for field, value in values.items()}
    return Rows(domains, {field: np.zeros(1, dtype=np.int64) for field in values})


def phases(forward: float, backward: float) -> Phases:
    return Phases(*(np.array([seconds]) for seconds in (forward, backward, 0.0, 0.0)))


def bound(
    rows: Rows, layers: int, layer: tuple[float, float], first: tuple[float, float],
    last: tuple[float, float], engine: tuple[float, float],
) -> float:  # fmt: skip
    kind = LayerKind()
    work = WorkTimes({kind: phases(*layer)}, phases(*first), phases(*last), phases(*engine), {kind: layers})
    p, m = (int(rows.values(name)[0]) for name in ("pipeline_parallel", "num_microbatches"))
    whole = layers * sum(layer) + sum(first) + sum(last) + p * sum(engine)
    return float(chain_bound(rows, work, np.zeros(1), np.array([m * whole / p]))[0])


def makespan(
    schedule: Schedule, m: int, layout: list[list[int]], layer: tuple[float, float],
    first: tuple[float, float], last: tuple[float, float], engine: tuple[float, float],
) -> float:  # fmt: skip
    """Simulated makespan of layers as [rank][chunk]."""
    p, v = len(layout), len(layout[0])
    passes = []
    for index in range(2):
        times = [[count * layer[index] + engine[index] / v for count in held] for held in layout]
        times[0][0] += first[index]
        times[p - 1][v - 1] += last[index]
        passes.append(times)
    weights = [[0.0] * v for _ in range(p)]
    return simulate(schedule, *passes, weights, m).makespan_s


def test_equal_stages_are_bounded_exactly_where_the_last_rank_sets_the_pace() -> None:
    """1F1B of equal stages takes (m + p - 1) (f + b): 11 x 6 for p = 4, m = 8, two layers of 3 seconds."""
    ends = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    assert makespan("1f1b", 8, [[2]] * 4, (1.0, 2.0), *ends) == pytest.approx(66.0)
    assert bound(setting("1f1b", 4, 1, 8), 8, (1.0, 2.0), *ends) == pytest.approx(66.0, rel=2e-3)


def test_interleaved_stages_are_bounded_but_for_empty_first_and_last_chunks() -> None:
    """Equal chunks take m (f + b) + (p - 1) (f + b) / v: 8 x 6 + 3 x 3 for p = 4, m = 8, v = 2.

    The bound allows an empty chunk at either end, which would save rank 3 the way back through the first
    one (2) and three passes of the last (3).
    """
    ends = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    assert makespan("interleaved", 8, [[1, 1]] * 4, (1.0, 2.0), *ends) == pytest.approx(57.0)
    assert bound(setting("interleaved", 4, 2, 8), 8, (1.0, 2.0), *ends) == pytest.approx(52.0, rel=2e-3)


seconds = st.floats(min_value=0.05, max_value=3.0)
pair = st.tuples(seconds, seconds)
ends = st.tuples(pair, pair, st.tuples(st.floats(0.0, 0.3), st.floats(0.0, 0.3)))


@settings(deadline=None, max_examples=300)
@given(data=st.data(), schedule=st.sampled_from(CHAINED), p=st.integers(2, 6), layer=pair, around=ends)
def test_no_layout_is_faster_than_the_bound(
    data: st.DataObject, schedule: Schedule, p: int, layer: tuple[float, float],
    around: tuple[tuple[float, float], tuple[float, float], tuple[float, float]],
) -> None:  # fmt: skip
    v = data.draw(st.integers(2, 4)) if schedule == "interleaved" else 1
    rounds = data.draw(st.integers(1, 4))
    m = p + data.draw(st.integers(0, 12))
    if schedule == "interleaved":
        m = rounds * (p + data.draw(st.integers(0, (p - 1) // rounds)))
    if schedule == "interleaved":
        least = data.draw(st.integers(1, 3))
        counts = data.draw(st.lists(st.integers(least, least + 1), min_size=p * v, max_size=p * v))
        counts[0] = data.draw(st.integers(0, least + 1))
        counts[-1] = data.draw(st.integers(0, least + 1))
        if not least * p * v <= sum(counts) < (least + 1) * p * v:
            counts[0] = counts[-1] = least
    else:
        counts = data.draw(st.lists(st.integers(1, 6), min_size=p, max_size=p))
    layout = [[0] * v for _ in range(p)]
    for (rank, chunk), count in zip(stage_order(schedule, p, v), counts, strict=True):
        layout[rank][chunk] = count
    least_s = bound(setting(schedule, p, v, m), sum(counts), layer, *around)
    assert least_s <= makespan(schedule, m, layout, layer, *around) * (1 + 1e-9)
