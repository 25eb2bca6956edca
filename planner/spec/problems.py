"""Why data is no specification: its first problem as one sentence with key, allowed and given value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from planner.errors import did_you_mean

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table",
    "mapping": "a table",
    "model": "a table",
}
"""Beginning of pydantic's error type to what belongs there."""
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_LONGEST_KEY = 80
_LONGEST_VALUE = 40


def first_problem(error: ValidationError, kind: type[BaseModel]) -> str:
    """Return the first problem of a failed validation as ``key must be ..., not ...``.

    Parameters
    ----------
    kind
        The specification that the data was validated against, for the names of its keys.
    """
    first = error.errors(include_url=False)[0]
    path = [str(part)[:_LONGEST_KEY] for part in first["loc"]]
    key, problem = ".".join(path), str(first["type"])
    if problem == "extra_forbidden":
        known = _keys(kind, path[:-1])
        return f"{key}: unknown key{did_you_mean(path[-1], known)} (keys here: {', '.join(known)})"
    if problem == "missing":
        return f"{key} is missing"
    if problem == "value_error":
        sentence = str(first["msg"]).removeprefix("Value error, ")
        return f"{key}: {sentence}" if key else sentence
    return f"{key or 'the data'} must be {_allowed(problem, first)}, not {shown(first['input'])}"


def _allowed(problem: str, first: Any) -> str:
    context = first.get("ctx", {})
    if problem in _BOUNDS:
        name, words = _BOUNDS[problem]
        return f"{words} {context[name]:,}"
    if problem == "literal_error":
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        return f"one of {', '.join(choices)}{_near(first['input'], choices)}"
    if problem == "too_short":
        return "not empty"
    expected = next((words for name, words in _EXPECTED.items() if problem.startswith(name)), None)
    return expected or str(first["msg"]).removeprefix("Input should be ")


def _near(value: Any, choices: Iterable[str]) -> str:
    hint = did_you_mean(value[:_LONGEST_KEY], choices) if isinstance(value, str) else ""
    return f" ({hint.removeprefix('; ').rstrip('?')})" if hint else ""


def shown(value: Any) -> str:
    """Return a value short enough for one sentence."""
    if isinstance(value, dict | BaseModel):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _keys(kind: type[BaseModel], path: Iterable[str]) -> list[str]:
    """Keys of the table at a path below a specification."""
    table: type[BaseModel] | None = kind
    for part in path:
        if table is not None and part in table.model_fields:
            table = _table(table.model_fields[part].annotation) or table
    return list(table.model_fields) if table else []


def _table(annotation: Any) -> type[BaseModel] | None:
    """Return the specification inside an annotation such as ``tuple[Link, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _table(inner))), None)
