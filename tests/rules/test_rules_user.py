"""The user's pins are rules: named by the option, checked and masked like the others."""

from __future__ import annotations

import pytest
from toys import tiny_dense, vary

from planner.rules import check, mask, pin_rules, valid_values
from planner.rules.batch import micro_batch_divides_the_replica_batch
from planner.spec import Pin, Plan, PlanRequest

PLAN = Plan(tensor_parallel=2, data_parallel=4, micro_batch=1, num_microbatches=4)


def pinned(*pins: Pin) -> PlanRequest:
    return vary(tiny_dense(), pins=pins)


def test_a_pin_is_named_by_its_option_and_proposes_what_it_admits() -> None:
    request = pinned(Pin(field="tensor_parallel", allowed=(4, 8), option="--tp 4,8"))
    (violation,) = check(PLAN, request)
    assert violation.rule == "pin:--tp 4,8"
    assert violation.nearest == 4
    assert str(violation) == (
        "You asked for --tp 4,8, and the plan has 2; valid tensor_parallel: 4 (nearest: 4)."
    )


@pytest.mark.parametrize(
    ("pin", "admitted"),
    [
        (Pin(field="micro_batch", minimum=2, maximum=4), (2, 4)),
        (Pin(field="micro_batch", forbidden=(1,)), (2, 4)),
        (Pin(field="micro_batch", allowed=(1, 4)), (1, 4)),
    ],
)
def test_valid_values_respect_ranges_bans_and_choices(pin: Pin, admitted: tuple[int, ...]) -> None:
    """Batch 16 over 4 replicas splits into micro-batches of 1, 2 and 4; their count is left open here."""
    rules = (*pin_rules(pinned(pin)), micro_batch_divides_the_replica_batch)
    assert valid_values("micro_batch", PLAN, pinned(pin), rules) == admitted


@pytest.mark.parametrize(
    ("field", "values", "good"),
    [
        ("sequence_parallel", [False, True], [False, True]),
        ("schedule", ["none", "1f1b"], [False, True]),
        ("zero_stage", [0, 1], [False, True]),
    ],
)
def test_pins_mask_booleans_words_and_numbers(field: str, values: list, good: list[bool]) -> None:
    request = pinned(Pin(field=field, allowed=(values[1],), option="pin"))
    assert mask(pin_rules(request), request, {field: values}).tolist() == good


def test_a_pin_on_the_gpus_used_looks_at_the_whole_plan() -> None:
    request = pinned(Pin(field="num_gpus", maximum=4, option="--use-gpus :4"))
    (violation,) = check(PLAN, request)
    assert violation.sentence == "You asked for --use-gpus :4, and the plan has 8"
    assert violation.allowed == ()


def test_braces_in_an_option_are_shown_as_written() -> None:
    request = pinned(Pin(field="tensor_parallel", allowed=(4,), option="--tp {4}"))
    assert "You asked for --tp {4}, and" in check(PLAN, request)[0].sentence
