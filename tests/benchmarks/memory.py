"""Predicted against measured peak memory of the published runs: ``python tests/benchmarks/memory.py``.

Writes ``memory.md``: residuals by framework and dimension, the worst rows, and how many runs and
out-of-memory rows are told apart. ``memory_table`` alone gives the summary as a Markdown table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost.memory import memory
from planner.errors import BadInput
from planner.validate.measured import to_case
from planner.validate.memory import compared_memory, measured_memory_bytes

DATA = Path(__file__).parents[1] / "data" / "measured"
FILES = ("calibration.jsonl", "sweep_calibration.jsonl")
HEAD = "| rows | number | median signed | median absolute | 90th percentile |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Compared:
    """One row: what was predicted, what was measured, and whether it was said to run."""

    row: dict[str, Any]
    predicted_bytes: float
    measured_bytes: float | None
    fits: bool

    @property
    def error(self) -> float:
        """Relative error of the prediction, nan without a measured figure."""
        return self.predicted_bytes / self.measured_bytes - 1 if self.measured_bytes else float("nan")


def load_rows() -> list[dict[str, Any]]:
    """Read every row of both files."""
    lines = (line for name in FILES for line in (DATA / name).read_text().splitlines())
    return [json.loads(line) for line in lines if line.strip()]


def compare(rows: Iterable[dict[str, Any]]) -> list[Compared]:
    """Price every row that can be read."""
    done = []
    for row in rows:
        try:
            case = to_case(row)
        except BadInput:
            continue
        ranks = memory(case.plan, case.request)
        done.append(
            Compared(
                row=row,
                predicted_bytes=compared_memory(ranks, row, case.request.framework.memory),
                measured_bytes=measured_memory_bytes(row),
                fits=max(float(rank.total) for rank in ranks) <= case.request.cluster.usable_hbm_bytes,
            )
        )
    return done


def stated(rows: Iterable[Compared]) -> list[Compared]:
    """Rows with a measured figure."""
    return [one for one in rows if one.measured_bytes]


def summary(rows: list[Compared]) -> tuple[int, float, float, float]:
    """Number of rows, median signed error, median and 90th percentile of the absolute error."""
    errors = np.array([one.error for one in rows])
    return (
        len(rows),
        float(np.median(errors)),
        float(np.median(abs(errors))),
        float(np.quantile(abs(errors), 0.9)),
    )


def by(rows: list[Compared], key: Callable[[dict[str, Any]], Any]) -> dict[str, list[Compared]]:
    """Group rows by a value of the row."""
    groups: dict[str, list[Compared]] = {}
    for one in rows:
        groups.setdefault(str(key(one.row)), []).append(one)
    return dict(sorted(groups.items()))


def fit_counts(rows: list[Compared]) -> tuple[int, int, int, int]:
    """Runs predicted to fit, runs; out-of-memory rows predicted not to fit, out-of-memory rows."""
    ran = [one for one in rows if one.row["measured"].get("step_time_s")]
    failed = [one for one in rows if one.row["measured"].get("out_of_memory") is True]
    return sum(one.fits for one in ran), len(ran), sum(not one.fits for one in failed), len(failed)


def _line(name: str, rows: list[Compared]) -> str:
    count, bias, median, worst = summary(rows)
    return f"| {name} | {count} | {bias:+.1%} | {median:.1%} | {worst:.1%} |"


def memory_table(rows: Iterable[dict[str, Any]]) -> str:
    """Markdown table of the memory errors of these rows by framework, with the fit counts below it."""
    compared = compare(rows)
    measured = stated(compared)
    lines = [HEAD, _line("all", measured)]
    published = [one for one in measured if "group" not in one.row]
    if published and len(published) < len(measured):
        lines.append(_line("published runs (without the sweep)", published))
    lines += [_line(name, group) for name, group in by(published, lambda row: row["framework"]).items()]
    sweep = [one for one in measured if "group" in one.row]
    if sweep:
        lines.append(_line("sweep (nanotron, rank 0)", sweep))
    fit, ran, refused, failed = fit_counts(compared)
    lines += ["", f"Rows that ran and are predicted to fit: {fit} of {ran}."]
    lines.append(f"Rows known to be out of memory and predicted not to fit: {refused} of {failed}.")
    return "\n".join(lines)


def report(rows: list[dict[str, Any]]) -> str:
    """Markdown report: the table, residuals by dimension, the worst rows."""
    measured = stated(compare(rows))
    parts = ["# Memory: predicted against measured", "", memory_table(rows)]
    for key in ("accelerator", "tensor_parallel", "pipeline_parallel", "zero_stage", "micro_batch"):
        table = "cluster" if key == "accelerator" else "config"
        groups = by(measured, lambda row, table=table, key=key: row[table].get(key))
        parts += ["", f"## By {key.replace('_', ' ')}", "", HEAD]
        parts += [_line(name, group) for name, group in groups.items()]
    parts += ["", "## Worst rows", "", "| row | error |", "|---|---|"]
    worst = sorted(measured, key=lambda one: -abs(one.error))[:25]
    parts += [f"| {one.row['id']} | {one.error:+.0%} |" for one in worst]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write ``memory.md`` beside this file and print it."""
    text = report(load_rows())
    (Path(__file__).parent / "memory.md").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
