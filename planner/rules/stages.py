"""The plan's explicit stages: they hold every layer, suit the framework, and recompute what the plan says."""

from __future__ import annotations

from typing import Any

from planner.cost.stage import stage_order
from planner.rules.rule import rule
from planner.rules.words import runs_words
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest


def _chunks_in_order(plan: Plan) -> list[int]:
    """Layers of every stage in the order the data flows; only for plans whose stages have the right shape."""
    order = stage_order(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)
    return [plan.stages[rank].chunk_layers[chunk] for rank, chunk in order]


def _has_shape(plan: Plan) -> bool:
    chunks = {len(stage.chunk_layers) for stage in plan.stages}
    return len(plan.stages) == plan.pipeline_parallel and chunks == {plan.virtual_stages}


EVEN_BUT_THE_ENDS = "its stages are equal but for the first and the last, and so are a rank's chunks"


def _layout(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    limits = request.framework.limits
    layers = [stage.layers for stage in plan.stages]
    chunks = [len(stage.chunk_layers) for stage in plan.stages]
    recomputed = [stage.recompute_layers for stage in plan.stages]
    return {
        "layers": runs_words(layers),
        "total": sum(layers),
        "chunks": runs_words(chunks),
        "recomputed": runs_words(recomputed),
        "how_they_differ": "its stages are equal" if limits.uneven_stages == "even" else EVEN_BUT_THE_ENDS,
        "parts": "any number" if limits.recomputes_partially(plan.recompute) else "all or none",
        "stages_alike": "each its own" if limits.recompute_per_stage else "every stage as many",
    }


@rule(source="definition: one entry a pipeline rank, one count a chunk", field="stages", numbers=_layout)
def stages_match_the_pipeline(request: PlanRequest, plan: Plan) -> bool:
    """The stages give {chunks} chunks, one entry a rank, where the plan has {plan.pipeline_parallel}
    ranks of {plan.virtual_stages} chunks.
    """
    return not plan.stages or _has_shape(plan)


@rule(
    source="Megatron-LM pipeline_parallel_layer_layout.py: as many layers as the model",
    field="stages",
    numbers=_layout,
)
def stages_hold_every_layer(request: PlanRequest, plan: Plan) -> bool:
    """The stages hold {layers} layers, together {total}; the model has {request.model.num_layers}."""
    return not plan.stages or sum(stage.layers for stage in plan.stages) == request.model.num_layers


@rule(source="every stage but the first and the last computes layers", field="stages", numbers=_layout)
def inner_stages_hold_layers(request: PlanRequest, plan: Plan) -> bool:
    """The stages hold {layers} layers: a stage without layers can only stand at an end, beside embedding
    or loss, and every rank holds at least one layer.
    """
    if not plan.stages or not _has_shape(plan):
        return True
    counts = _chunks_in_order(plan)
    ends_may_be_empty = plan.virtual_stages > 1 and request.framework.limits.uneven_stages == "any"
    inner = counts[1:-1] if ends_may_be_empty else counts
    ranks_hold_layers = all(stage.layers > 0 for stage in plan.stages)
    return ranks_hold_layers and all(count > 0 for count in inner) and min(counts) >= 0


@rule(
    source="Megatron-LM arguments.py and transformer_config.py: even, or first and last",
    field="stages",
    numbers=_layout,
)
def uneven_stages_suit_the_framework(request: PlanRequest, plan: Plan) -> bool:
    """The stages hold {layers} layers, which {request.framework.name} cannot express: {how_they_differ}."""
    uneven = request.framework.limits.uneven_stages
    if not plan.stages or not _has_shape(plan) or uneven == "any":
        return True
    per_rank_even = all(len(set(stage.chunk_layers)) == 1 for stage in plan.stages)
    layers = [stage.layers for stage in plan.stages]
    middle = layers if uneven == "even" else layers[1:-1]
    return per_rank_even and len(set(middle)) <= 1


@rule(source="definition: a stage recomputes some of its own layers", field="stages", numbers=_layout)
def stages_recompute_what_they_hold(request: PlanRequest, plan: Plan) -> bool:
    """The stages hold {layers} layers and recompute {recomputed} with recompute '{plan.recompute}': at
    most the layers held, and none without recompute.
    """
    bounded = all(0 <= stage.recompute_layers <= stage.layers for stage in plan.stages)
    some = any(stage.recompute_layers for stage in plan.stages)
    return bounded and not (some and plan.recompute == "none")


@rule(
    source="framework limit: recompute a part of a stage, or different parts on different stages",
    field="stages",
    numbers=_layout,
)
def recomputed_layers_suit_the_framework(request: PlanRequest, plan: Plan) -> bool:
    """{request.framework.name} cannot recompute {recomputed} of {layers} layers: a stage recomputes
    {parts}, and {stages_alike}.
    """
    limits = request.framework.limits
    whole = all(stage.recompute_layers in {0, stage.layers} for stage in plan.stages)
    partial = limits.recomputes_partially(plan.recompute)
    return (partial or whole) and (limits.recompute_per_stage or _recomputes_alike(plan, partial))


def _recomputes_alike(plan: Plan, partial: bool) -> bool:
    """Whether the plan recomputes the first n layers of every chunk (n: all or none, unless ``partial``)."""
    most = max((max(stage.chunk_layers) for stage in plan.stages), default=0)
    firsts = range(most + 1) if partial else (0, most)
    return any(
        all(
            stage.recompute_layers == sum(min(first, layers) for layers in stage.chunk_layers)
            for stage in plan.stages
        )
        for first in firsts
    )


MLA_MODULES = ("mla_up_proj",)
EXPERT_MODULES = ("moe", "moe_act", "shared_experts")


def _absent_modules(plan: Plan, request: PlanRequest) -> list[str]:
    model = request.model
    absent = [module for module in plan.recompute_modules if module in MLA_MODULES and not model.is_mla]
    absent += [module for module in plan.recompute_modules if module in EXPERT_MODULES and not model.is_moe]
    if "shared_experts" in plan.recompute_modules and not model.shared_expert_ffn_hidden_size:
        absent.append("shared_experts")
    return list(dict.fromkeys(absent))


def _absent(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    return {
        "absent": ", ".join(_absent_modules(plan, request)),
        "modules": ", ".join(plan.recompute_modules),
    }


@rule(
    source="Megatron-LM transformer_config.py: recompute modules against the architecture",
    field="recompute_modules",
    numbers=_absent,
)
def recomputed_modules_are_in_the_model(request: PlanRequest, plan: Plan) -> bool:
    """{request.model.name} has no {absent} to recompute."""
    return not _absent_modules(plan, request)


@rule(
    source="Megatron-LM arguments.py: modules only with selective recompute",
    field="recompute_modules",
    numbers=_absent,
)
def recompute_modules_mean_selective(request: PlanRequest, plan: Plan) -> bool:
    """Recompute '{plan.recompute}' takes no modules, and {modules} are named."""
    return plan.recompute == "selective" or not plan.recompute_modules


STAGE_RULES = (
    stages_match_the_pipeline,
    stages_hold_every_layer,
    inner_stages_hold_layers,
    uneven_stages_suit_the_framework,
    stages_recompute_what_they_hold,
    recomputed_layers_suit_the_framework,
    recomputed_modules_are_in_the_model,
    recompute_modules_mean_selective,
)
