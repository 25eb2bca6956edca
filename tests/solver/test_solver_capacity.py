"""What memory refuses before any layout is made: quick looks refuse nothing that the whole sum admits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from planner.api import question
from planner.solver import capacity, scan
from planner.solver.capacity import fits_and_first, fits_widest, holds_state
from planner.solver.space import FIELDS, Rows
from planner.solver.tables import OF_MEMORY, settings_by_category
from planner.spec import Plan, PlanRequest

QUESTIONS: list[dict[str, str | int]] = [
    {"model": "llama-3-70b", "gpus": 64, "hardware": "a100-40gb"},
    {"model": "mixtral-8x7b", "gpus": 32, "hardware": "h100"},
    {"model": "deepseek-v2-lite", "gpus": 12, "hardware": "a100-40gb", "framework": "any"},
    {"model": "llama-3-8b", "gpus": 8, "hardware": "rtx-4090", "framework": "pytorch"},
    {"model": "13b", "gpus": 16, "hardware": "v100", "framework": "nanotron"},
]
WORK_ROWS = 30


@pytest.fixture(scope="module")
def asked() -> list[tuple[PlanRequest, Rows]]:
    """Requests with settings whose memory their scan asks about."""
    found: list[tuple[PlanRequest, Rows]] = []

    def remembered(rows: Rows, request: PlanRequest) -> npt.NDArray[np.bool_]:
        found.append((request, rows))
        return fits_widest(rows, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "fits_widest", remembered)
        for said in QUESTIONS:
            whole = scan.Scan(question(said))
            rows = len(whole.steady_s)
            whole.expand(np.unique(np.linspace(0, rows - 1, min(WORK_ROWS, rows)).astype(np.int64)))
    return found


def test_settings_refused_for_their_state_are_refused_for_their_memory(
    asked: list[tuple[PlanRequest, Rows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = [fits_widest(rows, request) for request, rows in asked]
    refused = sum(int(np.sum(~holds_state(rows, request))) for request, rows in asked)
    monkeypatch.setattr(capacity, "holds_state", lambda rows, request: np.ones(len(rows), dtype=bool))
    for (request, rows), fits in zip(asked, quick, strict=True):
        assert np.array_equal(fits, fits_widest(rows, request))
    assert refused > 100


def test_kinds_of_context_parallelism_that_stand_for_others_hold_as_much(
    asked: list[tuple[PlanRequest, Rows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [(request, rows) for request, rows in asked if len(rows.domains["context_parallel_kind"]) > 1]
    assert asked
    shards = [(request, rows.cross({"shard_group_size": np.array([0])})) for request, rows in asked]
    together = [fits_and_first(rows, request) for request, rows in shards]
    monkeypatch.setattr(capacity, "settings_of_memory", lambda rows: settings_by_category(rows, OF_MEMORY))
    for (request, rows), (fits, first) in zip(shards, together, strict=True):
        alone, least = fits_and_first(rows, request)
        assert np.array_equal(fits, alone)
        assert np.array_equal(first, least)


@pytest.mark.parametrize("order", [1, -1])
def test_one_setting_never_answers_for_another_that_reduces_at_once(order: int) -> None:
    """Accelerate keeps whole gradients between micro-batches: 141 GB for 70B, and nothing in one piece."""
    request = question({"model": "llama-3-70b", "gpus": 8, "framework": "accelerate", "hardware": "h200"})
    sharded = Plan(data_parallel=8, zero_stage=3, shard_group_size=8)
    cuts = [(8, 1), (1, 8)][::order]
    plans = [sharded.model_copy(update={"micro_batch": b, "num_microbatches": m}) for b, m in cuts]
    domains = {field: np.array(sorted({getattr(plan, field) for plan in plans})) for field in FIELDS}
    codes = {
        field: np.searchsorted(domain, [getattr(plan, field) for plan in plans])
        for field, domain in domains.items()
    }
    in_one_piece = cuts.index((8, 1))
    assert holds_state(Rows(domains, codes), request)[in_one_piece]
