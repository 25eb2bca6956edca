"""Predicted against measured: one report of every row, and its summary by family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost.memory import memory
from planner.cost.step import step_time, tight_memory_factor
from planner.errors import BadInput
from planner.rules import broken_rules
from planner.validate.families import FAMILIES, FamilyRow
from planner.validate.measured import Case, Row, read_rows, to_case
from planner.validate.memory import compared_memory, measured_memory_bytes, stated_unit_bytes
from planner.validate.typed import readable


@dataclass(frozen=True)
class RowResult:
    """One row of the report; field names are those of the JSON."""

    id: str
    group: str | None
    predicted_step_s: float | None = None
    measured_step_s: float | None = None
    time_error_pct: float | None = None
    predicted_memory_gb: float | None = None
    measured_memory_gb: float | None = None
    memory_error_pct: float | None = None
    predicted_fits: bool | None = None
    legal: bool | None = None
    skipped: str | None = None


def validate_file(path: str | Path) -> dict[str, Any]:
    """Predict every row of a JSON-lines file of measured runs and compare.

    Returns
    -------
    dict
        ``rows``: one entry per line of the file, in order, none left out (``skipped`` says why one could not
        be predicted); ``summary``: errors by family, out-of-memory counts, ranking per group.

    Raises
    ------
    BadInput
        The file cannot be read, or no line of it is JSON.
    """
    rows = read_rows(Path(path))
    if rows and all("unreadable" in row for row in rows):
        raise BadInput(f"{path}: no line is JSON (the first: {rows[0]['unreadable']})")
    return validate_rows(rows)


def validate_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Predict and compare rows that are already read."""
    described = describe(rows)
    return {"rows": [asdict(row.result) for row in described], "summary": summarise(described)}


def describe(rows: Sequence[Row]) -> list[FamilyRow]:
    """Predict every row and keep it beside what was read from it."""
    described = []
    for row in map(readable, rows):
        case, reason = _case(row)
        result = _skipped(row, reason) if case is None else _predict(row, case)
        described.append(FamilyRow(row, case, result))
    return described


def _case(row: Row) -> tuple[Case | None, str]:
    try:
        return to_case(row), ""
    except BadInput as problem:
        return None, str(problem)


def _skipped(row: Row, reason: str) -> RowResult:
    step, peak = _measured(row)
    return RowResult(
        str(row.get("id")), row.get("group"), measured_step_s=step, measured_memory_gb=peak, skipped=reason
    )


def _predict(row: Row, case: Case) -> RowResult:
    """Price the case, and only then look at what was measured."""
    try:
        stages = memory(case.plan, case.request)
        device = max(float(stage.total) for stage in stages)
        predicted_s = float(step_time(case.plan, case.request).total) * tight_memory_factor(
            device, case.request
        )
        broken = broken_rules(case.plan, case.request)
    except BadInput as problem:
        return _skipped(row, str(problem))
    step, peak = _measured(row)
    habits, capacity = case.request.framework.memory, case.request.cluster.usable_hbm_bytes
    compared = compared_memory(stages, row, habits, capacity)
    measured_bytes = measured_memory_bytes(row)
    return RowResult(
        id=str(row.get("id")),
        group=row.get("group"),
        predicted_step_s=predicted_s,
        measured_step_s=step,
        time_error_pct=_error_pct(predicted_s, step),
        predicted_memory_gb=compared / stated_unit_bytes(row),
        measured_memory_gb=peak,
        memory_error_pct=_error_pct(compared, measured_bytes),
        predicted_fits=device <= case.request.cluster.usable_hbm_bytes,
        legal=not [rule for rule in broken if rule != "every_stage_fits_in_memory"],
    )


def _measured(row: Row) -> tuple[float | None, float | None]:
    measured = row.get("measured")
    if not isinstance(measured, dict):
        return None, None
    return measured.get("step_time_s"), measured.get("peak_memory_gb")


def _error_pct(predicted: float, measured: float | None) -> float | None:
    return None if not measured else 100.0 * (predicted / measured - 1.0)


def summarise(rows: Sequence[FamilyRow]) -> dict[str, Any]:
    """Errors by family, out-of-memory counts and ranking of all rows."""
    skipped = sum(row.result.skipped is not None for row in rows)
    return {
        "rows": len(rows),
        "skipped": skipped,
        "legal": sum(bool(row.result.legal) for row in rows),
        "families": {name: _family(rows, belongs) for name, belongs in FAMILIES.items()},
        "out_of_memory": _fit_summary(rows),
        "ranking": _ranking(rows),
    }


