"""Launchers that every framework shares: torchrun and Slurm scripts, environment, README."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.spec.plan import DEFAULT_ORDER, Plan
from planner.spec.request import PlanRequest

HEADER = "Written by plan-parallel for {version}."


@dataclass(frozen=True)
class Launch:
    """What differs between frameworks when a run is started."""

    version: str
    """Framework and version that the files are written for."""
    command: str
    """What torchrun runs, in bash: script and arguments, already quoted."""
    environment: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    """Bash that stands before the command (checks of paths, sourcing of arguments)."""
    starter: str = ""
    """What starts the node's processes in place of torchrun: the framework's own launcher."""


def one_line(text: str) -> str:
    """Return text that is safe in a one-line comment: no line breaks, no control characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def nodes(plan: Plan, request: PlanRequest) -> int:
    """Return the nodes that the plan's GPUs fill."""
    return -(-plan.num_gpus // request.cluster.gpus_per_node)


def plan_sentence(plan: Plan, request: PlanRequest) -> str:
    """Return the plan in one line for comments."""
    kind = f" ({plan.context_parallel_kind})" if plan.context_parallel > 1 else ""
    parts = [
        f"{one_line(request.model.name)} on {plan.num_gpus} GPUs:",
        f"tensor {plan.tensor_parallel}, context {plan.context_parallel}{kind},",
        f"data {plan.data_parallel},",
        f"pipeline {plan.pipeline_parallel} x {plan.virtual_stages} ({plan.schedule}),",
        f"expert {plan.expert_parallel} x {plan.expert_tensor_parallel}, ZeRO-{plan.zero_stage} over",
        f"{plan.shard_group_size}, micro-batch {plan.micro_batch} x {plan.num_microbatches},",
        f"recompute {plan.recompute}, {plan.precision}",
    ]
    if plan.rank_order != DEFAULT_ORDER:
        parts[-1] += f", ranks {plan.rank_order}"
    return " ".join(parts)


def bash_header(plan: Plan, request: PlanRequest, version: str) -> str:
    """Return the comment lines that open every script."""
    return f"# {HEADER.format(version=one_line(version))}\n# {plan_sentence(plan, request)}\n"


def environment_file(environment: Mapping[str, str]) -> str:
    """Return ``env.sh``: a value that the user has set already wins."""
    lines = [f'export {name}="${{{name}:-{value}}}"' for name, value in environment.items()]
    return "\n".join(
        ["# Environment of the run; a variable that is set already keeps its value.", *lines, ""]
    )


_TORCHRUN = """torchrun --nnodes="$NNODES" --nproc-per-node="$GPUS_PER_NODE" --node-rank="$NODE_RANK" \\
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \\
"""


def torchrun_script(plan: Plan, request: PlanRequest, launch: Launch) -> str:
    """Return a script that starts this node's ranks: run it on every node with NODE_RANK and MASTER_ADDR."""
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            bash_header(plan, request, launch.version) + "set -euo pipefail",
            'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
            'source "$HERE/env.sh"',
            launch.before,
            *_world(plan, request),
            'NODE_RANK="${NODE_RANK:-0}"',
            'MASTER_ADDR="${MASTER_ADDR:-localhost}"',
            'MASTER_PORT="${MASTER_PORT:-29500}"',
            *_last_node(plan, request),
            launch.starter or _TORCHRUN + f"    {launch.command}",
            "",
        ]
    ).replace("\n\n\n", "\n")


def slurm_script(plan: Plan, request: PlanRequest) -> str:
    """Return a batch script that runs ``torchrun.sh`` once a node."""
    count = nodes(plan, request)
    gpus = min(plan.num_gpus, request.cluster.gpus_per_node)
    name = "".join(char if char.isalnum() or char in "-_." else "-" for char in request.model.name)[:40]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"#SBATCH --job-name={shlex.quote(name or 'train')}",
            f"#SBATCH --nodes={count}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={gpus}",
            "#SBATCH --exclusive",
            f"# {plan_sentence(plan, request)}",
            "set -euo pipefail",
            'HERE="${SLURM_SUBMIT_DIR:-$PWD}"',
            'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
            "export MASTER_ADDR",
            "export MASTER_PORT=29500",
            "# Ranks follow the order of the nodes: keep nodes of one leaf together (see rank_map.csv).",
            'srun --kill-on-bad-exit=1 bash -c \'NODE_RANK="$SLURM_PROCID" bash "$0"\' "$HERE/torchrun.sh"',
            "",
        ]
    )


def readme(
    plan: Plan, request: PlanRequest, launch: Launch, steps: Sequence[str], notes: Sequence[str]
) -> str:
    """Return the README of an output folder: what, how to run, what to know."""
    count = nodes(plan, request)
    lines = [
        f"# {one_line(request.model.name)} on {plan.num_gpus} GPUs",
        "",
        HEADER.format(version=one_line(launch.version)),
        "",
        plan_sentence(plan, request) + ".",
        "",
        "## Run",
        "",
        *(f"{number}. {step}" for number, step in enumerate(steps, 1)),
        "",
        f"With Slurm: `sbatch slurm.sh` from this folder ({count} node{'s' if count > 1 else ''}).",
        "Without: on every node `NODE_RANK=<0..> MASTER_ADDR=<first node> bash torchrun.sh`.",
        "",
        "`rank_map.csv` says which global rank is which tensor, context, data, pipeline and expert",
        "coordinate, and on which node it runs. Tensor ranks are neighbours, as in the framework itself.",
    ]
    if notes:
        lines += ["", "## To know", "", *(f"- {note}" for note in notes)]
    return "\n".join([*lines, ""])


def _world(plan: Plan, request: PlanRequest) -> list[str]:
    gpus = min(plan.num_gpus, request.cluster.gpus_per_node)
    return [f"NNODES={nodes(plan, request)}", f"GPUS_PER_NODE={gpus}"]


def _last_node(plan: Plan, request: PlanRequest) -> list[str]:
    """Fewer processes on a last node that the plan does not fill."""
    rest = plan.num_gpus % request.cluster.gpus_per_node
    if nodes(plan, request) == 1 or not rest:
        return []
    return [f'if [ "$NODE_RANK" -eq $((NNODES - 1)) ]; then GPUS_PER_NODE={rest}; fi']
