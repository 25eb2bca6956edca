"""Read Megatron-LM arguments, in bash or bare, and turn them into a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.cost.activations import default_modules
from planner.errors import BadInput
from planner.frameworks.launch import (
    Found,
    Key,
    LaunchFile,
    collect,
    fixed,
    make_plan,
    microbatches,
    one_of,
    positive,
    replicas,
    schedule_of,
    stages_of,
    text,
    whole,
    yes,
)
from planner.frameworks.launcher_keys import LAUNCHER_KEYS, is_launcher_flag
from planner.frameworks.megatron.hybrid import read_pattern
from planner.frameworks.megatron.printed import is_printed, printed_flags
from planner.frameworks.megatron.split import layout_letters, stage_counts
from planner.frameworks.megatron.values import (
    batch_rampup,
    batch_schedule,
    context_kind,
    experts_alone,
    format_bytes,
    full,
    is_fused,
    moe_layers,
    not_in_16_bits,
    rank_order,
    share,
    words,
)
from planner.frameworks.shell import read_flags, read_script
from planner.spec.plan import DEFAULT_ORDER, Plan, StagePlan
from planner.spec.request import PlanRequest

ZERO_BY_STRATEGY = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}

KEYS: dict[str, Key] = {
    "tensor_model_parallel_size": Key("tensor_parallel", positive),
    "pipeline_model_parallel_size": Key("pipeline_parallel", positive),
    "num_virtual_stages_per_pipeline_rank": Key("virtual_stages", positive),
    "num_layers_per_virtual_pipeline_stage": Key("layers_per_virtual_stage", positive),
    "pipeline_model_parallel_layout": Key("layout", layout_letters),
    "decoder_first_pipeline_num_layers": Key("first_stage_layers", positive),
    "decoder_last_pipeline_num_layers": Key("last_stage_layers", positive),
    "microbatch_group_size_per_virtual_pipeline_stage": Key("microbatch_group", positive),
    "account_for_embedding_in_pipeline_split": Key("embedding_counts", yes),
    "account_for_loss_in_pipeline_split": Key("loss_counts", yes),
    "context_parallel_size": Key("context_parallel", positive),
    "cp_comm_type": Key("context_parallel_kind", context_kind),
    "expert_model_parallel_size": Key("expert_parallel", positive),
    "expert_tensor_parallel_size": Key("expert_tensor_parallel", positive),
    "use_tp_pp_dp_mapping": Key("rank_order", rank_order),
    "sequence_parallel": Key("sequence_parallel", yes),
    "use_distributed_optimizer": Key("distributed_optimizer", yes),
    "use_megatron_fsdp": Key("megatron_fsdp", yes),
    "use_torch_fsdp2": Key("torch_fsdp2", yes),
    "torch_fsdp2_no_reshard_after_forward": Key("keeps_weights", yes),
    "data_parallel_sharding_strategy": Key("sharding", one_of(*ZERO_BY_STRATEGY)),
    "num_distributed_optimizer_instances": Key("instances", positive),
    "micro_batch_size": Key("micro_batch", positive),
    "global_batch_size": Key("global_batch", positive),
    "step_batch_size_schedule": Key("batch_schedule", batch_schedule),
    "rampup_batch_size": Key("batch_rampup", batch_rampup),
    "seq_length": Key("seq_length", positive),
    "recompute_granularity": Key("recompute_granularity", one_of("full", "selective")),
    "recompute_activations": Key("recompute_activations", yes),
    "recompute_method": Key("recompute_method", one_of("uniform", "block")),
    "recompute_num_layers": Key("recompute_num_layers", whole),
    "recompute_modules": Key("recompute_modules", words),
    "optimizer_cpu_offload": Key("optimizer_offload", yes),
    "use_precision_aware_optimizer": Key("precision_aware", yes),
    "main_grads_dtype": Key("gradient_bytes", format_bytes),
    "main_params_dtype": Key("master_bytes", format_bytes),
    "exp_avg_dtype": Key("first_moment_bytes", format_bytes),
    "exp_avg_sq_dtype": Key("second_moment_bytes", format_bytes),
    "grad_reduce_in_bf16": Key("gradients_in_16_bits", yes),
    "accumulate_allreduce_grads_in_fp32": Key("gradients_in_16_bits", not_in_16_bits),
    "fp8_param_gather": Key("fp8_weights", yes),
    "attention_backend": Key("fused_attention", is_fused),
    "transformer_impl": Key("transformer_impl", text),
    "use_flash_attn": Key("flash_attention", yes),
    "attention_dropout": Key("attention_dropout", share),
    "hidden_dropout": Key("hidden_dropout", share),
    "fp16": Key("fp16", yes),
    "bf16": Key("bf16", yes),
    "fp8_format": Key("fp8", text),
    "fp8_recipe": Key("fp8_recipe", text),
    "fp4_format": Key("fp4", text),
    "num_layers": Key("model.num_layers", positive),
    "hidden_size": Key("model.hidden_size", positive),
    "ffn_hidden_size": Key("model.ffn_hidden_size", positive),
    "num_attention_heads": Key("model.num_heads", positive),
    "num_query_groups": Key("model.num_kv_heads", positive),
    "kv_channels": Key("model.head_dim", positive),
    "vocab_size": Key("model.vocab_size", positive),
    "swiglu": Key("model.gated_mlp", yes),
    "squared_relu": Key("model.activation", lambda value: "squared_relu" if yes(value) else None),
    "untie_embeddings_and_output_weights": Key("model.tied_embeddings", fixed(False)),
    "num_experts": Key("model.num_experts", positive),
    "moe_router_topk": Key("model.experts_per_token", positive),
    "moe_ffn_hidden_size": Key("model.expert_ffn_hidden_size", positive),
    "moe_shared_expert_intermediate_size": Key("model.shared_expert_ffn_hidden_size", positive),
    "moe_latent_size": Key("model.expert_latent_size", positive),
    "moe_layer_freq": Key("moe_layers", moe_layers),
    "q_lora_rank": Key("model.q_lora_rank", positive),
    "kv_lora_rank": Key("model.kv_lora_rank", positive),
    "qk_head_dim": Key("model.qk_nope_head_dim", positive),
    "qk_pos_emb_head_dim": Key("model.qk_rope_head_dim", positive),
    "v_head_dim": Key("model.v_head_dim", positive),
    "mtp_num_layers": Key("model.mtp_depth", whole),
    "hybrid_layer_pattern": Key("hybrid_pattern", read_pattern),
    "hybrid_override_pattern": Key("hybrid_pattern", read_pattern),
    "experimental_attention_variant": Key("attention_variant", text),
    "linear_attention_freq": Key("linear_layers", moe_layers),
    "attention_output_gate": Key("model.attention_gate", yes),
    "mamba_num_heads": Key("model.linear_value_heads", positive),
    "mamba_head_dim": Key("model.linear_value_head_dim", positive),
    "mamba_state_dim": Key("model.linear_key_head_dim", positive),
    "mamba_num_groups": Key("model.linear_key_heads", positive),
    "linear_num_key_heads": Key("model.linear_key_heads", positive),
    "linear_num_value_heads": Key("model.linear_value_heads", positive),
    "linear_key_head_dim": Key("model.linear_key_head_dim", positive),
    "linear_value_head_dim": Key("model.linear_value_head_dim", positive),
    "linear_conv_kernel_dim": Key("model.linear_conv_kernel", positive),
}
"""Argument names of Megatron (parser destinations) that say something about plan, batch or model."""

OLD_KEYS: dict[str, Key] = {
    "model_parallel_size": Key("tensor_parallel", positive),
    "batch_size": Key("micro_batch", positive),
    "checkpoint_activations": Key("recompute_granularity", full),
    "virtual_pipeline_model_parallel_size": Key("virtual_stages", positive),
    "use_custom_fsdp": Key("megatron_fsdp", yes),
    "moe_layer_recompute": Key("recompute_modules", experts_alone),
}
"""Arguments of earlier releases, by their meaning: the run that they made is the question as well."""

DEPRECATED = {
    "encoder_tensor_model_parallel_size": "nothing: encoder sizes are gone",
    "encoder_pipeline_model_parallel_size": "nothing: encoder sizes are gone",
    "pipeline_model_parallel_split_rank": "--pipeline-model-parallel-layout",
    "standalone_embedding_stage": "--pipeline-model-parallel-layout with a first stage of its own",
    "use_custom_fsdp": "--use-megatron-fsdp",
    "moe_extended_tp": "--expert-tensor-parallel-size",
    "batch_size": "--micro-batch-size",
    "warmup": "--lr-warmup-fraction",
    "model_parallel_size": "--tensor-model-parallel-size",
    "checkpoint_activations": "--recompute-granularity full",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "enable_cuda_graph": "--cuda-graph-impl",
    "external_cuda_graph": "--cuda-graph-impl",
    "cuda_graph_scope": "--cuda-graph-modules",
    "moe_enable_deepep": "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep",
    "moe_layer_recompute": "--recompute-modules moe",
    "moe_router_padding_for_fp8": "--moe-router-padding-for-quantization",
    "hybrid_override_pattern": "--hybrid-layer-pattern",
    "use_dist_ckpt": "--ckpt-format torch_dist",
    "dist_ckpt_format": "--ckpt-format",
}
"""Arguments that Megatron-LM 0.19 has dropped, refuses or renamed, and what to write instead."""


@cache
def known_flags() -> frozenset[str]:
    """All options of Megatron-LM 0.19.2's parser."""
    return frozenset(Path(__file__).with_name("flags.txt").read_text(encoding="utf-8").split())


