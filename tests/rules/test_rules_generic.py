"""Every rule, whatever it says: check, mask and CP-SAT admit the same plans, and its sentence formats."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest
from ortools.sat.python import cp_model
from toys import tiny_dense, tiny_hybrid, tiny_moe, vary

from planner.rules import RULES, TABULAR_RULES, Rule, check, mask, pin_rules, valid_values
from planner.rules.encode import TooManyCombinations, allowed_rows, code, decode, encode_all, new_variables
from planner.spec import Pin, Plan, PlanRequest
from planner.spec.plan import Offload

DOMAINS: dict[str, tuple] = {
    "tensor_parallel": (1, 2, 3, 8),
    "pipeline_parallel": (1, 2, 3),
    "virtual_stages": (1, 2),
    "schedule": ("none", "1f1b", "interleaved", "zb-v", "dualpipe", "dualpipe-v"),
    "data_parallel": (1, 2, 4, 5, 8),
    "context_parallel": (1, 2, 3),
    "context_parallel_kind": ("ring", "all_to_all"),
    "expert_parallel": (1, 2, 3),
    "expert_tensor_parallel": (1, 2),
    "zero_stage": (0, 1, 3),
    "shard_group_size": (1, 2, 4, 8),
    "sequence_parallel": (False, True),
    "micro_batch": (1, 2, 3),
    "num_microbatches": (1, 2, 4, 6, 16),
    "recompute": ("none", "full"),
    "offload": get_args(Offload),
    "precision": ("bf16", "fp8"),
    "rank_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
}
"""Small domains with legal and illegal values of every field."""

PINNED = (
    Pin(field="tensor_parallel", allowed=(2, 8), option="--tp 2,8"),
    Pin(field="schedule", forbidden=("1f1b",), option="--schedule not-1f1b"),
    Pin(field="num_microbatches", minimum=2, maximum=6, option="--num-microbatches 2:6"),
)

REQUESTS: dict[str, PlanRequest] = {
    "dense": tiny_dense(),
    "moe": tiny_moe(),
    "hybrid": tiny_hybrid(),
    "hybrid without context": vary(
        tiny_hybrid(), model={"linear_mixer": "gated_delta"}, limits={"linear_context_parallel": False}
    ),
    "pinned": vary(tiny_dense(), pins=PINNED),
    "idle": vary(tiny_moe(), allow_idle=True, max_bubble=None),
    "strict": vary(
        tiny_moe(),
        limits={
            "replicates_kv_heads": False,
            "uneven_stages": "even",
            "vocab_multiple": 0,
            "microbatches_at_least_stages": True,
            "interleaved_multiple_of_stages": False,
            "zero3_with_experts": False,
            "plain_replication_combines": False,
            "sequence_divides_by_tensor_and_context": True,
            "expert_tensor_is_one_or_tensor": True,
            "sequence_parallel_required_with_tensor": True,
            "rank_orders": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
        },
        workload={"precisions": ("bf16", "fp8"), "global_batch_max": 20},
    ),
    "loose": vary(
        tiny_dense(),
        limits={
            "hybrid_sharding": True,
            "zero_stages": (0, 1, 2, 3),
            "zero_stages_with_pipeline": (0, 1, 2, 3),
            "schedules": ("none", "1f1b", "interleaved", "zb-v", "dualpipe", "dualpipe-v"),
            "uneven_stages": "ends",
            "replicates_kv_heads_over_context": True,
            "zigzag_for_every_context_kind": True,
            "rank_orders": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
            "far_replicas_exclude_context": True,
        },
        allow_tensor_parallel_across_nodes=True,
    ),
}


class Assignments(cp_model.CpSolverSolutionCallback):
    """Collects every solution as a tuple of codes."""

    def __init__(self, variables: list[cp_model.IntVar]) -> None:
        super().__init__()
        self.variables = variables
        self.found: set[tuple[int, ...]] = set()

    def on_solution_callback(self) -> None:
        self.found.add(tuple(self.value(variable) for variable in self.variables))


def enumerate_solutions(
    rules: tuple[Rule, ...], domains: dict[str, tuple], request: PlanRequest
) -> set[tuple]:
    """All assignments of the domains that CP-SAT accepts with every rule's literal true."""
    model = cp_model.CpModel()
    variables = new_variables(model, domains)
    for literal in encode_all(rules, model, variables, domains, request).values():
        model.add(literal == 1)
    solver = cp_model.CpSolver()
    solver.parameters.enumerate_all_solutions = True
    solver.parameters.num_workers = 1
    collector = Assignments(list(variables.values()))
    status = solver.solve(model, collector)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return {tuple(map(decode, domains, numbers)) for numbers in collector.found}


def checked(rules: tuple[Rule, ...], domains: dict[str, tuple], request: PlanRequest) -> set[tuple]:
    """All assignments that the rules admit, one plan at a time."""
    admitted = set()
    for values in itertools.product(*domains.values()):
        plan = Plan.model_construct(**dict(zip(domains, values, strict=True)))
        if all(rule.admits(plan, request) for rule in rules):
            admitted.add(values)
    return admitted


