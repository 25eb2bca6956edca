"""Each rule with a plan that it accepts and one that it rejects, and the nearest value it proposes.

Everything is derived from ``tiny_dense`` (8 heads, 4 KV heads, hidden 64, MLP 256, vocabulary 512, 4 layers,
sequence 128, batch 16, 8 GPUs in nodes of 4), ``tiny_moe`` (8 experts of width 128) or ``tiny_hybrid`` (8
Mamba-2 heads in 4 groups).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from toys import TOY, tiny_dense, tiny_hybrid, tiny_moe, vary

from planner.cost.memory import memory
from planner.rules import RULES, Rule, check
from planner.spec import Plan, PlanRequest, StagePlan
from planner.spec.cluster import Host

DENSE = tiny_dense()
MOE = tiny_moe()
HYBRID = tiny_hybrid()
BY_NAME = {rule.name: rule for rule in RULES}


def stages(*chunks: tuple[int, ...], recompute: tuple[int, ...] = ()) -> tuple[StagePlan, ...]:
    recomputed = recompute or (0,) * len(chunks)
    return tuple(
        StagePlan(chunk_layers=layers, recompute_layers=again)
        for layers, again in zip(chunks, recomputed, strict=True)
    )


@dataclass(frozen=True)
class Example:
    """``good`` and ``bad`` are plan fields; ``nearest`` is what the violation proposes for ``bad``."""

    rule: str
    good: dict[str, Any]
    bad: dict[str, Any]
    nearest: Any = None
    says: str = ""
    request: PlanRequest = field(default_factory=tiny_dense)


def with_accelerator(request: PlanRequest, **changes: Any) -> PlanRequest:
    return vary(request, cluster={"accelerator": request.cluster.accelerator.model_copy(update=changes)})


SMALL_HOST = with_accelerator(DENSE, host=Host(node_memory_bytes=1e6, **TOY))
AMD = with_accelerator(
    vary(DENSE, model={"head_dim": 64, "ffn_hidden_size": 512}, cluster={"gpus_per_node": 8}), vendor="amd"
)
FULL = vary(
    DENSE,
    cluster={
        "reserved_hbm_bytes": 16e9 - sum(memory(Plan(micro_batch=b), DENSE)[0].total for b in (1, 16)) / 2
    },
)
"""HBM half-way between what micro-batches of 1 and of 16 need."""
PIPELINE = {"pipeline_parallel": 2, "schedule": "1f1b"}
FAR = {"rank_order": "tp-cp-ep-pp-dp"}
BOTH_ORDERS = {"rank_orders": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")}
BOTH = vary(DENSE, limits=BOTH_ORDERS)
TWO_STAGES = {**PIPELINE, "stages": stages((2,), (2,))}

EXAMPLES = [
    Example("attention_heads_divide_over_tensor_ranks", {"tensor_parallel": 4}, {"tensor_parallel": 3}, 2,
            "8 attention heads do not split evenly over 3 tensor ranks"),
    Example("kv_heads_divide_over_tensor_ranks", {"tensor_parallel": 8}, {"tensor_parallel": 3}, 2),
    Example("kv_heads_divide_over_tensor_ranks", {"tensor_parallel": 4}, {"tensor_parallel": 8}, 4,
            "4 KV heads", vary(DENSE, limits={"replicates_kv_heads": False})),
    Example("kv_heads_divide_over_tensor_ranks", {"tensor_parallel": 8}, {"tensor_parallel": 3}, 2, "",
            vary(DENSE, model={"kv_lora_rank": 16, "num_kv_heads": 1})),
    Example("hidden_size_divides_over_tensor_ranks", {"tensor_parallel": 4}, {"tensor_parallel": 5}, 4),
    Example("mlp_width_divides_over_tensor_ranks", {"tensor_parallel": 2}, {"tensor_parallel": 4}, 2,
            "The MLP width 258", vary(DENSE, model={"ffn_hidden_size": 258})),
    Example("mlp_width_divides_over_tensor_ranks", {"tensor_parallel": 1}, {"tensor_parallel": 2}, 1,
            "width 33 of the shared experts",
            vary(MOE, model={"shared_expert_ffn_hidden_size": 33, "num_dense_layers": 0})),
    Example("expert_width_divides_over_expert_tensor_ranks", {"expert_tensor_parallel": 2},
            {"expert_tensor_parallel": 3}, 2, "The expert width 128", MOE),
    Example("vocabulary_divides_over_tensor_ranks", {"tensor_parallel": 1}, {"tensor_parallel": 2}, 1,
            "The vocabulary of 511", vary(DENSE, model={"vocab_size": 511}, limits={"vocab_multiple": 0})),
    Example("sequence_divides_over_context_ranks", {"context_parallel": 2}, {"context_parallel": 3}, 2),
    Example("sequence_divides_over_context_ranks",
            {"context_parallel": 4, "context_parallel_kind": "all_gather"}, {"context_parallel": 4}, 3,
            "132 tokens", vary(DENSE, workload={"seq_length": 132})),
    Example("sequence_divides_over_context_ranks", {"context_parallel": 2},
            {"context_parallel": 4, "context_parallel_kind": "all_gather"}, 3, "",
            vary(DENSE, workload={"seq_length": 132}, limits={"zigzag_for_every_context_kind": True})),
    Example("heads_divide_over_all_to_all_ranks",
            {"context_parallel": 2, "context_parallel_kind": "all_to_all", "tensor_parallel": 2},
            {"context_parallel": 4, "context_parallel_kind": "all_to_all", "tensor_parallel": 2}, 2,
            "4 KV heads"),
    Example("heads_divide_over_all_to_all_ranks",
            {"context_parallel": 4, "context_parallel_kind": "all_to_all", "tensor_parallel": 2},
            {"context_parallel": 3, "context_parallel_kind": "all_to_all", "tensor_parallel": 2}, 2, "",
            vary(DENSE, limits={"replicates_kv_heads_over_context": True})),
    Example("linear_heads_divide_over_tensor_ranks", {"tensor_parallel": 4}, {"tensor_parallel": 8}, 4,
            "8 Mamba-2 heads in 4 groups do not split evenly over 8 tensor ranks", HYBRID),
    Example("linear_heads_divide_over_tensor_ranks", {"tensor_parallel": 2}, {"tensor_parallel": 4}, 2,
            "8 value and 2 key heads of gated delta net",
            vary(HYBRID, model={"linear_mixer": "gated_delta", "linear_key_heads": 2})),
    Example("linear_mixers_work_over_context_ranks", {}, {"context_parallel": 2}, 1,
            "does not split the sequence of Mamba-2 layers",
            vary(HYBRID, limits={"linear_context_parallel": False})),
    # 4 groups over 2 tensor ranks: 2 groups are copied over 4 context ranks, which share 4 heads.
    Example("linear_heads_divide_over_context_ranks", {"context_parallel": 4, "tensor_parallel": 2},
            {"context_parallel": 8, "tensor_parallel": 2}, 4, "over 2 tensor ranks do not split",
            HYBRID),
    Example("linear_heads_divide_over_context_ranks", {"context_parallel": 4},
            {"context_parallel": 8}, 4, "8 value and 4 key heads of gated delta net do not split",
            vary(HYBRID, model={"linear_mixer": "gated_delta"}, limits={"linear_tensor_parallel": False})),
    # 16 heads of 6 over 2 and 4 ranks leave 48 and 24 columns; the first product has 336.
    Example("low_precision_linear_widths_are_aligned", {"precision": "fp8", "tensor_parallel": 2},
            {"precision": "fp8", "tensor_parallel": 4}, 2,
            "which do not come of Mamba-2's 96 inner columns over 4 tensor ranks",
            vary(HYBRID, model={"linear_value_head_dim": 6, "linear_value_heads": 16})),
    Example("low_precision_linear_widths_are_aligned", {"precision": "bf16"}, {"precision": "fp8"}, "bf16",
            "392 columns of its first product", HYBRID),
    Example("sequence_divides_over_sequence_ranks", {"tensor_parallel": 2, "sequence_parallel": True},
            {"tensor_parallel": 4, "sequence_parallel": True}, 2, "",
            vary(DENSE, workload={"seq_length": 130})),
    Example("sequence_divides_over_sequence_ranks",
            {"tensor_parallel": 2, "context_parallel": 2, "sequence_parallel": True},
            {"tensor_parallel": 4, "context_parallel": 2, "sequence_parallel": True}, 2, "",
            vary(DENSE, workload={"seq_length": 136},
                 limits={"sequence_divides_by_tensor_and_context": True})),
    Example("sequence_parallelism_needs_tensor_ranks", {"tensor_parallel": 2, "sequence_parallel": True},
            {"sequence_parallel": True}, False),
    Example("tensor_ranks_need_sequence_parallelism", {"tensor_parallel": 2, "sequence_parallel": True},
            {"tensor_parallel": 2}, True, "",
            vary(DENSE, limits={"sequence_parallel_required_with_tensor": True})),
    Example("experts_with_tensor_ranks_need_sequence_parallelism",
            {"tensor_parallel": 2, "sequence_parallel": True}, {"tensor_parallel": 2}, True, "", MOE),
    Example("expert_parallelism_needs_experts", {}, {"expert_parallel": 2}, 1),
    Example("experts_divide_over_expert_ranks", {"expert_parallel": 4}, {"expert_parallel": 3}, 2,
            "8 experts do not split evenly over 3", MOE),
    Example("expert_ranks_divide_the_replicas", {"expert_parallel": 4, "data_parallel": 4},
            {"expert_parallel": 4, "data_parallel": 2}, 2, "", MOE),
    Example("low_precision_rows_are_aligned",
            {"precision": "fp8", "tensor_parallel": 2, "sequence_parallel": True},
            {"precision": "fp8", "tensor_parallel": 4, "sequence_parallel": True}, 2, "a multiple of 8 rows",
            vary(DENSE, workload={"seq_length": 144, "precisions": ("fp8",)})),
    Example("low_precision_widths_are_aligned", {"precision": "fp8", "tensor_parallel": 4},
            {"precision": "fp8", "tensor_parallel": 8}, 4, "multiples of 16"),
    Example("expert_tensor_ranks_suit_the_framework",
            {"expert_tensor_parallel": 4, "tensor_parallel": 4, "expert_parallel": 2},
            {"expert_tensor_parallel": 2, "tensor_parallel": 4, "expert_parallel": 2}, 1, "",
            vary(MOE, limits={"expert_tensor_is_one_or_tensor": True})),
    Example("expert_tensor_ranks_suit_the_framework",
            {"expert_tensor_parallel": 4, "tensor_parallel": 4, "expert_parallel": 1},
            {"expert_tensor_parallel": 4, "tensor_parallel": 4, "expert_parallel": 2}, 1, "",
            vary(MOE, limits={"expert_tensor_parallel": False})),
    Example("framework_has_expert_parallelism", {}, {"expert_parallel": 2}, 1, "",
            vary(MOE, limits={"expert_parallel": False})),
    Example("ranks_fill_the_cluster", {"tensor_parallel": 2, "data_parallel": 4},
            {"tensor_parallel": 2, "data_parallel": 3}, 4, "take 6 GPUs, and the cluster has 8, all"),
    Example("ranks_fill_the_cluster", {"tensor_parallel": 2, "data_parallel": 3},
            {"tensor_parallel": 2, "data_parallel": 5}, 4, "take 10 GPUs", vary(DENSE, allow_idle=True)),
    Example("tensor_ranks_stay_inside_the_fast_domain", {"tensor_parallel": 4}, {"tensor_parallel": 8}, 4,
            "fast domain of 4 GPUs"),
    Example("accelerator_has_the_precision", {"precision": "fp8"}, {"precision": "fp16"}, "bf16",
            "toy has no fp16", vary(DENSE, workload={"precisions": ("fp16",)})),
    Example("precision_is_among_the_choices", {}, {"precision": "fp8"}, "bf16"),
    Example("replicas_divide_the_global_batch", {"data_parallel": 4}, {"data_parallel": 6}, 4,
            "nearest batch: 12 and 18", vary(DENSE, workload={"global_batch": 16, "global_batch_max": 17})),
    Example("micro_batch_divides_the_replica_batch", {"data_parallel": 4, "micro_batch": 2},
            {"data_parallel": 4, "micro_batch": 3}, 2),
    Example("microbatches_make_up_the_global_batch", {"data_parallel": 8, "num_microbatches": 2},
            {"data_parallel": 8, "num_microbatches": 5}, 2, "are 40 sequences, not the global batch of 16"),
    Example("framework_has_the_schedule", PIPELINE, {"pipeline_parallel": 2, "schedule": "zb-v"}, "none"),
    Example("pipelines_and_only_pipelines_have_a_schedule", PIPELINE, {"pipeline_parallel": 2}, "gpipe"),
    Example("pipelines_and_only_pipelines_have_a_schedule", {}, {"schedule": "1f1b"}, "none"),
    Example("chunks_suit_the_schedule", {"schedule": "interleaved", "virtual_stages": 2},
            {"schedule": "interleaved", "virtual_stages": 1}, 2),
    Example("chunks_suit_the_schedule", {"schedule": "zb-v", "virtual_stages": 2},
            {"schedule": "zb-v", "virtual_stages": 4}, 2),
    Example("chunks_suit_the_schedule", {"schedule": "1f1b"}, {"schedule": "1f1b", "virtual_stages": 2}, 1),
    Example("every_stage_holds_something", {"pipeline_parallel": 4}, {"pipeline_parallel": 5}, 4),
    Example("every_stage_holds_something", {"pipeline_parallel": 3, "virtual_stages": 2},
            {"pipeline_parallel": 4, "virtual_stages": 2}, 3, "4 layers (with embedding and loss"),
    Example("layers_divide_over_stages", {"pipeline_parallel": 2, "virtual_stages": 2},
            {"pipeline_parallel": 3}, 2, "has only equal stages",
            vary(DENSE, limits={"uneven_stages": "even"})),
    Example("layers_divide_over_stages", {"pipeline_parallel": 3, "virtual_stages": 1},
            {"pipeline_parallel": 1, "virtual_stages": 3}, 2, "",
            vary(DENSE, limits={"uneven_stages": "ends"})),
    Example("dualpipe_ranks_are_even", {"schedule": "dualpipe", "pipeline_parallel": 4},
            {"schedule": "dualpipe", "pipeline_parallel": 3}, 2),
    Example("dualpipe_has_enough_microbatches",
            {"schedule": "dualpipe", "pipeline_parallel": 4, "num_microbatches": 8},
            {"schedule": "dualpipe", "pipeline_parallel": 4, "num_microbatches": 9}, 8),
    Example("dualpipe_has_enough_microbatches",
            {"schedule": "dualpipe-v", "pipeline_parallel": 4, "num_microbatches": 9},
            {"schedule": "dualpipe-v", "pipeline_parallel": 4, "num_microbatches": 7}, 8),
    Example("microbatches_fill_interleaved_rounds",
            {"schedule": "interleaved", "pipeline_parallel": 4, "num_microbatches": 8},
            {"schedule": "interleaved", "pipeline_parallel": 4, "num_microbatches": 6}, 4),
    Example("microbatches_fill_interleaved_rounds",
            {"schedule": "interleaved", "pipeline_parallel": 4, "num_microbatches": 6},
            {"schedule": "interleaved", "pipeline_parallel": 4, "num_microbatches": 9}, 8, "",
            vary(DENSE, limits={"interleaved_multiple_of_stages": False})),
    Example("microbatches_cover_the_pipeline", {**PIPELINE, "num_microbatches": 2},
            {**PIPELINE, "num_microbatches": 1}, 2, "",
            vary(DENSE, limits={"microbatches_at_least_stages": True})),
    Example("microbatches_cover_the_pipeline",
            {"schedule": "1f1b", "pipeline_parallel": 4, "num_microbatches": 3},
            {"schedule": "1f1b", "pipeline_parallel": 4, "num_microbatches": 2}, 3, "",
            vary(DENSE, limits={"microbatches_at_least_stages_less_one": True})),
    Example("microbatches_cover_the_pipeline", {**PIPELINE, "num_microbatches": 4},
            {**PIPELINE, "num_microbatches": 5}, 4, "",
            vary(DENSE, limits={"microbatches_multiple_of_stages": True})),
    # (p - 1)/m: 1/4 is the budget itself, 1/3 is over it
    Example("bubble_stays_within_budget", {**PIPELINE, "num_microbatches": 4},
            {**PIPELINE, "num_microbatches": 3}, 4,
            "a bubble of 33.3 % of the ideal time; the budget is 25 %"),
    # (p - 1)/(m v) = 3/(4 * 3) = 1/4
    Example("bubble_stays_within_budget",
            {"schedule": "interleaved", "pipeline_parallel": 4, "virtual_stages": 3, "num_microbatches": 4},
            {"schedule": "interleaved", "pipeline_parallel": 4, "virtual_stages": 2, "num_microbatches": 4},
            6),
    # a third of 1F1B when F = D = W: 3/(3 * 4) = 1/4
    Example("bubble_stays_within_budget",
            {"schedule": "zb-h1", "pipeline_parallel": 4, "num_microbatches": 4},
            {"schedule": "zb-h1", "pipeline_parallel": 4, "num_microbatches": 3}, 4),
    Example("framework_has_the_recompute", {"recompute": "full"}, {"recompute": "selective"}, "none", "",
            vary(DENSE, limits={"recompute": ("none", "full")})),
    Example("framework_has_the_zero_stage", {"zero_stage": 1}, {"zero_stage": 3}, 1, "it has 0, 1"),
    Example("zero_stage_goes_with_the_pipeline", {"zero_stage": 3}, {"zero_stage": 3, **PIPELINE}, 1,
            "(with a pipeline: 0, 1)", vary(DENSE, limits={"zero_stages": (0, 1, 2, 3)})),
    Example("zero_stage_goes_with_experts", {"zero_stage": 3}, {"zero_stage": 3, "expert_parallel": 2}, 1,
            "without expert parallelism", vary(MOE, limits={"zero3_with_experts": False})),
    Example("experts_and_tensor_ranks_go_with_the_pipeline", {"expert_parallel": 2, "tensor_parallel": 2},
            {"expert_parallel": 2, "tensor_parallel": 2, **PIPELINE}, 1, "",
            vary(MOE, limits={"experts_with_tensor_exclude_pipeline": True})),
    Example("framework_has_sequence_parallelism", {"tensor_parallel": 2},
            {"tensor_parallel": 2, "sequence_parallel": True}, False, "no sequence parallelism",
            vary(DENSE, limits={"sequence_parallel": False})),
    Example("context_ranks_go_with_the_pipeline", {"context_parallel": 2},
            {"context_parallel": 2, **PIPELINE}, 1, "",
            vary(DENSE, limits={"context_excludes_pipeline": True})),
    # two context ranks: a group of 4 holds them twice, unsharded state (a group of 1) not at all
    Example("shard_groups_hold_the_context_ranks",
            {"zero_stage": 3, "data_parallel": 2, "context_parallel": 2, "shard_group_size": 4},
            {"context_parallel": 2}, 2, "a multiple of them, not 1",
            vary(DENSE, limits={"context_is_sharded": True})),
    Example("context_and_expert_ranks_shard_the_weights",
            {"zero_stage": 3, "data_parallel": 4, "expert_parallel": 2, "shard_group_size": 4},
            {"zero_stage": 1, "data_parallel": 4, "expert_parallel": 2, "shard_group_size": 4}, 3,
            "that is ZeRO-3", vary(MOE, limits={"context_and_experts_need_zero3": True})),
    Example("recomputed_modules_are_in_the_model",
            {"recompute": "selective", "recompute_modules": ("core_attn", "moe_act")},
            {"recompute": "selective", "recompute_modules": ("mla_up_proj", "shared_experts")}, None,
            "tiny-moe has no mla_up_proj, shared_experts to recompute", MOE),
    Example("recomputed_modules_are_in_the_model", {"recompute": "selective", "recompute_modules": ("mlp",)},
            {"recompute": "selective", "recompute_modules": ("moe",)}, None, "tiny-dense has no moe"),
    Example("recompute_modules_mean_selective", {"recompute": "selective", "recompute_modules": ("mlp",)},
            {"recompute": "full", "recompute_modules": ("mlp",)}),
    Example("plain_replicas_stand_alone", {"data_parallel": 8},
            {"data_parallel": 4, "tensor_parallel": 2}, 1, "",
            vary(DENSE, limits={"plain_replication_combines": False})),
    Example("sharding_has_more_than_one_rank", {"zero_stage": 1, "data_parallel": 2, "shard_group_size": 2},
            {"zero_stage": 1, "tensor_parallel": 2}, 0, "nothing to shard over",
            vary(DENSE, limits={"sharding_needs_replicas": True})),
    Example("shard_groups_hold_more_than_one_replica",
            {"zero_stage": 3, "data_parallel": 2, "context_parallel": 4, "shard_group_size": 8},
            {"zero_stage": 3, "data_parallel": 2, "context_parallel": 4, "shard_group_size": 4}, 8,
            "over 4 context ranks alone", vary(DENSE, limits={"shard_groups_hold_replicas": True})),
    Example("unsharded_state_has_no_shard_group", {}, {"shard_group_size": 4}, 1),
    Example("shard_group_divides_the_replicas",
            {"zero_stage": 1, "data_parallel": 4, "context_parallel": 2, "shard_group_size": 8},
            {"zero_stage": 1, "data_parallel": 4, "context_parallel": 2, "shard_group_size": 4}, 8),
    Example("shard_group_divides_the_replicas",
            {"zero_stage": 1, "data_parallel": 8, "shard_group_size": 4},
            {"zero_stage": 1, "data_parallel": 8, "shard_group_size": 3}, 2, "",
            vary(DENSE, limits={"hybrid_sharding": True})),
    # 4 expert ranks over t d = 4 ranks: two shard groups of 2 would cut the only set of experts in half
    Example("shard_groups_divide_the_expert_replicas",
            {"zero_stage": 1, "data_parallel": 4, "expert_parallel": 4, "shard_group_size": 4},
            {"zero_stage": 1, "data_parallel": 4, "expert_parallel": 4, "shard_group_size": 2}, 4, "",
            vary(MOE, limits={"hybrid_sharding": True})),
    Example("tensor_ranks_within_framework_limit", {"tensor_parallel": 2}, {"tensor_parallel": 4}, 2,
            "at most 2 tensor ranks", vary(DENSE, limits={"max_tensor_parallel": 2})),
    Example("pipeline_ranks_within_framework_limit", {}, PIPELINE, 1, "",
            vary(DENSE, limits={"max_pipeline_parallel": 1})),
    Example("context_ranks_within_framework_limit", {}, {"context_parallel": 2}, 1, "",
            vary(DENSE, limits={"max_context_parallel": 1})),
    Example("framework_has_the_context_parallelism", {"context_parallel": 2},
            {"context_parallel": 2, "context_parallel_kind": "all_to_all"}, "ring", "it has: ring",
            vary(DENSE, limits={"context_parallel_kinds": ("ring",)})),
    Example("tied_embeddings_go_with_the_pipeline", {}, PIPELINE, 1, "ties its embedding",
            vary(DENSE, model={"tied_embeddings": True}, limits={"tied_embeddings_with_pipeline": False})),
    Example("framework_has_the_offload", {"offload": "optimizer"}, {"offload": "activations"}, "none"),
    Example("optimizer_offload_needs_sharding", {"offload": "optimizer", "zero_stage": 1},
            {"offload": "optimizer"}, 1),
    Example("parameter_offload_needs_sharded_weights", {"offload": "parameters", "zero_stage": 3},
            {"offload": "parameters", "zero_stage": 2}, 3, "not under ZeRO-2",
            vary(DENSE, limits={"offloads": ("none", "parameters"), "zero_stages": (0, 2, 3)})),
    # FSDP's shards lie on the host whether or not it reshards, together with what its layers save
    Example("parameter_offload_needs_sharded_weights", {"offload": "parameters+activations", "zero_stage": 2},
            {"offload": "parameters+activations"}, 2, "",
            vary(DENSE, limits={"offloads": ("none", "parameters+activations"), "zero_stages": (0, 2, 3),
                                "parameter_offload_zero_stages": (2, 3)})),
    Example("activation_offload_stands_alone", {"offload": "activations", "recompute": "full"},
            {"offload": "activations"}, "none", "with recompute 'full', not with 1 pipeline ranks",
            vary(DENSE, limits={"offloads": ("none", "activations"),
                                          "activation_offload_recompute": ("full",)})),
    Example("activation_offload_stands_alone", {"offload": "activations"},
            {"offload": "activations", "recompute": "full"}, "none", "",
            vary(DENSE, limits={"offloads": ("none", "activations")})),
    Example("framework_has_the_rank_order", {}, {**PIPELINE, "data_parallel": 4, **FAR}, "tp-cp-ep-dp-pp",
            "only tp-cp-ep-dp-pp"),
    Example("rank_order_has_two_axes_to_order", {**PIPELINE, "data_parallel": 4, **FAR}, {**PIPELINE, **FAR},
            "tp-cp-ep-dp-pp", "not with 2 and 1: the plan says tp-cp-ep-dp-pp", BOTH),
    # 4 expert ranks would be those of two replicas with another stage between them
    Example("far_replicas_hold_every_expert",
            {**PIPELINE, "tensor_parallel": 2, "data_parallel": 2, "expert_parallel": 2, **FAR},
            {**PIPELINE, "tensor_parallel": 2, "data_parallel": 2, "expert_parallel": 4, **FAR},
            "tp-cp-ep-dp-pp", "4 expert ranks and 2 tensor ranks", vary(MOE, limits=BOTH_ORDERS)),
    Example("far_replicas_go_with_context_ranks",
            {**PIPELINE, "tensor_parallel": 2, "data_parallel": 2, **FAR},
            {**PIPELINE, "context_parallel": 2, "data_parallel": 2, **FAR}, "tp-cp-ep-dp-pp",
            "2 context ranks of a dense model",
            vary(DENSE, limits={**BOTH_ORDERS, "far_replicas_exclude_context": True})),
    Example("framework_has_the_precision", {"precision": "bf16"}, {"precision": "fp8"}, "bf16", "",
            vary(DENSE, limits={"precisions": ("bf16",)})),
    Example("stages_match_the_pipeline", TWO_STAGES, {**PIPELINE, "stages": stages((4,))}),
    Example("stages_match_the_pipeline", TWO_STAGES, {**PIPELINE, "stages": stages((1, 1), (1, 1))}),
    Example("stages_hold_every_layer", TWO_STAGES, {**PIPELINE, "stages": stages((2,), (1,))}, None,
            "together 3; the model has 4"),
    Example("inner_stages_hold_layers", TWO_STAGES, {**PIPELINE, "stages": stages((4,), (0,))}),
    Example("inner_stages_hold_layers",
            {**PIPELINE, "virtual_stages": 2, "stages": stages((0, 2), (2, 0))},
            {**PIPELINE, "virtual_stages": 2, "stages": stages((2, 0), (2, 0))}),
    Example("uneven_stages_suit_the_framework", TWO_STAGES, {**PIPELINE, "stages": stages((3,), (1,))},
            None, "", vary(DENSE, limits={"uneven_stages": "even"})),
    Example("uneven_stages_suit_the_framework",
            {"pipeline_parallel": 3, "schedule": "1f1b", "stages": stages((1,), (2,), (1,))},
            {"pipeline_parallel": 4, "schedule": "1f1b", "stages": stages((1,), (2,), (1,), (0,))}, None, "",
            vary(DENSE, limits={"uneven_stages": "ends"})),
    Example("stages_recompute_what_they_hold",
            {**PIPELINE, "recompute": "full", "stages": stages((2,), (2,), recompute=(2, 1))},
            {**PIPELINE, "recompute": "full", "stages": stages((2,), (2,), recompute=(3, 1))}),
    Example("stages_recompute_what_they_hold", TWO_STAGES,
            {**PIPELINE, "stages": stages((2,), (2,), recompute=(1, 0))}),
    Example("recomputed_layers_suit_the_framework",
            {**PIPELINE, "recompute": "full", "stages": stages((3,), (1,), recompute=(2, 1))},
            {**PIPELINE, "recompute": "full", "stages": stages((3,), (1,), recompute=(2, 0))}),
    Example("recomputed_layers_suit_the_framework",
            {**PIPELINE, "recompute": "full", "stages": stages((2,), (2,), recompute=(2, 0))},
            {**PIPELINE, "recompute": "full", "stages": stages((2,), (2,), recompute=(2, 1))}, None, "",
            vary(DENSE, limits={"recompute_per_stage": True, "partial_recompute": False})),
    Example("offloaded_state_fits_in_host_memory", {"zero_stage": 1},
            {"offload": "optimizer", "zero_stage": 1}, None, "of host memory, the node has 1 MB", SMALL_HOST),
    Example("offloaded_state_fits_in_host_memory", {"zero_stage": 3},
            {"offload": "parameters", "zero_stage": 3}, None, "The weights, gradients and optimizer",
            SMALL_HOST),
    Example("offloaded_state_fits_in_host_memory", {}, {"offload": "activations"}, None, "The activations",
            SMALL_HOST),
    # 8 heads of 64 and an MLP of 512: 512 / 4 = 128 is a multiple of 128, 512 / 8 = 64 is not
    Example("low_precision_widths_are_aligned", {"precision": "mxfp8", "tensor_parallel": 4},
            {"precision": "mxfp8", "tensor_parallel": 8}, 4, "multiples of 128", AMD),
    Example("every_stage_fits_in_memory", {}, {"micro_batch": 16}, None, "are missing",
            FULL),
]  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.rule)
def test_rule_accepts_the_good_plan_and_rejects_the_bad_one(example: Example) -> None:
    rule: Rule = BY_NAME[example.rule]
    good, bad = Plan(**example.good), Plan(**example.bad)
    assert rule.admits(good, example.request)
    assert not rule.admits(bad, example.request)
    violation = next(found for found in check(bad, example.request) if found.rule == example.rule)
    assert violation.nearest == example.nearest
    assert example.says in violation.sentence
    assert violation.field == rule.field or violation.field in rule.scope
    if violation.nearest is not None:
        better = bad.model_copy(update={violation.field: violation.nearest})
        assert rule.admits(better, example.request)


def test_every_rule_has_an_example() -> None:
    assert {example.rule for example in EXAMPLES} == set(BY_NAME)


def test_a_legal_plan_breaks_nothing() -> None:
    plan = Plan(tensor_parallel=2, data_parallel=4, micro_batch=1, num_microbatches=4)
    assert check(plan, DENSE) == ()


def test_all_broken_rules_are_reported_in_order() -> None:
    """t = 3 breaks heads, KV heads, hidden, MLP, the node of 4, and 3 x 4 is not 8 GPUs."""
    plan = Plan(tensor_parallel=3, data_parallel=4, num_microbatches=4)
    assert [violation.rule for violation in check(plan, DENSE)] == [
        "attention_heads_divide_over_tensor_ranks",
        "kv_heads_divide_over_tensor_ranks",
        "hidden_size_divides_over_tensor_ranks",
        "mlp_width_divides_over_tensor_ranks",
        "ranks_fill_the_cluster",
        "tensor_ranks_stay_inside_the_fast_domain",
    ]


def test_sentence_names_the_numbers_the_valid_values_and_the_nearest() -> None:
    plan = Plan(tensor_parallel=3, data_parallel=4, num_microbatches=4)
    assert str(check(plan, DENSE)[0]) == (
        "8 attention heads do not split evenly over 3 tensor ranks; "
        "valid tensor_parallel: 1, 2, 4 (nearest: 2)."
    )
