"""Answers as plain text, at most ``WIDTH`` columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from planner.cost.terms import Memory, StepTime
from planner.cost.words import memory_words, time_words
from planner.spec import Plan, PlanRequest
from planner.units import GB, format_bytes, format_seconds

if TYPE_CHECKING:
    from planner.solver import Estimate, PlanResult

WIDTH = 118
SMALL_SHARE = 0.001
"""Terms under this share of the total are left out of printed breakdowns."""

HEADERS = (
    "#", "t", "p", "v", "d", "c", "e", "zero", "b", "m", "schedule", "recompute",
    "step", "tok/s/GPU", "MFU", "peak", "free", "bubble",
)  # fmt: skip


def paragraph(text: str, indent: str = "") -> str:
    """Wrap one paragraph."""
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def bullets(sentences: Iterable[str]) -> str:
    """One wrapped bullet a sentence."""
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent="  - ", subsequent_indent="    ") for text in sentences
    )


def section(title: str, body: str) -> str:
    """A titled part of an answer; empty when the body is."""
    return f"{title}\n{body}\n" if body else ""


def headline(request: PlanRequest) -> str:
    """The question in one line."""
    cluster, workload = request.cluster, request.workload
    nodes = -(-cluster.num_gpus // cluster.gpus_per_node)
    batch = str(workload.global_batch)
    if workload.global_batch_max is not None:
        batch += f" to {workload.global_batch_max}"
    return (
        f"{request.model.name} on {cluster.num_gpus} x {cluster.accelerator.name} "
        f"({nodes} node{'s' if nodes > 1 else ''} of {cluster.gpus_per_node}), global batch {batch} x "
        f"{workload.seq_length} tokens, {'/'.join(workload.precisions)}, {request.framework.name}"
    )


def bubble_fraction(time: StepTime) -> float:
    """Bubble relative to the pipeline's ideal time (its busy terms). [1]."""
    after = (
        time.bubble_s + time.data_comm_s + time.optimizer_s + time.offload_s + time.host_s + time.straggler_s
    )
    busy = float(time.total - after)
    return float(time.bubble_s) / busy if busy > 0 else 0.0


def recompute_word(plan: Plan) -> str:
    """Recompute as the table shows it: the kind, and how many layers when not all."""
    if plan.recompute == "none":
        return "none"
    layers = sum(stage.layers for stage in plan.stages)
    recomputed = sum(stage.recompute_layers for stage in plan.stages)
    return plan.recompute if recomputed == layers else f"{plan.recompute} {recomputed}/{layers}"


def plan_row(rank: int | str, estimate: Estimate, request: PlanRequest) -> list[Any]:
    """One row of the ranking table."""
    plan, peak = estimate.plan, estimate.peak_memory_bytes
    free = request.cluster.usable_hbm_bytes - peak
    return [
        rank, plan.tensor_parallel, plan.pipeline_parallel, plan.virtual_stages, plan.data_parallel,
        plan.context_parallel, plan.expert_parallel, plan.zero_stage, plan.micro_batch, plan.num_microbatches,
        plan.schedule, recompute_word(plan), f"{format_seconds(estimate.step_time_s)}",
        f"{float(estimate.tokens_per_s_per_gpu):.0f}", f"{100 * float(estimate.mfu):.1f}%",
        f"{peak / GB:.1f} GB", f"{free / GB:.1f} GB", f"{100 * bubble_fraction(estimate.time):.0f}%",
    ]  # fmt: skip


def ranking(estimates: Sequence[Estimate], request: PlanRequest, names: Sequence[str] = ()) -> str:
    """The table of plans, best first; every row can be read aloud."""
    rows = [
        plan_row(names[index] if names else index + 1, estimate, request)
        for index, estimate in enumerate(estimates)
    ]
    return tabulate(rows, HEADERS, tablefmt="simple", disable_numparse=True, colalign=_alignment(rows))


def _alignment(rows: list[list[Any]]) -> tuple[str, ...] | None:
    left = {"schedule", "recompute"}
    return tuple("left" if header in left else "right" for header in HEADERS) if rows else None


def time_breakdown(time: StepTime) -> str:
    """Seconds by cause, largest first, with their share of the step."""
    total = float(time.total)
    terms = sorted(time.as_dict().items(), key=lambda item: -item[1])
    rows = [
        (time_words(name), format_seconds(value), f"{100 * value / total:.1f}%")
        for name, value in terms
        if value > SMALL_SHARE * total
    ]
    return _indented([*rows, ("step", format_seconds(total), "100%")])


def memory_breakdown(memory: Memory, request: PlanRequest) -> str:
    """Bytes by owner, largest first, against what the GPU has."""
    total = float(memory.total)
    terms = sorted(memory.as_dict().items(), key=lambda item: -item[1])
    rows = [
        (memory_words(name), format_bytes(value), f"{100 * value / total:.1f}%")
        for name, value in terms
        if value > SMALL_SHARE * total
    ]
    usable = request.cluster.usable_hbm_bytes
    free = f"{format_bytes(abs(usable - total))} {'free' if usable >= total else 'too much'}"
    return _indented([*rows, ("peak", format_bytes(total), f"of {format_bytes(usable)}: {free}")])


def side_by_side(left: str, right: str, gap: int = 4) -> str:
    """Two blocks of text beside each other."""
    a, b = left.splitlines(), right.splitlines()
    width = max((len(line) for line in a), default=0) + gap
    rows = max(len(a), len(b))
    a += [""] * (rows - len(a))
    b += [""] * (rows - len(b))
    return "\n".join(f"{one:<{width}}{two}".rstrip() for one, two in zip(a, b, strict=True))


def breakdowns(estimate: Estimate, request: PlanRequest) -> str:
    """Time and memory of one plan beside each other."""
    where = f"Memory of pipeline rank {estimate.worst_stage}" if len(estimate.stages) > 1 else "Memory"
    return side_by_side(
        "Time of a step\n" + time_breakdown(estimate.time),
        f"{where}, its peak\n" + memory_breakdown(estimate.stages[estimate.worst_stage], request),
    )


def _indented(rows: list[tuple[str, ...]]) -> str:
    text = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=("left", "right", "left"))
    return textwrap.indent(text, "  ")


def proof_line(result: PlanResult) -> str:
    """Whether the answer is proven, over how many settings, in which time."""
    covered = f"{result.num_settings:,} settings covered in {result.solve_s:.1f} s"
    if result.status == "optimal":
        return f"Proof: optimal by the cost model; {covered}."
    if result.status == "feasible":
        return f"Not proven: at most {result.gap_pct:.1f} % slower than the best possible plan; {covered}."
    return f"Proof: no setting is legal and fits; {covered}."
