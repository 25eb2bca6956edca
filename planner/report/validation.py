"""Predicted against measured, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

from planner.report.table import section


def validation_text(report: Mapping[str, Any]) -> str:
    """Errors by family, memory verdicts, ranking, and what was skipped and why."""
    summary = report["summary"]
    memory, ranking = summary["out_of_memory"], summary["ranking"]
    parts = [
        f"{summary['rows']} rows, {summary['skipped']} skipped, {summary['legal']} legal\n",
        section("Error by family", _families(summary["families"])),
        f"Fits: {memory['ran_and_predicted_to_fit']} of {memory['ran']} runs that ran, "
        f"{memory['ran_out_and_predicted_not_to_fit']} of {memory['ran_out']} that ran out of memory.",
    ]
    if ranking["groups"]:
        parts.append(
            f"Ranking: median regret {ranking['median_regret_pct']:.1f} %, "
            f"worst {ranking['worst_regret_pct']:.1f} %, "
            f"median rank correlation {ranking['median_spearman']:.2f} over {len(ranking['groups'])} groups."
        )
    reasons = _reasons(report["rows"])
    parts.append(section("Skipped", tabulate(reasons, tablefmt="plain") if reasons else ""))
    return "\n".join(parts).rstrip()


def _families(families: Mapping[str, Any]) -> str:
    rows = []
    for name, errors in families.items():
        for what in ("time", "memory"):
            found = errors[what]
            if found["n"]:
                numbers = [
                    f"{found[key]:.1f}" for key in ("median_pct", "p90_pct", "max_pct", "mean_signed_pct")
                ]
                rows.append([name, what, found["n"], *numbers])
    headers = ("family", "of", "rows", "median %", "p90 %", "max %", "signed mean %")
    return tabulate(rows, headers, disable_numparse=True)


def _reasons(rows: list[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Each reason for skipping and how many rows it took, the most frequent first."""
    counts: dict[str, int] = {}
    for row in rows:
        if row["skipped"]:
            counts[row["skipped"]] = counts.get(row["skipped"], 0) + 1
    return sorted(((count, reason) for reason, count in counts.items()), reverse=True)
