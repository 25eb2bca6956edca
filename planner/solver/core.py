"""Minimal conflicts among the rules over plan fields: CP-SAT's assumptions, shrunk by deletion.

Every rule and every pin is a table hung on a literal; the literals are assumptions. When they cannot all
hold, CP-SAT names a sufficient set of them, and each member that can be left out is left out. What stays is
minimal: without any one of its members a setting exists.

Definitions always hold and are no members: that a flat plan has no pipeline schedule explains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from planner.rules import TABULAR_RULES, pin_rules
from planner.rules.batch import BATCH_RULES
from planner.rules.check import CHOICES
from planner.rules.cluster import CLUSTER_RULES
from planner.rules.encode import MOST_COMBINATIONS, decode, encode, new_variables
from planner.rules.rule import Rule
from planner.solver.cp_sat import cp_model, new_solver
from planner.solver.space import candidate_values
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

DEFINITIONS = {
    "pipelines_and_only_pipelines_have_a_schedule": "schedule",
    "unsharded_state_has_no_shard_group": "shard_group_size",
    "sequence_parallelism_needs_tensor_ranks": "sequence_parallel",
    "rank_order_has_two_axes_to_order": "rank_order",
}
"""Rules that say what words mean, and the field whose pin makes them a matter of what the user said."""
OF_THE_JOB = {rule.name for rule in (*CLUSTER_RULES, *BATCH_RULES)}
"""Rules about the machine and the batch: a conflict that holds without them says more."""
COSTS = {"micro_batch": 1000, "num_microbatches": 1}
OTHER_COST = 10
"""What a witness pays for each unit of a count: its numbers are small, its micro-batches single."""


class RuleCore:
    """The rules over fields of one request as assumptions; memory and stages are not part of it."""

    def __init__(self, request: PlanRequest, time_limit_s: float = 10.0) -> None:
        self._request = request
        self._time_limit_s = time_limit_s
        self._domains = _domains(request)
        pins = (pin for pin in pin_rules(request) if pin.is_tabular)
        self._rules = {rule.name: rule for rule in (*TABULAR_RULES, *pins) if self._is_small(rule)}
        said = {pin.field for pin in request.pins}
        self._given = {name for name, field in DEFINITIONS.items() if field not in said}

    def _is_small(self, rule: Rule) -> bool:
        """Whether the rule's table is small enough to be one constraint."""
        return math.prod(len(self._domains[field]) for field in rule.scope) <= MOST_COMBINATIONS

    @cached_property
    def conflict(self) -> tuple[str, ...]:
        """Names of rules and pins that no setting satisfies together, minimal; empty when some setting does.

        Pins are kept in preference: what the user said explains more than what always holds. So does what
        holds on every machine and with every batch.
        """
        found = self._sufficient(name for name in self._rules if name not in OF_THE_JOB)
        if found is None:
            found = self._sufficient(self._rules)
        if found is None:
            return ()
        order = list(self._rules)
        kept = sorted(found, key=lambda name: (name.startswith("pin:"), -order.index(name)))
        for name in list(kept):
            smaller = self._sufficient(other for other in kept if other != name)
            if smaller is not None:
                kept = [other for other in kept if other != name and other in smaller]
        return tuple(kept)

    def is_satisfiable(self, names: Iterable[str]) -> bool:
        """Whether some setting satisfies these rules together."""
        return self._sufficient(names) is None

    def witness(self, name: str) -> Plan | None:
        """Return a setting that breaks one member of the conflict and satisfies the rest, all if it can.

        Where the member is a rule its counts are small: the numbers that a sentence quotes are then those
        nearest to what is legal.
        """
        wide = [other for other in self._rules if other != name]
        narrow = [other for other in (*self.conflict, *self._given) if other != name]
        for names in (wide, narrow):
            encoded = _Encoded(self._request, self._domains, [self._rules[other] for other in names])
            values = encoded.setting(self._time_limit_s, smallest=not name.startswith("pin:"))
            if values is not None:
                return Plan.model_validate({field: decode(field, value) for field, value in values.items()})
        return None

    def _sufficient(self, names: Iterable[str]) -> set[str] | None:
        """A conflicting subset of the rules (definitions hold as well), or None when none was found."""
        wanted = {*names, *self._given}
        chosen = [rule for name, rule in self._rules.items() if name in wanted]
        found = _Encoded(self._request, self._domains, chosen).core(self._time_limit_s)
        return None if found is None else found - self._given


class _Encoded:
    """A CP-SAT model of some rules, each hung on a literal; only of these, so that shrinking is quick."""

    def __init__(self, request: PlanRequest, domains: Mapping[str, list[Any]], rules: Sequence[Rule]) -> None:
        self._model = cp_model.CpModel()
        self._fields = new_variables(self._model, domains)
        self._literals = {
            rule.name: encode(rule, self._model, self._fields, domains, request) for rule in rules
        }
        self._model.add_assumptions(list(self._literals.values()))

    def core(self, time_limit_s: float) -> set[str] | None:
        """Names of rules that cannot all hold, or None."""
        solver = _solver(time_limit_s)
        if solver.solve(self._model) != cp_model.INFEASIBLE:
            return None
        by_index = {literal.index: name for name, literal in self._literals.items()}
        return {by_index[index] for index in solver.sufficient_assumptions_for_infeasibility()}

    def setting(self, time_limit_s: float, smallest: bool) -> dict[str, int] | None:
        """A setting under the rules, coded, perhaps that with the smallest counts; None: there is none."""
        if smallest:
            counts = (field for field in self._fields if field not in CHOICES)
            self._model.minimize(sum(COSTS.get(field, OTHER_COST) * self._fields[field] for field in counts))
        solver = _solver(time_limit_s)
        if solver.solve(self._model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return {field: solver.value(variable) for field, variable in self._fields.items()}


def _solver(time_limit_s: float) -> cp_model.CpSolver:
    solver = new_solver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.cp_model_presolve = False
    solver.parameters.linearization_level = 0
    return solver


def _domains(request: PlanRequest) -> dict[str, list[Any]]:
    """Every value that a field could take, and those that the user asks for even where they cannot be."""
    free = request.model_copy(update={"pins": ()})  # what is pinned is a rule here, not the domain
    domains = {field: list(values) for field, values in candidate_values(free).items()}
    experts = [pin for pin in request.pins if pin.field == "expert_parallel"]
    domains["expert_parallel"] = [  # others differ in nothing but that they do not divide the experts
        count
        for count in domains["expert_parallel"]
        if max(request.model.num_experts, 1) % count == 0 or any(pin.admits(count) for pin in experts)
    ]
    for pin in request.pins:
        if pin.field in domains:
            ends = (value for value in (pin.minimum, pin.maximum) if value is not None)
            domains[pin.field] = sorted({*domains[pin.field], *(pin.allowed or ()), *ends})
    return domains
