"""Write ``accuracy.md``: errors of every published run by family and by whatever may show structure.

Run ``python tests/benchmarks/accuracy.py`` from the repository root (about a minute). ``--rotate``
also refits the constants with whole sources, and with whole models, held out (some five minutes), and keeps
the errors of the held-out rows in ``held_out_*.json``; a plain run shows those.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from fit import FILES, Sample, in_sweep, log_error, samples, source_of, start_values
from shrink import linearise, solve

from planner.cost.confidence import family, generation
from planner.validate.compare import RowResult, error_statistics, summarise
from planner.validate.families import FAMILIES, FamilyRow
from planner.validate.measured import read_rows

HERE = Path(__file__).parent
MEASURED = HERE.parents[0] / "data" / "measured"
FOLDS = 16
TARGETS = {
    "dense bf16 on A100 and H100": "median <= 5, p90 <= 15, mean within 2",
    "tier A pre-training": "median <= 8, p90 <= 25",
    "sequence-parallel paper": "mean <= 3.65, max <= 8.87",
}
"""What the figures should reach. [%]"""

Key = Callable[[FamilyRow], object]
SLICES: dict[str, Key] = {
    "accelerator": lambda row: row.case.request.cluster.accelerator.name if row.case else None,
    "framework": lambda row: row.case.request.framework.name if row.case else None,
    "precision": lambda row: row.case.plan.precision if row.case else None,
    "tensor parallel": lambda row: row.case.plan.tensor_parallel if row.case else None,
    "pipeline parallel": lambda row: row.case.plan.pipeline_parallel if row.case else None,
    "context parallel": lambda row: row.case.plan.context_parallel if row.case else None,
    "expert parallel": lambda row: row.case.plan.expert_parallel if row.case else None,
    "micro-batch": lambda row: row.case.plan.micro_batch if row.case else None,
    "sequence length": lambda row: row.case.request.workload.seq_length if row.case else None,
    "GPUs (power of two)": lambda row: 2 ** round(np.log2(row.case.plan.num_gpus)) if row.case else None,
    "hidden size": lambda row: row.case.request.model.hidden_size if row.case else None,
    "source": lambda row: source_of(row.row),
}


def described_rows() -> list[FamilyRow]:
    """All rows of the measured files with their cases and predictions."""
    from planner.validate.compare import describe

    return [described for name in FILES for described in describe(read_rows(MEASURED / name))]


def table(heading: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    head = list(heading)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def statistics_row(name: object, errors: Iterable[float | None]) -> list[object]:
    """Name, count, median, p90, mean signed, max of one set of errors."""
    figures = error_statistics(errors)
    keys = ("n", "median_pct", "p90_pct", "mean_signed_pct", "max_pct")
    return [name, *(figures.get(key, "") for key in keys)]


HEADING = ("", "n", "median", "p90", "mean signed", "max")


def family_tables(rows: list[FamilyRow]) -> str:
    """Time and memory errors of every family beside the target."""
    time, memory = [], []
    for name, belongs in FAMILIES.items():
        members = [row.result for row in rows if row.case is not None and belongs(row)]
        figures = error_statistics(result.time_error_pct for result in members)
        time.append(
            [
                *statistics_row(name, (r.time_error_pct for r in members)),
                figures.get("mean_pct", ""),
                TARGETS.get(name, ""),
            ]
        )
        memory.append(statistics_row(name, (r.memory_error_pct for r in members)))
    text = "## Step time by family [%]\n\n" + table((*HEADING, "mean", "target"), time)
    return text + "\n## Peak memory by family [%]\n\n" + table(HEADING, memory)


def ranking_table(rows: list[FamilyRow]) -> str:
    """Regret and rank correlation of every group of the sweep."""
    ranking = summarise(rows)["ranking"]
    lines = [
        [name, g["n"], g["regret_pct"], f"{g['spearman']:.2f}"]
        for name, g in sorted(ranking["groups"].items())
    ]
    summary = (
        f"Median regret {ranking['median_regret_pct']:.1f} % (target 2), worst "
        f"{ranking['worst_regret_pct']:.1f} % (target 10); median rank correlation "
        f"{ranking['median_spearman']:.2f}, mean {ranking['mean_spearman']:.2f} (target 0.85).\n\n"
    )
    return "## Ranking of the sweep\n\n" + summary + table(("group", "n", "regret %", "Spearman"), lines)


def slice_tables(rows: list[FamilyRow]) -> str:
    """Errors of tier A pre-training rows by one property at a time; structure here means missing physics."""
    belongs = FAMILIES["tier A pre-training"]
    members = [row for row in rows if row.case is not None and belongs(row)]
    text = "## Where the errors are: tier A pre-training by one property at a time [%]\n"
    for name, key in SLICES.items():
        groups: dict[Any, list[float | None]] = defaultdict(list)
        for row in members:
            groups[key(row)].append(row.result.time_error_pct)
        lines = [
            statistics_row(value, errors)
            for value, errors in sorted(groups.items(), key=lambda x: str(x[0]).zfill(9))
        ]
        text += f"\n### {name}\n\n" + table(HEADING, [line for line in lines if int(str(line[1])) >= 3])
    return text


def band_table(rows: list[FamilyRow]) -> dict[tuple[str, str, str], float]:
    """80th percentile by family of ``planner.cost.confidence``, of rows held out with their source."""
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    belongs = FAMILIES["tier A pre-training"]
    kept = json.loads((HERE / "held_out_sources.json").read_text())
    for row in rows:
        if row.case is not None and belongs(row) and row.result.id in kept:
            groups[family(row.case.request, row.case.plan)].append(abs(kept[row.result.id]))
    return {
        key: float(np.quantile(errors, 0.8)) for key, errors in sorted(groups.items()) if len(errors) >= 3
    }


HELD_OUT: dict[str, Callable[[Sample], str]] = {
    "sources": lambda sample: source_of(sample.row),
    "models": lambda sample: str(sample.row["model"].get("name")).lower(),
}
"""What is held out as a whole. A source is often all that is known of a framework: the harder test."""


def folds(rows: list[Sample], unit: Callable[[Sample], str]) -> list[list[int]]:
    """Indices of held-out rows: whole units, spread so that folds have similar size."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, sample in enumerate(rows):
        members[unit(sample)].append(index)
    held: list[list[int]] = [[] for _ in range(FOLDS)]
    for indices in sorted(members.values(), key=len, reverse=True):
        min(held, key=len).extend(indices)
    return held


