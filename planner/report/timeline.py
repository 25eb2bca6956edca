"""The simulated step, operation by operation, with the causes inside each; and as a Chrome trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.cost.orders import BIDIRECTIONAL
from planner.cost.schedule import Event, simulate
from planner.cost.stage import chunk_loads
from planner.cost.step import step_time, unit_times
from planner.cost.words import time_words
from planner.cost.work import LayerTime, WorkTime
from planner.spec import Plan, PlanRequest

KIND_WORDS = {"F": "forward", "B": "backward", "D": "input gradient", "W": "weight gradient"}
AFTER_PIPELINE = ("pipeline_comm_s", "data_comm_s", "optimizer_s", "offload_s", "host_s", "straggler_s")
"""Terms of the step that the trace shows behind the pipeline, in this order."""
COMMUNICATION = ("tensor_comm_s", "context_comm_s", "expert_comm_s", "data_comm_s")
MOST_EVENTS = 200_000
"""Operations that a trace may hold; a longer step is cut to its first micro-batches, and says so."""
MICROSECONDS = 1e6


@dataclass(frozen=True)
class StepTimeline:
    """Operations of the pipeline and what each is made of."""

    events: tuple[Event, ...]
    makespan_s: float
    chunks: list[list[LayerTime]]
    """Phases of one micro-batch as [pipeline rank][chunk]."""
    num_microbatches: int
    """Micro-batches shown; fewer than the plan's when the step was cut."""
    is_cut: bool

    def work(self, event: Event) -> WorkTime:
        """Causes of one operation's time."""
        chunk = self.chunks[event.rank][event.chunk]
        if event.kind == "F":
            return chunk.forward
        if event.kind == "D":
            return chunk.backward_input
        if event.kind == "W":
            return chunk.backward_weight
        return chunk.backward_input + chunk.backward_weight


def step_timeline(plan: Plan, request: PlanRequest, most_microbatches: int | None = None) -> StepTimeline:
    """Simulate one step with all its operations.

    Parameters
    ----------
    most_microbatches
        Show at most this many micro-batches (never fewer than two per pipeline rank).
    """
    units = unit_times(plan, request)
    chunks = [[units.chunk(load) for load in loads] for loads in chunk_loads(plan, request.model)]
    phases = ("forward", "backward_input", "backward_weight")
    seconds = [[[float(getattr(chunk, name).total) for chunk in row] for row in chunks] for name in phases]
    if plan.schedule in BIDIRECTIONAL:
        chunks = [[row[0], mirrored[0]] for row, mirrored in zip(chunks, reversed(chunks), strict=True)]
    shown = _shown_microbatches(plan, most_microbatches)
    forward, inputs, weights = seconds
    timeline = simulate(plan.schedule, forward, inputs, weights, shown, with_events=True)
    return StepTimeline(timeline.events, timeline.makespan_s, chunks, shown, shown < plan.num_microbatches)


def _shown_microbatches(plan: Plan, most: int | None) -> int:
    p, m = plan.pipeline_parallel, plan.num_microbatches
    per_microbatch = 3 * p * max(plan.virtual_stages, 2)
    limit = max(MOST_EVENTS // per_microbatch, 2 * p)
    if most is not None:
        limit = min(limit, max(most, 2 * p))
    return m if m <= limit else limit // p * p


def chrome_trace(plan: Plan, request: PlanRequest) -> str:
    """Return the step as Chrome trace JSON: one process a pipeline rank; opens in Perfetto.

    Threads of a rank: the operations, the computation inside them, and the communication by group. The
    terms behind the pipeline (gradient synchronisation, optimizer, ...) follow on the operations' thread.
    """
    timeline = step_timeline(plan, request)
    rows = [*_names(plan), *_operations(timeline), *_behind(plan, request, timeline)]
    about = {
        "model": request.model.name,
        "micro_batches_shown": timeline.num_microbatches,
        "micro_batches_of_the_step": plan.num_microbatches,
    }
    return json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": rows}, allow_nan=False)


THREADS = {name: tid for tid, name in enumerate(("operation", "compute", *COMMUNICATION))}
_THREAD_WORDS = {"operation": "operations", "compute": "computation"}


def _names(plan: Plan) -> Iterator[dict[str, Any]]:
    for rank in range(plan.pipeline_parallel):
        label = {"name": f"pipeline rank {rank}"}
        yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": label}
        for thread, tid in THREADS.items():
            words = {"name": _THREAD_WORDS.get(thread) or time_words(thread)}
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": words}


def _slice(name: str, rank: int, thread: str, start_s: float, length_s: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "pid": rank, "tid": THREADS[thread], "cat": thread,
        "ts": start_s * MICROSECONDS, "dur": length_s * MICROSECONDS, "args": args,
    }  # fmt: skip


def _operations(timeline: StepTimeline) -> Iterator[dict[str, Any]]:
    idle_since: dict[int, float] = {}
    for event in sorted(timeline.events, key=lambda event: (event.rank, event.start_s)):
        gap = event.start_s - idle_since.get(event.rank, 0.0)
        if gap > 1e-9:
            yield _slice("bubble", event.rank, "operation", event.start_s - gap, gap)
        idle_since[event.rank] = event.end_s
        name = f"{KIND_WORDS[event.kind]} {event.micro_batch}"
        yield _slice(
            name, event.rank, "operation", event.start_s, event.end_s - event.start_s,
            micro_batch=event.micro_batch, chunk=event.chunk,
        )  # fmt: skip
        yield from _causes(timeline, event)


def _causes(timeline: StepTimeline, event: Event) -> Iterator[dict[str, Any]]:
    """Terms of one operation, one after the other: their sum is the operation."""
    start = event.start_s
    for term, seconds in timeline.work(event).as_dict().items():
        if seconds > 0:
            thread = term if term in COMMUNICATION else "compute"
            yield _slice(time_words(term), event.rank, thread, start, seconds)
            start += seconds


def _behind(plan: Plan, request: PlanRequest, timeline: StepTimeline) -> Iterator[dict[str, Any]]:
    """Terms of the step that are not inside the operations of the rank that sets the pace."""
    terms = step_time(plan, request).as_dict()
    works = [_rank_work(chunks) for chunks in timeline.chunks]
    inside = max(works, key=lambda work: float(work.total)).as_dict()
    for rank in range(plan.pipeline_parallel):
        start = timeline.makespan_s
        for term in AFTER_PIPELINE:
            seconds = terms[term] - inside.get(term, 0.0) * plan.num_microbatches
            if seconds > 1e-9:
                yield _slice(time_words(term), rank, "operation", start, seconds)
                start += seconds


def _rank_work(chunks: list[LayerTime]) -> WorkTime:
    return sum((chunk.total for chunk in chunks[1:]), chunks[0].total)
