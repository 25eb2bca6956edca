"""Read the settings of an emitted PyTorch script."""

from __future__ import annotations

from typing import Any

from planner.errors import BadInput
from planner.frameworks.launch import (
    Key,
    LaunchFile,
    collect,
    even_stages,
    make_plan,
    positive,
    stages_of,
    text,
    whole,
    yes,
)
from planner.frameworks.pytorch.write import MODEL_NUMBERS
from planner.frameworks.text_formats import python_literals
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest


def numbers(value: Any) -> list[int]:
    """Read a list of whole numbers."""
    if not isinstance(value, list):
        raise ValueError("must be a list of whole numbers")
    return [whole(entry) for entry in value]


_PLAN = {
    "tensor_parallel": positive,
    "pipeline_parallel": positive,
    "virtual_stages": positive,
    "schedule": text,
    "data_parallel": positive,
    "sequence_parallel": yes,
    "zero_stage": whole,
    "micro_batch": positive,
    "num_microbatches": positive,
    "recompute": text,
    "offload": text,
    "precision": text,
    "rank_order": text,
    "shard": positive,
    "replicate": positive,
}
KEYS: dict[str, Key] = {
    **{f"SETTINGS.plan.{name}": Key(name, convert) for name, convert in _PLAN.items()},
    **{f"SETTINGS.model.{name}": Key(f"model.{name}", lambda value: value) for name in MODEL_NUMBERS},
    "SETTINGS.stage_layers": Key("layout", numbers),
    "SETTINGS.recompute_layers": Key("recompute_layers", numbers),
    "SETTINGS.seq_length": Key("seq_length", positive),
}


def read(source: str, path: str) -> LaunchFile:
    """Read the script's settings; scripts of other origin have none.

    Raises
    ------
    BadInput
        There are no settings to read.
    """
    found = [entry for entry in python_literals(source, path) if entry.key.startswith("SETTINGS.")]
    if not found:
        raise BadInput(f"{path}: no SETTINGS of a script written by plan-parallel")
    return collect("pytorch", found, KEYS, lambda key: False)


def to_plan(launch: LaunchFile, request: PlanRequest) -> Plan:
    """Return the plan that the script runs.

    Raises
    ------
    BadInput
        The stages do not match the pipeline.
    """
    zero = launch.get("zero_stage", 0)
    names = [name for name in _PLAN if name not in {"shard", "replicate"}]
    fields = {name: launch.get(name) for name in names if name in launch.fields}
    plan = make_plan(**fields, shard_group_size=launch.get("shard", 1) if zero else 1)
    counts = launch.get("layout")
    if counts is None:
        return plan.model_copy(update={"stages": even_stages(request.model, plan)})
    if len(counts) != plan.pipeline_parallel * plan.virtual_stages:
        raise BadInput(
            f"{len(counts)} stages are not {plan.pipeline_parallel} ranks x {plan.virtual_stages} chunks"
        )
    again = launch.get("recompute_layers", [0] * plan.pipeline_parallel)
    if len(again) != plan.pipeline_parallel:
        raise BadInput(
            f"{len(again)} recompute counts are not one for each of {plan.pipeline_parallel} ranks"
        )
    return plan.model_copy(update={"stages": stages_of(counts, plan, again)})
