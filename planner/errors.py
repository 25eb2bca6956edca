"""What can go wrong, each with the exit code that the command line returns.

PlannerError
├── BadInput   2   the request makes no sense: what, where, what is allowed
├── NoPlan     3   the request makes sense and nothing fits it (carries the conflict)
└── OutOfTime  4   the time limit passed before any plan was found
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_MESSAGE = 1500
"""Characters; the longest sentences list all frameworks or all model types."""
LONGEST_WORD = 200
"""Characters of one word; paths are shorter, pasted files are not."""
_SHOWN_OF_WORD = 60
_LONGEST_GUESS = 80
"""Characters of a word that are compared with the known names."""


def one_sentence(text: str) -> str:
    """Return a message as one line of bearable length, whatever the user's words in it are.

    Line breaks and other control characters become spaces; a word of more than 200 characters and a message
    of more than 1,500 are cut.
    """
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    word = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")
    line = word.sub(lambda match: match.group(0)[:_SHOWN_OF_WORD] + "[...]", line)
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 6] + " [...]"


class PlannerError(Exception):
    """Base of everything that is reported to a user as one sentence."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(one_sentence(message))


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
    close = get_close_matches(word[:_LONGEST_GUESS].lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
