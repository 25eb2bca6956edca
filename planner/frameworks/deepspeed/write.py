"""Write a plan for DeepSpeed: ``ds_config.json``, Hugging Face arguments, Megatron-DeepSpeed flags."""

from __future__ import annotations

import json
from typing import Any

from planner.cost.offload import OF_PARAMETERS, OF_STATE
from planner.frameworks.bundle import ENVIRONMENT, common_files
from planner.frameworks.deepspeed.profile import PROFILE
from planner.frameworks.expressible import limit_problems, mixer_problems, refuse
from planner.frameworks.megatron.arguments import batch_arguments, model_arguments
from planner.frameworks.megatron.write import flag
from planner.frameworks.scripts import Launch, bash_header
from planner.spec.model import Model
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest


def inexpressible(plan: Plan, request: PlanRequest) -> list[str]:
    """Return, in words, everything of the plan that DeepSpeed has no key for."""
    problems = limit_problems(plan, request, PROFILE)
    if plan.expert_parallel > 1 and plan.context_parallel > 1 and plan.zero_stage == 3:
        problems.append("AutoEP with ZeRO-3 needs one context rank")
    folded = plan.expert_parallel > 1 and plan.tensor_parallel > 1
    if folded and plan.context_parallel > 1:
        problems.append("experts folded into tensor ranks do not go with Ulysses")
    if plan.offload != "none" and folded:
        problems.append("experts folded into tensor ranks do not go with offload")
    if plan.pipeline_parallel > 1 or request.framework.name == "megatron-deepspeed":
        problems += mixer_problems(request.model, "Megatron-DeepSpeed's GPT")
    return problems


def write(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Return file names and contents that start the plan with DeepSpeed.

    Raises
    ------
    BadInput
        Something in the plan has no key.
    """
    refuse(PROFILE.name, inexpressible(plan, request))
    launch = Launch(
        version=PROFILE.version,
        command='"$TRAIN_SCRIPT" --deepspeed --deepspeed_config "$HERE/ds_config.json" "$@"',
        environment=ENVIRONMENT,
        before='TRAIN_SCRIPT="${TRAIN_SCRIPT:?set TRAIN_SCRIPT to a script that calls deepspeed.initialize}"',
    )
    steps = [
        "Set `TRAIN_SCRIPT`. It gets `--deepspeed --deepspeed_config ds_config.json`, as scripts with "
        "`deepspeed.add_config_arguments` take them. A Hugging Face Trainer script takes `hf_arguments.json` "
        "(TrainingArguments) instead: change the last line of `torchrun.sh`.",
    ]
    fork = {}
    if not mixer_problems(request.model, "Megatron-DeepSpeed's GPT"):
        fork = {"args.sh": megatron_arguments(plan, request)}
        steps.append('Megatron-DeepSpeed takes `args.sh`: `source args.sh`, then `"${MEGATRON_ARGS[@]}"`.')
    return {
        "ds_config.json": json.dumps(config(plan, request), indent=2) + "\n",
        "hf_arguments.json": json.dumps(hf_arguments(plan), indent=2) + "\n",
        **fork,
        **common_files(plan, request, launch, steps, notes(plan)),
    }


def notes(plan: Plan) -> list[str]:
    """Return what a user should know before starting the run."""
    found = [f"Written for {PROFILE.version}; JSON has no comments, so the version stands here."]
    if plan.pipeline_parallel > 1:
        found.append(
            "The pipeline's size is an argument of PipelineModule (num_stages), `pipeline.stages` repeats it."
        )
        if plan.tensor_parallel > 1:
            found.append(
                "Tensor ranks with a pipeline come from Megatron-DeepSpeed's flags (args.sh), not AutoTP."
            )
    if plan.recompute == "full":
        found.append(
            "Checkpointing is switched on by the model's code or by the flags, the JSON only tunes it."
        )
    return found


def config(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """Return ``ds_config.json`` as a dictionary."""
    settings: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_microbatches,
        "gradient_clipping": 1.0,
        "zero_optimization": _zero(plan),
    }
    if plan.precision in {"bf16", "fp16"}:
        settings[plan.precision] = {"enabled": True}
    if plan.pipeline_parallel > 1:
        settings["pipeline"] = {
            "stages": plan.pipeline_parallel,
            "partition": "uniform",
            "activation_checkpoint_interval": int(plan.recompute == "full"),
        }
    elif plan.tensor_parallel > 1:
        settings["tensor_parallel"] = {"autotp_size": plan.tensor_parallel}
    if plan.context_parallel > 1:
        settings["sequence_parallel_size"] = plan.context_parallel
    if plan.expert_parallel > 1:
        settings["expert_parallel"] = {"enabled": True, "autoep_size": plan.expert_parallel}
    if plan.recompute == "full":
        settings["activation_checkpointing"] = {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
            "number_checkpoints": request.model.num_layers,
        }
    return settings


def _zero(plan: Plan) -> dict[str, Any]:
    section: dict[str, Any] = {"stage": plan.zero_stage}
    if plan.zero_stage:
        section |= {"overlap_comm": True, "contiguous_gradients": True}
    if plan.offload in OF_STATE:
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if plan.offload in OF_PARAMETERS:
        section["offload_param"] = {"device": "cpu", "pin_memory": True}
    return section


def hf_arguments(plan: Plan) -> dict[str, Any]:
    """Return the TrainingArguments that have to agree with the JSON."""
    return {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_microbatches,
        "gradient_checkpointing": plan.recompute == "full",
        "bf16": plan.precision == "bf16",
        "fp16": plan.precision == "fp16",
        "max_grad_norm": 1.0,
        "deepspeed": "ds_config.json",
    }


def megatron_arguments(plan: Plan, request: PlanRequest) -> str:
    """Return the flags of Megatron-DeepSpeed as a bash array."""
    arguments: dict[str, Any] = {
        "deepspeed": True,
        "tensor_model_parallel_size": plan.tensor_parallel,
        "pipeline_model_parallel_size": plan.pipeline_parallel,
        "zero_stage": plan.zero_stage,
        **batch_arguments(plan, request),
        **_fork_arguments(request.model),
    }
    if plan.context_parallel > 1:
        arguments["ds_sequence_parallel_size"] = plan.context_parallel
    if plan.recompute == "full":
        arguments |= {"checkpoint_activations": True, "deepspeed_activation_checkpointing": True}
    if plan.pipeline_parallel == 1:
        arguments["no_pipeline_parallel"] = True
    if plan.precision in {"bf16", "fp16"}:
        arguments[plan.precision] = True
    lines = [bash_header(plan, request, PROFILE.version).rstrip(), "MEGATRON_ARGS=("]
    lines += [f"    {flag(name, value)}" for name, value in arguments.items()]
    return "\n".join([*lines, ")", ""])


def _fork_arguments(model: Model) -> dict[str, Any]:
    """The architecture in the words of the DeepSpeed fork of Megatron (``megatron/arguments.py`` there)."""
    said = model_arguments(model)
    found: dict[str, Any] = {name: value for name, value in said.items() if name in _OLD_MODEL_FLAGS}
    found["normalization"] = str(said["normalization"]).lower()
    if said["position_embedding_type"] == "rope":
        found["use_rotary_position_embeddings"] = True
    if "num_query_groups" in said:
        found["num_key_value_heads"] = said["num_query_groups"]
    return found


_OLD_MODEL_FLAGS = frozenset(
    {
        "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "swiglu",
        "disable_bias_linear", "untie_embeddings_and_output_weights", "attention_dropout", "hidden_dropout",
    }
)  # fmt: skip
"""Megatron's model flags that the DeepSpeed fork has too."""
