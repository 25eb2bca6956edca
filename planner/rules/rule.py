"""A rule is a named predicate over plan fields; check, mask, encoding and sentence follow from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

Column = Any
"""One value of a plan field, or an array of candidate values. Predicates are written for both."""

Numbers = Callable[[Plan, PlanRequest], Mapping[str, Any]]
"""Further figures that a sentence quotes, computed for the plan that breaks the rule."""

WHOLE_PLAN = "plan"
"""Parameter name of rules that look at the stages, or at everything: they cannot be put into a table."""


@dataclass(frozen=True)
class Rule:
    """One statement that every legal plan satisfies.

    ``scope`` names the plan fields that the predicate reads; ``field`` is the one of them to change first
    when the rule is broken. ``sentence`` is a format string over the scope, ``plan``, ``request`` and
    whatever ``numbers`` returns; it says what is wrong.
    """

    name: str
    sentence: str
    source: str
    field: str
    scope: tuple[str, ...]
    predicate: Callable[..., Column]
    numbers: Numbers | None = None

    @property
    def is_tabular(self) -> bool:
        """Whether the rule is decided by plan fields alone, not by stages or costs."""
        return WHOLE_PLAN not in self.scope

    def admits(self, plan: Plan, request: PlanRequest) -> bool:
        """Whether the plan satisfies this rule."""
        return bool(self.predicate(request, **self._values(plan)))

    def admits_columns(self, request: PlanRequest, columns: Mapping[str, Column]) -> npt.NDArray[np.bool_]:
        """Which candidates satisfy this rule; columns broadcast against each other."""
        return np.asarray(self.predicate(request, **{name: columns[name] for name in self.scope}), dtype=bool)

    def broken_sentence(self, plan: Plan, request: PlanRequest) -> str:
        """What is wrong with the plan, with its numbers, without a full stop."""
        numbers = self.numbers(plan, request) if self.numbers else {}
        words = {**self._values(plan), WHOLE_PLAN: plan, "request": request, **numbers}
        return " ".join(self.sentence.format(**words).split()).removesuffix(".")

    def _values(self, plan: Plan) -> dict[str, Any]:
        return {name: plan if name == WHOLE_PLAN else getattr(plan, name) for name in self.scope}


def rule(
    source: str, field: str | None = None, numbers: Numbers | None = None
) -> Callable[[Callable[..., Column]], Rule]:
    """Make a rule of a predicate whose docstring is the sentence shown when it is broken.

    The predicate's first parameter is the request; the others name the plan fields that it reads.

    Parameters
    ----------
    source
        Where the rule comes from: the framework's own check, a paper, or arithmetic.
    field
        The field to change first; the first one read by default.
    """

    def decorate(predicate: Callable[..., Column]) -> Rule:
        scope = tuple(inspect.signature(predicate).parameters)[1:]
        return Rule(
            name=predicate.__name__,
            sentence=inspect.getdoc(predicate) or predicate.__name__,
            source=source,
            field=field or scope[0],
            scope=scope,
            predicate=predicate,
            numbers=numbers,
        )

    return decorate


def implies(condition: Column, consequence: Column) -> Column:
    """Whether the consequence holds wherever the condition does."""
    return np.logical_or(np.logical_not(condition), consequence)


def is_in(value: Column, allowed: Collection[Any]) -> Column:
    """Whether each value is one of a few."""
    found: Column = np.zeros(np.shape(value), dtype=bool)
    for entry in allowed:
        found = np.logical_or(found, value == entry)
    return found


def divides(divisor: Column, number: Column) -> Column:
    """Whether the divisor divides the number without remainder."""
    return np.asarray(number) % divisor == 0
