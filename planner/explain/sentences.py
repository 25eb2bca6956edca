"""Sentences put together from others."""

from __future__ import annotations

from collections.abc import Sequence


def lower_first(sentence: str) -> str:
    """The sentence as a clause: without full stop, its first word in lower case unless it is a name.

    A word with capitals or digits after its first letter (ZeRO-2, KV, DualPipe, GPU) is a name.
    """
    text = sentence.strip().removesuffix(".")
    first = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if first == first.capitalize() and first.isalpha() else text


def upper_first(clause: str) -> str:
    """The clause with its first letter in upper case."""
    return clause[:1].upper() + clause[1:]


def listed(words: Sequence[str]) -> str:
    """Several words in a row: ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
