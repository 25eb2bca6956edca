"""Minimal conflicts among the rules over plan fields: CP-SAT's assumptions, shrunk by deletion.

Every rule and every pin is a table hung on a literal; the literals are assumptions. When they cannot all
hold, CP-SAT names a sufficient set of them, and each member that can be left out is left out. What stays is
minimal: without any one of its members a setting exists.

Definitions always hold and are no members: that a flat plan has no pipeline schedule explains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from planner.rules import TABULAR_RULES, pin_rules
from planner.rules.encode import TooManyCombinations, decode, encode, new_variables
from planner.solver.cp_sat import cp_model, new_solver
from planner.solver.space import candidate_values
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

DEFINITIONS = {"pipelines_and_only_pipelines_have_a_schedule": "schedule"}
"""Rules that say what words mean, and the field whose pin makes them a matter of what the user said."""


class RuleCore:
    """The rules over fields of one request as assumptions; memory and stages are not part of it."""

    def __init__(self, request: PlanRequest, time_limit_s: float = 10.0) -> None:
        self._request = request
        self._time_limit_s = time_limit_s
        self._model = cp_model.CpModel()
        self._domains = _domains(request)
        self._fields = new_variables(self._model, self._domains)
        self._literals: dict[str, cp_model.IntVar] = {}
        for rule in (*TABULAR_RULES, *(pin for pin in pin_rules(request) if pin.is_tabular)):
            try:
                literal = encode(rule, self._model, self._fields, self._domains, request)
            except TooManyCombinations:
                continue
            self._literals[rule.name] = literal
        said = {pin.field for pin in request.pins}
        self._given = {name for name, field in DEFINITIONS.items() if field not in said}

    @cached_property
    def conflict(self) -> tuple[str, ...]:
        """Names of rules and pins that no setting satisfies together, minimal; empty when some setting does.

        Pins are kept in preference: what the user said explains more than what always holds.
        """
        found = self._sufficient(self._literals)
        if found is None:
            return ()
        kept = sorted(found, key=lambda name: name.startswith("pin:"))
        for name in list(kept):
            smaller = self._sufficient(other for other in kept if other != name)
            if smaller is not None:
                kept = [other for other in kept if other != name and other in smaller]
        return tuple(kept)

    def is_satisfiable(self, names: Iterable[str]) -> bool:
        """Whether some setting satisfies these rules together."""
        return self._sufficient(names) is None

    def witness(self, name: str) -> Plan | None:
        """Return a setting that breaks one member of the conflict and satisfies the rest, all if it can."""
        wide = [other for other in self._literals if other != name]
        narrow = [other for other in (*self.conflict, *self._given) if other != name]
        for names in (wide, narrow):
            solver = self._solve(names)
            if solver is not None:
                values = {field: solver.value(variable) for field, variable in self._fields.items()}
                return Plan.model_validate({field: decode(field, value) for field, value in values.items()})
        return None

    def _sufficient(self, names: Iterable[str]) -> set[str] | None:
        """A conflicting subset of the rules (definitions hold as well), or None when none was found."""
        wanted = {*names, *self._given}
        chosen = [name for name in self._literals if name in wanted]
        self._model.clear_assumptions()
        self._model.add_assumptions([self._literals[name] for name in chosen])
        solver = self._solver()
        if solver.solve(self._model) != cp_model.INFEASIBLE:
            return None
        by_index = {self._literals[name].index: name for name in chosen}
        return {by_index[index] for index in solver.sufficient_assumptions_for_infeasibility()} - self._given

    def _solve(self, names: list[str]) -> cp_model.CpSolver | None:
        """A solver that holds a setting under these rules, or None."""
        self._model.clear_assumptions()
        self._model.add_assumptions([self._literals[name] for name in names])
        solver = self._solver()
        found = solver.solve(self._model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return solver if found else None

    def _solver(self) -> cp_model.CpSolver:
        solver = new_solver()
        solver.parameters.max_time_in_seconds = self._time_limit_s
        solver.parameters.cp_model_presolve = False
        solver.parameters.linearization_level = 0
        return solver


def _domains(request: PlanRequest) -> dict[str, list[Any]]:
    """Every value that a field could take, and those that the user asks for even where they cannot be."""
    domains = {field: list(values) for field, values in candidate_values(request).items()}
    for pin in request.pins:
        if pin.field in domains:
            ends = (value for value in (pin.minimum, pin.maximum) if value is not None)
            domains[pin.field] = sorted({*domains[pin.field], *(pin.allowed or ()), *ends})
    return domains
