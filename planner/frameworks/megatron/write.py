"""Write a plan for Megatron-LM: a bash array of arguments, launchers, environment, rank map."""

from __future__ import annotations

import shlex
from typing import Any

from planner.frameworks.bundle import ENVIRONMENT, common_files
from planner.frameworks.expressible import head_problems, limit_problems, refuse
from planner.frameworks.launch import with_stages
from planner.frameworks.megatron.arguments import all_arguments, recomputed_per_chunk
from planner.frameworks.megatron.hybrid import has_blocks, hybrid_problems
from planner.frameworks.megatron.profile import PROFILE
from planner.frameworks.scripts import Launch, bash_header, nodes
from planner.spec.framework import FrameworkProfile
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

NOT_BLACKWELL = ("a100", "h100", "h200", "h20", "h800", "gh200", "v100", "a800", "l40")
"""NVIDIA parts before compute capability 10, on which Megatron wants one hardware queue with TP or CP."""

TRAINING = {
    "lr": "1e-4",
    "min_lr": "1e-5",
    "lr_decay_style": "cosine",
    "train_iters": 100,
    "weight_decay": 0.1,
    "clip_grad": 1.0,
    "log_interval": 1,
    "log_throughput": True,
    "eval_iters": 0,
    "mock_data": True,
    "tokenizer_type": "NullTokenizer",
}
"""What the parser insists on and no planner knows: the user's to change."""


def inexpressible(plan: Plan, request: PlanRequest, profile: FrameworkProfile = PROFILE) -> list[str]:
    """Return, in words, everything of the plan that Megatron has no argument for."""
    problems = limit_problems(plan, request, profile)
    whole = with_stages(plan, request.model)
    if plan.recompute == "full" and recomputed_per_chunk(whole) is None:
        layers = [stage.recompute_layers for stage in whole.stages]
        problems.append(
            f"--recompute-num-layers recomputes the first n layers of every chunk of every stage, "
            f"which is not {layers} layers"
        )
    if plan.recompute == "selective" and any(s.recompute_layers != s.layers for s in whole.stages):
        problems.append("selective recompute covers every layer, not some of them")
    if plan.offload == "activations":
        problems.append("activation offload of whole stages has no argument")
    return problems + hybrid_problems(request.model) + head_problems(request.model, "Megatron")


def write(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Return file names and contents that start the plan with Megatron-LM.

    Raises
    ------
    BadInput
        Something in the plan has no argument.
    """
    refuse(PROFILE.name, inexpressible(plan, request))
    entry = "pretrain_hybrid.py" if has_blocks(request.model) else "pretrain_gpt.py"
    launch = Launch(
        version=PROFILE.version,
        command=f'"$MEGATRON_PATH/{entry}" "${{MEGATRON_ARGS[@]}}" "${{TRAINING_ARGS[@]}}" "$@"',
        environment=environment(plan, request),
        before='MEGATRON_PATH="${MEGATRON_PATH:?set MEGATRON_PATH to a checkout of Megatron-LM}"\n'
        'source "$HERE/args.sh"',
    )
    steps = [
        "Set `MEGATRON_PATH` to a checkout of Megatron-LM; Transformer Engine has to be installed.",
        "Put data, tokenizer, learning rate, checkpoints into `TRAINING_ARGS` of `args.sh` (mock data now).",
    ]
    return {
        "args.sh": arguments_file(plan, request),
        **common_files(plan, request, launch, steps, notes(plan, request)),
    }


def notes(plan: Plan, request: PlanRequest) -> list[str]:
    """Return what a user should know before starting the run."""
    found = ["Megatron derives data parallelism from the number of ranks; there is no flag for it."]
    if plan.sequence_parallel and plan.tensor_parallel == 1:
        found.append("Sequence parallelism without tensor ranks is switched off by Megatron.")
    if plan.zero_stage > 1:
        found.append("Megatron-FSDP writes fsdp_dtensor checkpoints only.")
    if request.model.activation in {"geglu", "relu"}:
        found.append(
            f"The parser has no {request.model.activation}: the arguments train the same matrices with GELU."
        )
    if request.model.is_moe:
        found.append(
            "Router details (score function, groups, bias, scaling) are the model's: add them yourself."
        )
    if request.model.is_moe and plan.expert_tensor_parallel != plan.tensor_parallel:
        found.append(
            "Megatron's default expert_tensor_parallel_size is the tensor size; it is set explicitly."
        )
    return found


def environment(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Environment variables that Megatron checks or that memory depends on."""
    variables = dict(ENVIRONMENT)
    part = request.cluster.accelerator.name.lower()
    splits = plan.tensor_parallel > 1 or plan.context_parallel > 1
    if splits and plan.zero_stage < 2 and part.startswith(NOT_BLACKWELL):
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return variables


def arguments_file(plan: Plan, request: PlanRequest) -> str:
    """Return ``args.sh``: two bash arrays, the plan's arguments and the user's."""
    lines = ["#!/usr/bin/env bash", bash_header(plan, request, PROFILE.version).rstrip()]
    gpus = min(plan.num_gpus, request.cluster.gpus_per_node)
    lines += [
        f"# {plan.num_gpus} ranks: {nodes(plan, request)} nodes, up to {gpus} ranks a node.",
        f"WORLD_SIZE_OF_PLAN={plan.num_gpus}",
        "MEGATRON_ARGS=(",
    ]
    for group, arguments in all_arguments(plan, request).items():
        lines += [f"    # {group}", *(f"    {flag(name, value)}" for name, value in arguments.items())]
    lines += [")", "TRAINING_ARGS=(", *(f"    {flag(name, value)}" for name, value in TRAINING.items()), ")"]
    return "\n".join([*lines, ""])


def flag(name: str, value: Any) -> str:
    """Write one argument, safely quoted."""
    words = ["--" + name.replace("_", "-")]
    if value is not True:
        words += [str(entry) for entry in (value if isinstance(value, list) else [value])]
    return shlex.join(words)
