"""A sweep as a table, as CSV, and as a scaling figure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from html import escape
from itertools import cycle
from typing import Any

from tabulate import tabulate

from planner.errors import BadInput
from planner.sweep.execute import Outcome
from planner.units import GB, format_seconds

COLUMNS = (
    "hardware", "gpus", "status", "plan", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu",
    "scaling_efficiency", "peak_memory_bytes", "global_batch", "usd_per_million_tokens", "days", "usd",
    "goodput", "days_with_failures", "usd_with_failures", "batch_efficiency", "checkpoint_interval_s",
    "mean_time_between_failures_s", "checkpoint_bytes", "reason",
)  # fmt: skip


def ordered(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Sort by accelerator, then size."""
    return sorted(outcomes, key=lambda outcome: (outcome.hardware, outcome.gpus))


def efficiencies(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return tokens/s per GPU over that of the accelerator's smallest size that has a plan, by key."""
    base: dict[str, float] = {}
    found = {}
    for outcome in ordered(outcomes):
        if outcome.figures:
            rate = outcome.figures["tokens_per_s_per_gpu"]
            found[outcome.key] = rate / base.setdefault(outcome.hardware, rate)
    return found


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return one flat dictionary an outcome, with every column."""
    scaling = efficiencies(outcomes)
    return [
        {
            **dict.fromkeys(COLUMNS),
            "hardware": outcome.hardware, "gpus": outcome.gpus, "status": outcome.status,
            "plan": outcome.plan, "reason": outcome.reason, **outcome.figures,
            "scaling_efficiency": scaling.get(outcome.key),
        }
        for outcome in ordered(outcomes)
    ]  # fmt: skip


def batch_budget(outcomes: Sequence[Outcome]) -> list[str]:
    """Say where the batch budget ends: the first larger size without a plan, by accelerator."""
    sentences = []
    for name in sorted({outcome.hardware for outcome in outcomes}):
        own = [outcome for outcome in ordered(outcomes) if outcome.hardware == name]
        last = max((outcome.gpus for outcome in own if outcome.figures), default=None)
        beyond = [
            outcome for outcome in own if not outcome.figures and last is not None and outcome.gpus > last
        ]
        if beyond:
            sentences.append(
                f"{name}: the batch carries {last} GPUs; at {beyond[0].gpus} {beyond[0].reason} "
                "(why-not or a larger --global-batch tells more)."
            )
    return sentences


HEADERS = (
    "hardware", "GPUs", "step", "tok/s", "MFU", "scaling", "$/Mtok", "days", "with failures", "M$", "plan",
)  # fmt: skip


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table for the terminal."""
    cells = [_cells(row) for row in rows(outcomes)]
    return tabulate(cells, HEADERS, tablefmt="simple", disable_numparse=True)


def _cells(row: dict[str, Any]) -> list[str]:
    if row["step_time_s"] is None:
        return [row["hardware"], str(row["gpus"]), *["-"] * 8, row["reason"]]
    return [
        row["hardware"], str(row["gpus"]), format_seconds(row["step_time_s"]), f"{row['tokens_per_s']:,.0f}",
        f"{100 * row['mfu']:.1f}%", f"{100 * row['scaling_efficiency']:.0f}%",
        _number(row["usd_per_million_tokens"], "{:.2f}"), _number(row["days"], "{:.1f}"),
        _number(row["days_with_failures"], "{:.1f}"), _number(row["usd_with_failures"], "{:.2f}", 1e-6),
        row["plan"],
    ]  # fmt: skip


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else form.format(value * scale)


def csv_text(outcomes: Sequence[Outcome]) -> str:
    """Return the sweep as CSV in base units, one row a question."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows(outcomes))
    return buffer.getvalue()


def page(outcomes: Sequence[Outcome], title: str) -> str:
    """Return the table and the scaling curves as one offline HTML page.

    Raises
    ------
    BadInput
        The plotting library is not installed (extra ``html``).
    """
    from planner.report.page import bullets_html, figure_html, section_html, table_html, whole_page

    try:
        figure = _scaling_figure(outcomes)
    except ImportError as error:
        raise BadInput("pages need the plotting library: pip install 'plan-parallel[html]'") from error
    body = "".join(
        [
            f"<h1>{escape(title)}</h1>",
            section_html("Sizes", table_html(HEADERS, [_cells(row) for row in rows(outcomes)])),
            bullets_html(batch_budget(outcomes)),
            section_html("Scaling", figure_html("scaling", {"scaling": figure.layout.meta["caption"]})),
        ]
    )
    return whole_page(title, body, {"scaling": figure})


def _scaling_figure(outcomes: Sequence[Outcome]) -> Any:
    """Tokens per second against GPUs, by accelerator, and what perfect scaling would give."""
    import plotly.graph_objects as go

    from planner.report.page.figures import PALETTE, figure_layout

    figure = go.Figure()
    for colour, name in zip(cycle(PALETTE), sorted({outcome.hardware for outcome in outcomes}), strict=False):
        own = [outcome for outcome in ordered(outcomes) if outcome.hardware == name and outcome.figures]
        if not own:
            continue
        sizes, rates = [o.gpus for o in own], [o.figures["tokens_per_s"] for o in own]
        notes = [f"{o.plan}<br>{o.figures['peak_memory_bytes'] / GB:.1f} GB" for o in own]
        line = {"color": colour}
        figure.add_scatter(x=sizes, y=rates, text=notes, name=name, mode="lines+markers", line=line)
        ideal = [rates[0] * size / sizes[0] for size in sizes]
        dotted = {**line, "dash": "dot"}
        figure.add_scatter(x=sizes, y=ideal, name=f"{name}, ideal", mode="lines", line=dotted)
    figure.update_layout(
        figure_layout("Best plan of each size, and ideal scaling", "GPUs", "tokens per second")
    )
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return figure
