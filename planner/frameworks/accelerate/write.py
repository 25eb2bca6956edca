"""Write a plan for Hugging Face Accelerate: FSDP2 and ParallelismConfig YAML, training arguments."""

from __future__ import annotations

import json
from typing import Any

import yaml

from planner.cost.offload import OF_ACTIVATIONS, OF_PARAMETERS
from planner.frameworks.accelerate.profile import PROFILE
from planner.frameworks.bundle import ENVIRONMENT, common_files
from planner.frameworks.expressible import limit_problems, refuse
from planner.frameworks.scripts import Launch, bash_header, nodes
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

ROTATIONS = {"all_gather": "allgather", "ring": "alltoall"}
PRECISIONS = {"fp32": "no", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}


OFFLOADED_INPUTS = (
    "Offloaded activations need transformers 5.16 or later (`gradient_checkpointing_kwargs`: `offload`)."
)
_STARTER = """accelerate launch --config_file "$HERE/accelerate.yaml" --machine_rank "$NODE_RANK" \\
    --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" "$TRAIN_SCRIPT" "$@\""""


def inexpressible(plan: Plan, request: PlanRequest) -> list[str]:
    """Return, in words, everything of the plan that Accelerate has no key for."""
    problems = limit_problems(plan, request, PROFILE)
    if plan.zero_stage == 0 and plan.tensor_parallel * plan.context_parallel > 1:
        problems.append(
            "ParallelismConfig needs FSDP2, so tensor or context ranks without sharding are refused"
        )
    machines = nodes(plan, request)
    if plan.num_gpus % machines:
        problems.append(
            f"accelerate starts equally many processes a machine: {plan.num_gpus} on {machines} are not"
        )
    if plan.zero_stage and plan.shard_group_size == 1:
        problems.append("FSDP2 over one rank is refused: dp_shard or cp has to be more than 1")
    if plan.zero_stage and _replicates_alone(plan):
        problems.append("replicas beside tensor or context ranks need dp_shard above 1")
    return problems


def _replicates_alone(plan: Plan) -> bool:
    """dp_replicate > 1 with dp_shard = 1 beside tensor or context ranks."""
    shard = plan.shard_group_size // plan.context_parallel
    return shard == 1 and plan.data_parallel > 1 and plan.tensor_parallel * plan.context_parallel > 1


def write(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Return file names and contents that start the plan with Accelerate.

    Raises
    ------
    BadInput
        Something in the plan has no key.
    """
    refuse(PROFILE.name, inexpressible(plan, request))
    launch = Launch(
        version=PROFILE.version,
        command='"$TRAIN_SCRIPT" "$@"',
        starter=_STARTER,
        environment=ENVIRONMENT,
        before='TRAIN_SCRIPT="${TRAIN_SCRIPT:?set TRAIN_SCRIPT to a script with Trainer or Accelerator}"',
    )
    steps = [
        "Set `TRAIN_SCRIPT`; give its Trainer the values of `hf_arguments.json`.",
        "The sequence length is set where the script tokenises: "
        f"{request.workload.seq_length} tokens in this plan.",
    ]
    notes = [OFFLOADED_INPUTS] if _offloads_inputs(plan) else []
    return {
        "accelerate.yaml": config_file(plan, request),
        "hf_arguments.json": json.dumps(hf_arguments(plan), indent=2) + "\n",
        **common_files(plan, request, launch, steps, notes),
    }


def config_file(plan: Plan, request: PlanRequest) -> str:
    """Return the YAML file with its header."""
    body = yaml.safe_dump(config(plan, request), sort_keys=False)
    return bash_header(plan, request, PROFILE.version) + body


def config(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """Return the YAML as a dictionary."""
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if plan.zero_stage else "MULTI_GPU" if plan.num_gpus > 1 else "NO",
        "num_machines": nodes(plan, request),
        "num_processes": plan.num_gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": PRECISIONS[plan.precision],
        "use_cpu": False,
    }
    if plan.precision == "fp8":
        settings["fp8_config"] = {"backend": "AO"}  # torchao: what goes with FSDP2
    if plan.zero_stage:
        settings["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": plan.zero_stage == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": plan.recompute == "full" and not _offloads_inputs(plan),
            "fsdp_offload_params": plan.offload in OF_PARAMETERS,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        settings["parallelism_config"] = _parallelism(plan)
    return settings


def _parallelism(plan: Plan) -> dict[str, Any]:
    shard = plan.shard_group_size // plan.context_parallel
    section: dict[str, Any] = {
        "parallelism_config_dp_replicate_size": plan.data_parallel // shard,
        "parallelism_config_dp_shard_size": shard,
        "parallelism_config_tp_size": plan.tensor_parallel,
        "parallelism_config_cp_size": plan.context_parallel,
    }
    if plan.context_parallel > 1:
        section["parallelism_config_cp_backend"] = "torch"
        section["parallelism_config_cp_comm_strategy"] = ROTATIONS[plan.context_parallel_kind]
    return section


def _offloads_inputs(plan: Plan) -> bool:
    """Whether the Trainer checkpoints, which can send the layers' inputs to the host, and not FSDP2."""
    return plan.offload in OF_ACTIVATIONS


def hf_arguments(plan: Plan) -> dict[str, Any]:
    """Return the TrainingArguments that carry the batch; FSDP2 checkpoints by itself."""
    by_trainer = plan.zero_stage == 0 or _offloads_inputs(plan)
    return {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_microbatches,
        "gradient_checkpointing": plan.recompute == "full" and by_trainer,
        **({"gradient_checkpointing_kwargs": {"offload": True}} if _offloads_inputs(plan) else {}),
        "bf16": plan.precision == "bf16",
        "fp16": plan.precision == "fp16",
        "max_grad_norm": 1.0,
    }
