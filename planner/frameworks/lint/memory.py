"""What is too big for the GPU, with its largest parts, and what a length that only cuts samples means."""

from __future__ import annotations

from collections.abc import Iterator

from planner.frameworks.launch import LaunchFile
from planner.frameworks.lint.findings import Finding, finding, place
from planner.solver.result import Estimate
from planner.spec.request import PlanRequest
from planner.units import format_bytes

CAPS = frozenset(
    {
        "cutoff_len",
        "max_len",
        "max_length",
        "max_seq_len",
        "max_seq_length",
        "model_max_length",
        "sequence_len",
    }
)
"""Names of lengths that cut samples: those that are shorter stay shorter unless they are packed."""
PACKED = frozenset({"neat_packing", "packing", "packing_samples", "sample_packing"})


def memory_findings(launch: LaunchFile, request: PlanRequest, estimate: Estimate) -> Iterator[Finding]:
    """Yield an error when a pipeline rank needs more memory than the GPU has."""
    usable = request.cluster.usable_hbm_bytes
    over = {rank: float(stage.total) - usable for rank, stage in enumerate(estimate.stages)}
    full = [rank for rank, missing in over.items() if missing > 0]
    if not full:
        return
    worst = max(full, key=lambda rank: over[rank])
    terms = sorted(estimate.stages[worst].as_dict().items(), key=lambda term: -term[1])[:3]
    largest = ", ".join(f"{name.removesuffix('_bytes')} {format_bytes(value)}" for name, value in terms)
    others = ", ".join(f"{rank} (+{format_bytes(over[rank])})" for rank in full if rank != worst)
    message = (
        f"out of memory: pipeline rank {worst} needs {format_bytes(estimate.peak_memory_bytes)} of "
        f"{format_bytes(usable)}, {format_bytes(over[worst])} too much ({largest})"
    )
    message += f"; so do ranks {others}" if others else ""
    message += _cap(launch)
    yield finding(place(launch, "micro_batch", "recompute"), "error", "out-of-memory", message)


def _cap(launch: LaunchFile) -> str:
    """What a file's length means for memory, where it only cuts samples."""
    said = {_name(entry.key): entry.value for entry in launch.found}
    at = launch.place("seq_length")
    is_packed = any(str(said.get(name, "false")).lower() not in {"false", "none"} for name in PACKED)
    if at is None or _name(at.key) not in CAPS or is_packed:
        return ""
    return f"; {at.key} only cuts samples: say with --seq-length how long the longest are"


def _name(key: str) -> str:
    return key.rpartition(".")[2].lstrip("-").replace("-", "_")
