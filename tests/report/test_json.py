"""JSON reports: frozen keys, and figures that agree with the objects behind them."""

from __future__ import annotations

import json

import pytest

from planner.api import estimate, question
from planner.explain.answer import answer, find
from planner.explain.compare import compare
from planner.explain.why_not import WhyNot
from planner.report.json import answer_report, comparison_report, dumps, estimate_report, why_not_report

SMALL = {"model": "llama-3-8b", "gpus": 8, "global_batch": 64}
ANSWER_KEYS = {"status", "gap_pct", "solve_s", "plans", "conflict", "relaxations"}
ESTIMATE_KEYS = {
    "tensor_parallel", "pipeline_parallel", "virtual_stages", "schedule", "data_parallel",
    "context_parallel", "context_parallel_kind", "expert_parallel", "expert_tensor_parallel", "zero_stage",
    "shard_group_size", "sequence_parallel", "micro_batch", "num_microbatches", "recompute",
    "recompute_modules", "offload", "precision", "rank_order", "stages", "step_time_s", "time_s",
    "memory_bytes", "peak_memory_gb", "tokens_per_s_per_gpu", "mfu", "error_band_pct", "legal", "fits",
}  # fmt: skip
MEMBER_KEYS = {"rule", "sentence", "source", "possible_without"}
RELAXATION_KEYS = {"kind", "change", "sentence", "step_time_s", "plan"}
WHY_NOT_KEYS = {
    "request", "choice", "possible", "legal", "fits", "needs", "loss_pct", "loss_s", "best", "completion",
    "sentences", "conflict", "relaxations", "hopeless",
}  # fmt: skip


def test_estimate_keys_and_gigabytes() -> None:
    priced = estimate(**SMALL, tp=2, pp=2, dp=2)
    report = estimate_report(priced)
    assert set(report) >= ESTIMATE_KEYS
    assert report["peak_memory_gb"] == pytest.approx(priced.peak_memory_bytes / 1e9)
    assert sum(report["memory_bytes"].values()) == pytest.approx(priced.peak_memory_bytes)
    assert sum(report["time_s"].values()) == pytest.approx(priced.step_time_s)


def test_an_infeasible_answer_has_members_and_relaxations_in_frozen_keys() -> None:
    request = question({**SMALL, "tp": 3})
    report = json.loads(dumps(answer_report(answer(request, find(request, 1, 5.0), seconds=3))))
    assert set(report) >= ANSWER_KEYS
    assert report["status"] == "infeasible"
    assert report["plans"] == []
    assert report["gap_pct"] is None
    assert all(set(member) == MEMBER_KEYS for member in report["conflict"])
    assert report["relaxations"]
    assert all(set(relaxation) == RELAXATION_KEYS for relaxation in report["relaxations"])


def test_a_verdict_and_a_comparison_serialise() -> None:
    request = question(SMALL)
    one, two = estimate(**SMALL, tp=2, pp=1), estimate(**SMALL, tp=4, pp=1)
    verdict = WhyNot(request=request, choice=("--tp 4",), best=one, completion=two)
    report = json.loads(dumps(why_not_report(verdict)))
    assert set(report) == WHY_NOT_KEYS
    assert sum(report["loss_s"].values()) == pytest.approx(two.step_time_s - one.step_time_s)
    compared = json.loads(dumps(comparison_report(compare(one.plan, two.plan, request))))
    assert "tensor_parallel" in compared["settings"]
    assert compared["difference_pct"] == pytest.approx(verdict.loss_pct)
