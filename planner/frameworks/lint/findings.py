"""One finding of the linter, and where in the file it belongs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.errors import one_sentence
from planner.frameworks.launch import Found, LaunchFile

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong at one place, compiler-style."""

    path: str
    line: int
    severity: Severity
    rule: str
    message: str
    valid: tuple[int | str | bool, ...] = ()
    """Values of the setting that would do, nearest first (at most a few)."""


SPELLINGS: dict[str, tuple[str, ...]] = {
    "tensor_parallel": ("tensor_parallel", "ici.tensor", "dcn.tensor"),
    "pipeline_parallel": ("pipeline_parallel", "layout", "ici.pipeline", "dcn.pipeline"),
    "virtual_stages": (
        "virtual_stages", "layers_per_virtual_stage", "layers_per_stage", "layout", "pipeline_parallel",
    ),
    "schedule": ("schedule", "virtual_stages", "pipeline_parallel"),
    "data_parallel": (
        "data_parallel", "shard_degree", "replicate_degree", "num_gpus", "global_batch", "ici.fsdp",
        "dcn.data",
    ),
    "shard_group_size": ("shard_degree", "instances", "shard_group_size", "zero_stage"),
    "zero_stage": (
        "zero_stage", "distributed_optimizer", "megatron_fsdp", "sharding", "torch_fsdp2", "reshard",
    ),
    "context_parallel_kind": ("context_parallel_kind", "context_parallel"),
    "sequence_parallel": ("sequence_parallel", "tensor_parallel"),
    "micro_batch": ("micro_batch",),
    "num_microbatches": ("num_microbatches", "global_batch", "micro_batch"),
    "recompute": ("recompute", "recompute_granularity", "recompute_activations"),
    "stages": (
        "layout", "first_stage_layers", "last_stage_layers", "recompute_num_layers",
        "layers_per_virtual_stage", "pipeline_parallel",
    ),
    "precision": ("precision", "fp8", "fp4", "bf16", "fp16"),
    "offload": ("offload", "optimizer_offload", "offload_param", "activation_offload"),
}  # fmt: skip
"""Plan field to the names under which a file may have said it."""


def place(launch: LaunchFile, *plan_fields: str) -> Found:
    """Return the setting that a finding about these plan fields points at; the file's beginning otherwise."""
    for name in plan_fields:
        found = launch.place(*SPELLINGS.get(name, (name,)))
        if found is not None:
            return found
    path = launch.paths[0] if launch.paths else "<text>"
    return Found("", None, path, 1)


def finding(at: Found, severity: Severity, rule: str, message: str) -> Finding:
    """Return a finding at a setting."""
    return Finding(at.path, at.line, severity, rule, one_sentence(message))
