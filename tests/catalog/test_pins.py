"""The pin grammar: values, lists, ranges and bans."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.pins import PIN_OPTIONS, parse_pin
from planner.errors import BadInput
from planner.spec import Plan

BY_OPTION = {option.option: option for option in PIN_OPTIONS}


@pytest.mark.parametrize(
    ("option", "text", "admitted", "refused"),
    [
        ("--tp", "8", [8], [1, 4, 16]),
        ("--tp", "4,8", [4, 8], [1, 2, 16]),
        ("--pp", "2:8", [2, 3, 8], [1, 9]),
        ("--pp", "1:8,!4", [1, 8], [4, 9]),
        ("--dp", "4:", [4, 1024], [3]),
        ("--dp", ":4", [1, 4], [5]),
        ("--schedule", "not-gpipe", ["1f1b", "none"], ["gpipe"]),
        ("--schedule", "1F1B", ["1f1b"], ["interleaved"]),
        ("--recompute", "none,selective", ["none", "selective"], ["full"]),
        ("--cp-kind", "all-gather", ["all_gather"], ["ring"]),
        ("--sp", "on", [True], [False]),
        ("--sp", "no", [False], [True]),
        ("--zero", "!0", [1, 3], [0]),
    ],
)
def test_words_admit_what_they_say(
    option: str, text: str, admitted: list[object], refused: list[object]
) -> None:
    pin = parse_pin(BY_OPTION[option], text)
    assert pin.option == f"{option} {text}"
    assert all(pin.admits(value) for value in admitted)  # type: ignore[arg-type]
    assert not any(pin.admits(value) for value in refused)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("--tp", "0", "1 or more"),
        ("--tp", "-3", "1 or more"),
        ("--tp", "x", "'x' is not a whole number"),
        ("--tp", "2.5", "not a whole number"),
        ("--tp", "nan", "not a whole number"),
        ("--tp", "", "not a whole number"),
        ("--tp", "4,!4", "leave no value"),
        ("--pp", "8:2", "8 is more than 2"),
        ("--pp", ":", "at least one end"),
        ("--pp", "1:2,4:8", "one range"),
        ("--pp", "1,4:8", "one range"),
        ("--zero", "4", "0 to 3"),
        ("--schedule", "zbv", "did you mean 'zb-v'"),
        ("--sp", "maybe", "on, off"),
        ("--sp", "on,!on", "leave no value"),
        ("--tp", "9" * 30, "not a whole number"),
        ("--tp", "٣", "not a whole number"),
    ],
)
def test_bad_words_are_told_in_one_sentence(option: str, text: str, told: str) -> None:
    with pytest.raises(BadInput, match=r"^[^\n]+$") as caught:
        parse_pin(BY_OPTION[option], text)
    assert told in str(caught.value)
    assert str(caught.value).startswith(option)


def test_every_option_pins_a_plan_field_and_none_twice() -> None:
    fields = [option.field for option in PIN_OPTIONS]
    assert set(fields) <= set(Plan.model_fields)
    assert len(set(fields)) == len(fields)


@settings(deadline=None)
@given(st.text(max_size=20))
def test_any_text_is_a_pin_or_bad_input(text: str) -> None:
    for option in PIN_OPTIONS:
        try:
            pin = parse_pin(option, text)
        except BadInput:
            continue
        assert pin.field == option.field
