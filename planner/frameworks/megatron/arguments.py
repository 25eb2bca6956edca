"""A plan and a model as Megatron argument names and values, shared by the argument file and Bridge overrides.

A value of True is a flag without value. Names are the parser's destinations (``--`` is added when written).
"""

from __future__ import annotations

from typing import Any

from planner.cost.activations import selective_modules
from planner.frameworks.launch import flow_counts, has_even_stages, with_stages
from planner.frameworks.megatron.hybrid import has_blocks, hybrid_arguments, pattern_text
from planner.frameworks.megatron.layout import layout_text, list_text
from planner.spec.model import Model
from planner.spec.plan import FAR_REPLICAS, Plan
from planner.spec.request import PlanRequest

Arguments = dict[str, Any]

CONTEXT_KINDS = {"ring": "p2p", "all_gather": "allgather", "all_to_all": "a2a"}
FSDP_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
PRECISIONS: dict[str, Arguments] = {
    "fp32": {},
    "fp16": {"fp16": True},
    "bf16": {"bf16": True},
    "fp8": {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1"},
}


def parallel_arguments(plan: Plan, request: PlanRequest) -> Arguments:
    """Degrees of parallelism, sequence parallelism and the pipeline split."""
    arguments: Arguments = {
        "tensor_model_parallel_size": plan.tensor_parallel,
        "pipeline_model_parallel_size": plan.pipeline_parallel,
        "context_parallel_size": plan.context_parallel,
    }
    if plan.sequence_parallel:
        arguments["sequence_parallel"] = True
    if plan.context_parallel > 1:
        arguments["cp_comm_type"] = CONTEXT_KINDS[plan.context_parallel_kind]
    if request.model.is_moe:
        arguments["expert_model_parallel_size"] = plan.expert_parallel
        arguments["expert_tensor_parallel_size"] = plan.expert_tensor_parallel
        arguments["moe_token_dispatcher_type"] = "alltoall"
    if plan.rank_order == FAR_REPLICAS:
        arguments["use_tp_pp_dp_mapping"] = True
    whole = with_stages(plan, request.model)
    if has_blocks(request.model):
        arguments["hybrid_layer_pattern"] = pattern_text(request.model, flow_counts(whole))
    elif plan.pipeline_parallel > 1 and not has_even_stages(whole):
        counts = flow_counts(whole)
        arguments["pipeline_model_parallel_layout"] = layout_text(counts, request.model.mtp_depth)
    elif plan.virtual_stages > 1:
        arguments["num_virtual_stages_per_pipeline_rank"] = plan.virtual_stages
    return arguments


def sharding_arguments(plan: Plan) -> Arguments:
    """What shards optimizer state, gradients and weights over replicas, and what overlaps with it."""
    if plan.zero_stage == 0:
        return {"overlap_grad_reduce": True} if plan.data_parallel * plan.context_parallel > 1 else {}
    instances = plan.data_parallel * plan.context_parallel // plan.shard_group_size
    arguments: Arguments = {
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
    }
    if plan.zero_stage > 1:
        arguments |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": FSDP_STRATEGIES[plan.zero_stage],
            "ckpt_format": "fsdp_dtensor",
            "no_gradient_accumulation_fusion": True,
        }
    if instances > 1:
        arguments["num_distributed_optimizer_instances"] = instances
    if plan.offload == "optimizer":
        arguments |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    return arguments


def recompute_arguments(plan: Plan, request: PlanRequest) -> Arguments:
    """What is recomputed: everything, the first layers of every chunk, or named modules."""
    if plan.recompute == "none":
        return {}
    if plan.recompute == "selective":
        modules = selective_modules(plan, request)
        return {"recompute_granularity": "selective", "recompute_modules": list(modules)}
    layers = recomputed_per_chunk(with_stages(plan, request.model))
    largest = max(max(stage.chunk_layers) for stage in with_stages(plan, request.model).stages)
    method = "uniform" if layers == largest else "block"
    return {
        "recompute_granularity": "full",
        "recompute_method": method,
        "recompute_num_layers": 1 if method == "uniform" else layers,
    }


def recomputed_per_chunk(plan: Plan) -> int | None:
    """Return n with "first n layers of every chunk" equal to the plan, None if there is none."""
    largest = max(max(stage.chunk_layers) for stage in plan.stages)
    for layers in range(largest, -1, -1):
        if all(
            stage.recompute_layers == sum(min(layers, chunk) for chunk in stage.chunk_layers)
            for stage in plan.stages
        ):
            return layers
    return None