def _family(rows: Iterable[FamilyRow], belongs: Callable[[FamilyRow], bool]) -> dict[str, Any]:
    members = [row.result for row in rows if row.case is not None and belongs(row)]
    return {
        "time": error_statistics([row.time_error_pct for row in members]),
        "memory": error_statistics([row.memory_error_pct for row in members]),
    }


def error_statistics(errors: Iterable[float | None]) -> dict[str, float | int]:
    """Count, median, mean and 90th percentile of the absolute error, mean signed error, maximum. [%]."""
    known = np.array([error for error in errors if error is not None], dtype=np.float64)
    if known.size == 0:
        return {"n": 0}
    size = np.abs(known)
    return {
        "n": int(known.size),
        "median_pct": float(np.median(size)),
        "mean_pct": float(size.mean()),
        "p90_pct": float(np.quantile(size, 0.9)),
        "mean_signed_pct": float(known.mean()),
        "max_pct": float(size.max()),
    }


def _fit_summary(rows: Sequence[FamilyRow]) -> dict[str, Any]:
    """Rows known to have run or to have run out of memory, and how many the memory model gets right."""
    ran = [row for row in rows if row.result.predicted_fits is not None and _ran(row)]
    failed = [row for row in rows if row.result.predicted_fits is not None and _ran_out(row)]
    return {
        "ran": len(ran),
        "ran_and_predicted_to_fit": sum(bool(row.result.predicted_fits) for row in ran),
        "ran_out": len(failed),
        "ran_out_and_predicted_not_to_fit": sum(not row.result.predicted_fits for row in failed),
    }


def _ran(row: FamilyRow) -> bool:
    return bool(row.result.measured_step_s or row.result.measured_memory_gb) and not _ran_out(row)


def _ran_out(row: FamilyRow) -> bool:
    measured = row.row.get("measured")
    return isinstance(measured, dict) and measured.get("out_of_memory") is True


def _ranking(rows: Sequence[FamilyRow]) -> dict[str, Any]:
    """Regret and rank correlation of every group of plans for one problem."""
    groups: dict[str, list[FamilyRow]] = {}
    for row in rows:
        result = row.result
        if result.group and result.measured_step_s and result.predicted_step_s:
            groups.setdefault(result.group, []).append(row)
    per_group = {name: _rank_group(members) for name, members in groups.items() if len(members) > 1}
    regrets = [group["regret_pct"] for group in per_group.values()]
    correlations = [group["spearman"] for group in per_group.values()]
    if not per_group:
        return {"groups": {}}
    return {
        "groups": per_group,
        "median_regret_pct": float(np.median(regrets)),
        "worst_regret_pct": float(max(regrets)),
        "median_spearman": float(np.median(correlations)),
        "mean_spearman": float(np.mean(correlations)),
    }


def _rank_group(members: list[FamilyRow]) -> dict[str, Any]:
    """Measured loss of the plan that would be chosen, and correlation of the two rankings.

    As in a planner's table, plans that are predicted not to fit come after all that fit.
    """
    measured = np.array([row.result.measured_step_s for row in members], dtype=np.float64)
    predicted = np.array([row.result.predicted_step_s for row in members], dtype=np.float64)
    unfit = np.array([not row.result.predicted_fits for row in members], dtype=np.float64)
    ranked = predicted + unfit * predicted.max()
    chosen = members[int(np.argmin(ranked))].result
    return {
        "n": len(members),
        "chosen": chosen.id,
        "regret_pct": 100.0 * (float(chosen.measured_step_s or 0.0) / float(measured.min()) - 1.0),
        "spearman": spearman(ranked, measured),
    }


def spearman(one: Any, other: Any) -> float:
    """Rank correlation of two samples, ties at their mean rank. [1]."""
    ranks = [_ranks(np.asarray(sample, dtype=np.float64)) for sample in (one, other)]
    if min(float(rank.std()) for rank in ranks) == 0.0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Any) -> Any:
    ordered = np.sort(values)
    first = np.searchsorted(ordered, values, side="left")
    last = np.searchsorted(ordered, values, side="right")
    return (first + last - 1) / 2.0
