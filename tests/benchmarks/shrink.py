"""Shrinkage fit: robust linear least squares in which like constants are drawn to one shared value.

The logarithm of predicted over measured time is linearised in the constants; the unknowns are every constant
and, for each group of constants that describe the same physics, a shared value. With sigma the scatter of
one row, the fit minimises ::

    sum_rows w rho((r + J (x - x0)) / sigma)
        + sum ((x - a shared) / own)^2 + sum ((shared - prior) / pooled)^2

with rho a pseudo-Huber loss (solved by reweighting), so that published outliers pull no constant, and with a
the ratio that documents give (1 for most). The shared value of a family is drawn to that of all families
instead, which is drawn to the prior. Leaving out whole sources costs one small solve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from fit import CONSTANTS, Constant, Sample, Values, applied, log_error

from planner.cost.step import balanced_step_time

SIGMA = 0.065
"""Scatter of a row, log: held-out errors are the same with 0.05 to 0.1. [1]"""
REWEIGHTINGS = 8

Key = tuple[str, str]


@dataclass(frozen=True)
class Linear:
    """Errors of the samples at some values and their derivatives."""

    keys: list[Key]
    values: Values
    errors: Any
    jacobian: Any
    weights: Any

    def without(self, held: Iterable[int]) -> Linear:
        """Leave some rows out."""
        kept = np.setdiff1d(np.arange(len(self.errors)), np.asarray(list(held), dtype=int))
        return Linear(self.keys, self.values, self.errors[kept], self.jacobian[kept], self.weights[kept])


def linearise(rows: Sequence[Sample], values: Values) -> Linear:
    """Errors and derivatives of all samples (the slow part: a price per sample and constant)."""
    constants = {constant.key: constant for constant in CONSTANTS if constant.key in values}
    keys = list(constants)
    jacobian = np.zeros((len(rows), len(keys)))
    for index, sample in enumerate(rows):
        base = _balanced(sample, values)
        for column, key in enumerate(keys):
            if key[0] in sample.tags:
                probe = constants[key].habit.probe
                changed = _balanced(sample, values | {key: values[key] + probe})
                jacobian[index, column] = np.log(changed / base) / probe
    errors = np.array([log_error(sample, values) for sample in rows])
    return Linear(keys, values, errors, jacobian, np.array([sample.weight for sample in rows]))


def moved(model: Linear, rows: Sequence[Sample], values: Values) -> Linear:
    """Errors at other values; the derivatives are kept."""
    return replace(model, values=values, errors=np.array([log_error(sample, values) for sample in rows]))


def _balanced(sample: Sample, values: Values) -> float:
    return float(balanced_step_time(sample.case.plan, applied(sample.case.request, values)).total)


def solve(model: Linear) -> tuple[Values, Values]:
    """Return the constants, and by group and name the shared values."""
    by_key = {constant.key: constant for constant in CONSTANTS}
    constants = [by_key[key] for key in model.keys]
    start = np.array([model.values[key] for key in model.keys])
    groups = {key: None for c in constants for key in _groups(c)}
    shared = {key: len(constants) + index for index, key in enumerate(groups)}
    rows = np.zeros((len(model.errors), len(constants) + len(shared)))
    rows[:, : len(constants)] = model.jacobian
    wanted = model.jacobian @ start - model.errors
    pull, target = _pull(constants, shared)
    importance = model.weights / model.weights.mean() / 2.0
    limits = np.full((rows.shape[1], 2), (-np.inf, np.inf))
    limits[: len(constants)] = [(constant.habit.low, constant.high) for constant in constants]
    weights = importance
    for _ in range(REWEIGHTINGS):
        scale = np.sqrt(weights) / SIGMA
        solution = _within(
            np.vstack([rows * scale[:, None], pull]), np.concatenate([wanted * scale, target]), limits
        )
        weights = importance / np.sqrt(1.0 + ((rows @ solution - wanted) / SIGMA) ** 2)
    return (
        {key: float(value) for key, value in zip(model.keys, solution, strict=False)},
        {key: float(solution[index]) for key, index in shared.items()},
    )


def _groups(constant: Constant) -> list[Key]:
    """The shared values that a constant is drawn to, the nearest first."""
    return [(group, constant.name) for group in (constant.group, constant.parent) if group is not None]


def _pull(constants: list[Constant], shared: dict[Key, int]) -> tuple[Any, Any]:
    """Rows and right-hand sides that draw constants to shared values and those to the documents' values."""
    width = len(constants) + len(shared)
    rows, target = [], []
    for index, constant in enumerate(constants):
        row = np.zeros(width)
        row[index], row[shared[constant.group, constant.name]] = 1.0, -constant.scale
        rows.append(row / constant.habit.own)
        target.append(0.0)
    habits = {key: (c.habit, chain[1:]) for c in constants for chain in _chains(c) for key in chain[:1]}
    for key, (habit, above) in habits.items():
        row = np.zeros(width)
        row[shared[key]] = 1.0 / habit.pooled
        if above:
            row[shared[above[0]]] = -1.0 / habit.pooled
        rows.append(row)
        target.append(0.0 if above else habit.prior / habit.pooled)
    return np.array(rows), np.array(target)


def _chains(constant: Constant) -> list[list[Key]]:
    """Each shared value of a constant, followed by what it is drawn to itself."""
    keys = _groups(constant)
    return [keys[start:] for start in range(len(keys))]


def _within(rows: Any, target: Any, limits: Any) -> Any:
    """Solve with every unknown within its limits; one that would leave them is held at the limit.

    Each reweighting begins without any held: outliers that are yet to lose their weight hold none for good.
    """
    held = np.full(len(limits), np.nan)
    for _ in range(len(limits)):
        solution = _least_squares(rows, target, held)
        inside = np.clip(solution, limits[:, 0], limits[:, 1])
        if np.array_equal(inside, solution):
            break
        held = np.where(inside != solution, inside, held)
    return solution


def _least_squares(rows: Any, target: Any, bounded: Any) -> Any:
    """Solve with some unknowns held at their bounds."""
    free = np.isnan(bounded)
    fixed = np.where(free, 0.0, bounded)
    right = target - rows @ fixed
    part = rows[:, free]
    fixed[free] = np.linalg.solve(part.T @ part, part.T @ right)
    return fixed
