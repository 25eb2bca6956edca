"""Write a plan for plain PyTorch: one script that trains a dense decoder, the plan in its first lines."""

from __future__ import annotations

from pathlib import Path
from pprint import pformat
from typing import Any

from planner.frameworks.bundle import ENVIRONMENT, common_files
from planner.frameworks.expressible import limit_problems, mixer_problems, refuse
from planner.frameworks.launch import flow_counts, with_stages
from planner.frameworks.pytorch.profile import PROFILE
from planner.frameworks.scripts import Launch, bash_header
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

PLACEHOLDER = "SETTINGS: dict = {}  # the plan stands here\n"
MODEL_NUMBERS = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "ffn_hidden_size",
    "vocab_size",
    "activation",
    "gated_mlp",
    "tied_embeddings",
)
PLAN_NUMBERS = (
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_stages",
    "schedule",
    "data_parallel",
    "sequence_parallel",
    "zero_stage",
    "micro_batch",
    "num_microbatches",
    "recompute",
    "offload",
    "precision",
    "rank_order",
)


def inexpressible(plan: Plan, request: PlanRequest) -> list[str]:
    """Return, in words, everything of the plan that the script cannot run."""
    problems = limit_problems(plan, request, PROFILE) + mixer_problems(request.model, "the script's decoder")
    model = request.model
    if model.is_moe or model.is_mla or model.mtp_depth or model.sliding_window is not None:
        problems.append("the script trains dense decoders with full attention only")
    if plan.zero_stage and plan.data_parallel % plan.shard_group_size:
        problems.append(
            f"{plan.data_parallel} replicas are not a multiple of shard group {plan.shard_group_size}"
        )
    if min(flow_counts(with_stages(plan, model))) == 0:
        problems.append("a stage without layers is not written")
    return problems


def write(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Return file names and contents that start the plan with PyTorch alone.

    Raises
    ------
    BadInput
        The script cannot run something in the plan.
    """
    refuse(PROFILE.name, inexpressible(plan, request))
    launch = Launch(version=PROFILE.version, command='"$HERE/train.py" "$@"', environment=ENVIRONMENT)
    steps = [
        "Install PyTorch 2.6 or later (written for 2.13); nothing else is needed.",
        "Replace `batch()` in `train.py` by your data; the model is `Stage`.",
    ]
    notes = ["`train.py --dump-groups DIR` writes every rank's groups, to compare with `rank_map.csv`."]
    return {"train.py": script(plan, request), **common_files(plan, request, launch, steps, notes)}


def script(plan: Plan, request: PlanRequest) -> str:
    """Return the script: ``train.py.in`` with the plan as its settings."""
    source = Path(__file__).with_name("train.py.in").read_text(encoding="utf-8")
    before, after = source.split(PLACEHOLDER)
    literal = pformat(settings(plan, request), width=100, sort_dicts=False)
    return bash_header(plan, request, PROFILE.version) + before + f"SETTINGS = {literal}\n" + after


def settings(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """Return everything that the script reads."""
    whole = with_stages(plan, request.model)
    chosen = {name: getattr(plan, name) for name in PLAN_NUMBERS}
    chosen["shard"] = plan.shard_group_size if plan.zero_stage else 1
    chosen["replicate"] = plan.data_parallel // chosen["shard"]
    return {
        "plan": chosen,
        "stage_layers": flow_counts(whole),
        "recompute_layers": [stage.recompute_layers for stage in whole.stages],
        "seq_length": request.workload.seq_length,
        "model": {name: getattr(request.model, name) for name in MODEL_NUMBERS},
    }
