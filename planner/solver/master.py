"""The master model: CP-SAT picks the best setting of the candidate table under every rule.

Each row of the table is a setting with its objective: the exact price where it is known, a lower bound
elsewhere. The fields are integer variables named like the plan's, tied to the chosen row; every rule over
fields is a table constraint on them, hung on a literal named like the rule and held true.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from planner.rules.encode import TooManyCombinations, code, encode, new_variables
from planner.solver.cp_sat import cp_model, new_table_solver
from planner.solver.space import Rows, Space

ROWS_A_THREAD = 1000
"""Rows for which one thread more is worth its start, some milliseconds a solve."""


class Master:
    """One CP-SAT model over a table of settings; rows can be re-priced and excluded between solves."""

    def __init__(self, rows: Rows, space: Space, workers: int) -> None:
        self._model = cp_model.CpModel()
        self._rows = rows
        self._workers = min(workers, 1 + len(rows) // ROWS_A_THREAD)
        self._left = set(np.flatnonzero(space.admitted(rows, rows.codes)).tolist())
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
        excluded = set(rows)
        self._left -= excluded
        self._model.add_bool_and([self._chosen[index].negated() for index in excluded])

    def best(self, objective: list[int], scores: list[int] | None, near: float) -> int | None:
        """Choose the row with the least objective; with ``scores``, the simplest one nearly as good.

        Parameters
        ----------
        objective
            One whole number a row.
        scores
            Lower is simpler. Rows within the factor ``near`` of the least objective compete by score, then
            objective.

        Equal rows go by their order in the table, so the answer does not depend on the solver's threads. How
        fast the fastest one is takes no model: rows that a rule over fields refuses are known from the start.
        """
        rows = range(len(objective))
        fastest = min(self._left, key=lambda row: (objective[row], row), default=None)
        if fastest is None or scores is None:
            return self._minimize([objective[row] * len(objective) + row for row in rows], fastest)
        limit = int(objective[fastest] * near)
        order = sorted(rows, key=lambda row: (objective[row] > limit, scores[row], objective[row], row))
        place = {row: index for index, row in enumerate(order)}
        return self._minimize([place[row] for row in rows], fastest)

    def _minimize(self, objective: list[int], hint: int | None) -> int | None:
        self._model.clear_objective()  # type: ignore[no-untyped-call]
        self._model.clear_hints()  # type: ignore[no-untyped-call]
        self._model.minimize(cp_model.LinearExpr.weighted_sum(self._chosen, objective))
        if hint is not None:
            for index, literal in enumerate(self._chosen):
                self._model.add_hint(literal, index == hint)
        solver = new_table_solver(self._workers)
        status = solver.solve(self._model)
        if status != cp_model.OPTIMAL:
            return None
        return next(index for index, literal in enumerate(self._chosen) if solver.boolean_value(literal))
