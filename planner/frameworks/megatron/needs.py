"""What Megatron's settings need of each other and exclude.

``CORE``: ``TransformerConfig.__post_init__`` and ``ModelParallelConfig`` of megatron-core, which every
program on top of it runs through. ``ARGUMENTS``: ``validate_args`` of Megatron-LM's own command line (0.19).
"""

from __future__ import annotations

from planner.frameworks.needs import Need

_DISTRIBUTED = ("use_distributed_optimizer", "use_megatron_fsdp")
_PIPELINE, _EXPERTS, _TENSOR = (
    "pipeline_model_parallel_size>1",
    "expert_model_parallel_size>1",
    "tensor_model_parallel_size>1",
)
_CHUNKS = (
    "num_virtual_stages_per_pipeline_rank",
    "num_layers_per_virtual_pipeline_stage",
    "pipeline_model_parallel_layout",
    "hybrid_layer_pattern",
)
_DISPATCHERS = ("moe_token_dispatcher_type=alltoall", "moe_token_dispatcher_type=flex")
_FULL = "recompute_granularity=full"

EXPERT_OVERLAP: tuple[Need, ...] = (
    Need(
        "overlap_moe_expert_parallel_comm",
        excludes=(
            _FULL,
            "recompute_method",
            "recompute_num_layers",
            "recompute_modules~moe",
            "moe_shared_expert_overlap",
            "mtp_num_layers>1",
            "overlap_dispatch_backward_with_experts_wgrad",
        ),
    ),
    Need("overlap_moe_expert_parallel_comm", (_EXPERTS,), passed_on=False),
    Need("overlap_moe_expert_parallel_comm", _DISPATCHERS, passed_on=False),
    Need("overlap_moe_expert_parallel_comm", _CHUNKS, when=(_PIPELINE,), passed_on=False),
    Need("overlap_moe_expert_parallel_comm", ("bf16", "fp16"), passed_on=False),
    Need(
        "overlap_moe_expert_parallel_comm",
        excludes=("cuda_graph_modules~moe", "cuda_graph_modules~mlp"),
        when=("cuda_graph_impl=transformer_engine",),
    ),
    Need("delay_wgrad_compute", ("overlap_moe_expert_parallel_comm",), passed_on=False),
    Need("delay_wgrad_compute", excludes=("overlap_dispatch_backward_with_experts_wgrad",)),
    Need("ep_overlap_early_attn_memory_release", ("overlap_moe_expert_parallel_comm",), passed_on=False),
)
"""All-to-all of the experts behind the computation of another micro-batch."""

EXPERTS: tuple[Need, ...] = (
    Need(
        "moe_shared_expert_overlap",
        _DISPATCHERS,
        when=("moe_shared_expert_intermediate_size",),
        passed_on=False,
    ),
    Need("moe_enable_deepep", ("moe_token_dispatcher_type=flex",), passed_on=False),
    Need("moe_pad_expert_input_to_capacity", ("moe_expert_capacity_factor",), passed_on=False),
    Need("moe_router_padding_for_quantization", ("fp8_format", "fp4_format"), passed_on=False),
    Need("moe_router_group_topk", ("moe_router_num_groups",), passed_on=False),
    Need(
        "moe_router_enable_expert_bias",
        ("moe_router_score_function=sigmoid", "moe_router_score_function=sqrtsoftplus"),
        passed_on=False,
    ),
    Need(
        "moe_router_topk=1",
        (
            "moe_router_pre_softmax",
            "moe_router_score_function=sigmoid",
            "moe_router_score_function=sqrtsoftplus",
            "moe_router_load_balancing_type=sinkhorn",
        ),
        passed_on=False,
    ),
)

RECOMPUTE: tuple[Need, ...] = (
    Need("recompute_granularity=selective", excludes=("recompute_num_layers",)),
    Need("recompute_modules~moe_act", ("moe_grouped_gemm",), passed_on=False),
    Need("recompute_modules~mla_up_proj", ("multi_latent_attention",), passed_on=False),
    Need("recompute_modules~shared_experts", excludes=("moe_shared_expert_overlap",)),
    Need("recompute_modules~moe_act", excludes=("fp8_recipe=delayed",), when=("fp8_format",)),
    Need("recompute_modules~layernorm", excludes=("fp8_recipe=delayed",), when=("fp8_format",)),
    Need("distribute_saved_activations", excludes=("sequence_parallel",)),
    Need(
        "cpu_offloading_num_layers>0", excludes=(_PIPELINE, "recompute_granularity", "recompute_activations")
    ),
    Need("fine_grained_activation_offloading", ("offload_modules",), passed_on=False),
    Need("fine_grained_activation_offloading", excludes=("cpu_offloading_num_layers>0",)),
    Need("offload_modules~attn_proj", ("offload_modules~core_attn",)),
)

