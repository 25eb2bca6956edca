"""Failures, checkpoints, batch efficiency and cost of a run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from planner.cost import goodput


def test_failures_scale_with_gpus():
    # 419 unexpected interruptions in 54 days on 16,384 GPUs: 50.7 thousand GPU-hours each.
    assert approx(1 / 50.7e3, rel=1e-3) == goodput.FAILURES_PER_GPU_HOUR
    assert goodput.mean_time_between_failures(1024) / 3600 == approx(49.5, rel=2e-3)
    assert goodput.mean_time_between_failures(100_000) / 3600 == approx(0.507, rel=2e-3)


def test_young_and_daly_by_hand():
    # delta = 60 s, M = 3 h: Young sqrt(2 x 60 x 10800) = 1138.4 s; Daly adds sqrt(d/2M)/3 and d/2M/9.
    assert goodput.young_interval(60, 10800) == approx(1138.4, abs=0.1)
    assert goodput.daly_interval(60, 10800) == approx(1138.42 * (1 + 0.017568 + 0.000309) - 60, abs=0.1)
    assert (
        goodput.daly_interval(3 * 3600, 3600) == 3600
    )  # a checkpoint that takes longer than two failures apart


def test_llama3_run_keeps_nine_tenths():
    # The report claims over 90 % effective training time.
    run = goodput.goodput(405e9, 16384)
    assert run.checkpoint_bytes == approx(5.67e12)
    assert run.mean_time_between_failures_s / 3600 == approx(3.09, abs=0.01)
    assert 0.90 < run.fraction < 0.99


def test_synchronous_checkpoints_cost_more():
    overlapped = goodput.goodput(405e9, 16384)
    blocking = goodput.goodput(405e9, 16384, blocking_fraction=1.0)
    assert blocking.fraction < overlapped.fraction
    assert blocking.interval_s > overlapped.interval_s


def test_critical_batch_of_known_runs():
    # 0.0471 D^0.462 sequences of 2048: 34 M tokens at 1e12, 11 M at 1e11.
    assert goodput.critical_batch_tokens(1e12) == approx(34e6, rel=0.03)
    assert goodput.critical_batch_tokens(1e11) == approx(11.6e6, rel=0.03)
    assert goodput.batch_efficiency(34e6, 34e6) == 0.5


def test_cost_of_a_run():
    # 1e12 tokens at 4e6 a step and 10 s: 250,000 steps = 2.5e6 s; 1000 GPUs at 2 USD for 694.4 h.
    run = goodput.run_cost(1e12, 4e6, 10.0, 1000, 2.0)
    assert run.steps == 250_000
    assert run.usd == approx(2.5e6 / 3600 * 1000 * 2)
    stretched = goodput.run_cost(1e12, 4e6, 10.0, 1000, 2.0, goodput_fraction=0.9)
    assert stretched.duration_s == approx(run.duration_s / 0.9)


@settings(deadline=None, max_examples=60)
@given(delta=st.floats(0.1, 600), hours=st.floats(0.5, 100), stretch=st.floats(0.3, 3.0))
def test_daly_interval_wastes_least(delta, hours, stretch):
    mean = hours * 3600
    best = goodput.daly_interval(delta, mean)
    # First-order waste is flat around its minimum; Daly's is within a whisker of it.
    young = goodput.young_interval(delta, mean)
    least = goodput.waste(young, delta, mean, 0.0)
    assert goodput.waste(best, delta, mean, 0.0) <= least * 1.05 + 1e-9 or delta > mean / 50
    assert goodput.waste(young * stretch, delta, mean, 0.0) >= least - 1e-12


@pytest.mark.parametrize("gpus", [np.array([8, 1024, 16384])])
def test_arrays(gpus):
    run = goodput.goodput(70e9, gpus)
    singles = [float(goodput.goodput(70e9, int(n)).fraction) for n in gpus]
    assert run.fraction == approx(singles)
    assert (np.diff(run.fraction) < 0).all()
