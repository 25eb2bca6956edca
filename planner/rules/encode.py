"""Rules as CP-SAT constraints: a table of allowed assignments, enforced by a literal named like the rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from planner.rules.check import CHOICES, Value
from planner.rules.rule import Rule
from planner.spec.request import PlanRequest

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MOST_COMBINATIONS = 200_000
"""Tables larger than this are not built: the rule has to be split, or to filter the caller's own table."""

Domains = Mapping[str, Sequence[Value]]
"""Candidate values of each plan field."""


class TooManyCombinations(ValueError):
    """A rule's scope spans more assignments than a table should hold."""


def code(field: str, value: Value) -> int:
    """The integer that stands for a plan value in the CP-SAT model.

    Counts stand for themselves; words for their place in ``CHOICES``, whatever the domain in use.
    """
    if isinstance(value, str):
        return CHOICES[field].index(value)
    return int(value)


def decode(field: str, number: int) -> Value:
    """The plan value that an integer of the CP-SAT model stands for."""
    if field in CHOICES:
        return CHOICES[field][number]
    return number


def new_variables(model: cp_model.CpModel, domains: Domains) -> dict[str, cp_model.IntVar]:
    """One variable for each field, named like it, over the codes of its domain."""
    from ortools.sat.python import cp_model as cp

    return {
        field: model.new_int_var_from_domain(
            cp.Domain.from_values(sorted(code(field, value) for value in values)), field
        )
        for field, values in domains.items()
    }


def allowed_rows(rule: Rule, request: PlanRequest, domains: Domains) -> npt.NDArray[np.int64]:
    """The coded assignments of the rule's scope that satisfy it: one row each, columns as in ``rule.scope``.

    Raises
    ------
    TooManyCombinations
        The domains of the scope span more than ``MOST_COMBINATIONS`` assignments.
    """
    sizes = [len(domains[field]) for field in rule.scope]
    if math.prod(sizes) > MOST_COMBINATIONS:
        spans = " x ".join(f"{field} {size}" for field, size in zip(rule.scope, sizes, strict=True))
        raise TooManyCombinations(
            f"rule {rule.name} spans {math.prod(sizes)} assignments ({spans}); at most {MOST_COMBINATIONS} "
            "make a table: shrink a domain, split the rule, or filter the table with mask()"
        )
    values = np.meshgrid(*(np.asarray(domains[field]) for field in rule.scope), indexing="ij", sparse=True)
    admitted = rule.admits_columns(request, dict(zip(rule.scope, values, strict=True)))
    chosen = np.nonzero(np.broadcast_to(admitted, sizes))
    codes = [
        np.asarray([code(field, value) for value in domains[field]], dtype=np.int64) for field in rule.scope
    ]
    return np.stack([column[index] for column, index in zip(codes, chosen, strict=True)], axis=-1)


def encode(
    rule: Rule,
    model: cp_model.CpModel,
    variables: Mapping[str, cp_model.IntVar],
    domains: Domains,
    request: PlanRequest,
    literal: cp_model.IntVar | None = None,
) -> cp_model.IntVar:
    """Add a tabular rule to the model and return its literal: the rule holds wherever the literal is true.

    Parameters
    ----------
    variables
        One variable for each field of the scope, over the codes of its values.
    literal
        The literal to hang the rule on; a new one named like the rule by default. Fix it to true, or pass
        it as an assumption to find conflicts.
    """
    enforced = model.new_bool_var(rule.name) if literal is None else literal
    rows = allowed_rows(rule, request, domains)
    if len(rows) == math.prod(len(domains[field]) for field in rule.scope):
        return enforced
    if not len(rows):
        model.add_bool_and([enforced.negated()])
        return enforced
    scope = [variables[field] for field in rule.scope]
    model.add_allowed_assignments(scope, rows.tolist()).only_enforce_if(enforced)
    return enforced


def encode_all(
    rules: Sequence[Rule],
    model: cp_model.CpModel,
    variables: Mapping[str, cp_model.IntVar],
    domains: Domains,
    request: PlanRequest,
) -> dict[str, cp_model.IntVar]:
    """Add every tabular rule and return the literals by rule name; other rules are left out."""
    return {rule.name: encode(rule, model, variables, domains, request) for rule in rules if rule.is_tabular}
