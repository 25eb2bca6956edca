"""Answers as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from planner.errors import BadInput
from planner.practice.quantity import ASKED, figures, read, show


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("31.4 GB", "GB", 31.4e9), ("31GB", "GB", 31e9), ("31.4", "GB", 31.4e9), ("0.0314 TB", "GB", 31.4e9),
        ("3.1e10 bytes", "GB", 3.1e10), ("3.1E10 B", "GB", 3.1e10), ("29.2 GiB", "GB", 29.2 * 2**30),
        ("1,024 MB", "GB", 1.024e9), ("~31 gb", "GB", 31e9), ("= 31 GB", "GB", 31e9),
        ("201 MB", "MB", 201e6), ("8 Gbit", "GB", 1e9),
        ("3.1 ms", "ms", 3.1e-3), ("3.1", "ms", 3.1e-3), ("0.0031 s", "ms", 3.1e-3), ("3100us", "ms", 3.1e-3),
        ("90 min", "h", 5400.0), ("1.5 hours", "h", 5400.0),
        ("12.5%", "%", 0.125), ("0.125", "%", 0.125), ("1/8", "%", 0.125), ("12.5 percent", "%", 0.125),
        ("2.6x", "x", 2.6), ("2.6", "x", 2.6), ("13/5", "x", 2.6),
        ("28", "", 28.0), ("1_024", "", 1024.0), ("4k", "", 4000.0),
        ("5B", "B", 5e9), ("5", "B", 5e9), ("5 billion", "B", 5e9), ("0.005T", "B", 5e9),
        ("3.85 TFLOP", "TFLOP", 3.85e12), ("3.85e12 flop", "TFLOP", 3.85e12),
    ],
)  # fmt: skip
def test_units_and_forms(text: str, unit: str, value: float) -> None:
    assert read(text, unit)[0] == approx(value)


def test_a_bare_share_may_be_per_cent() -> None:
    assert read("82", "%") == approx([82.0, 0.82])
    assert read("82%", "%") == approx([0.82])


@pytest.mark.parametrize(
    ("text", "unit", "words"),
    [
        ("much", "GB", "not a number"),
        ("", "GB", "not a number"),
        ("31 s", "GB", "'s' measures seconds"),
        ("31 GX", "GB", "'gx' is no unit"),
        ("1/0", "%", "divides by zero"),
        ("1e999", "GB", "not finite"),
        ("nan", "GB", "not a number"),
        ("31 GB extra", "GB", "not a number"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, unit: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read(text, unit)


@settings(deadline=None)
@given(number=st.floats(1e-3, 1e6), unit=st.sampled_from(sorted(ASKED)))
def test_what_is_shown_is_read_back(number: float, unit: str) -> None:
    value = number * ASKED[unit][1]
    assert read(show(value, unit), unit)[0] == approx(value, rel=6e-4)


@settings(deadline=None)
@given(text=st.text(max_size=30), unit=st.sampled_from(sorted(ASKED)))
def test_any_text_is_read_or_refused(text: str, unit: str) -> None:
    try:
        values = read(text, unit)
    except BadInput:
        return
    assert all(isinstance(value, float) for value in values)


@pytest.mark.parametrize(
    ("number", "text"),
    [(31.40625, "31.41"), (0.5369, "0.5369"), (120.0, "120"), (12345.6, "12346"), (0, "0")],
)
def test_four_figures(number: float, text: str) -> None:
    assert figures(number) == text
