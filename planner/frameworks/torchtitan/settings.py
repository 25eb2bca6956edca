"""A plan as torchtitan's configuration fields, shared by the 0.3 module and the 0.2.2 TOML."""

from __future__ import annotations

from typing import Any

from planner.cost.offload import OF_PARAMETERS
from planner.frameworks.launch import flow_counts, with_stages
from planner.spec.model import Model
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

Section = dict[str, Any]

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
"""Names in ``torch.distributed.pipelining``."""

RESHARD = {2: "never", 3: "always"}
HEAD_MODULE = {"0.3.0": "lm_head", "0.2.2": "output"}


def parallelism(plan: Plan, request: PlanRequest, version: str) -> Section:
    """Section ``[parallelism]``; FSDP shards over dp_shard x cp, so dp_shard is the shard group over cp."""
    shard = max(1, plan.shard_group_size // plan.context_parallel) if plan.zero_stage else 1
    section: Section = {
        "data_parallel_replicate_degree": plan.data_parallel // shard,
        "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": plan.tensor_parallel,
        "pipeline_parallel_degree": plan.pipeline_parallel,
        "context_parallel_degree": plan.context_parallel,
        "expert_parallel_degree": plan.expert_parallel,
    }
    if plan.zero_stage in RESHARD:
        section["fsdp_reshard_after_forward"] = RESHARD[plan.zero_stage]
    if version == "0.3.0":
        section["enable_sequence_parallel"] = plan.sequence_parallel
    else:
        section["expert_tensor_parallel_degree"] = plan.expert_tensor_parallel
        if plan.context_parallel > 1:
            rotate = "alltoall" if plan.context_parallel_kind == "ring" else "allgather"
            section["context_parallel_rotate_method"] = rotate
    if plan.pipeline_parallel > 1:
        section["pipeline_parallel_schedule"] = SCHEDULES[plan.schedule]
        section["pipeline_parallel_microbatch_size"] = plan.micro_batch
        section["module_fqns_per_model_part"] = module_names(plan, request.model, HEAD_MODULE[version])
    return section


def training(plan: Plan, request: PlanRequest) -> Section:
    """Section ``[training]``: with a pipeline, one replica's local batch is all its micro-batches."""
    local = plan.micro_batch * (plan.num_microbatches if plan.pipeline_parallel > 1 else 1)
    section: Section = {"enable_cpu_offload": True} if plan.offload in OF_PARAMETERS else {}
    return section | {
        "local_batch_size": local,
        "global_batch_size": plan.global_batch,
        "seq_len": request.workload.seq_length,
        "steps": 100,
        "mixed_precision_param": "float32" if plan.precision == "fp32" else "bfloat16",
    }


def module_names(plan: Plan, model: Model, head: str) -> list[list[str]]:
    """Return the modules of every stage in the order of flow."""
    counts = flow_counts(with_stages(plan, model))
    stages, start = [], 0
    for count in counts:
        stages.append([f"layers.{index}" for index in range(start, start + count)])
        start += count
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", head]
    return stages


def family(model: Model) -> str | None:
    """Return whose model code trains this architecture: llama3, qwen3 (all-MoE) or None."""
    if model.is_mla or not model.gated_mlp or model.tied_embeddings or model.sliding_window is not None:
        return None
    if not model.is_moe:
        return "llama3" if model.head_dim * model.num_heads == model.hidden_size else None
    all_moe = all(kind.moe for kind in model.layer_kinds)
    return "qwen3" if all_moe and not model.shared_expert_ffn_hidden_size else None


FLAVORS = {
    (61, 7168): ("deepseek_v3", "671B"),
    (60, 5120): ("deepseek_v3", "236B"),
    (27, 2048): ("deepseek_v3", "16B"),
}
"""Layers and width of models with latent attention that torchtitan itself defines."""


def flavor(model: Model) -> tuple[str, str] | None:
    """Return module and flavour of a model that torchtitan itself defines and the emitted code cannot."""
    return FLAVORS.get((model.num_layers, model.hidden_size)) if model.is_mla else None