_GRAPHED = ("cuda_graph_impl=transformer_engine",)
GRAPHS: tuple[Need, ...] = (
    Need("cuda_graph_impl=transformer_engine", excludes=(_FULL, "cpu_offloading_num_layers>0")),
    Need("cuda_graph_impl=local", ("cuda_graph_modules~full_iteration",), when=(_FULL,)),
    Need("cuda_graph_impl=full_iteration", excludes=("cuda_graph_modules",)),
    Need("cuda_graph_modules~moe", ("moe_pad_expert_input_to_capacity",), passed_on=False),
    Need("cuda_graph_modules~moe", excludes=("cuda_graph_modules~moe_router",)),
    Need("cuda_graph_modules~moe_preprocess", ("cuda_graph_modules~moe_router",), when=_GRAPHED),
    Need("recompute_modules~moe", excludes=("cuda_graph_modules~moe_router",), when=_GRAPHED),
)
"""CUDA graphs of layers; only those of a whole iteration take full recompute, and experts whose input is
padded to a fixed capacity."""

_ENDS = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
STAGES: tuple[Need, ...] = (
    *(Need(end, excludes=_COUNTED) for end in _ENDS),
    Need("pipeline_model_parallel_layout", excludes=(*_ENDS, *_COUNTED)),
    Need("defer_embedding_wgrad_compute", (_PIPELINE,), passed_on=False),
)

NUMBERS: tuple[Need, ...] = (
    Need("bf16", excludes=("fp16",)),
    Need("fp8_format", excludes=("fp4_format",)),
    Need("fp8_param_gather", ("fp8_format",), passed_on=False),
    Need("fp4_param_gather", ("fp4_format",), passed_on=False),
    Need("first_last_layers_bf16", excludes=("fp8_recipe=delayed",)),
)

CORE: tuple[Need, ...] = (
    *EXPERT_OVERLAP,
    *EXPERTS,
    *RECOMPUTE,
    *GRAPHS,
    *STAGES,
    *NUMBERS,
    Need("cp_comm_type~a2a+p2p", ("hierarchical_context_parallel_sizes",)),
)
"""Statements that hold for whatever is built on megatron-core."""

_FSDP = (
    Need("use_torch_fsdp2", excludes=("use_distributed_optimizer", "fp16", _PIPELINE, _EXPERTS)),
    Need("use_torch_fsdp2", ("untie_embeddings_and_output_weights",)),
    Need("use_torch_fsdp2", ("no_gradient_accumulation_fusion",), passed_on=False),
    Need("use_torch_fsdp2", excludes=("cuda_device_max_connections=1",)),
    Need("use_megatron_fsdp", excludes=("cuda_device_max_connections=1",)),
    Need("use_megatron_fsdp", ("ckpt_format=fsdp_dtensor",), passed_on=False),
    Need("ckpt_format=fsdp_dtensor", ("use_megatron_fsdp",), passed_on=False),
    Need("ckpt_format=torch_dcp", ("use_torch_fsdp2",), passed_on=False),
    Need("fsdp_manual_registration", ("use_megatron_fsdp",)),
    Need(
        "use_megatron_fsdp",
        excludes=("init_model_with_meta_device",),
        when=("data_parallel_sharding_strategy=no_shard",),
    ),
)

ARGUMENTS: tuple[Need, ...] = (
    *_FSDP,
    Need("overlap_param_gather", (*_DISTRIBUTED, "optimizer=dist_muon")),
    Need("overlap_param_gather", ("overlap_grad_reduce",)),
    Need("overlap_param_gather_with_optimizer_step", ("use_distributed_optimizer",)),
    Need("overlap_param_gather_with_optimizer_step", ("overlap_param_gather",)),
    Need("overlap_param_gather_with_optimizer_step", _CHUNKS, passed_on=False),
    Need("fp8_param_gather", (*_DISTRIBUTED, "use_torch_fsdp2")),
    Need("tp_comm_overlap", ("sequence_parallel",)),
    Need(_FULL, ("recompute_method",)),
    Need(_FULL, ("recompute_num_layers",)),
    Need("recompute_granularity=selective", excludes=("recompute_method",)),
    Need("recompute_activations", excludes=("recompute_method", "recompute_num_layers")),
    Need("distribute_saved_activations", (_FULL,)),
    Need("num_layers_per_virtual_pipeline_stage", excludes=("num_virtual_stages_per_pipeline_rank", *_ENDS)),
    Need("pipeline_model_parallel_layout", excludes=_CHUNKS[:2]),
    Need("multi_latent_attention", excludes=("group_query_attention",)),
    Need("optimizer_cpu_offload", ("use_precision_aware_optimizer",), passed_on=False),
    Need("use_precision_aware_optimizer", _DISTRIBUTED),
    Need(
        "optimizer_cpu_offload",
        ("fp8_recipe=delayed",),
        when=("fp8_param_gather",),
        passed_on=False,
    ),
    Need("hybrid_context_parallel", ("calculate_per_token_loss",)),
    Need("hybrid_context_parallel", excludes=(_PIPELINE, "use_megatron_fsdp", "enable_cuda_graph")),
    Need(
        "num_experts",
        ("disable_bias_linear", "expert_tensor_parallel_size=1"),
        when=(_TENSOR,),
        passed_on=False,
    ),
)
"""Statements of Megatron-LM's command line."""