def masked(rules: tuple[Rule, ...], domains: dict[str, tuple], request: PlanRequest) -> set[tuple]:
    """All assignments that the vectorised rules admit."""
    rows = list(itertools.product(*domains.values()))
    columns = {field: np.asarray([row[i] for row in rows]) for i, field in enumerate(domains)}
    return {row for row, good in zip(rows, mask(rules, request, columns), strict=True) if good}


@pytest.mark.parametrize("name", REQUESTS)
def test_each_rule_alone_is_checked_masked_and_encoded_alike(name: str) -> None:
    request = REQUESTS[name]
    for rule in (*TABULAR_RULES, *pin_rules(request)):
        domains = {field: DOMAINS[field] for field in rule.scope}
        expected = checked((rule,), domains, request)
        assert masked((rule,), domains, request) == expected, rule.name
        assert enumerate_solutions((rule,), domains, request) == expected, rule.name


SMALL: dict[str, tuple] = {
    **{field: (values[0],) for field, values in DOMAINS.items()},
    "tensor_parallel": (1, 2),
    "pipeline_parallel": (1, 2),
    "data_parallel": (2, 4, 8),
    "schedule": ("none", "1f1b", "interleaved"),
    "virtual_stages": (1, 2),
    "zero_stage": (0, 1),
    "shard_group_size": (1, 2, 4, 8),
    "sequence_parallel": (False, True),
    "micro_batch": (1, 2),
    "num_microbatches": (1, 2, 4),
}


@pytest.mark.parametrize("name", ["dense", "pinned", "idle", "loose"])
def test_all_rules_together_are_checked_masked_and_encoded_alike(name: str) -> None:
    request = REQUESTS[name]
    rules = (*TABULAR_RULES, *pin_rules(request))
    expected = masked(rules, SMALL, request)
    assert expected, "a space without legal plans shows nothing"
    assert enumerate_solutions(rules, SMALL, request) == expected
    sample = sorted(expected)[:: max(1, len(expected) // 20)]
    for values in sample:
        plan = Plan(**dict(zip(SMALL, values, strict=True)))
        assert not [
            violation for violation in check(plan, request) if violation.rule != "every_stage_fits_in_memory"
        ]


def test_rules_have_unique_names_a_known_field_and_a_source() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names) >= 50
    for rule in RULES:
        assert rule.source
        assert rule.field in Plan.model_fields
        assert set(rule.scope) <= {*Plan.model_fields, "plan"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("name", ["dense", "moe"])
def test_every_sentence_formats(rule: Rule, name: str) -> None:
    sentence = rule.broken_sentence(
        Plan(tensor_parallel=3, pipeline_parallel=2, schedule="1f1b"), REQUESTS[name]
    )
    assert sentence
    assert "{" not in sentence
    assert not sentence.endswith(".")


def test_a_table_that_is_too_large_is_refused() -> None:
    rule = next(rule for rule in RULES if rule.name == "ranks_fill_the_cluster")
    domains = {field: tuple(range(1, 40)) for field in rule.scope}
    with pytest.raises(TooManyCombinations, match="ranks_fill_the_cluster spans 2313441 assignments"):
        allowed_rows(rule, tiny_dense(), domains)


@pytest.mark.parametrize("field", DOMAINS)
def test_codes_come_back(field: str) -> None:
    for value in DOMAINS[field]:
        assert decode(field, code(field, value)) == value
        assert type(decode(field, code(field, value))) is type(value)


def test_valid_values_are_those_that_pass_when_tried() -> None:
    request = tiny_dense()
    plan = Plan(tensor_parallel=2, data_parallel=4, micro_batch=1, num_microbatches=4)
    for field in ("tensor_parallel", "micro_batch", "num_microbatches", "zero_stage", "schedule"):
        tried = tuple(
            value
            for value in valid_values(field, plan, request, ())
            if not [
                violation
                for violation in check(plan.model_copy(update={field: value}), request)
                if violation.rule != "every_stage_fits_in_memory"
            ]
        )
        assert valid_values(field, plan, request) == tried


def test_the_conflict_core_names_the_rule_that_cannot_hold() -> None:
    """7 GPUs and power-of-two degrees: no product fills the cluster, and nothing else is to blame."""
    request = vary(tiny_dense(), cluster={"num_gpus": 7})
    rules = tuple(rule for rule in TABULAR_RULES if rule.name == "ranks_fill_the_cluster")
    domains = dict.fromkeys(rules[0].scope, (1, 2, 4, 8))
    model = cp_model.CpModel()
    variables = new_variables(model, domains)
    literals = encode_all(rules, model, variables, domains, request)
    model.add_assumptions(list(literals.values()))
    solver = cp_model.CpSolver()
    assert solver.solve(model) == cp_model.INFEASIBLE
    core = solver.sufficient_assumptions_for_infeasibility()
    assert [model.proto.variables[index].name for index in core] == ["ranks_fill_the_cluster"]