def _dashed(names: dict[str, Any]) -> dict[str, Any]:
    return {"--" + name.replace("_", "-"): value for name, value in names.items()}


def read(source: str, path: str) -> LaunchFile:
    """Read a script, an argument file, or the arguments that a run printed."""
    printed = is_printed(source)
    found = printed_flags(source, path) if printed else list(read_flags(source, path))
    world = read_script(source).variables.get("WORLD_SIZE_OF_PLAN", "")
    if world.isdigit():
        line = next(i for i, row in enumerate(source.splitlines(), 1) if "WORLD_SIZE_OF_PLAN=" in row)
        found.append(Found("WORLD_SIZE_OF_PLAN", world, path, line))
    found += _environment(source, path)
    keys = _dashed(OLD_KEYS | KEYS) | LAUNCHER_KEYS | {"WORLD_SIZE_OF_PLAN": Key("num_gpus", positive)}
    launch = collect(
        "megatron",
        found,
        keys,
        lambda key: printed or key in known_flags() or is_launcher_flag(key) or key == QUEUES,
        {} if printed else _dashed(DEPRECATED),
    )
    steps = launch.fields.get("batch_schedule")
    if steps is None or "global_batch" in launch.fields:
        return launch
    return replace(launch, fields={**launch.fields, "global_batch": replace(steps, value=steps.value[-1])})


QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Variable of the environment that Megatron's own checks look at."""


def _environment(source: str, path: str) -> Iterator[Found]:
    for match in re.finditer(rf"(?m)^[^#\n]*\b{QUEUES}=[\"']?(\d+)", source):
        yield Found(QUEUES, match.group(1), path, source.count("\n", 0, match.start(1)) + 1)


def to_plan(launch: LaunchFile, request: PlanRequest) -> Plan:
    """Return the plan that Megatron would run with these arguments on the request's cluster.

    Raises
    ------
    BadInput
        The degrees do not divide the GPUs, the batch or the layers, so there is no such run.
    """
    t, c = launch.get("tensor_parallel", 1), launch.get("context_parallel", 1)
    p = launch.get("pipeline_parallel", 1)
    d = replicas(launch, request, t * c * p)
    counts = stage_counts(launch, request, p)
    b = launch.get("micro_batch", 1)
    e = launch.get("expert_parallel", 1)
    etp = launch.get("expert_tensor_parallel", t) if request.model.is_moe else 1
    zero, group = _sharding(launch, d * c, d * c * t // (e * etp))
    plan = make_plan(
        tensor_parallel=t,
        pipeline_parallel=p,
        virtual_stages=len(counts) // p,
        schedule=schedule_of(p, len(counts) // p),
        data_parallel=d,
        context_parallel=c,
        context_parallel_kind=launch.get("context_parallel_kind", "ring"),
        expert_parallel=e,
        expert_tensor_parallel=etp,
        zero_stage=zero,
        shard_group_size=group,
        sequence_parallel=launch.get("sequence_parallel", False) and t > 1,
        micro_batch=b,
        num_microbatches=launch.get(
            "num_microbatches", microbatches(launch.get("global_batch", b * d), d, b)
        ),
        recompute=_recompute(launch),
        recompute_modules=_modules(launch, request),
        offload="optimizer" if launch.get("optimizer_offload", False) else "none",
        precision=_precision(launch),
        rank_order=launch.get("rank_order", DEFAULT_ORDER),
    )
    return plan.model_copy(update={"stages": _stages(plan, counts, launch)})


def _sharding(launch: LaunchFile, replica_ranks: int, expert_replicas: int) -> tuple[int, int]:
    """ZeRO stage and ranks of a sharding group; as many instances as replicas shard nothing."""
    if launch.get("megatron_fsdp", False):
        zero = ZERO_BY_STRATEGY[launch.get("sharding", "optim_grads_params")]
    elif launch.get("torch_fsdp2", False):
        zero = 2 if launch.get("keeps_weights", False) else 3
    else:
        zero = int(launch.get("distributed_optimizer", False))
    zero = launch.get("zero_stage", zero)
    instances = launch.get("instances", 1)
    if "shard_degree" in launch.fields:
        return zero, launch.get("shard_degree") if zero else 1
    for replicated, count in (("data x context", replica_ranks), ("expert data", expert_replicas)):
        if count % instances:
            valid = ", ".join(str(n) for n in range(1, count + 1) if replica_ranks % n == count % n == 0)
            raise BadInput(
                f"{count} {replicated} replicas are not a multiple of {instances} "
                f"distributed-optimizer instances; {valid} would do"
            )
    group = replica_ranks // instances
    return (0, 1) if group == 1 < replica_ranks else (zero, group if zero else 1)


def _recompute(launch: LaunchFile) -> str:
    modules = launch.fields.get("recompute_modules")
    by_switch = modules is not None and modules.key == "--moe-layer-recompute" and bool(modules.value)
    if launch.get("recompute_activations", False) or by_switch:
        return "selective"
    return str(launch.get("recompute_granularity", "none"))


def _modules(launch: LaunchFile, request: PlanRequest) -> tuple[str, ...]:
    """Modules of selective recompute (Megatron's own where none are named); the planner's read as empty."""
    modules = tuple(launch.get("recompute_modules", request.framework.memory.unsaid_modules))
    if _recompute(launch) != "selective" or modules == default_modules(request):
        return ()
    return modules


def _precision(launch: LaunchFile) -> str:
    if "fp4" in launch.fields:
        return "nvfp4"
    if "fp8" in launch.fields:
        return "mxfp8" if launch.get("fp8_recipe", "") == "mxfp8" else "fp8"
    return "bf16" if launch.get("bf16", False) else "fp16" if launch.get("fp16", False) else "fp32"


def _stages(plan: Plan, counts: list[int], launch: LaunchFile) -> tuple[StagePlan, ...]:
    stages = stages_of(counts, plan)
    if plan.recompute != "full" or launch.get("recompute_method", "uniform") == "uniform":
        return stages
    layers = launch.get("recompute_num_layers", 1)
    again = [sum(min(layers, chunk) for chunk in stage.chunk_layers) for stage in stages]
    return stages_of(counts, plan, again)
