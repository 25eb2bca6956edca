"""Numbers for people: formatting and parsing of bytes, seconds and FLOP/s.

Inside the package everything is in base units (byte, second, FLOP). GB is 1e9 and GiB is 2**30.
"""

from __future__ import annotations

import math
import re

from planner.errors import BadInput

GB = 1e9
GIB = float(2**30)

_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "pb": 1e15,
          "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}  # fmt: skip
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_NUMBER = re.compile(r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)\s*$", re.IGNORECASE)


def _parse(text: str, units: dict[str, float], default: str, what: str) -> float:
    match = _NUMBER.match(text)
    unit = (match.group(2) or default).lower() if match else ""
    if match is None or unit not in units:
        allowed = ", ".join(filter(None, units))
        raise BadInput(f"{what} {text!r} is not a number with one of the units {allowed}")
    value = float(match.group(1)) * units[unit]
    if not math.isfinite(value):
        raise BadInput(f"{what} {text!r} is not finite")
    return value


def parse_bytes(text: str, what: str = "size", default: str = "gb") -> float:
    """Read ``80GB``, ``79.6 GiB`` or a bare number in ``default`` units. [byte]."""
    return _parse(text, _BYTES, default, what)


def parse_seconds(text: str, what: str = "time") -> float:
    """Read ``10s``, ``250ms`` or a bare number of seconds. [s]."""
    return _parse(text, _SECONDS, "s", what)


def parse_count(text: str, what: str = "count") -> float:
    """Read ``15T``, ``1.5B`` or a bare number. [1]."""
    return _parse(text, _COUNTS, "", what)


def format_bytes(value: float) -> str:
    """Show bytes as GB (1e9), or a smaller decimal unit when under 0.1 GB."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= (0.1 * scale if unit == "GB" else scale):
            return f"{value / scale:.1f} {unit}" if scale >= 1e9 else f"{value / scale:.0f} {unit}"
    return f"{value:.0f} B"


def format_seconds(value: float) -> str:
    """Show seconds with three significant figures and a fitting unit."""
    if value >= 100:
        return f"{value:.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= 0.9995 * scale:  # 999.5 ms and more round to 1 s
            return f"{value / scale:.3g} {unit}"
    return "0 s" if value == 0 else f"{value:.2e} s"
