"""When a search has to end, asked between the parts of long work on tables."""

from __future__ import annotations

import time


class OutOfTime(Exception):
    """The search's time is over in the middle of a table: what is known so far stands."""


def ensure_time(deadline: float) -> None:
    """Raise ``OutOfTime`` once the monotonic clock is past the deadline. [s]."""
    if time.monotonic() > deadline:
        raise OutOfTime
