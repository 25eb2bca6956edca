"""Pipeline ranks without layers: the planner proposes none, some frameworks run them at an end."""

from __future__ import annotations

from planner.frameworks.launch import LaunchFile, flow_counts
from planner.frameworks.lint.findings import Finding, finding, place
from planner.frameworks.megatron.split import laid_out
from planner.frameworks.nanotron.split import head_rank
from planner.spec.model import Model
from planner.spec.plan import Plan

LAID_OUT = frozenset({"automodel", "megatron", "megatron-bridge", "primus", "torchtitan"})
"""Frameworks whose layouts may give a stage nothing but the embedding or the loss (Megatron-LM
pipeline_parallel_layer_layout.py, torchtitan ``module_fqns_per_model_part``)."""

MEGATRON_LAYOUTS = frozenset({"megatron", "megatron-bridge", "primus"})
"""Of these, the ones whose layouts are Megatron's."""


def bare_end(launch: LaunchFile, plan: Plan, model: Model) -> Finding | None:
    """Return a warning where only a first or last stage holds no layers and the framework runs it.

    None means that the run fails: an inner stage is empty, or nanotron leaves a rank without parameters.
    """
    counts = flow_counts(plan)
    predicting = _mtp_stage(launch, plan)
    if any(count < 1 and at != predicting for at, count in enumerate(counts[1:-1], 1)):
        return None
    if launch.framework == "nanotron":
        runs = counts[0] > 0 and head_rank(model, plan.pipeline_parallel) == plan.pipeline_parallel - 1
    else:
        runs = launch.framework in LAID_OUT
    if not runs:
        return None
    parts = {0: "embedding", len(counts) - 1: "head and loss"}
    if predicting is not None:
        parts[predicting] = "MTP layers (priced on the last stage)"
    held = " and ".join(f"stage {at} the {parts[at]} alone" for at in sorted(parts) if counts[at] < 1)
    message = f"{held[:1].upper()}{held[1:]}, without layers: it waits for the other stages"
    return finding(place(launch, "stages"), "warning", "stage-without-layers", message)


def _mtp_stage(launch: LaunchFile, plan: Plan) -> int | None:
    """The inner stage that a Megatron layout gives its multi-token-prediction layers, None for the last."""
    if launch.framework not in MEGATRON_LAYOUTS or "layout" not in launch.fields:
        return None
    stages = laid_out(launch, plan.pipeline_parallel)
    return next((at for at, stage in enumerate(stages[:-1]) if "m" in stage), None)
