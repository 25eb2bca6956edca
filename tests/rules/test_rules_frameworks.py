"""What one framework runs and another refuses: real profiles, one difference at a time."""

from __future__ import annotations

from typing import Any

import pytest
from toys import tiny_dense, tiny_moe, vary

from planner.frameworks import FRAMEWORKS, load_framework
from planner.rules import broken_rules
from planner.spec import Plan, PlanRequest

MEMORY = "every_stage_fits_in_memory"


def broken(framework: str, request: PlanRequest, **fields: Any) -> set[str]:
    asked = request.model_copy(update={"framework": load_framework(framework), "max_bubble": None})
    return set(broken_rules(Plan(**fields), asked)) - {MEMORY}


EIGHT_RANKS = vary(tiny_dense(), cluster={"gpus_per_node": 8, "links": tiny_dense().cluster.links[1:]})
"""All 8 GPUs in one domain, so that 8 tensor ranks over 4 KV heads are a question of the framework alone."""
FSDP = {"zero_stage": 3, "shard_group_size": 4, "data_parallel": 4, "num_microbatches": 4}


@pytest.mark.parametrize(
    ("framework", "refuses"), [("megatron", False), ("torchtitan", True), ("nanotron", True)]
)
def test_kv_heads_are_copied_or_refused(framework: str, refuses: bool) -> None:
    rules = broken(framework, EIGHT_RANKS, tensor_parallel=8, sequence_parallel=True, num_microbatches=16)
    assert ("kv_heads_divide_over_tensor_ranks" in rules) == refuses


@pytest.mark.parametrize(
    ("framework", "refuses"),
    [("deepspeed", True), ("megatron", True), ("torchtitan", False), ("pytorch", False)],
)
def test_zero_3_under_a_pipeline(framework: str, refuses: bool) -> None:
    rules = broken(framework, tiny_dense(), pipeline_parallel=2, schedule="1f1b", **FSDP)
    assert ("zero_stage_goes_with_the_pipeline" in rules) == refuses


@pytest.mark.parametrize(
    ("framework", "m", "refuses"),
    [("megatron", 1, False), ("torchtitan", 1, True), ("pytorch", 2, False), ("nanotron", 1, False)],
)
def test_micro_batches_against_stages_in_1f1b(framework: str, m: int, refuses: bool) -> None:
    request = vary(tiny_dense(), workload={"global_batch": 4 * m})
    rules = broken(
        framework, request, pipeline_parallel=2, schedule="1f1b", data_parallel=4, num_microbatches=m
    )
    assert ("microbatches_cover_the_pipeline" in rules) == refuses


@pytest.mark.parametrize(("framework", "refuses"), [("megatron", True), ("torchtitan", False)])
def test_interleaving_in_full_rounds(framework: str, refuses: bool) -> None:
    """m = 3 with p = 2: Megatron wants a multiple of p; PyTorch max(1, 3 // 2) = 1 round, and 3 % 1 = 0."""
    request = vary(tiny_dense(), workload={"global_batch": 12})
    rules = broken(
        framework, request,
        pipeline_parallel=2, schedule="interleaved", virtual_stages=2, data_parallel=4, num_microbatches=3,
    )  # fmt: skip
    assert ("microbatches_fill_interleaved_rounds" in rules) == refuses


@pytest.mark.parametrize(
    ("framework", "refuses"), [("megatron", False), ("deepspeed", True), ("maxtext", True)]
)
def test_uneven_layers(framework: str, refuses: bool) -> None:
    """5 layers over 2 ranks."""
    request = vary(tiny_dense(), model={"num_layers": 5})
    rules = broken(
        framework, request, pipeline_parallel=2, schedule="1f1b", data_parallel=4, num_microbatches=4
    )
    assert ("layers_divide_over_stages" in rules) == refuses


@pytest.mark.parametrize(("framework", "refuses"), [("megatron", True), ("torchtitan", False)])
def test_experts_beside_tensor_ranks_without_sequence_parallelism(framework: str, refuses: bool) -> None:
    rules = broken(framework, tiny_moe(), tensor_parallel=2, data_parallel=4, num_microbatches=4)
    assert ("experts_with_tensor_ranks_need_sequence_parallelism" in rules) == refuses


@pytest.mark.parametrize(("framework", "refuses"), [("accelerate", True), ("megatron", False)])
def test_plain_replicas_beside_tensor_ranks(framework: str, refuses: bool) -> None:
    rules = broken(framework, tiny_dense(), tensor_parallel=2, data_parallel=4, num_microbatches=4)
    assert ("plain_replicas_stand_alone" in rules) == refuses


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_who_numbers_pipeline_neighbours_next_to_each_other(framework: str) -> None:
    rules = broken(
        framework, tiny_dense(), rank_order="tp-cp-ep-pp-dp",
        pipeline_parallel=2, schedule="1f1b", data_parallel=4, num_microbatches=4,
    )  # fmt: skip
    has = {"megatron", "megatron-bridge", "nemo", "primus", "flagperf", "pytorch", "any"}
    assert ("framework_has_the_rank_order" in rules) == (framework not in has)


@pytest.mark.parametrize(
    ("framework", "refuses"), [("megatron", True), ("megatron-bridge", True), ("any", False)]
)
def test_context_ranks_of_a_dense_model_with_far_replicas(framework: str, refuses: bool) -> None:
    rules = broken(
        framework, tiny_dense(), rank_order="tp-cp-ep-pp-dp",
        pipeline_parallel=2, schedule="1f1b", context_parallel=2, data_parallel=2, num_microbatches=8,
    )  # fmt: skip
    assert ("far_replicas_go_with_context_ranks" in rules) == refuses


@pytest.mark.parametrize(
    ("framework", "rule"),
    [
        ("accelerate", "pipeline_ranks_within_framework_limit"),
        ("llm-foundry", "pipeline_ranks_within_framework_limit"),
        ("nanotron", "framework_has_expert_parallelism"),
        ("deepspeed", "framework_has_the_schedule"),
    ],
)
def test_what_a_framework_does_not_have(framework: str, rule: str) -> None:
    rules = broken(
        framework, tiny_moe(),
        pipeline_parallel=2, schedule="interleaved", virtual_stages=2, data_parallel=4, expert_parallel=2,
        num_microbatches=4,
    )  # fmt: skip
    assert rule in rules
