"""The master model: CP-SAT picks one setting of the candidate table under every rule, the best by the objective.

Each row of the table is a setting with its objective: the exact price where it is known, a lower bound
elsewhere. The fields are integer variables named like the plan's, tied to the chosen row; every rule over
fields is a table constraint on them, hung on a literal named like the rule and held true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from planner.rules.encode import TooManyCombinations, code, encode, new_variables
from planner.solver.space import Rows, Space

SEED = 20240229
"""Any fixed number: the search is repeatable."""


@dataclass(frozen=True)
class Choice:
    """What one solve of the master says."""

    row: int | None
    objective: int
    bound: int
    proven: bool


class Master:
    """One CP-SAT model over a table of settings; rows can be re-priced and excluded between solves."""

    def __init__(self, rows: Rows, space: Space, workers: int) -> None:
        self._model = cp_model.CpModel()
        self._rows = rows
        self._workers = workers
        domains = {field: np.unique(rows.values(field)).tolist() for field in rows.codes}
        self._fields = new_variables(self._model, domains)
        self._chosen = [self._model.new_bool_var(f"row_{index}") for index in range(len(rows))]
        self._model.add_exactly_one(self._chosen)
        for field, variable in self._fields.items():
            values = [code(field, value) for value in rows.values(field).tolist()]
            self._model.add(variable == cp_model.LinearExpr.weighted_sum(self._chosen, values))
        self.literals = self._rules(space, domains)
        self._model.add_bool_and(list(self.literals.values()))

    def _rules(self, space: Space, domains: dict[str, list[Any]]) -> dict[str, cp_model.IntVar]:
        """Every rule over fields; one whose table would be too large has already filtered the rows."""
        literals = {}
        for rule in space.rules:
            try:
                literals[rule.name] = encode(rule, self._model, self._fields, domains, space.request)
            except TooManyCombinations:
                continue
        return literals

    def exclude(self, rows: Iterable[int]) -> None:
        """Never choose these rows again."""
        self._model.add_bool_and([self._chosen[index].negated() for index in rows])

    def minimize(self, objective: Iterable[int], hint: int | None, time_limit_s: float) -> Choice:
        """Choose the row with the least objective.

        Parameters
        ----------
        objective
            One whole number a row.
        hint
            Row of the best plan in hand, if any.
        """
        self._model.clear_objective()
        self._model.clear_hints()
        self._model.minimize(cp_model.LinearExpr.weighted_sum(self._chosen, list(objective)))
        if hint is not None:
            for index, literal in enumerate(self._chosen):
                self._model.add_hint(literal, index == hint)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = self._workers
        solver.parameters.random_seed = SEED
        solver.parameters.max_time_in_seconds = max(time_limit_s, 0.01)
        status = solver.solve(self._model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Choice(None, 0, 0, status == cp_model.INFEASIBLE)
        chosen = next(index for index, literal in enumerate(self._chosen) if solver.boolean_value(literal))
        return Choice(
            chosen,
            round(solver.objective_value),
            round(solver.best_objective_bound),
            status == cp_model.OPTIMAL,
        )
