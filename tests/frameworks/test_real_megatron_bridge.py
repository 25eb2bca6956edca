"""Megatron-Bridge 0.3.1 validates the configuration that our ``train.py`` makes (skipped where it is absent).

Its own dependencies need CUDA to build, so it is installed without them and over stand-ins
(``bridge_check.py``, ``.ci/frameworks FOLDER --slow``).
"""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import pytest
from child import ask
from launch_plans import BLOCKS, DELTA, broken, candidates, legal_plans, written

from planner.frameworks.files import inexpressible, write
from planner.spec import Model, Plan, PlanRequest


def is_installed() -> bool:
    try:
        return importlib.util.find_spec("megatron.bridge") is not None
    except ModuleNotFoundError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not is_installed(), reason="megatron.bridge is not installed (.ci/frameworks FOLDER --slow)"
    ),
]
Case = tuple[Plan, PlanRequest]


def answers(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """What Bridge says of every case, in order."""
    questions = []
    for index, (plan, request) in enumerate(cases):
        place = folder / str(index)
        place.mkdir()
        for name in ("overrides.txt", "train.py"):
            (place / name).write_text(write(plan, request)[name])
        questions.append({"folder": str(place), "world": plan.num_gpus})
    return ask("bridge_check.py", questions)


def is_written(plan: Plan, request: PlanRequest) -> bool:
    return not inexpressible(plan, request)


def expected(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """What the validated configuration has to hold."""
    counts = {len(stage.chunk_layers) for stage in plan.stages}
    assert counts == {plan.virtual_stages}
    return {
        "tensor_model_parallel_size": plan.tensor_parallel,
        "pipeline_model_parallel_size": plan.pipeline_parallel,
        "context_parallel_size": plan.context_parallel,
        "virtual_pipeline_model_parallel_size": plan.virtual_stages if plan.virtual_stages > 1 else None,
        "expert_model_parallel_size": plan.expert_parallel,
        "sequence_parallel": plan.sequence_parallel,
        "recompute_granularity": None if plan.recompute == "none" else plan.recompute,
        "bf16": plan.precision not in {"fp16", "fp32"},
        "fp16": plan.precision == "fp16",
        "fp8": {"fp8": "hybrid", "mxfp8": "e4m3"}.get(plan.precision),
        "fp4": "e2m1" if plan.precision == "nvfp4" else None,
        "fp8_param": False,
        "data_parallel_size": plan.data_parallel,
        "micro_batch_size": plan.micro_batch,
        "global_batch_size": plan.global_batch,
        "use_distributed_optimizer": plan.zero_stage > 0,
        "use_megatron_fsdp": plan.zero_stage > 1,
        "grad_reduce_in_fp32": False,
        "seq_length": request.workload.seq_length,
    }


def test_it_validates_every_plan_that_we_write(tmp_path: Path) -> None:
    cases = [case for case in legal_plans("megatron-bridge", 260) if is_written(*case)]
    assert len(cases) >= 200
    assert {plan.precision for plan, _ in cases} >= {"bf16", "fp16", "fp8", "mxfp8", "nvfp4"}
    assert any(request.model.sliding_window for _, request in cases)
    assert_validated(cases, tmp_path)


@pytest.mark.parametrize("model", [BLOCKS, DELTA], ids=["blocks", "delta"])
def test_it_validates_every_hybrid_that_we_write(model: Model, tmp_path: Path) -> None:
    alone = model.model_copy(update={"mtp_depth": 0})
    assert_validated(list(written("megatron-bridge", alone, 25)), tmp_path)


def assert_validated(cases: list[Case], tmp_path: Path) -> None:
    """Bridge accepts every configuration and holds what the plan says."""
    wrong = []
    for said, (plan, request) in zip(answers(cases, tmp_path), cases, strict=True):
        differs = {
            name: said.get(name) for name, value in expected(plan, request).items() if said.get(name) != value
        }
        if "complaint" in said or differs:
            wrong.append((said.get("complaint"), differs, request.model.name, plan))
    assert not wrong, wrong[:3]


CAUSES = {
    "num_attention_heads": "attention_heads_divide_over_tensor_ranks",
    "num_query_groups": "kv_heads_divide_over_tensor_ranks",
    "Sequence length must be divisible": "sequence_divides_over_context_ranks",
    "num_moe_experts": "experts_divide_over_expert_ranks",
    "num_layers": "layers_divide_over_stages",
}
"""Words of a complaint, and the rule of ours that has to be among the broken ones."""


def test_it_refuses_for_a_reason_that_we_name(tmp_path: Path) -> None:
    """It knows fewer rules than we do; on those that it knows, its verdict and ours are the same."""
    random_cases = itertools.islice(candidates("megatron-bridge", 29), 1500)
    cases = [case for case in random_cases if is_written(*case) and broken(*case)][:250]
    named: dict[str, int] = {}
    for said, (plan, request) in zip(answers(cases, tmp_path), cases, strict=True):
        rules = set(broken(plan, request))
        if "complaint" not in said:
            assert not rules & set(CAUSES.values()), (rules, plan)
            continue
        causes = [rule for words, rule in CAUSES.items() if words in said["complaint"]]
        assert set(causes) & rules, (said, rules, plan)
        named[causes[0]] = named.get(causes[0], 0) + 1
    assert sum(named.values()) >= 20
    assert len(named) >= 2
