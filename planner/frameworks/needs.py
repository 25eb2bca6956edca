"""What a setting needs of others: conditions over a run's settings as its files say them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.frameworks.launch import Found

Said = Mapping[str, Found]
"""Settings by the framework's plain names: no dashes in front, underscores between words, no sections."""

OFF = frozenset({"", "false", "none", "auto", "null", "[]"})
"""Values of a setting that is there and says no."""


@dataclass(frozen=True, slots=True)
class Need:
    """``setting`` goes only with one of ``needs`` (where given) and with none of ``excludes``.

    A condition is ``name`` (a setting that is on), ``name=value``, ``name>number``, or ``name~word`` (a list
    that holds the word). The whole statement holds where all of ``when`` do.
    """

    setting: str
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    when: tuple[str, ...] = ()
    within: str = ""
    """A setting that every file has of which the statement speaks."""
    passed_on: bool = True
    """What is needed has to be said as well by programs that pass their settings on to the framework. False
    where they, or a recipe below, may fill it in."""


def holds(condition: str, said: Said) -> Found | None:
    """Return the setting by which a condition holds, None where none does."""
    for sign, test in (("=", _equals), ("~", _contains), (">", _exceeds)):
        name, found, value = condition.partition(sign)
        if found:
            entry = said.get(name)
            return entry if entry is not None and test(entry.value, value) else None
    entry = said.get(condition)
    return None if entry is None or str(entry.value).lower() in OFF else entry


def names(need: Need) -> set[str]:
    """All settings that a need speaks of."""
    within = (need.within,) if need.within else ()
    conditions = (need.setting, *need.needs, *need.excludes, *need.when, *within)
    return {condition.split("=")[0].split("~")[0].split(">")[0] for condition in conditions}


def _equals(value: object, wanted: str) -> bool:
    return str(value).strip("\"'").lower() == wanted


def _contains(value: object, wanted: str) -> bool:
    words = value if isinstance(value, list) else str(value).strip("[]()").replace(",", " ").split()
    return wanted in {str(word).strip("\"' ").lower() for word in words}


def _exceeds(value: object, limit: str) -> bool:
    word = str(value)
    return word.isdigit() and int(word) > int(limit)
