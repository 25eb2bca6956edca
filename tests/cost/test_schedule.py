"""Schedules: closed forms against the simulator, in-flight counts, unequal stages, long runs."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.orders import num_chunks, rank_orders
from planner.cost.schedule import bubble, closed_form, in_flight, simulate
from planner.errors import BadInput
from planner.spec.plan import Schedule

EQUAL: list[tuple[Schedule, int, int, int]] = [
    ("none", 1, 1, 5), ("gpipe", 4, 1, 8), ("1f1b", 4, 1, 8), ("1f1b", 3, 1, 2), ("interleaved", 4, 2, 8),
    ("interleaved", 4, 3, 16), ("zb-h1", 4, 1, 16), ("zb-h2", 4, 1, 16), ("dualpipe", 4, 1, 16),
    ("dualpipe", 8, 1, 32), ("dualpipe-v", 4, 2, 16), ("dualpipe-v", 8, 2, 32),
]  # fmt: skip
DURATIONS = [(1.0, 1.0, 1.0), (1.0, 1.3, 0.8), (2.0, 2.5, 1.5)]


def equal(seconds: float, p: int, v: int) -> list[list[float]]:
    return [[seconds / v] * v for _ in range(p)]


@pytest.mark.parametrize(("schedule", "p", "v", "m"), EQUAL)
@pytest.mark.parametrize("durations", DURATIONS)
def test_closed_form_equals_simulation_of_equal_stages(
    schedule: Schedule, p: int, v: int, m: int, durations: tuple[float, float, float]
) -> None:
    f, d, w = durations
    line = simulate(schedule, equal(f, p, v), equal(d, p, v), equal(w, p, v), m, with_events=True)
    assert line.step_s(schedule) == pytest.approx(closed_form(schedule, f, d, w, p, v, m), rel=1e-12)


def test_bubbles_by_hand() -> None:
    # p = 4, m = 16, F = D = W = 1, ideal 48: 1F1B 3 * 3 = 9; two chunks halve it; ZB-H1 3 * 1, a third of it;
    # ZB-H2 3 * (1 + 1 - 2) = 0; DualPipe (4/2 - 1) * 1.
    expected = {"1f1b": 9.0, "gpipe": 9.0, "zb-h1": 3.0, "zb-h2": 0.0, "dualpipe": 1.0}
    for schedule, idle in expected.items():
        assert bubble(schedule, 1.0, 1.0, 1.0, 4, 1, 16) == pytest.approx(idle)  # type: ignore[arg-type]
    assert bubble("interleaved", 1.0, 1.0, 1.0, 4, 2, 16) == pytest.approx(4.5)


def test_zb_v_has_almost_no_bubble_when_the_three_passes_are_equal() -> None:
    line = simulate("zb-v", equal(1, 8, 2), equal(1, 8, 2), equal(1, 8, 2), 32)
    one_f_one_b = closed_form("1f1b", 1, 1, 1, 8, 1, 32)
    assert 96 <= line.makespan_s < 96 + 0.3 * (one_f_one_b - 96)


@given(
    p=st.integers(2, 6), m=st.integers(1, 20), f=st.floats(0.1, 2.0), d=st.floats(0.1, 2.0),
    schedule=st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_makespan_is_between_the_ideal_and_no_overlap_at_all(
    p: int, m: int, f: float, d: float, schedule: Schedule
) -> None:
    line = simulate(schedule, equal(f, p, 1), equal(d, p, 1), equal(d, p, 1), m)
    work = m * (f + 2 * d)
    assert line.busy_s == pytest.approx([work] * p)
    assert work + (p - 1) * f <= line.makespan_s * (1 + 1e-9)
    assert line.makespan_s <= p * work * (1 + 1e-9)


def test_slowest_stage_last_is_the_textbook_sum() -> None:
    # 1F1B: sum of (F + B) over stages + (m - 1) times the slowest = (3 + 3 + 6) + 7 * 6 = 54
    f, d, w = [[1.0], [1.0], [2.0]], [[1.0], [1.0], [2.0]], [[1.0], [1.0], [2.0]]
    assert simulate("1f1b", f, d, w, 8).makespan_s == pytest.approx(54.0)


def test_slow_first_stage_costs_no_more_than_slow_last() -> None:
    slow, fast = [[2.0], [1.0], [1.0]], [[1.0], [1.0], [2.0]]
    assert (
        simulate("1f1b", slow, slow, slow, 8).makespan_s <= simulate("1f1b", fast, fast, fast, 8).makespan_s
    )


@pytest.mark.parametrize(
    ("schedule", "p", "v"),
    [("1f1b", 5, 1), ("gpipe", 3, 1), ("interleaved", 4, 3), ("zb-h1", 4, 1), ("zb-h2", 4, 1), ("zb-v", 4, 2),
     ("dualpipe", 4, 1), ("dualpipe-v", 4, 2)],
)  # fmt: skip
def test_long_runs_are_extrapolated_exactly(schedule: Schedule, p: int, v: int) -> None:
    random = np.random.default_rng(7)
    stages = [random.uniform(0.5, 1.0, (p, v)).tolist() for _ in range(3)]
    m = 12 * p
    short = simulate(schedule, *stages, m)
    full = simulate(schedule, *stages, m, with_events=True)
    assert short.makespan_s == pytest.approx(full.makespan_s, rel=1e-9)
    assert short.span_s == pytest.approx(full.span_s, rel=1e-9)


def test_a_large_schedule_is_cheap() -> None:
    stages = [np.random.default_rng(i).uniform(0.5, 1.0, (16, 8)).tolist() for i in range(3)]
    simulate("interleaved", *stages, 256)  # builds the order once
    start = time.perf_counter()
    for _ in range(5):
        simulate("interleaved", *stages, 256)
    assert (time.perf_counter() - start) / 5 < 0.1  # about 3 ms on an idle core


@pytest.mark.parametrize(("schedule", "p", "v", "m"), EQUAL)
def test_every_order_does_all_work_once(schedule: Schedule, p: int, v: int, m: int) -> None:
    for order in rank_orders(schedule, p, v, m):
        assert len(order) == len(set(order))
        forward = sum(kind == "F" for kind, _, _ in order)
        backward = sum(kind in "BD" for kind, _, _ in order)
        weights = sum(kind in "BW" for kind, _, _ in order)
        copies = m if schedule == "dualpipe" else m * num_chunks(schedule, v)
        assert forward == backward == weights == copies


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m"), [row for row in EQUAL if row[0] not in ("none", "zb-h2", "interleaved")]
)
def test_in_flight_counts_what_the_orders_hold(schedule: Schedule, p: int, v: int, m: int) -> None:
    for rank, order in enumerate(rank_orders(schedule, p, v, m)):
        held = peak = 0
        for kind, _, _ in order:
            held += {"F": 1, "B": -1, "D": 0, "W": -1}[kind]
            peak = max(peak, held)
        assert peak <= in_flight(schedule, rank, p, v, m)


def test_in_flight_by_hand() -> None:
    # 1F1B rank 1 of 4: 3 micro-batches; interleaved rank 0 of 4, v = 2: 2*3 + 4 + 1 = 11 chunks of m v = 16
    assert in_flight("1f1b", 1, 4, 1, 8) == 3
    assert in_flight("interleaved", 0, 4, 2, 8) == 11
    assert in_flight("gpipe", 0, 4, 1, 8) == 8
    assert in_flight("zb-h2", 2, 4, 1, 8) == 7
    assert in_flight("dualpipe", 0, 8, 1, 32) == 9


def test_in_flight_takes_arrays() -> None:
    ranks = np.arange(4)
    assert in_flight("1f1b", ranks, 4, 1, 8).tolist() == [4, 3, 2, 1]


def test_sends_delay_the_pipeline() -> None:
    # GPipe, p = 2, m = 1: F, send, F, B, send, B = 6 + 2 * 0.5
    one = [[1.0], [1.0]]
    assert simulate("gpipe", one, one, one, 1, send_s=0.5).makespan_s == pytest.approx(7.0)


def test_too_few_micro_batches_for_dualpipe_are_refused() -> None:
    with pytest.raises(BadInput, match="dualpipe cannot run 2 micro-batches on 4"):
        simulate("dualpipe", *([equal(1, 4, 1)] * 3), 2)


def test_events_do_not_overlap_on_a_rank() -> None:
    line = simulate("interleaved", equal(1, 4, 2), equal(1, 4, 2), equal(1, 4, 2), 8, with_events=True)
    for rank in range(4):
        events = sorted((e.start_s, e.end_s) for e in line.events if e.rank == rank)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(events))
