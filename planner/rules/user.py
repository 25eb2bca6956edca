"""The user's pins as rules, made for each request, so that a conflict can name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from planner.rules.rule import Column, Rule
from planner.spec.plan import Plan
from planner.spec.request import Pin, PlanRequest

PIN_PREFIX = "pin:"
"""Names of pin rules begin so; the rest is the option as the user wrote it."""


CHOICES = frozenset(
    {
        "bubble_stays_within_budget",
        "tensor_ranks_stay_inside_the_fast_domain",
        "precision_is_among_the_choices",
    }
)
"""Rules that guard what the user wants, not what can run; each has an option that lifts it."""


def is_choice(rule_name: str) -> bool:
    """Whether a rule states a wish of the user, so that a plan that breaks it still runs."""
    return rule_name in CHOICES or rule_name.startswith(PIN_PREFIX)


def pin_rules(request: PlanRequest) -> tuple[Rule, ...]:
    """One rule for each pin of the request, in the order given."""
    return tuple(pin_rule(pin) for pin in request.pins)


def pin_rule(pin: Pin) -> Rule:
    """The rule that a plan's field has a value that the pin admits."""
    option = pin.option or pin.field
    if pin.field == "num_gpus" or pin.field not in Plan.model_fields:
        scope: tuple[str, ...] = ("plan",)
        predicate = _admits_plan(pin)
    else:
        scope = (pin.field,)
        predicate = _admits_values(pin)
    return Rule(
        name=PIN_PREFIX + option,
        sentence=f"You asked for {_escape(option)}, and the plan has {{plan.{pin.field}}}",
        source="the user's option",
        field=pin.field,
        scope=scope,
        predicate=predicate,
    )


def _admits_values(pin: Pin) -> Callable[..., Column]:
    def admits(_request: PlanRequest, **values: Any) -> Column:
        column = np.asarray(values[pin.field])
        flat = [pin.admits(value) for value in column.ravel().tolist()]
        return np.asarray(flat, dtype=bool).reshape(column.shape)

    return admits


def _admits_plan(pin: Pin) -> Callable[..., Column]:
    def admits(_request: PlanRequest, plan: Plan) -> bool:
        return pin.admits(getattr(plan, pin.field))

    return admits


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
