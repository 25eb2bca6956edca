"""Numbers in the sentences of rules: no ones in products, no long lists, no zeros that say nothing."""

from __future__ import annotations

import pytest

from planner.api import question
from planner.frameworks import load_framework
from planner.rules import RULES
from planner.rules.words import counted, over_ranks, ranks_words, runs_words, stages_words
from planner.spec import Plan, PlanRequest
from planner.spec.plan import StagePlan

BROKEN = {rule.name: rule for rule in RULES}


def said(rule: str, request: PlanRequest, **settings: object) -> str:
    plan = Plan.model_validate(settings)
    assert not BROKEN[rule].admits(plan, request)
    return BROKEN[rule].broken_sentence(plan, request)


@pytest.fixture(scope="module")
def dense() -> PlanRequest:
    """32 layers, 32 heads on 16 GPUs."""
    return question({"model": "llama-3-8b", "gpus": 16})


def test_products_leave_their_ones_out() -> None:
    assert ranks_words(tensor=8, context=1, data=2) == "8 tensor x 2 data ranks"
    assert ranks_words(expert=4, expert_tensor=1) == "4 expert ranks"
    assert ranks_words(tensor=1, data=1) == "1 data rank"
    assert over_ranks(context=1) == ""
    assert over_ranks(context=2, tensor=4) == " over 2 context x 4 tensor ranks"
    assert counted(1, "replica") == "1 replica"
    assert stages_words(4, 1) == "4 pipeline ranks"
    assert stages_words(4, 2) == "4 pipeline ranks of 2 chunks each"


def test_a_long_list_is_said_in_runs() -> None:
    assert runs_words([4, *[5] * 62, 4]) == "4, 62 x 5, 4"
    assert runs_words([1, 2] * 32) == "1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, ... (64 numbers)"


def test_experts_of_a_dense_model_are_counted_without_their_ones(dense: PlanRequest) -> None:
    sentence = said("expert_parallelism_needs_experts", dense, expert_parallel=4)
    assert sentence == "llama-3-8b has no experts to spread over 4 expert ranks"


def test_shared_experts_are_named_only_where_their_width_is_wrong(dense: PlanRequest) -> None:
    sentence = said("mlp_width_divides_over_tensor_ranks", dense, tensor_parallel=3)
    assert sentence == "The MLP width 14336 does not split evenly over 3 tensor ranks"


def test_sixty_four_stages_are_not_listed_one_by_one(dense: PlanRequest) -> None:
    stages = [StagePlan(chunk_layers=(1,))] * 63 + [StagePlan(chunk_layers=(2,))]
    sentence = said("stages_hold_every_layer", dense, pipeline_parallel=64, schedule="1f1b", stages=stages)
    assert sentence == "The stages hold 63 x 1, 2 layers, together 65; the model has 32"


@pytest.mark.parametrize(
    ("framework", "settings", "rule", "expected"),
    [
        (
            "accelerate",
            {"pipeline_parallel": 4, "schedule": "1f1b"},
            "zero_stage_goes_with_the_pipeline",
            "ZeRO-0 does not go with 4 pipeline ranks in accelerate (it has no pipeline parallelism)",
        ),
        (
            "llm-foundry",
            {"tensor_parallel": 4},
            "tensor_ranks_within_framework_limit",
            "llm-foundry runs no tensor parallelism, and the plan has 4 tensor ranks",
        ),
        (
            "maxtext",
            {"context_parallel": 2, "zero_stage": 0},
            "context_and_expert_ranks_shard_the_weights",
            "maxtext shards weights over its 2 context ranks: that is ZeRO-3 with a shard group that is a "
            "multiple of them, not ZeRO-0 over 1",
        ),
        (
            "megatron",
            {"context_parallel": 16, "context_parallel_kind": "all_to_all"},
            "heads_divide_over_all_to_all_ranks",
            "32 attention and 8 KV heads do not split evenly over 16 all-to-all context ranks",
        ),
        (
            "megatron",
            {"pipeline_parallel": 33, "schedule": "1f1b"},
            "every_stage_holds_something",
            "32 layers are too few for 33 pipeline ranks",
        ),
        (
            "megatron",
            {"schedule": "1f1b"},
            "pipelines_and_only_pipelines_have_a_schedule",
            "1 pipeline rank and schedule 1f1b do not go together: one rank takes 'none', more take a "
            "pipeline schedule",
        ),
    ],
)
def test_a_framework_without_something_says_so(
    dense: PlanRequest, framework: str, settings: dict[str, object], rule: str, expected: str
) -> None:
    request = dense.model_copy(update={"framework": load_framework(framework)})
    assert said(rule, request, **settings) == expected
