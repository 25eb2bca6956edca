"""The figures of the page, drawn with Plotly: step-time stack, memory stack, pipeline timeline."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from planner.cost.orders import followers, neighbours
from planner.cost.step import hop_time
from planner.cost.terms import Terms
from planner.cost.words import memory_words, plan_words, time_words
from planner.report.timeline import KIND_WORDS, StepTimeline, step_timeline
from planner.solver.evaluate import evaluate
from planner.spec import Plan, PlanRequest
from planner.units import GB

if TYPE_CHECKING:
    from planner.explain.answer import Answer
    from planner.solver.result import Estimate

PALETTE = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#44bb99",
    "#ee8866", "#7788cc", "#aaaa00", "#888888", "#bb5566", "#004488", "#ddaa33",
)  # fmt: skip
"""Colours that people with colour-vision deficiency tell apart (Paul Tol's schemes)."""
KIND_COLOURS = {"F": "#4477aa", "B": "#ee6677", "D": "#ee8866", "W": "#ccbb44"}
SEND_COLOUR = "#888888"
SMALL_SHARE = 0.001
MOST_BARS = 1500
"""Operations drawn in the timeline."""
LEAST_SHIFT, MOST_SHIFT = 2, 4
"""The scaling curve runs from a quarter to sixteen times the GPUs."""


def figures(answer: Answer) -> dict[str, go.Figure]:
    """Every figure of the page by its element's id."""
    best, request = answer.result.plans[0], answer.request
    found = {
        "time-stack": time_stack(answer.result.plans),
        "memory-stack": memory_stack(best, request),
    }
    if best.plan.pipeline_parallel > 1:
        found["timeline"] = timeline_figure(best, request)
    if points := scaled(best, request):
        found["scaling"] = scaling_figure(points)
    return found


def figure_layout(title: str, x: str, y: str, **more: Any) -> dict[str, Any]:
    """Layout of a figure; its title stands above it as a caption, where it can wrap."""
    return {
        "meta": {"caption": title},
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}, "automargin": True},
        "legend": {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom"},
        "margin": {"l": 10, "r": 10, "t": 25, "b": 130},
        **more,
    }


def _visible(rows: Sequence[Terms]) -> list[str]:
    """Terms worth a colour: more than a thousandth of some bar."""
    return [
        name
        for name, _ in rows[0].items()
        if any(float(getattr(row, name)) > SMALL_SHARE * float(row.total) for row in rows)
    ]


def time_stack(plans: Sequence[Estimate]) -> go.Figure:
    """One horizontal bar a plan, split by cause. [s]."""
    labels = [f"plan {rank}" for rank in range(1, len(plans) + 1)]
    words = [plan_words(estimate.plan) for estimate in plans]
    rows = [estimate.time for estimate in plans]
    figure = go.Figure()
    for colour, name in zip(PALETTE, _visible(rows), strict=False):
        seconds = [float(getattr(row, name)) for row in rows]
        figure.add_bar(
            y=labels, x=seconds, name=time_words(name), orientation="h", marker_color=colour,
            text=words, textposition="none", hovertemplate="%{y}: %{text}<br>%{x:.3f} s",
        )  # fmt: skip
    figure.update_layout(figure_layout("Step time by cause", "seconds", "", barmode="stack"))
    figure.update_yaxes(autorange="reversed")
    return figure


def memory_stack(estimate: Estimate, request: PlanRequest) -> go.Figure:
    """One bar a pipeline rank, split by owner, against the HBM that may be filled. [GB]."""
    ranks = [f"rank {rank}" for rank in range(len(estimate.stages))]
    figure = go.Figure()
    for colour, name in zip(PALETTE, _visible(estimate.stages), strict=False):
        gigabytes = [float(getattr(stage, name)) / GB for stage in estimate.stages]
        figure.add_bar(x=ranks, y=gigabytes, name=memory_words(name), marker_color=colour)
    usable = request.cluster.usable_hbm_bytes / GB
    free = usable - estimate.peak_memory_bytes / GB
    label = f"usable HBM {usable:.1f} GB, headroom {free:.1f} GB"
    figure.add_hline(y=usable, line_dash="dash", line_color="#c62828", annotation_text=label)
    figure.update_layout(
        figure_layout("Peak memory by pipeline rank", "pipeline rank", "GB (1e9 bytes)", barmode="stack")
    )
    return figure