def rotate() -> None:
    """Fit without each fold in turn, whole sources and then whole models, and keep the errors of the folds.

    The derivatives are computed once; every held-out row is priced exactly with the values of the fit that
    did not see it. The sweep's rows are one source with a framework of their own: only models are held out.
    """
    rows = samples([MEASURED / name for name in FILES])
    model = linearise(rows, start_values())
    for unit, name_of in HELD_OUT.items():
        kept: dict[str, float] = {}
        for held in folds(rows, name_of):
            values, _ = solve(model.without(held))
            for index in held:
                if unit == "sources" and in_sweep(rows[index]):
                    continue
                kept[str(rows[index].row["id"])] = 100.0 * (np.exp(log_error(rows[index], values)) - 1.0)
        text = json.dumps({name: round(error, 2) for name, error in sorted(kept.items())}, indent=0)
        (HERE / f"held_out_{unit}.json").write_text(text + "\n")
        print(f"held out by {unit}: {len(kept)} rows", flush=True)


def held_out_table(rows: list[FamilyRow], unit: str) -> str:
    """Errors of rows whose source or model was held out of the fit."""
    path = HERE / f"held_out_{unit}.json"
    if not path.exists():
        return ""
    kept = json.loads(path.read_text())
    lines = []
    for name, belongs in FAMILIES.items():
        members = [row for row in rows if row.case is not None and belongs(row)]
        errors = [kept[row.result.id] for row in members if row.result.id in kept]
        figures = error_statistics(errors)
        lines.append([*statistics_row(name, errors), figures.get("mean_pct", ""), TARGETS.get(name, "")])
    missing = "the sweep's own cluster is" if unit == "sources" else "failed runs of the sweep are"
    intro = (
        f"Constants refitted in {FOLDS} folds, each without whole {unit}; every row is predicted by the fit "
        f"that did not see it ({missing} missing). A part or a framework that only held-out rows cover gets "
        "the values shared by its generation or by its family of frameworks.\n\n"
    )
    return (
        f"## Held out by {unit}: step time by family [%]\n\n"
        + intro
        + table((*HEADING, "mean", "target"), lines)
    )


def plot(rows: list[FamilyRow], path: Path) -> bool:
    """Residuals against the number of GPUs, one colour a generation; False without matplotlib."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return False
    figure, axes = pyplot.subplots(figsize=(9, 5))
    groups: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        if row.case is not None and row.result.time_error_pct is not None and not row.row.get("group"):
            name = generation(row.case.request.cluster.accelerator.name)
            groups[name].append((row.case.plan.num_gpus, row.result.time_error_pct))
    for name, points in sorted(groups.items()):
        axes.scatter(*zip(*points, strict=True), s=8, label=name)
    axes.set(xscale="log", ylim=(-60, 60), xlabel="GPUs", ylabel="error of the step time [%]")
    axes.axhline(0, color="black", linewidth=0.5)
    axes.legend()
    figure.savefig(path, dpi=110)
    return True


def report(rows: list[FamilyRow], plotted: bool) -> str:
    """The whole page."""
    summary = summarise(rows)
    fits = summary["out_of_memory"]
    results: list[RowResult] = [row.result for row in rows]
    skipped = "; ".join(sorted({result.skipped for result in results if result.skipped}))
    head = (
        "# Accuracy on published runs\n\nWritten by `tests/benchmarks/accuracy.py`; errors are predicted "
        f"over measured, minus one. {summary['rows']} rows, {summary['skipped']} skipped"
        f"{f' ({skipped})' if skipped else ''}.\n\n"
        f"Of {fits['ran']} rows that ran, {fits['ran_and_predicted_to_fit']} are predicted to fit; of "
        f"{fits['ran_out']} known to have run out of memory, {fits['ran_out_and_predicted_not_to_fit']} are "
        "predicted not to.\n\n"
    )
    picture = "![residuals](accuracy.png)\n\n" if plotted else ""
    bands = table(
        ("generation", "architecture", "width", "80th percentile"),
        [(*key, value) for key, value in band_table(rows).items()],
    )
    parts = (
        family_tables(rows), *(held_out_table(rows, unit) for unit in HELD_OUT), ranking_table(rows),
        "## Error bands (planner/cost/confidence.py) [%]\n\n" + bands, slice_tables(rows),
    )  # fmt: skip
    return head + picture + "\n".join(part for part in parts if part)


def main() -> None:
    """Write the page (and, with ``--rotate``, the held-out errors first)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rotate", action="store_true")
    options = parser.parse_args()
    if options.rotate:
        rotate()
    rows = described_rows()
    plotted = plot(rows, HERE / "accuracy.png")
    (HERE / "accuracy.md").write_text(report(rows, plotted))
    print(f"wrote {HERE / 'accuracy.md'}")


if __name__ == "__main__":
    main()
