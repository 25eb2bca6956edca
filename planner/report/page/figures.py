"""The figures of the page, drawn with Plotly: step-time stack, memory stack, pipeline timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from planner.cost.terms import Terms
from planner.cost.words import memory_words, plan_words, time_words
from planner.report.timeline import KIND_WORDS, StepTimeline, step_timeline
from planner.spec import PlanRequest
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


def figures(answer: Answer) -> dict[str, go.Figure]:
    """Every figure of the page by its element's id."""
    best, request = answer.result.plans[0], answer.request
    found = {
        "time-stack": time_stack(answer.result.plans),
        "memory-stack": memory_stack(best, request),
    }
    if best.plan.pipeline_parallel > 1:
        found["timeline"] = timeline_figure(best, request)
    return found


def _layout(title: str, x: str, y: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "font": {"size": 15}},
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}, "automargin": True},
        "legend": {"orientation": "h", "y": -0.25},
        "margin": {"l": 10, "r": 10, "t": 45, "b": 10},
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
    labels = [f"{rank}: {plan_words(estimate.plan)}" for rank, estimate in enumerate(plans, 1)]
    rows = [estimate.time for estimate in plans]
    figure = go.Figure()
    for colour, name in zip(PALETTE, _visible(rows), strict=False):
        seconds = [float(getattr(row, name)) for row in rows]
        figure.add_bar(y=labels, x=seconds, name=time_words(name), orientation="h", marker_color=colour)
    figure.update_layout(_layout("Step time by cause", "seconds", "", barmode="stack"))
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
        _layout("Peak memory by pipeline rank", "pipeline rank", "GB (1e9 bytes)", barmode="stack")
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
    shown = f"first {timeline.num_microbatches} of {plan.num_microbatches} micro-batches, drained"
    cut = f" ({shown})" if timeline.is_cut else ""
    title = f"Pipeline timeline, {plan.schedule}{cut}: what is blank is bubble"
    figure.update_layout(_layout(title, "milliseconds", "", barmode="overlay", bargap=0.15))
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
