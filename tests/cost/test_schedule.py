"""Schedules: closed forms against the simulator, in-flight counts, unequal stages, long runs."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner.cost.program as program_module
from planner.cost.orders import rank_orders
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


@pytest.mark.parametrize(
    ("p", "v", "m"), [(4, 3, 5), (4, 10, 5), (8, 2, 10), (8, 4, 27), (4, 2, 8), (4, 2, 3), (2, 5, 7)]
)
def test_rounds_that_are_no_multiple_of_the_ranks_run(p: int, v: int, m: int) -> None:
    """PyTorch takes 5 micro-batches on 4 ranks as one round of 5, 27 on 8 as three of 9."""
    simulate("interleaved", equal(1.0, p, v), equal(1.0, p, v), equal(1.0, p, v), m)
    for rank, operations in enumerate(rank_orders("interleaved", p, v, m, (1, 1, 1))):
        held = list(accumulate(1 if kind == "F" else -1 for kind, _, _ in operations))
        assert max(held) == in_flight("interleaved", rank, p, v, m)


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


def test_a_long_run_simulates_only_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steady state is extrapolated, so that the work does not grow with the micro-batches."""
    built: list[int] = []
    build = program_module._build

    def recorded(schedule: Schedule, p: int, v: int, m: int, ticks: tuple[int, int, int]) -> object:
        built.append(m)
        return build(schedule, p, v, m, ticks)

    monkeypatch.setattr(program_module, "_build", recorded)
    stages = [np.random.default_rng(i).uniform(0.5, 1.0, (11, 7)).tolist() for i in range(3)]
    simulate("interleaved", *stages, 11 * 1000)
    assert built and max(built) < 11 * 100


@pytest.mark.parametrize(("schedule", "chunks"), [("zb-v", 1), ("dualpipe-v", 3), ("dualpipe", 2)])
def test_a_schedule_with_fixed_chunks_refuses_others(schedule: Schedule, chunks: int) -> None:
    equal = [[1.0] * chunks] * 4
    with pytest.raises(BadInput, match=f"schedule {schedule} has"):
        simulate(schedule, equal, equal, equal, 8)


def test_extrapolation_waits_until_uneven_stages_are_steady() -> None:
    """The slow last rank is hidden behind the slow first one for a while: both runs agree all the same."""
    forward = [[1.5], [0.6], [0.7], [1.5001]]
    backward = [[1.0], [1.4], [0.6], [1.0]]
    for schedule in ("1f1b", "zb-h1", "gpipe"):
        long = simulate(schedule, forward, backward, backward, 400)
        full = simulate(schedule, forward, backward, backward, 400, with_events=True)
        assert long.makespan_s == pytest.approx(full.makespan_s, rel=1e-12)


def test_a_pipeline_too_long_to_simulate_keeps_the_pace_of_its_busiest_rank() -> None:
    """1F1B of equal stages: (m + p - 1) (F + B), also beyond what is simulated."""
    p, m = 1000, 5000
    equal = [[1.0]] * p
    assert simulate("1f1b", equal, equal, equal, m).makespan_s == pytest.approx((m + p - 1) * 3.0)
    assert simulate("1f1b", equal, equal, equal, 4).makespan_s == pytest.approx((4 + p - 1) * 3.0)
