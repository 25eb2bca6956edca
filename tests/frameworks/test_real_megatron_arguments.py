"""Megatron-LM 0.19's own parser and validate_args on emitted files (skipped without MEGATRON_019)."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from child import ask
from launch_plans import BLOCKS, DELTA, broken, candidates, legal_plans, written

from planner.frameworks.files import inexpressible
from planner.frameworks.megatron.write import arguments_file, environment
from planner.frameworks.shell import read_script
from planner.spec import Model, Plan, PlanRequest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "MEGATRON_019" not in os.environ, reason="MEGATRON_019 names no megatron-core 0.19 (.ci/frameworks)"
    ),
]


def question(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    words = [word.text for word in read_script(arguments_file(plan, request)).words if word.text != "\n"]
    keep = {name: value for name, value in environment(plan, request).items() if name.startswith("CUDA")}
    return {"world": plan.num_gpus, "environment": keep, "arguments": words}


def verdicts(cases: list[tuple[Plan, PlanRequest]]) -> list[str | None]:
    return ask("megatron_arguments_check.py", [question(*case) for case in cases])


def test_it_accepts_every_plan_that_we_write() -> None:
    cases = legal_plans("megatron", 210)
    assert {plan.precision for plan, _ in cases} >= {"fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"}
    complaints = [(said, plan) for said, (plan, _) in zip(verdicts(cases), cases, strict=True) if said]
    assert not complaints, complaints[:3]


@pytest.mark.parametrize("model", [BLOCKS, DELTA], ids=["blocks", "delta"])
def test_it_accepts_every_hybrid_that_we_write(model: Model) -> None:
    cases = list(written("megatron", model, 40))
    complaints = [(said, plan) for said, (plan, _) in zip(verdicts(cases), cases, strict=True) if said]
    assert not complaints, complaints[:3]


CAUSES = {
    "num_query_groups": "kv_heads_divide_over_tensor_ranks",
    "num_attention_heads": "attention_heads_divide_over_tensor_ranks",
    "expert_model_parallel_size": "experts_divide_over_expert_ranks",
    "seq-length": "sequence_divides_over_context_ranks",
}
"""Words of a complaint, and the rule of ours that has to be among the broken ones."""


def test_it_refuses_for_a_reason_that_we_name() -> None:
    """It checks less before the first step than our rules do; on what it checks, its verdict is ours."""
    cases = [
        (plan, request)
        for plan, request in itertools.islice(candidates("megatron", 17), 1500)
        if not inexpressible(plan, request) and broken(plan, request)
    ][:160]
    named: list[str] = []
    for said, (plan, request) in zip(verdicts(cases), cases, strict=True):
        rules = set(broken(plan, request))
        if said is None:
            assert not rules & set(CAUSES.values()), (rules, plan)
            continue
        causes = [rule for words, rule in CAUSES.items() if words in said]
        assert set(causes) & rules, (said, rules, plan)
        named += causes
    assert len(named) >= 10
    assert len(set(named)) >= 2
