"""Between floats and CP-SAT's integers: whole microseconds, direction in the name.

A bound rounds down and a plan's own cost rounds up, so ``bound <= cost`` survives the rounding. One plan's
time is rounded once, after its terms are summed; the solver's objective therefore differs from
the price of the plan by less than one microsecond (``TIME_TOLERANCE_S``).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MICROSECOND_S = 1e-6
TIME_TOLERANCE_S = MICROSECOND_S
"""Largest difference between the objective of a plan and its step time: one rounding up."""
ROUND_OFF = 1e-9
"""Relative slack for float arithmetic: sums of a few thousand terms agree to about 1e-13 of their value, and
a bound that lies within this of an integer is taken as that integer."""


def microseconds_down(seconds: Any) -> Any:
    """Whole microseconds not above ``seconds``: for bounds. Arrays stay arrays (int64)."""
    return _whole(np.floor(np.asarray(seconds) / MICROSECOND_S * (1.0 - ROUND_OFF)))


def microseconds_up(seconds: Any) -> Any:
    """Whole microseconds not below ``seconds``: for the cost of a plan."""
    return _whole(np.ceil(np.asarray(seconds) / MICROSECOND_S * (1.0 - ROUND_OFF)))


def seconds(microseconds: float) -> float:
    """Seconds of so many microseconds."""
    return microseconds * MICROSECOND_S


def gap_pct(best: float, bound: float) -> float:
    """How far a proven bound lies below the best known value, in per cent of the best. [%]."""
    if best <= 0 or math.isinf(bound):
        return 0.0
    return max(0.0, 100.0 * (best - bound) / best)


def _whole(values: Any) -> Any:
    return int(values) if values.ndim == 0 else values.astype(np.int64)
