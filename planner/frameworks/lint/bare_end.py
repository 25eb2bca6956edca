"""Pipeline ranks without layers: the planner proposes none, some frameworks run them at an end."""

from __future__ import annotations

from planner.frameworks.launch import LaunchFile, flow_counts
from planner.frameworks.lint.findings import Finding, finding, place
from planner.frameworks.nanotron.split import head_rank
from planner.spec.model import Model
from planner.spec.plan import Plan

LAID_OUT = frozenset({"automodel", "megatron", "megatron-bridge", "primus", "torchtitan"})
"""Frameworks whose layouts may give a stage nothing but the embedding or the loss (Megatron-LM
pipeline_parallel_layer_layout.py, torchtitan ``module_fqns_per_model_part``)."""


def bare_end(launch: LaunchFile, plan: Plan, model: Model) -> Finding | None:
    """Return a warning where only a first or last stage holds no layers and the framework runs it.

    None means that the run fails: an inner stage is empty, or nanotron leaves a rank without parameters.
    """
    counts = flow_counts(plan)
    if any(count < 1 for count in counts[1:-1]):
        return None
    if launch.framework == "nanotron":
        runs = counts[0] > 0 and head_rank(model, plan.pipeline_parallel) == plan.pipeline_parallel - 1
    else:
        runs = launch.framework in LAID_OUT
    if not runs:
        return None
    parts = {0: "embedding", len(counts) - 1: "head and loss"}
    held = " and ".join(f"stage {at} the {part} alone" for at, part in parts.items() if counts[at] < 1)
    message = f"{held.capitalize()}, without layers: it waits for the other stages"
    return finding(place(launch, "stages"), "warning", "stage-without-layers", message)
