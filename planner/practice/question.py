"""What a question is: text, a key of one of three kinds, a hint, an explanation, known mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from typing import Literal

from planner.practice.quantity import show
from planner.spec.request import PlanRequest

Level = Literal["mid", "senior", "staff"]
LEVELS: tuple[Level, ...] = ("mid", "senior", "staff")

TOPICS: dict[str, str] = {
    "data-parallel": "12.1.1 Plain data parallelism and its memory",
    "zero": "12.1.2 ZeRO stages 1 to 3",
    "tensor": "12.2.1 Tensor parallelism",
    "pipeline": "12.2.2 Pipeline parallelism and the bubble",
    "sequence": "12.3.1 Sequence parallelism and activations",
    "context": "12.3.2 Context parallelism and ring attention",
    "mix": "12.4.1 Choosing a mix",
    "cases": "12.4.2 Published configurations",
}
"""Topic to the section it practises, in the order of the chapter."""

WIDEST_TOLERANCE = 0.02
"""Mental arithmetic with three figures stays inside 2 %; the GB/GiB slip (7 %) stays outside."""
NARROWEST_TOLERANCE = 0.002
MISTAKE_MARGIN = 0.4
"""A tolerance ends at this share of the way to the nearest known mistake."""
SAME = 1e-6
"""Mistakes whose values differ by less lead to the same answer."""


@dataclass(frozen=True)
class Mistake:
    """A wrong value that people arrive at, and how."""

    value: float
    diagnosis: str


@dataclass(frozen=True, kw_only=True)
class Numeric:
    """A number. Values are in base units (byte, second, FLOP, 1); ``unit`` is the one asked for.

    ``tolerance`` is relative; 0 asks for the exact count.
    """

    value: float
    unit: str
    tolerance: float
    mistakes: tuple[Mistake, ...] = ()

    def admits(self, value: float) -> bool:
        """Whether a value is right."""
        return abs(value - self.value) <= self.tolerance * abs(self.value)

    @property
    def shown(self) -> str:
        """The value in the asked unit."""
        return show(self.value, self.unit)


def numeric(value: object, unit: str, *mistakes: tuple[object, str], exact: bool = False) -> Numeric:
    """Build a key whose tolerance keeps clear of every known mistake.

    Mistakes that give the right value with these numbers (one KV head per query head, say) are left out.

    Parameters
    ----------
    mistakes
        Pairs of the wrong value (base units) and the diagnosis.
    exact
        Ask for the exact count.
    """
    right = float(value)  # type: ignore[arg-type]
    pairs = _apart([Mistake(float(wrong), words) for wrong, words in mistakes])  # type: ignore[arg-type]
    margin = 0.0 if exact else 2 * NARROWEST_TOLERANCE * abs(right)
    apart = [pair for pair in pairs if abs(pair.value - right) > margin]
    nearest = min((abs(pair.value / right - 1) for pair in apart), default=1.0)
    tolerance = max(NARROWEST_TOLERANCE, min(WIDEST_TOLERANCE, MISTAKE_MARGIN * nearest))
    return Numeric(value=right, unit=unit, tolerance=0.0 if exact else tolerance, mistakes=tuple(apart))


def _apart(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """Mistakes that lead to the same value become one with both diagnoses."""
    found: list[Mistake] = []
    for mistake in mistakes:
        twin = next((other for other in found if isclose(other.value, mistake.value, rel_tol=SAME)), None)
        if twin is None:
            found.append(mistake)
        elif mistake.diagnosis not in twin.diagnosis:
            both = f"{twin.diagnosis} Or: {mistake.diagnosis}"
            found[found.index(twin)] = Mistake(twin.value, both)
    return found


@dataclass(frozen=True)
class Option:
    """One of the offered answers. ``why`` says what is right or wrong with it."""

    text: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One right answer among several."""

    options: tuple[Option, ...]
    right: int

    @property
    def letter(self) -> str:
        """Letter of the right option."""
        return LETTERS[self.right]


LETTERS = "abcdefgh"


@dataclass(frozen=True, kw_only=True)
class Design:
    """A plan, graded by rules, memory and its loss against the proven optimum."""

    request: PlanRequest
    good_loss: float = 0.10
    """A plan is right when its step is at most this much longer than the optimum's. [1]"""


Key = Numeric | Choice | Design


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How the key comes about, and what it means."""

    formula: str
    substitution: str
    intuition: str
    book: str = ""
    """Where the chapter prints something else: what, and why it differs."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One practice question.

    ``ident`` is the syllabus number (``12.1.1/2``) or ``kind:seed``; ``card`` is what spaced repetition
    schedules: the syllabus question, or the kind, whatever its numbers.
    """

    ident: str
    topic: str
    level: Level
    text: str
    key: Key
    hint: str
    explanation: Explanation | None = None
    """None for design questions, whose explanation needs the solver."""
    follow_ups: tuple[Question, ...] = ()

    @property
    def card(self) -> str:
        """Name under which progress is kept."""
        return self.ident.partition(":")[0].partition("+")[0]
