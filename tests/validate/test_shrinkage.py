"""The arithmetic of the fit: like constants share what no row tells apart, and outliers pull nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from fit import CONSTANTS, start_values
from priors import CLOCKS, FAMILIES, HABITS, POWER, STATED
from shrink import Linear, solve
from write_fit import NOTE, _comment, _with_values, _without_note

KEYS = [("fw:nemo", "elementwise_factor"), ("fw:megatron", "elementwise_factor")]


def model(
    true: tuple[float, float], rows: tuple[int, int], outlier: float = 0.0, keys: list[tuple[str, str]] = KEYS
) -> Linear:
    """Rows whose error is 0.1 for each unit that a framework's constant is above its true value."""
    owner = np.repeat([0, 1], rows)
    jacobian = np.zeros((len(owner), 2))
    jacobian[np.arange(len(owner)), owner] = 0.1
    values = dict.fromkeys(keys, 1.5)
    errors = jacobian @ (1.5 - np.array(true))
    if outlier:
        errors[0] += outlier
    return Linear(keys, values, errors, jacobian, np.ones(len(owner)))


def untold(keys: list[tuple[str, str]]) -> Linear:
    """One row that no constant moves: everything rests on what was known before."""
    values = dict.fromkeys(keys, 0.9)
    return Linear(keys, values, np.zeros(1), np.zeros((1, len(keys))), np.ones(1))


def test_many_rows_decide() -> None:
    values, _ = solve(model((2.0, 2.0), (3000, 3000)))
    assert list(values.values()) == pytest.approx([2.0, 2.0], abs=0.02)


def test_a_framework_without_rows_gets_the_shared_value() -> None:
    values, shared = solve(model((2.0, 0.8), (3000, 0)))
    assert values[KEYS[1]] == pytest.approx(shared["fw:fused", "elementwise_factor"])
    prior = HABITS["elementwise_factor"].prior
    assert prior < shared["fw", "elementwise_factor"] < values[KEYS[1]] < values[KEYS[0]]


def test_a_family_keeps_its_distance_from_the_others() -> None:
    """torchtitan's rows say more of llm-foundry, its family, than of nemo."""
    keys = [("fw:torchtitan", name := "elementwise_factor"), ("fw:llm-foundry", name), ("fw:nemo", name)]
    linear = model((2.5, 0.8), (3000, 0), keys=keys[:2])
    start = dict.fromkeys(keys, 1.5)
    wide = np.hstack([linear.jacobian, np.zeros((len(linear.errors), 1))])
    values, _ = solve(Linear(keys, start, linear.errors, wide, linear.weights))
    prior = HABITS[name].prior
    assert prior < values[keys[2]] < values[keys[1]] < values[keys[0]]


def test_what_documents_say_of_one_framework_is_not_shared() -> None:
    own, other = ("fw:llm-foundry", name := "attention_efficiency"), ("fw:torchtitan", "attention_efficiency")
    values, _ = solve(untold([other, own]))
    assert values[own] == pytest.approx(STATED["llm-foundry", name].prior)
    assert values[other] > values[own]


def test_a_part_with_a_lower_power_limit_is_drawn_to_a_share_of_the_others() -> None:
    part = next(iter(POWER))
    keys = [("hw:h100-sxm-80gb", "gemm.bf16"), (f"hw:{part}", "gemm.bf16")]
    values, _ = solve(untold(keys))
    assert values[keys[0]] == pytest.approx(CLOCKS["hopper"].prior)
    assert values[keys[1]] == pytest.approx(CLOCKS["hopper"].prior * POWER[part])


def test_every_framework_has_one_family() -> None:
    members = [name for family in FAMILIES.values() for name in family]
    assert len(members) == len(set(members))
    assert {c.owner for c in CONSTANTS if c.owner.startswith("fw:")} == {f"fw:{name}" for name in members}


def test_a_failed_run_pulls_nothing() -> None:
    clean, _ = solve(model((2.0, 2.0), (50, 50)))
    spoiled, _ = solve(model((2.0, 2.0), (50, 50), outlier=2.0))
    assert spoiled[KEYS[0]] == pytest.approx(clean[KEYS[0]], abs=0.06)


def test_outliers_hold_no_constant_at_its_limit() -> None:
    """Eight rows of forty ask for a value of 32, beyond the limit of 4, until they have lost their weight."""
    linear = model((2.0, 2.0), (40, 0))
    linear.errors[:8] -= 3.0
    values, _ = solve(linear)
    assert 1.5 < values[KEYS[0]] < 3.5


def test_values_stay_within_their_bounds() -> None:
    values, _ = solve(model((50.0, -50.0), (500, 500)))
    habit = HABITS["elementwise_factor"]
    assert values[KEYS[0]] == pytest.approx(habit.high)
    assert values[KEYS[1]] == pytest.approx(habit.low)


def test_no_part_runs_beyond_its_own_curve() -> None:
    """Only a curve that was measured on a part with a lower power limit may be passed."""
    beyond = {c.owner for c in CONSTANTS if c.owner.startswith("hw:") and start_values()[c.key] > 1.0}
    assert beyond <= {"hw:gb300-nvl72"}


BODY = """
{note}    attention_kernel="fa2",
    # Measured by hand.
    overlap_slowdown=0.2,
"""


def test_new_values_replace_the_old_note_and_nothing_else() -> None:
    body = _without_note(BODY.format(note=_comment(f"overlap_slowdown, step_overhead_s: {NOTE}, 12 rows.")))
    assert body == BODY.format(note="")[1:]
    written = _with_values(body, {"overlap_slowdown": 0.31415926, "kernel_efficiency": 0.9})
    assert written == (
        '    attention_kernel="fa2",\n    kernel_efficiency=0.9,\n'
        "    # Measured by hand.\n    overlap_slowdown=0.3142,\n"
    )


def test_a_comment_of_other_words_stays() -> None:
    body = BODY.format(note="    # Of this framework.\n")
    assert _without_note(body) == body[1:]
