"""What can go wrong, each with the exit code that the command line returns.

PlannerError
├── BadInput   2   the request makes no sense: what, where, what is allowed
├── NoPlan     3   the request makes sense and nothing fits it (carries the conflict)
└── OutOfTime  4   the time limit passed before any plan was found
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PlannerError(Exception):
    """Base of everything that is reported to a user as one sentence."""

    exit_code = 1


class BadInput(PlannerError):
    """The user's input is wrong; the message says what, where and what is allowed."""

    exit_code = 2


class NoPlan(PlannerError):
    """No legal plan fits. ``conflict`` names the rules that together exclude every plan."""

    exit_code = 3

    def __init__(self, message: str, conflict: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.conflict = conflict


class OutOfTime(PlannerError):
    """The time limit passed before a first plan was found."""

    exit_code = 4


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the closest known word, or an empty string."""
    close = get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
