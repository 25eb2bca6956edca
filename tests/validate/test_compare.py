"""The report: its format, its statistics by hand, and the accuracy that the repository holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_measured import row

from planner.validate.compare import (
    describe,
    error_statistics,
    spearman,
    summarise,
    validate_file,
    validate_rows,
)
from planner.validate.families import FAMILIES, FamilyRow

MEASURED = Path(__file__).parents[1] / "data" / "measured"
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ROW_KEYS = {
    "id", "group", "predicted_step_s", "measured_step_s", "time_error_pct", "predicted_memory_gb",
    "measured_memory_gb", "memory_error_pct", "predicted_fits", "legal", "skipped",
}  # fmt: skip


def test_statistics_by_hand() -> None:
    # sizes 1, 2, 3, 4: median 2.5, mean 2.5, p90 3.7; signed mean (1 - 2 + 3 - 4) / 4
    figures = error_statistics([1.0, -2.0, None, 3.0, -4.0])
    assert figures == pytest.approx(
        {"n": 4, "median_pct": 2.5, "mean_pct": 2.5, "p90_pct": 3.7, "mean_signed_pct": -0.5, "max_pct": 4.0}
    )
    assert error_statistics([None]) == {"n": 0}


def test_rank_correlation_by_hand() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # ranks 1 2 3 4 against 2 1 4 3: 1 - 6 * 4 / (4 * 15)
    assert spearman([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0


def test_every_row_is_reported_in_order() -> None:
    rows: list[dict[str, Any]] = [row(), row(accelerator="abacus"), {"id": "bare"}, row(measured={})]
    report = validate_rows(rows)
    assert [entry["id"] for entry in report["rows"]] == ["one", "one", "bare", "one"]
    assert all(set(entry) == ROW_KEYS for entry in report["rows"])
    assert [entry["skipped"] is None for entry in report["rows"]] == [True, False, False, True]
    assert report["rows"][1]["measured_step_s"] == 1.0
    assert report["rows"][3]["time_error_pct"] is None
    assert report["summary"]["skipped"] == 2
    json.dumps(report)


def test_predictions_do_not_depend_on_measurements() -> None:
    ones = [row(measured={"step_time_s": seconds, "peak_memory_gb": 10 * seconds}) for seconds in (1.0, 7.0)]
    one, other = validate_rows(ones)["rows"]
    for key in ("predicted_step_s", "predicted_memory_gb", "predicted_fits", "legal"):
        assert one[key] == other[key]
    assert one["time_error_pct"] > other["time_error_pct"]


def test_regret_is_what_the_choice_costs() -> None:
    rows = []
    for index, (b, seconds) in enumerate([(1, 3.0), (2, 2.0), (4, 4.0)]):
        entry = row(micro_batch=b, measured={"step_time_s": seconds})
        rows.append({**entry, "id": str(index), "group": "g"})
    report = validate_rows(rows)
    group = report["summary"]["ranking"]["groups"]["g"]
    predicted = {
        entry["id"]: entry["predicted_step_s"] for entry in report["rows"] if entry["predicted_fits"]
    }
    chosen = min(predicted, key=lambda name: predicted[name])
    assert group["chosen"] == chosen
    assert group["regret_pct"] == pytest.approx(100 * ({"0": 3.0, "1": 2.0, "2": 4.0}[chosen] / 2.0 - 1))


def test_no_groups_and_no_rows_summarise() -> None:
    assert summarise([])["ranking"] == {"groups": {}}


def test_the_sequence_parallel_paper() -> None:
    """Eight runs of 22B to 1T on A100 (arXiv 2205.05198): mean and worst error of the best published tool."""
    report = validate_file(MEASURED / "sequence_parallel_paper.jsonl")
    figures = report["summary"]["families"]["sequence-parallel paper"]["time"]
    assert figures["n"] == 8
    assert figures["mean_pct"] <= 3.65
    assert figures["max_pct"] <= 5.0


def test_accuracy_on_published_runs_holds() -> None:
    """Every fourth row of the calibration file, against bounds a little above the figures of today."""
    lines = (MEASURED / "calibration.jsonl").read_text().splitlines()[::4]
    rows = describe([json.loads(line) for line in lines])
    summary = summarise(rows)
    families = summary["families"]
    assert summary["skipped"] <= 0.03 * len(lines)
    assert families["tier A pre-training"]["time"]["median_pct"] < 5.5
    assert families["tier A pre-training"]["time"]["p90_pct"] < 21.0
    assert families["low precision"]["time"]["median_pct"] < 7.0
    assert families["mixture of experts"]["time"]["median_pct"] < 11.5
    dense = families["dense bf16 on A100 and H100, sweep rows left out"]["time"]
    assert abs(dense["mean_signed_pct"]) < 2.0
    assert dense["median_pct"] < 3.2
    assert dense["p90_pct"] < 9.0
    with_sweep = families["dense bf16 on A100 and H100"]["time"]
    assert with_sweep["median_pct"] < 4.0
    assert abs(with_sweep["mean_signed_pct"]) < 3.0
    assert families["adapters (LoRA)"]["time"]["median_pct"] < 5.0
    fits = summary["out_of_memory"]
    assert fits["ran_and_predicted_to_fit"] >= 0.97 * fits["ran"]
    _held_out_sources_hold(rows)


def _held_out_sources_hold(rows: list[FamilyRow]) -> None:
    """Errors of the fits that never saw a row's source, as ``accuracy.py --rotate`` left them."""
    kept = json.loads((BENCHMARKS / "held_out_sources.json").read_text())

    def figures(name: str) -> dict[str, float]:
        members = [row.result.id for row in rows if row.case is not None and FAMILIES[name](row)]
        return error_statistics([kept[one] for one in members if one in kept])

    dense = figures("dense bf16 on A100 and H100")
    assert dense["n"] >= 50
    assert dense["median_pct"] < 5.0
    assert dense["p90_pct"] < 15.0
    assert abs(dense["mean_signed_pct"]) < 3.0  # of this quarter; of all rows 1.7
    everything = figures("tier A pre-training")
    assert everything["median_pct"] < 7.5
    assert everything["p90_pct"] < 25.0


def test_ranking_of_the_sweep_holds() -> None:
    """Two groups of plans for one problem each: the chosen plan is nearly the best measured one."""
    lines = (MEASURED / "sweep_calibration.jsonl").read_text().splitlines()
    rows = [entry for entry in map(json.loads, lines) if entry["group"] in ("1B-n1", "3B-n2")]
    ranking = validate_rows([entry for entry in rows if not entry["measured"].get("failed")])["summary"][
        "ranking"
    ]
    assert ranking["worst_regret_pct"] < 5.0
    assert ranking["mean_spearman"] > 0.8
