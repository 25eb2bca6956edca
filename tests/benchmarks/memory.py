"""Predicted against measured peak memory of the published runs: ``python tests/benchmarks/memory.py``.

Writes ``memory.md``: residuals by framework and dimension, the worst rows, how many runs and out-of-memory
rows are told apart, and the error when the few fitted constants are fitted again without a source (or model
size) and tried on it. ``memory_table`` alone gives the summary as a Markdown table.

Most constants of a framework's ``MemoryHabits`` are facts: bytes that its code keeps, buckets and workspaces
of its configuration, what its log prints. They are not chosen on these rows, so there is nothing to hold out.
``FITTED`` lists the others.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost.memory import memory
from planner.errors import BadInput
from planner.spec.framework import MemoryHabits
from planner.validate.measured import Case, to_case
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
        capacity = case.request.cluster.usable_hbm_bytes
        done.append(
            Compared(
                row=row,
                predicted_bytes=compared_memory(ranks, row, case.request.framework.memory, capacity),
                measured_bytes=measured_memory_bytes(row),
                fits=max(float(rank.total) for rank in ranks) <= capacity,
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


FITTED: dict[str, dict[str, tuple[float, ...]]] = {
    "nanotron": {
        "gathered_window_bytes": (60.0, 70.0, 80.0, 90.0, 100.0),
        "loss_peak_bytes": (8.0, 10.0, 12.0),
        "workspace_bytes": (0.0, 0.1e9, 0.2e9, 0.3e9),
    },
    "megatron-deepspeed": {"checkpoint_bytes": (2.0, 2.2, 2.4, 2.6), "bucket_bytes": (2e9, 4e9)},
    "primus": {"context_bytes": (0.8e9, 3.8e9, 5.3e9, 6.8e9, 8.3e9)},
    "torchtitan": {"reserved_over_allocated": (1.0, 1.03, 1.06)},
    "paddle": {"reserved_over_allocated": (1.03, 1.06, 1.09, 1.12, 1.15, 1.18)},
}
"""Constants that are fitted to runs and not read off code or data sheets, and the values that are tried."""


TARGETS = (0.04, 0.12)
"""Median and 90th percentile of the absolute error that are aimed at."""


def held_out(rows: list[dict[str, Any]]) -> list[str]:
    """Errors on parts of the data that the fitted constants have not seen: by framework, then of all rows.

    Each framework's constants are chosen, by median and 90th percentile over their targets, on its other
    parts; a framework with one part alone keeps the values that all frameworks share. Rows of other
    frameworks are priced as shipped: their constants are facts (module docstring).
    """
    lines = [
        "| framework | held out by turns | rows | median as fitted | held out | p90 as fitted | held out |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    errors = {id(one.row): one.error for one in stated(compare(rows))}
    for name, constants in FITTED.items():
        cases = _cases(rows, name)
        shipped = np.array([errors[id(row)] for row, _ in cases])
        unseen = _unseen(cases, constants)
        figures = [f"{np.quantile(abs(e), q):.1%}" for q in (0.5, 0.9) for e in (shipped, unseen)]
        parts = len({_part(row) for row, _ in cases})
        kind = ("model size" if name == "nanotron" else "source") + ("s" if parts > 1 else "")
        lines.append(f"| {name} | {parts} {kind} | {len(cases)} | {' | '.join(figures)} |")
        errors |= {id(row): float(error) for (row, _), error in zip(cases, unseen, strict=True)}
    groups = {
        "published runs": [row for row in rows if id(row) in errors and "group" not in row],
        "sweep": [row for row in rows if id(row) in errors and "group" in row],
    }
    lines += ["", "Every row with constants that were chosen without it:", "", HEAD]
    for name, group in groups.items():
        found = np.array([errors[id(row)] for row in group])
        bias, median, worst = np.median(found), np.median(abs(found)), np.quantile(abs(found), 0.9)
        lines.append(f"| {name} | {len(group)} | {bias:+.1%} | {median:.1%} | {worst:.1%} |")
    return lines


def _cases(rows: Iterable[dict[str, Any]], name: str) -> list[tuple[dict[str, Any], Case]]:
    stating = [row for row in rows if measured_memory_bytes(row) and row["framework"] == name]
    return [(row, to_case(row)) for row in stating]


def _part(row: dict[str, Any]) -> str:
    """What is held out together: a model size of the sweep, else a source up to its first figure."""
    if row["framework"] == "nanotron":
        return str(row["model"]["hidden_size"])
    return re.split(r"[ |@]", str(row["source"]))[0]


def _errors(cases: list[tuple[dict[str, Any], Case]], changes: dict[str, float]) -> np.ndarray:
    found = []
    for row, case in cases:
        framework = case.request.framework
        habits = framework.memory.model_copy(update=changes)
        changed = framework.model_copy(update={"memory": habits})
        request = case.request.model_copy(update={"framework": changed})
        capacity = request.cluster.usable_hbm_bytes
        predicted = compared_memory(memory(case.plan, request), row, habits, capacity)
        found.append(predicted / (measured_memory_bytes(row) or 1.0) - 1)
    return np.array(found)


def _unseen(cases: list[tuple[dict[str, Any], Case]], constants: dict[str, tuple[float, ...]]) -> np.ndarray:
    """Error of every row with the constants that suit the other parts best."""
    parts = np.array([_part(row) for row, _ in cases])
    if len(set(parts)) == 1:
        return _errors(cases, {name: getattr(MemoryHabits(), name) for name in constants})
    tried = [dict(zip(constants, values, strict=True)) for values in product(*constants.values())]
    errors = np.array([_errors(cases, choice) for choice in tried])
    found = np.empty(len(cases))
    for part in set(parts):
        seen = parts != part
        medians, tails = np.quantile(abs(errors[:, seen]), (0.5, 0.9), axis=1)
        best = np.argmin(medians / TARGETS[0] + tails / TARGETS[1])
        found[~seen] = errors[best, ~seen]
    return found


HELD_OUT = (
    "Most constants of memory are facts: bytes that a framework's code keeps, buckets of its configuration, "
    "what its log prints. The others are "
    + "; ".join(f"{', '.join(names)} of {framework}" for framework, names in FITTED.items())
    + ". They are chosen again without a part of the rows and tried on it, part by part."
)
"""What the section on held-out rows says first."""


def report(rows: list[dict[str, Any]]) -> str:
    """Markdown report: the table, residuals by dimension, the worst rows."""
    measured = stated(compare(rows))
    parts = ["# Memory: predicted against measured", "", memory_table(rows)]
    for key in ("accelerator", "tensor_parallel", "pipeline_parallel", "zero_stage", "micro_batch"):
        table = "cluster" if key == "accelerator" else "config"
        groups = by(measured, lambda row, table=table, key=key: row[table].get(key))
        parts += ["", f"## By {key.replace('_', ' ')}", "", HEAD]
        parts += [_line(name, group) for name, group in groups.items()]
    parts += ["", "## Held out", "", HELD_OUT, "", *held_out(rows)]
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