def timeline_figure(estimate: Estimate, request: PlanRequest) -> go.Figure:
    """Operations of every pipeline rank against time; white is bubble. [ms]."""
    plan = estimate.plan
    per_microbatch = 3 * plan.pipeline_parallel * max(plan.virtual_stages, 2)
    timeline = step_timeline(plan, request, most_microbatches=MOST_BARS // per_microbatch)
    figure = go.Figure()
    for kind, colour in KIND_COLOURS.items():
        _add_operations(figure, timeline, kind, colour)
    _add_sends(figure, timeline, plan, request)
    shown = f"first {timeline.num_microbatches} of {plan.num_microbatches} micro-batches, drained"
    cut = f" ({shown})" if timeline.is_cut else ""
    title = f"Pipeline timeline, {plan.schedule}{cut}: what is blank is bubble"
    figure.update_layout(figure_layout(title, "milliseconds", "", barmode="overlay", bargap=0.15))
    figure.update_yaxes(autorange="reversed")
    return figure


def _add_operations(figure: go.Figure, timeline: StepTimeline, kind: str, colour: str) -> None:
    events = [event for event in timeline.events if event.kind == kind]
    if not events:
        return
    figure.add_bar(
        y=[f"rank {event.rank}" for event in events],
        x=[(event.end_s - event.start_s) * 1e3 for event in events],
        base=[event.start_s * 1e3 for event in events],
        orientation="h",
        name=KIND_WORDS[kind],
        marker={"color": colour, "line": {"width": 0.5, "color": "rgba(128,128,128,0.6)"}},
        text=[f"micro-batch {event.micro_batch}, chunk {event.chunk}" for event in events],
        textposition="none",
        hovertemplate="%{y}: %{text}<br>%{base:.2f} ms + %{x:.2f} ms",
    )


def _add_sends(figure: go.Figure, timeline: StepTimeline, plan: Plan, request: PlanRequest) -> None:
    """Thin bars for results on their way to another rank; the sender goes on working meanwhile."""
    hop_ms = float(hop_time(plan, request)) * 1e3
    targets = {"F": followers(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)}
    targets["B"] = targets["D"] = neighbours(plan.schedule, plan.pipeline_parallel, plan.virtual_stages)
    sent = [
        event
        for event in timeline.events
        if event.kind in targets
        and (target := targets[event.kind][event.rank, event.chunk]) is not None
        and target[0] != event.rank
    ]
    figure.add_bar(
        y=[f"rank {event.rank}" for event in sent],
        x=[hop_ms] * len(sent),
        base=[event.end_s * 1e3 for event in sent],
        width=0.15,
        orientation="h",
        name="send",
        marker_color=SEND_COLOUR,
        hovertemplate=f"%{{y}} sends to the next stage: {hop_ms:.3f} ms",
    )


def scaled(best: Estimate, request: PlanRequest) -> list[tuple[Estimate, Estimate]]:
    """Price the plan with more and fewer data-parallel replicas: the same batch, and a growing one.

    Sizes at which the batch does not split, or experts do not spread, are left out.
    """
    points = []
    for shift in range(-LEAST_SHIFT, MOST_SHIFT + 1):
        factor = Fraction(2) ** shift
        same_batch, growing = (
            _resized(best.plan, factor, 1 / factor),
            _resized(best.plan, factor, Fraction(1)),
        )
        if same_batch is None or growing is None:
            continue
        larger = _resized_request(request, factor, Fraction(1)), _resized_request(request, factor, factor)
        points.append((evaluate(same_batch, larger[0]), evaluate(growing, larger[1])))
    return points if len(points) > 1 else []


def _resized(plan: Plan, replicas: Fraction, microbatches: Fraction) -> Plan | None:
    """Return the plan with its replicas and micro-batches multiplied, None where they do not divide."""
    d, m = plan.data_parallel * replicas, plan.num_microbatches * microbatches
    shard = min(Fraction(plan.shard_group_size), d * plan.context_parallel)
    if plan.shard_group_size == plan.data_parallel * plan.context_parallel:
        shard = d * plan.context_parallel
    ranks = plan.tensor_parallel * plan.context_parallel * d
    experts = plan.expert_parallel * plan.expert_tensor_parallel
    if any(value.denominator > 1 for value in (d, m, shard)) or min(d, m) < 1 or ranks % experts:
        return None
    changed = {"data_parallel": int(d), "num_microbatches": int(m)}
    if plan.zero_stage:
        changed["shard_group_size"] = int(shard)
    return plan.model_copy(update=changed)


def _resized_request(request: PlanRequest, gpus: Fraction, batch: Fraction) -> PlanRequest:
    cluster = request.cluster.model_copy(update={"num_gpus": int(request.cluster.num_gpus * gpus)})
    size = max(1, int(request.workload.global_batch * batch))
    workload = request.workload.model_copy(update={"global_batch": size, "global_batch_max": None})
    return request.model_copy(update={"cluster": cluster, "workload": workload})


def scaling_figure(points: Sequence[tuple[Estimate, Estimate]]) -> go.Figure:
    """Tokens per second against GPUs when plan 1 gets more replicas, and what perfect scaling would give."""
    sizes = [same_batch.plan.num_gpus for same_batch, _ in points]
    figure = go.Figure()
    for name, curve in (
        ("same global batch", [p[0] for p in points]),
        ("batch grows", [p[1] for p in points]),
    ):
        rates = [point.tokens_per_s_per_gpu * point.plan.num_gpus for point in curve]
        figure.add_scatter(x=sizes, y=rates, name=name, mode="lines+markers")
    first = points[0][0].tokens_per_s_per_gpu
    ideal = [first * size for size in sizes]
    figure.add_scatter(x=sizes, y=ideal, name="ideal", mode="lines", line={"dash": "dot"})
    title = "Scaling plan 1 by data-parallel replicas (sweep plans every size anew)"
    figure.update_layout(figure_layout(title, "GPUs", "tokens per second"))
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return figure
