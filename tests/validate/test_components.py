"""Single parts: every published row is predicted or skipped with a reason, within known errors."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from planner.validate.components import ComponentResult, component_results, is_component

COMPONENTS = Path(__file__).parent.parent / "data" / "measured" / "components.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in COMPONENTS.read_text().splitlines()]
RESULTS = component_results(ROWS)


def errors(kind: str) -> list[float]:
    return [result.error_pct for result in RESULTS if result.kind == kind and result.error_pct is not None]


def test_every_row_has_a_result_and_none_is_skipped() -> None:
    assert {result.id for result in RESULTS} == {row["id"] for row in ROWS}
    assert [result.id for result in RESULTS if result.skipped] == []
    # attention and expert layers are measured forward and backward
    assert len(RESULTS) == 32 + 32 + 2 * 4 + 2 * 12


@pytest.mark.parametrize(
    ("kind", "median", "worst"),
    [
        ("collective", 3, 80),  # the worst is the source's own outlier at 32 bytes
        ("moe token dispatch", 8, 23),
        ("moe token combine", 10, 23),
        ("attention kernel", 7, 18),
        ("MoE layer fwd/bwd", 10, 25),
    ],
)
def test_errors_by_kind(kind: str, median: float, worst: float) -> None:
    sizes = [abs(error) for error in errors(kind)]
    assert statistics.median(sizes) < median
    assert max(sizes) < worst


def test_predictions_do_not_read_what_was_measured() -> None:
    for row in ROWS[::7]:
        inflated = {key: row[key] * 10 for key in ("time_us", "out_of_place_us") if key in row}
        before, after = component_results([row]), component_results([{**row, **inflated}])
        assert [result.predicted_s for result in before] == [result.predicted_s for result in after]


def test_strange_rows_are_skipped_with_a_reason() -> None:
    row = ROWS[0]
    strange = [
        {"id": "a", "kind": "poem"},
        {**row, "op": "gossip"},
        {**row, "bytes": "many"},
        {**row, "hardware": {"gpu": "h1000", "num_gpus": 8}},
        {key: value for key, value in row.items() if key != "bytes"},
        {**ROWS[-1], "config": {**ROWS[-1]["config"], "precision": "int3"}},
    ]
    results = component_results(strange)
    assert len(results) == len(strange)
    assert all(
        result.skipped and result.predicted_s is None and result.error_pct is None for result in results
    )
    assert "poem" in str(results[0].skipped)
    assert "did you mean" in str(results[3].skipped)


def test_component_rows_are_told_apart_from_training_runs() -> None:
    assert all(is_component(row) for row in ROWS)
    assert not is_component({"id": "x", "model": {}, "cluster": {}, "config": {}, "measured": {}})


def test_error_is_signed_and_in_per_cent() -> None:
    assert ComponentResult("a", "collective", "time", 1.1, 1.0).error_pct == pytest.approx(10.0)
