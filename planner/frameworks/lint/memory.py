"""What is too big for the GPU, with its largest parts, and what a length that only cuts samples means."""

from __future__ import annotations

from collections.abc import Iterator

from planner.cost.longest import longest_sentence
from planner.cost.states import defers_reduction
from planner.cost.terms import Memory
from planner.frameworks.launch import LaunchFile
from planner.frameworks.lint.findings import Finding, finding, place
from planner.solver.evaluate import fullness_sentence
from planner.solver.result import Estimate
from planner.spec.request import PlanRequest
from planner.units import format_bytes

CAPS = frozenset(
    {
        "block_size",
        "cutoff_len",
        "max_len",
        "max_length",
        "max_seq_len",
        "max_seq_length",
        "max_total_sequence_length",
        "model_max_length",
        "sequence_len",
    }
)
"""Names of lengths that cut samples: those that are shorter stay shorter unless they are packed or padded."""
FILLED = frozenset(
    {
        "neat_packing",
        "packed",
        "packing",
        "packing_samples",
        "pad_to_sequence_len",
        "sample_packing",
        "sequence_packing",
    }
)
"""Settings, on where not false, that fill every row up to its length."""
SUM = " + "
"""Between the names of lengths that make a row together."""


def memory_findings(launch: LaunchFile, request: PlanRequest, estimate: Estimate) -> Iterator[Finding]:
    """Yield an error when a pipeline rank needs more memory than the GPU has, a note where it is tight."""
    usable = request.cluster.usable_hbm_bytes
    over = {rank: float(stage.total) - usable for rank, stage in enumerate(estimate.stages)}
    full = [rank for rank, missing in over.items() if missing > 0]
    if not full:
        said = fullness_sentence(estimate.stages, request)
        if said is not None:
            at = place(launch, "micro_batch", "recompute")
            yield finding(at, "note", "memory-is-tight", said.removesuffix("."))
        return
    worst = max(full, key=lambda rank: over[rank])
    if _is_paged(launch) and all(_beside_optimizer(stage) <= usable for stage in estimate.stages):
        yield _paged_out(launch, estimate, worst, usable)
        return
    terms = sorted(estimate.stages[worst].as_dict().items(), key=lambda term: -term[1])[:3]
    largest = ", ".join(f"{name.removesuffix('_bytes')} {format_bytes(value)}" for name, value in terms)
    others = ", ".join(f"{rank} (+{format_bytes(over[rank])})" for rank in full if rank != worst)
    message = (
        f"out of memory: pipeline rank {worst} needs {format_bytes(estimate.peak_memory_bytes)} of "
        f"{format_bytes(usable)}, {format_bytes(over[worst])} too much ({largest})"
    )
    message += f"; so do ranks {others}" if others else ""
    message += _whole_gradients(request, estimate, {name for name, _ in terms})
    message += f"; {longest_sentence(estimate.plan, request)}{_cap(launch, request)}"
    yield finding(place(launch, "micro_batch", "recompute"), "error", "out-of-memory", message)


SHARDS_AGAIN = {
    "accelerate": "accelerator_config.gradient_accumulation_kwargs.sync_each_batch shards them",
    "automodel": "distributed.defer_fsdp_grad_sync: false shards them",
}
"""Framework to the setting under which gradients are reduced in every step of accumulation."""


def _whole_gradients(request: PlanRequest, estimate: Estimate, largest: set[str]) -> str:
    """Why gradients are not sharded, where they are much of what is too big."""
    plan = estimate.plan
    accumulates = plan.num_microbatches > 1 and plan.pipeline_parallel == 1
    if not (accumulates and "gradients_bytes" in largest and bool(defers_reduction(plan, request))):
        return ""
    how = SHARDS_AGAIN.get(request.framework.name)
    return "; gradients stay whole while micro-batches add up" + (f" ({how})" if how else "")


def _paged_out(launch: LaunchFile, estimate: Estimate, rank: int, usable: float) -> Finding:
    stage = estimate.stages[rank]
    moved, state = float(stage.total) - usable, float(stage.optimizer_bytes)
    message = (
        f"pipeline rank {rank} needs {format_bytes(float(stage.total))} of {format_bytes(usable)}: the paged "
        f"optimizer moves {format_bytes(moved)} of its {format_bytes(state)} to the host and back each step"
    )
    return finding(place(launch, "optimizer"), "warning", "optimizer-is-paged-out", message)


def _is_paged(launch: LaunchFile) -> bool:
    """Whether bitsandbytes keeps the optimizer's state where the host takes it in when the GPU is full."""
    names = ("optim", "optimizer", "optimizer._component_")
    said = [entry for entry in launch.found if entry.key.lstrip("-") in names]
    return any("paged" in str(entry.value).lower() for entry in said)


def _beside_optimizer(stage: Memory) -> float:
    return float(stage.total) - float(stage.optimizer_bytes)


def _cap(launch: LaunchFile, request: PlanRequest) -> str:
    """What a file's length means for memory, where it only cuts samples."""
    at = launch.place("seq_length")
    if at is None and request.workload.seq_length == request.model.seq_length:
        return (
            f"; no length is said, so the model's {request.model.seq_length} tokens are taken (--seq-length)"
        )
    if at is None or not _cuts(at.key) or _fills_rows(launch):
        return ""
    verb = "cut" if SUM in at.key else "cuts"
    return f"; {at.key} only {verb} samples: say with --seq-length how long the longest are"


def _cuts(key: str) -> bool:
    """Whether a length, or a sum of the two of a prompt and its answer, cuts samples."""
    return SUM in key or _name(key) in CAPS


def _fills_rows(launch: LaunchFile) -> bool:
    """Whether rows are packed, or padded to the full length, as LLM Foundry's are unless told otherwise."""
    on = {entry.key for entry in launch.found if str(entry.value).lower() not in {"false", "none"}}
    names = {_name(key) for key in on} | {key.rpartition(".")[0] for key in on if key.endswith(".enabled")}
    if launch.framework == "llm-foundry" and "pad_to_longest" not in names:
        return True
    padded = any((_name(entry.key), entry.value) == ("padding", "max_length") for entry in launch.found)
    return padded or any(_name(name) in FILLED for name in names)


def _name(key: str) -> str:
    return key.rpartition(".")[2].lstrip("-").replace("-", "_")