def batch_arguments(plan: Plan, request: PlanRequest) -> Arguments:
    """Micro-batch and global batch in sequences, sequence length in tokens."""
    return {
        "micro_batch_size": plan.micro_batch,
        "global_batch_size": plan.global_batch,
        "seq_length": request.workload.seq_length,
        "max_position_embeddings": max(request.workload.seq_length, request.model.seq_length),
    }


def model_arguments(model: Model) -> Arguments:
    """The architecture."""
    arguments: Arguments = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_heads,
        "vocab_size": model.vocab_size,
        **_bias_arguments(model),
        "normalization": "LayerNorm" if model.norm == "layer" else "RMSNorm",
        "position_embedding_type": "learned_absolute" if model.learned_positions else "rope",
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }
    if model.gated_mlp:
        arguments["swiglu"] = True
    elif model.activation == "squared_relu":
        arguments["squared_relu"] = True
    if not model.tied_embeddings:
        arguments["untie_embeddings_and_output_weights"] = True
    experts = _moe_arguments(model) if model.is_moe else {}
    return arguments | _attention_arguments(model) | experts | hybrid_arguments(model)


def _bias_arguments(model: Model) -> Arguments:
    """Biases of the matrices: all (Megatron's default; not for experts), of queries to values, or none."""
    if model.mlp_bias and not model.is_moe:
        return {}
    return {"disable_bias_linear": True} | ({"add_qkv_bias": True} if model.qkv_bias else {})


def _attention_arguments(model: Model) -> Arguments:
    arguments: Arguments = {}
    if model.is_mla or model.query_key_norm == "head":
        arguments["qk_layernorm"] = True
    if model.is_mla:
        arguments |= {
            "multi_latent_attention": True,
            "kv_lora_rank": model.kv_lora_rank,
            "qk_head_dim": model.qk_nope_head_dim,
            "qk_pos_emb_head_dim": model.qk_rope_head_dim,
            "v_head_dim": model.v_head_dim,
        }
        if model.q_lora_rank:
            arguments["q_lora_rank"] = model.q_lora_rank
    else:
        arguments["kv_channels"] = model.head_dim
        if model.num_kv_heads != model.num_heads:
            arguments |= {"group_query_attention": True, "num_query_groups": model.num_kv_heads}
    if model.mtp_depth:
        arguments["mtp_num_layers"] = model.mtp_depth
    return arguments | _window_arguments(model)


def _window_arguments(model: Model) -> Arguments:
    """Sliding windows: their width, and which layers have one."""
    windowed = [int(kind.window is not None) for kind in model.layer_kinds]
    if model.sliding_window is None or not any(windowed):
        return {}
    arguments: Arguments = {"window_size": f"{model.sliding_window - 1},0"}
    if model.full_attention_layers is None and model.window_pattern:
        arguments["window_attn_skip_freq"] = model.window_pattern
    elif not all(windowed):
        arguments["window_attn_skip_freq"] = list_text(windowed)
    return arguments


def _moe_arguments(model: Model) -> Arguments:
    arguments: Arguments = {
        "num_experts": model.num_experts,
        "moe_router_topk": model.experts_per_token,
        "moe_ffn_hidden_size": model.expert_ffn_hidden_size,
        "moe_grouped_gemm": True,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.001,
    }
    if model.experts_per_token == 1:
        arguments["moe_router_pre_softmax"] = True
    if model.expert_latent_size:
        arguments["moe_latent_size"] = model.expert_latent_size
    if model.shared_expert_ffn_hidden_size:
        arguments["moe_shared_expert_intermediate_size"] = model.shared_expert_ffn_hidden_size
    pattern = [int(kind.moe) for kind in model.layer_kinds]
    if not all(pattern) and not has_blocks(model):
        arguments["moe_layer_freq"] = list_text(pattern)
    return arguments


def all_arguments(plan: Plan, request: PlanRequest) -> dict[str, Arguments]:
    """Everything, by the group it belongs to."""
    return {
        "parallelism": parallel_arguments(plan, request),
        "sharding": sharding_arguments(plan),
        "batch": batch_arguments(plan, request),
        "recompute": recompute_arguments(plan, request),
        "precision": dict(PRECISIONS[plan.precision]),
        "model": model_arguments(request.model),
    }
