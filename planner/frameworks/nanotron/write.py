"""Write a plan for nanotron: one YAML file."""

from __future__ import annotations

from typing import Any

import yaml

from planner.frameworks.bundle import ENVIRONMENT, common_files
from planner.frameworks.expressible import limit_problems, mixer_problems, refuse
from planner.frameworks.launch import flow_counts, with_stages
from planner.frameworks.nanotron.profile import PROFILE
from planner.frameworks.nanotron.split import split_layers
from planner.frameworks.scripts import Launch, bash_header
from planner.spec.model import Model
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

ENGINES = {"1f1b": "1f1b", "gpipe": "afab", "none": "1f1b"}


def inexpressible(plan: Plan, request: PlanRequest) -> list[str]:
    """Return, in words, everything of the plan that nanotron has no key for."""
    problems = limit_problems(plan, request, PROFILE) + mixer_problems(request.model, "nanotron's Llama code")
    model = request.model
    if model.is_moe or model.is_mla or not model.gated_mlp:
        problems.append("nanotron's Llama code has neither experts, latent attention nor ungated MLPs")
    if model.activation != "swiglu" or any(kind.window is not None for kind in model.layer_kinds):
        problems.append("nanotron's Llama code has SwiGLU and full attention only")
    if model.head_dim * model.num_heads != model.hidden_size:
        problems.append("nanotron's Llama code takes the head size from hidden size / heads")
    counts, own = flow_counts(with_stages(plan, model)), split_layers(model, plan.pipeline_parallel)
    if plan.pipeline_parallel > 1 and counts != own:
        problems.append(f"nanotron places layers by its own cost estimate: {own} here, not {counts}")
    return problems


def write(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Return file names and contents that start the plan with nanotron.

    Raises
    ------
    BadInput
        Something in the plan has no key.
    """
    refuse(PROFILE.name, inexpressible(plan, request))
    launch = Launch(
        version=PROFILE.version,
        command='"$NANOTRON_PATH/run_train.py" --config-file "$HERE/nanotron.yaml" "$@"',
        environment=ENVIRONMENT | {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        before='NANOTRON_PATH="${NANOTRON_PATH:?set NANOTRON_PATH to a checkout of nanotron}"',
    )
    steps = [
        "Set `NANOTRON_PATH` to a checkout of nanotron (main; PyPI's 0.4 does not import).",
        "Put data, tokenizer and schedule into `nanotron.yaml`.",
    ]
    notes = ["`pp` ranks get layers by nanotron's own cost estimate; the plan counts on that split."]
    return {
        "nanotron.yaml": bash_header(plan, request, PROFILE.version)
        + yaml.safe_dump(config(plan, request), sort_keys=False),
        **common_files(plan, request, launch, steps, notes if plan.pipeline_parallel > 1 else []),
    }


def config(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """Return the YAML as a dictionary."""
    return {
        "general": {"project": "plan-parallel", "run": "plan", "seed": 42, "ignore_sanity_checks": True},
        "parallelism": _parallelism(plan),
        "tokens": {
            "sequence_length": request.workload.seq_length,
            "micro_batch_size": plan.micro_batch,
            "batch_accumulation_per_replica": plan.num_microbatches,
            "train_steps": 100,
            "val_check_interval": -1,
        },
        "model": {
            "dtype": "bfloat16",
            "ddp_bucket_cap_mb": 25,
            "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": 1,
            "model_config": model_config(request.model, request.workload.seq_length),
        },
        "optimizer": _optimizer(plan),
        "tokenizer": {"tokenizer_name_or_path": "gpt2"},
        "checkpoints": {"checkpoint_interval": 1000, "checkpoints_path": "checkpoints"},
        "logging": {"iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "info"},
        "data_stages": [
            {"name": "train", "start_training_step": 1, "data": {"dataset": None, "seed": 42}},
        ],
    }


def _parallelism(plan: Plan) -> dict[str, Any]:
    return {
        "dp": plan.data_parallel,
        "pp": plan.pipeline_parallel,
        "tp": plan.tensor_parallel,
        "context_parallel_size": plan.context_parallel,
        "expert_parallel_size": 1,
        "pp_engine": ENGINES[plan.schedule],
        "tp_mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
        "tp_linear_async_communication": plan.sequence_parallel,
        "recompute_layer": plan.recompute == "full",
    }


def _optimizer(plan: Plan) -> dict[str, Any]:
    return {
        "zero_stage": plan.zero_stage,
        "accumulate_grad_in_fp32": True,
        "clip_grad": 1.0,
        "weight_decay": 0.1,
        "optimizer_factory": {
            "name": "adamW",
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_eps": 1e-8,
            "torch_adam_is_fused": True,
        },
        "learning_rate_scheduler": {
            "learning_rate": 3e-4,
            "lr_warmup_steps": 10,
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
            "min_decay_lr": 3e-5,
        },
    }


def model_config(model: Model, seq_length: int) -> dict[str, Any]:
    """Return the Llama configuration."""
    return {
        "is_llama_config": True,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "max_position_embeddings": max(seq_length, model.seq_length),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "use_cache": False,
    }
