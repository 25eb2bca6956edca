"""Settings of a plan for trainers whose other settings are the user's own: one file to take them from.

A plan that the file would not bring back whole is refused. The names are those that the trainers' dialects
read (``dialects/automodel.py``, ``foundry.py``, ``paddlenlp.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import yaml

from planner.frameworks.expressible import limit_problems, refuse
from planner.frameworks.launch import with_stages
from planner.frameworks.rank_map import rank_map_csv
from planner.frameworks.scripts import bash_header
from planner.frameworks.torchtitan.settings import SCHEDULES, module_names
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

Settings = dict[str, Any]


def write(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Return the trainer's file with the plan's settings, and the map of ranks.

    Raises
    ------
    BadInput
        Something in the plan has no setting.
    """
    refuse(request.framework.name, inexpressible(plan, request))
    name, _ = FILES[request.framework.name]
    return {name: _text(plan, request), "rank_map.csv": rank_map_csv(plan, request.cluster.gpus_per_node)}


def inexpressible(plan: Plan, request: PlanRequest) -> list[str]:
    """Return, in words, everything of the plan that the trainer has no setting for."""
    problems = limit_problems(plan, request, request.framework)
    return problems or _lost(plan, request)


def _lost(plan: Plan, request: PlanRequest) -> list[str]:
    """Fields of the plan that the file does not bring back."""
    from planner.errors import BadInput
    from planner.frameworks.files import read_text, to_plan

    name, _ = FILES[request.framework.name]
    try:
        back = with_stages(to_plan(read_text(_text(plan, request), name), request), request.model)
    except BadInput as error:
        return [str(error)]
    own = with_stages(plan, request.model)
    return [
        f"no setting makes {field} {getattr(own, field)}"
        for field in Plan.model_fields
        if getattr(own, field) != getattr(back, field)
    ]


def _text(plan: Plan, request: PlanRequest) -> str:
    """The file; JSON has no comments."""
    name, settings = FILES[request.framework.name]
    if name.endswith(".json"):
        return json.dumps(settings(plan, request), indent=2) + "\n"
    header = bash_header(plan, request, request.framework.version)
    return (
        header
        + f"# {NOTES[request.framework.name]}\n"
        + yaml.safe_dump(settings(plan, request), sort_keys=False)
    )


def automodel(plan: Plan, request: PlanRequest) -> Settings:
    """Sections of a NeMo AutoModel recipe; a pipeline's local batch is all its micro-batches."""
    piped = plan.pipeline_parallel > 1
    shards = plan.shard_group_size // plan.context_parallel if plan.zero_stage else plan.data_parallel
    distributed: Settings = {
        "strategy": "fsdp2",
        "dp_size": "none",
        "dp_replicate_size": max(plan.data_parallel // max(shards, 1), 1),
        "tp_size": plan.tensor_parallel,
        "cp_size": plan.context_parallel,
        "pp_size": plan.pipeline_parallel,
        "ep_size": plan.expert_parallel,
        "sequence_parallel": plan.sequence_parallel,
        "activation_checkpointing": plan.recompute == "full",
    }
    if piped:
        distributed["pipeline"] = {
            "pp_schedule": SCHEDULES[plan.schedule],
            "pp_microbatch_size": plan.micro_batch,
            "module_fqns_per_model_part": _modules(plan, request),
        }
    return {
        "step_scheduler": {
            "global_batch_size": plan.global_batch,
            "local_batch_size": plan.micro_batch * (plan.num_microbatches if piped else 1),
        },
        "packed_sequence": {"packed_sequence_size": request.workload.seq_length},
        "distributed": distributed,
    }


def _modules(plan: Plan, request: PlanRequest) -> list[list[str]]:
    """Modules of every stage in the order of flow, by their names in Hugging Face's models."""
    named = module_names(plan, request.model, "lm_head")
    own = {"tok_embeddings": "model.embed_tokens", "lm_head": "lm_head"}
    return [[own.get(name, f"model.{name}") for name in stage] for stage in named]


def llm_foundry(plan: Plan, request: PlanRequest) -> Settings:
    """Top-level settings of LLM Foundry's YAML."""
    sharding = {2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}.get(plan.zero_stage, "NO_SHARD")
    return {
        "max_seq_len": request.workload.seq_length,
        "global_train_batch_size": plan.global_batch,
        "device_train_microbatch_size": plan.micro_batch,
        "precision": {"fp32": "fp32", "fp8": "amp_fp8"}.get(plan.precision, f"amp_{plan.precision}"),
        "fsdp_config": {
            "sharding_strategy": sharding,
            "activation_checkpointing": plan.recompute == "full",
        },
    }


def paddle(plan: Plan, request: PlanRequest) -> Settings:
    """PaddleNLP's training arguments."""
    settings: Settings = {
        "tensor_parallel_degree": plan.tensor_parallel,
        "pipeline_parallel_degree": plan.pipeline_parallel,
        "virtual_pp_degree": plan.virtual_stages,
        "context_parallel_degree": plan.context_parallel,
        "expert_parallel_degree": plan.expert_parallel,
        "sequence_parallel": plan.sequence_parallel,
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_microbatches,
        "max_seq_length": request.workload.seq_length,
        "recompute": plan.recompute != "none",
        "bf16": plan.precision == "bf16",
        "fp16": plan.precision == "fp16",
    }
    if plan.recompute != "none":
        settings["recompute_granularity"] = "full" if plan.recompute == "full" else "core_attn"
    if plan.zero_stage:
        settings |= {
            "sharding": f"stage{plan.zero_stage}",
            "sharding_parallel_degree": plan.shard_group_size,
        }
    return settings


FILES: dict[str, tuple[str, Callable[[Plan, PlanRequest], Settings]]] = {
    "automodel": ("automodel.yaml", automodel),
    "llm-foundry": ("foundry.yaml", llm_foundry),
    "paddle": ("paddle.json", paddle),
}
"""Framework to its file and what stands in it."""
NOTES = {
    "automodel": "Sections for a recipe of nemo_automodel; model, data and loss are your own.",
    "llm-foundry": "Settings for your YAML; model, tokenizer and data are your own.",
}
