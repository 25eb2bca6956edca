"""Check a plan against every rule: all that is broken, each with its numbers and the values that would do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from planner.rules.architecture import ARCHITECTURE_RULES
from planner.rules.batch import BATCH_RULES
from planner.rules.cluster import CLUSTER_RULES
from planner.rules.framework import FRAMEWORK_RULES
from planner.rules.linear_mixer import LINEAR_MIXER_RULES
from planner.rules.memory import MEMORY_RULES
from planner.rules.rank_order import RANK_ORDER_RULES
from planner.rules.rule import Column, Rule
from planner.rules.schedule import SCHEDULE_RULES
from planner.rules.stages import STAGE_RULES
from planner.rules.user import pin_rules
from planner.spec.plan import SCHEDULES, ContextParallelKind, Offload, Plan, Precision, RankOrder, Recompute
from planner.spec.request import PlanRequest

Value = int | str | bool

RULES: tuple[Rule, ...] = (
    *ARCHITECTURE_RULES,
    *LINEAR_MIXER_RULES,
    *CLUSTER_RULES,
    *BATCH_RULES,
    *SCHEDULE_RULES,
    *FRAMEWORK_RULES,
    *RANK_ORDER_RULES,
    *STAGE_RULES,
    *MEMORY_RULES,
)
"""Every rule but the user's pins, in the order in which broken ones are reported."""

TABULAR_RULES: tuple[Rule, ...] = tuple(statement for statement in RULES if statement.is_tabular)
"""Rules over plan fields alone: they filter tables and are encoded as tables."""

CHOICES: dict[str, tuple[Value, ...]] = {
    "schedule": SCHEDULES,
    "context_parallel_kind": get_args(ContextParallelKind),
    "recompute": get_args(Recompute),
    "offload": get_args(Offload),
    "precision": get_args(Precision),
    "rank_order": get_args(RankOrder),
    "sequence_parallel": (False, True),
    "zero_stage": (0, 1, 2, 3),
}
"""All values of the fields that are not counts."""

MOST_CANDIDATES = 200_000
"""Counts above this are not tried when valid values are listed."""
MOST_NAMED = 8
"""Valid values that a sentence names."""


@dataclass(frozen=True)
class Violation:
    """One broken rule: what is wrong, and which values of ``field`` would satisfy it, all else unchanged.

    ``allowed`` also satisfies the rules about that field alone; it is empty when no single change helps, and
    for rules over stages or memory.
    """

    rule: str
    sentence: str
    field: str
    value: Value
    allowed: tuple[Value, ...]
    nearest: Value | None
    source: str

    def __str__(self) -> str:
        if not self.allowed:
            return f"{self.sentence}."
        named = sorted(_closest(self.allowed, self.value)[:MOST_NAMED], key=self.allowed.index)
        more = ", …" if len(self.allowed) > len(named) else ""
        values = ", ".join(map(str, named)) + more
        return f"{self.sentence}; valid {self.field}: {values} (nearest: {self.nearest})."


def check(plan: Plan, request: PlanRequest) -> tuple[Violation, ...]:
    """Return every broken rule of the plan, user pins included; empty when the plan is legal and fits."""
    statements = (*RULES, *pin_rules(request))
    return tuple(
        _violation(statement, plan, request)
        for statement in statements
        if not statement.admits(plan, request)
    )


def broken_rules(plan: Plan, request: PlanRequest) -> tuple[str, ...]:
    """Names of the rules that the plan breaks, without the work of finding valid values."""
    return tuple(s.name for s in (*RULES, *pin_rules(request)) if not s.admits(plan, request))


def mask(
    statements: Rule | Iterable[Rule], request: PlanRequest, columns: Mapping[str, Column]
) -> npt.NDArray[np.bool_]:
    """Which candidates satisfy one rule, or several.

    Parameters
    ----------
    statements
        One rule or many; those over stages or the whole plan are not decided here and pass.
    columns : mapping of field name to value or array
        Candidates, broadcast against each other; each rule's scope has to be there.
    """
    several = (statements,) if isinstance(statements, Rule) else statements
    shape = np.broadcast_shapes(*(np.shape(column) for column in columns.values()))
    passed = np.ones(shape, dtype=bool)
    for statement in several:
        if statement.is_tabular:
            passed &= statement.admits_columns(request, columns)
    return passed


def candidates(field: str, plan: Plan, request: PlanRequest) -> tuple[Value, ...]:
    """Values that a plan field could take at all, before any rule."""
    if field in CHOICES:
        return CHOICES[field]
    batch = request.workload.global_batch_max or request.workload.global_batch
    highest = {
        "pipeline_parallel": request.model.num_layers,
        "virtual_stages": request.model.num_layers,
        "expert_parallel": max(request.model.num_experts, 1),
        "micro_batch": batch,
        "num_microbatches": batch,
    }.get(field, request.cluster.num_gpus)
    return tuple(range(1, min(highest, MOST_CANDIDATES) + 1))


def valid_values(
    field: str, plan: Plan, request: PlanRequest, statements: Iterable[Rule] | None = None
) -> tuple[Value, ...]:
    """Values of one field that satisfy the rules, every other field as in the plan.

    Without ``statements``: all rules that table fields decide, user pins included. Rules over stages are
    left out because the stages change with the degrees.
    """
    chosen = (*TABULAR_RULES, *pin_rules(request)) if statements is None else tuple(statements)
    values = candidates(field, plan, request)
    columns = {
        name: getattr(plan, name) for name in Plan.model_fields if name not in {"stages", "recompute_modules"}
    }
    columns[field] = np.asarray(values)
    passed = mask((statement for statement in chosen if field in statement.scope), request, columns)
    return tuple(
        value for value, good in zip(values, np.broadcast_to(passed, len(values)), strict=True) if good
    )


def _violation(statement: Rule, plan: Plan, request: PlanRequest) -> Violation:
    field, allowed = _remedy(statement, plan, request)
    value = getattr(plan, field)
    return Violation(
        rule=statement.name,
        sentence=statement.broken_sentence(plan, request),
        field=field,
        value=value,
        allowed=allowed,
        nearest=_closest(allowed, value)[0] if allowed else None,
        source=statement.source,
    )


def _remedy(statement: Rule, plan: Plan, request: PlanRequest) -> tuple[str, tuple[Value, ...]]:
    """The field to change and its valid values: the rule's own field, else the next one that can help."""
    for field in dict.fromkeys((statement.field, *statement.scope)):
        if statement.is_tabular and (allowed := _allowed(statement, field, plan, request)):
            return field, allowed
    return statement.field, ()


def _allowed(statement: Rule, field: str, plan: Plan, request: PlanRequest) -> tuple[Value, ...]:
    """Values that satisfy the rule and, where any are left, every rule about this field alone."""
    alone = tuple(other for other in TABULAR_RULES if other.scope == (field,))
    together = valid_values(field, plan, request, (statement, *alone))
    allowed = together or valid_values(field, plan, request, (statement,))
    if field == "schedule" != statement.field and plan.pipeline_parallel > 1:
        return tuple(value for value in allowed if value != "none")  # a pipeline has a schedule
    return allowed


def _closest(allowed: tuple[Value, ...], value: Value) -> list[Value]:
    """Values by their distance, formats of numbers by that of their widths; other words as they come."""
    formats = CHOICES["precision"]
    if value in formats:
        return sorted(allowed, key=lambda word: abs(formats.index(word) - formats.index(value)))
    if isinstance(value, str):
        return list(allowed)
    return sorted(allowed, key=lambda other: (abs(int(other) - int(value)), int(other)))
