"""Write a plan for torchtitan: a registry module (0.3.0) and a TOML file with model code (0.2.2)."""

from __future__ import annotations

import json
from typing import Any

from planner.frameworks.bundle import ENVIRONMENT, common_files
from planner.frameworks.expressible import limit_problems, mixer_problems, refuse
from planner.frameworks.launch import with_stages
from planner.frameworks.scripts import Launch, bash_header
from planner.frameworks.torchtitan.module import module_source, old_model_source
from planner.frameworks.torchtitan.profile import PROFILE
from planner.frameworks.torchtitan.settings import family, flavor, parallelism, training
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

CONVERTERS = {"fp8": "float8", "mxfp8": "mx"}
"""Name of a number format under 0.2.2's ``quantize.linear`` and ``quantize.grouped_mm``."""


def inexpressible(plan: Plan, request: PlanRequest) -> list[str]:
    """Return, in words, everything of the plan that torchtitan has no field for."""
    problems = limit_problems(plan, request, PROFILE) + mixer_problems(
        request.model, "the emitted torchtitan model"
    )
    if family(request.model) is None and flavor(request.model) is None:
        problems.append(f"torchtitan ships no model code for the architecture of {request.model.name}")
    whole = with_stages(plan, request.model)
    if plan.recompute == "selective" and any(s.recompute_layers != s.layers for s in whole.stages):
        problems.append("selective recompute covers every layer, not some of them")
    if plan.recompute_modules:
        problems.append(
            f"selective recompute saves by operation, it takes no modules {plan.recompute_modules}"
        )
    if not _has_new(plan) and not _has_old(plan, request):
        problems.append(
            "0.3 has no ring context parallelism, 0.2.2 neither tensor ranks without sequence parallelism "
            "nor context parallelism for its own flavours, which use flex attention, or for experts in FP8"
        )
    return problems


def _has_old(plan: Plan, request: PlanRequest) -> bool:
    """Whether the TOML of 0.2.2 can hold the plan.

    It always runs sequence parallelism with tensor ranks, and its latent-attention models use flex
    attention, which its context parallelism refuses. Its experts in FP8 refuse pipeline and context ranks.
    """
    flex = flavor(request.model) is not None and plan.context_parallel > 1
    others = plan.pipeline_parallel * plan.context_parallel
    experts = request.model.is_moe and plan.precision == "fp8" and others > 1
    return (plan.tensor_parallel == 1 or plan.sequence_parallel) and not flex and not experts


def _has_new(plan: Plan) -> bool:
    """Whether 0.3 can: it dropped ring context parallelism."""
    return plan.context_parallel == 1 or plan.context_parallel_kind == "all_gather"


def write(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Return file names and contents that start the plan with torchtitan.

    Raises
    ------
    BadInput
        Something in the plan has no field.
    """
    refuse(PROFILE.name, inexpressible(plan, request))
    new, old = _has_new(plan), _has_old(plan, request)
    arguments = "--module plan_cfg --config plan" if new else '--job.config_file "$HERE/train.toml"'
    launch = Launch(
        version=PROFILE.version,
        command=f'-m torchtitan.train {arguments} "$@"',
        environment=ENVIRONMENT,
        before='export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"',
    )
    steps = [
        "Install " + ("torchtitan==0.3.0" if new else "torchtitan==0.2.2") + " and its requirements.",
        "Put tokenizer, data set, learning rate and checkpoints into the file (a test set stands there now).",
    ]
    files = {}
    if new:
        files["plan_cfg.py"] = module_source(plan, request)
    if old:
        files["train.toml"] = toml(plan, request)
        if family(request.model):
            files["plan_model.py"] = old_model_source(request.model)
    return files | common_files(plan, request, launch, steps, notes(plan, request))


def notes(plan: Plan, request: PlanRequest) -> list[str]:
    """Return what a user should know before starting the run."""
    found = []
    if not _has_new(plan):
        found.append("torchtitan 0.3 dropped ring context parallelism: only the TOML for 0.2.2 is written.")
    elif _has_old(plan, request):
        found.append("`plan_cfg.py` is for torchtitan 0.3.0, `train.toml` with `plan_model.py` for 0.2.2.")
    else:
        found.append(
            "torchtitan 0.2.2 always runs sequence parallelism with tensor ranks, and its experts in FP8 go "
            "with neither pipeline nor context ranks: no TOML is written."
        )
    if plan.pipeline_parallel > 1:
        found.append("With a pipeline the local batch is one replica's whole batch, cut into micro-batches.")
    return found


def toml(plan: Plan, request: PlanRequest) -> str:
    """Return the TOML file for torchtitan 0.2.2."""
    modes = {"none": "none", "selective": "selective", "full": "full"}
    named = flavor(request.model) or (family(request.model), "plan")
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": named[0], "flavor": named[1], "hf_assets_path": "./assets/hf"},
        "training": training(plan, request) | {"dataset": "c4"},
        "parallelism": parallelism(plan, request, "0.2.2"),
        "activation_checkpoint": {"mode": modes[plan.recompute]},
        "metrics": {"log_freq": 1},
    }
    if plan.recompute == "selective":
        sections["activation_checkpoint"]["selective_ac_option"] = "op"
    if plan.precision in CONVERTERS:
        kind = CONVERTERS[plan.precision]
        sections["model"]["converters"] = [f"quantize.linear.{kind}"]
        if request.model.is_moe:
            sections["model"]["converters"].append(f"quantize.grouped_mm.{kind}")
            sections[f"quantize.grouped_mm.{kind}"] = {"fqns": ["experts"]}
    if flavor(request.model) is None:
        sections["experimental"] = {"custom_import": "plan_model"}
    header = bash_header(plan, request, "torchtitan 0.2.2").rstrip()
    blocks = [
        "\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in entries.items())])
        for name, entries in sections.items()
    ]
    return "\n\n".join([header, *blocks]) + "\n"


def _value(value: Any) -> str:
    """Write a value as TOML: JSON's strings, numbers, booleans and arrays are TOML's too."""
    return json.dumps(value)
