"""Conditions of bash's ``if`` that the script's own variables decide; nothing is executed.

Only comparisons of ``[ ... ]`` and ``[[ ... ]]``, alone or joined by ``&&``, are decided. What hangs on the
environment, on files or on a program stays open, and the reader takes all branches of such an ``if``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
}


def decide(words: list[str]) -> bool | None:
    """Whether a condition holds, None where its words do not say.

    Parameters
    ----------
    words
        The condition's words between ``if`` and ``then``, variables put in; one that could not be is still
        written with its ``$``.
    """
    joined = "".join(word if word in {"&", "|"} else " " for word in words)
    if "&&" in joined and "|" not in joined:
        return _all(words)
    if len(words) < 4 or words[0] not in {"[", "[["} or words[-1] not in {"]", "]]"}:
        return None
    inside = words[1:-1]
    if any(re.search(r"[$`*?]", word) for word in inside):
        return None
    if len(inside) == 2 and inside[0] in {"-z", "-n"}:
        return (inside[1] == "") == (inside[0] == "-z")
    if len(inside) != 3:
        return None
    left, sign, right = inside
    if sign in {"=", "==", "!="}:
        return (left == right) == (sign != "!=")
    if sign in _NUMBERS and all(re.fullmatch(r"-?\d+", side) for side in (left, right)):
        return _NUMBERS[sign](int(left), int(right))
    return None


def _all(words: list[str]) -> bool | None:
    """Whether all of several conditions joined by ``&&`` hold."""
    cut = next(at for at, word in enumerate(words) if word == "&")
    both = {decide(words[:cut]), decide(words[cut + 2 :])}
    return False if False in both else None if None in both else True


@dataclass
class _Frame:
    """One ``if`` that has not ended."""

    settled: bool = False
    """An earlier branch is certain to be taken, so no later one is."""
    doubtful: bool = False
    """An earlier branch may have been taken."""
    skipped: bool = False
    branch: int = 0
    """Line on which a branch begins that may or may not be taken; 0 where it is certain."""


@dataclass
class Branches:
    """Where a reader stands among the ``if`` and ``fi`` of a script."""

    frames: list[_Frame] = field(default_factory=list)

    @property
    def skipped(self) -> bool:
        """Whether a branch is read that is certain not to be taken."""
        return any(frame.skipped for frame in self.frames)

    @property
    def branch(self) -> int:
        """Line of the innermost branch that may or may not be taken, 0 outside of any."""
        return next((frame.branch for frame in reversed(self.frames) if frame.branch), 0)

    def enter(self, verdict: bool | None, line: int) -> None:
        """Begin an ``if`` with this verdict on its condition."""
        self.frames.append(_Frame())
        self.go_on(verdict, line)

    def go_on(self, verdict: bool | None, line: int) -> None:
        """Go on to an ``elif`` with this verdict on its condition, or with True to the ``else``."""
        if not self.frames:
            return
        frame = self.frames[-1]
        frame.skipped = frame.settled or verdict is False
        frame.branch = line if verdict is None or frame.doubtful else 0
        frame.doubtful = frame.doubtful or verdict is None
        frame.settled = frame.settled or verdict is True

    def leave(self) -> None:
        """End an ``if``."""
        if self.frames:
            self.frames.pop()
