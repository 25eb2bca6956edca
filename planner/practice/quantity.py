"""Numbers as people write them in answers: ``31.4 GB``, ``3.1e10 bytes``, ``12.5%``, ``3/8``, ``70B``."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from planner.errors import BadInput, did_you_mean

UNITS: dict[str, dict[str, float]] = {
    "bytes": {
        "byte": 1.0, "bytes": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "pb": 1e15,
        "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
        "gbit": 1e9 / 8, "mbit": 1e6 / 8,
    },
    "seconds": {
        "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9,
        "min": 60.0, "minutes": 60.0, "h": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0,
        "day": 86400.0, "days": 86400.0,
    },
    "fraction": {"%": 0.01, "percent": 0.01, "x": 1.0, "times": 1.0},
    "count": {
        "k": 1e3, "m": 1e6, "b": 1e9, "bn": 1e9, "t": 1e12, "million": 1e6, "billion": 1e9,
        "trillion": 1e12,
    },
    "flop": {
        "flop": 1.0, "flops": 1.0, "gflop": 1e9, "tflop": 1e12, "tflops": 1e12, "pflop": 1e15,
        "pflops": 1e15, "eflop": 1e18, "eflops": 1e18,
    },
}  # fmt: skip
"""Dimension to its units (lower case) and their size in base units."""

ASKED: dict[str, tuple[str, float]] = {
    "GB": ("bytes", 1e9), "MB": ("bytes", 1e6), "s": ("seconds", 1.0), "ms": ("seconds", 1e-3),
    "h": ("seconds", 3600.0), "min": ("seconds", 60.0), "%": ("fraction", 0.01), "x": ("fraction", 1.0),
    "": ("count", 1.0), "B": ("count", 1e9), "TFLOP": ("flop", 1e12),
}  # fmt: skip
"""Unit that a question asks for: its dimension and size."""

WORDS = {"": "a whole number", "B": "billions of parameters", "x": "a ratio", "%": "a share in %"}
"""Units that are not written behind the number, in words."""

_NUMBER = re.compile(
    r"^[~≈=\s]*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(?:/\s*(\d+\.?\d*))?\s*([a-zµ%]*)\s*$",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"(?<=\d)[,_](?=\d{3}(?!\d))")


def model_of(parameters_b: float, article: str = "a") -> str:
    """A model of so many billion parameters: ``a 7B model``, ``an 8B model``."""
    size = f"{parameters_b:g}"
    return f"{article}{'n' if size.startswith('8') or size in {'11', '18'} else ''} {size}B model"


def read(text: str, unit: str) -> list[float]:
    """Read an answer; return what it may mean in base units, the likeliest reading first.

    A bare number is in the asked ``unit``. A bare share has two readings (0.125, or 12.5 for per cent).

    Raises
    ------
    BadInput
        It is no number, or its unit measures something else.
    """
    dimension, scale = ASKED[unit]
    match = _NUMBER.match(_THOUSANDS.sub("", text.strip()))
    if match is None:
        raise BadInput(f"{text!r} is not a number; answer like {_example(unit)}")
    value = float(match.group(1))
    if match.group(2):
        divisor = float(match.group(2))
        if divisor == 0:
            raise BadInput(f"{text!r} divides by zero")
        value /= divisor
    word = match.group(3).lower()
    if not math.isfinite(value):
        raise BadInput(f"{text!r} is not finite")
    if not word:
        return [value, value / 100] if dimension == "fraction" else [value * scale]
    return [value * _size(word, dimension, unit, text)]


def _size(word: str, dimension: str, unit: str, text: str) -> float:
    known = UNITS[dimension]
    if word in known:
        return known[word]
    others = [name for name, units in UNITS.items() if word in units]
    what = f"{word!r} measures {others[0]}" if others else f"{word!r} is no unit{did_you_mean(word, known)}"
    raise BadInput(f"{text!r}: {what}, and the answer is in {dimension}, like {_example(unit)}")


def _example(unit: str) -> str:
    return {"%": "12.5% or 0.125", "x": "2.6 or 2.6x", "": "28", "B": "5B or 5e9 (bare: billions)"}.get(
        unit, f"31.4 {unit}"
    )


def show(value: float, unit: str) -> str:
    """Show a base value in the asked unit with four significant figures (counts whole)."""
    _, scale = ASKED[unit]
    number = value / scale
    if unit == "" and float(number).is_integer():
        return f"{int(number)}"
    digits = figures(number)
    return {"%": f"{digits} %", "B": f"{digits}B", "x": f"{digits}x", "": digits}.get(
        unit, f"{digits} {unit}"
    )


def figures(number: float) -> str:
    """Four significant figures without an exponent."""
    if number == 0:
        return "0"
    places = max(0, 3 - math.floor(math.log10(abs(number))))
    text = f"{number:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ratio(numerator: int, denominator: int) -> str:
    """A fraction in lowest terms: ``7/32``."""
    return str(Fraction(numerator, denominator))
