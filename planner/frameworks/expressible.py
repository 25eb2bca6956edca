"""What a framework cannot say: its own limits, taken from the rules that read them."""

from __future__ import annotations

from planner.errors import BadInput
from planner.frameworks.launch import with_stages
from planner.rules import check
from planner.spec.framework import FrameworkProfile
from planner.spec.model import Model
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

LIMIT_RULES = frozenset(
    {
        "framework_has_the_schedule",
        "framework_has_the_recompute",
        "framework_has_the_zero_stage",
        "zero_stage_goes_with_the_pipeline",
        "zero_stage_goes_with_experts",
        "experts_and_tensor_ranks_go_with_the_pipeline",
        "framework_has_sequence_parallelism",
        "tensor_ranks_need_sequence_parallelism",
        "context_ranks_go_with_the_pipeline",
        "shard_groups_hold_the_context_ranks",
        "shard_groups_hold_more_than_one_replica",
        "context_and_expert_ranks_shard_the_weights",
        "plain_replicas_stand_alone",
        "shard_group_divides_the_replicas",
        "shard_groups_divide_the_expert_replicas",
        "sharding_has_more_than_one_rank",
        "tensor_ranks_within_framework_limit",
        "pipeline_ranks_within_framework_limit",
        "context_ranks_within_framework_limit",
        "framework_has_the_context_parallelism",
        "framework_has_expert_parallelism",
        "expert_tensor_ranks_suit_the_framework",
        "tied_embeddings_go_with_the_pipeline",
        "framework_has_the_offload",
        "optimizer_offload_needs_sharding",
        "parameter_offload_needs_sharded_weights",
        "activation_offload_stands_alone",
        "framework_has_the_precision",
        "framework_has_the_rank_order",
        "uneven_stages_suit_the_framework",
        "recomputed_layers_suit_the_framework",
    }
)
"""Rules whose breaking means that the framework has no way to write the plan down."""


SHAPE_RULES = frozenset({"stages_match_the_pipeline", "stages_hold_every_layer"})
"""Rules without which a plan's stages say nothing about the model's layers."""


def shape_problems(plan: Plan, request: PlanRequest) -> list[str]:
    """Return a sentence for everything that keeps the plan's stages from being read."""
    return [found.sentence for found in check(plan, request) if found.rule in SHAPE_RULES]


def limit_problems(plan: Plan, request: PlanRequest, profile: FrameworkProfile) -> list[str]:
    """Return a sentence for every limit of the framework that the plan exceeds."""
    asked = request.model_copy(update={"framework": profile, "pins": ()})
    return [
        violation.sentence
        for violation in check(with_stages(plan, request.model), asked)
        if violation.rule in LIMIT_RULES
    ]


def mixer_problems(model: Model, whose: str) -> list[str]:
    """Say what a writer's own model code (``whose``) lacks: linear mixers, single blocks, latent experts."""
    problems = []
    if model.is_hybrid or any(kind.is_single_block for kind in model.layer_kinds):
        problems.append(
            f"{whose} has attention and an MLP in every layer, no state space or linear attention"
        )
    if model.expert_latent_size:
        problems.append(f"{whose} sends tokens to the experts at the hidden width only")
    return problems


def head_problems(model: Model, whose: str) -> list[str]:
    """Return a sentence where a writer says one kind of heads for all layers and the model has two."""
    if model.full_attention is model:
        return []
    return [f"{whose} has one head size and one number of KV heads for all layers"]


def refuse(framework: str, problems: list[str]) -> None:
    """Raise when there is anything that the framework cannot express.

    Raises
    ------
    BadInput
        One sentence with every reason.
    """
    if problems:
        raise BadInput(f"{framework} cannot express this plan: {'; '.join(problems)}")
