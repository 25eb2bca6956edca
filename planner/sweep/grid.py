"""The grid of a sweep: which questions are asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import BadInput
from planner.request import Question

MOST_SCENARIOS = 10_000


@dataclass(frozen=True)
class Scenario:
    """One question of the grid, as plain options (so that it can travel to another process)."""

    gpus: int
    hardware: str
    options: Mapping[str, Any]

    def question(self) -> Question:
        """Return the question with this size and accelerator."""
        return Question(**{**self.options, "gpus": self.gpus, "hardware": self.hardware})

    @property
    def key(self) -> str:
        """Return what identifies the question across runs of the program."""
        text = json.dumps([self.gpus, self.hardware, dict(self.options)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def scenarios(gpus: str, hardware: str, options: Mapping[str, Any]) -> list[Scenario]:
    """Read ``64:8192`` (doubling from the first to the last) or ``64,96,128``, and a list of accelerators.

    Raises
    ------
    BadInput
        A size is no positive whole number, a range runs backwards, or the grid is larger than 10,000.
    """
    sizes = cluster_sizes(gpus)
    names = [name.strip() for name in hardware.split(",") if name.strip()]
    if not names:
        raise BadInput("--hardware: name at least one accelerator")
    if len(sizes) * len(names) > MOST_SCENARIOS:
        raise BadInput(
            f"{len(sizes) * len(names)} scenarios are more than {MOST_SCENARIOS}; narrow the sweep"
        )
    return [Scenario(size, name, dict(options)) for name in names for size in sizes]


def cluster_sizes(text: str) -> list[int]:
    """Read the sizes of a sweep; a range doubles and ends with its last value."""
    if ":" not in text:
        return sorted({_size(word) for word in text.split(",")})
    low_text, _, high_text = text.partition(":")
    low, high = _size(low_text), _size(high_text)
    if low > high:
        raise BadInput(f"--gpus {text}: the range runs backwards; did you mean {high}:{low}?")
    sizes = []
    while low < high:
        sizes.append(low)
        low *= 2
    return [*sizes, high]


def _size(word: str) -> int:
    try:
        size = int(word)
    except ValueError:
        size = 0
    if size < 1:
        raise BadInput(f"--gpus: {word!r} is not a positive whole number (examples: 64:8192, or 64,96,128)")
    return size
