"""Text reports: widths, gigabytes, the error band, clauses."""

from __future__ import annotations

import pytest

from planner.api import estimate, question
from planner.errors import BadInput
from planner.explain.answer import Answer, answer
from planner.explain.sentences import lower_first, upper_first
from planner.report.table import (
    WIDTH,
    answer_text,
    bullets,
    estimate_text,
    paragraph,
    plan_row,
    ranking,
    step_words,
)
from planner.solver import solve
from planner.solver.result import Estimate
from planner.spec import PlanRequest

SMALL = {"model": "llama-3-8b", "gpus": 8, "global_batch": 64}


@pytest.fixture(scope="module")
def request_() -> PlanRequest:
    return question({**SMALL, "tp": 2, "pp": 1, "cp": 1})


@pytest.fixture(scope="module")
def priced() -> Estimate:
    return estimate(**SMALL, tp=2, pp=2, dp=2, recompute="selective")


@pytest.fixture(scope="module")
def found(request_: PlanRequest) -> Answer:
    return answer(request_, solve(request_, top=3))


def test_no_line_of_an_answer_is_wider_than_the_page(found: Answer) -> None:
    lines = answer_text(found).splitlines()
    assert len(lines) > 20
    assert max(map(len, lines)) <= WIDTH


def test_no_line_of_an_estimate_is_wider_than_the_page(priced: Estimate, request_: PlanRequest) -> None:
    assert max(map(len, estimate_text(priced, request_).splitlines())) <= WIDTH


def test_a_long_name_is_cut_and_the_columns_stay_in_line(priced: Estimate, request_: PlanRequest) -> None:
    text = ranking([priced, priced], request_, names=["a-very-long-file-name.json", "b"])
    header, rule, first, second = text.splitlines()
    assert "a-very-long-fi… " in first
    assert len(rule) == len(first) == len(second) == len(header) <= WIDTH
    assert "file-name" not in text


def test_memory_is_shown_in_gigabytes_of_1e9_bytes(priced: Estimate, request_: PlanRequest) -> None:
    row = plan_row(1, priced, request_)
    free = request_.cluster.usable_hbm_bytes - priced.peak_memory_bytes
    assert row[-3] == f"{priced.peak_memory_bytes / 1e9:.1f} GB"
    assert row[-2] == f"{free / 1e9:.1f} GB"


def test_the_step_has_its_error_band_beside_it(priced: Estimate, request_: PlanRequest) -> None:
    words = step_words(priced)
    assert words.endswith(f"s ±{priced.error_band_pct:g}%")
    assert words in ranking([priced], request_)


def test_an_uncalibrated_plan_says_so() -> None:
    """No published run of the data pre-trains on H800."""
    options = {**SMALL, "hardware": "h800", "tp": 2, "pp": 1, "cp": 1}
    text = estimate_text(estimate(**options), question(options))
    assert "No published run calibrates bf16 on h800-sxm-80gb" in " ".join(text.split())


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({"tp": 2, "pp": 1}, "This plan is legal and fits."),
        ({"tp": 3, "pp": 1}, "This plan cannot run."),
        # 64 micro-batches halve to 8 stages: (8 - 1) / 8 of bubble, which only the default budget forbids.
        ({"pp": 8, "micro_batch": 8}, "This plan runs, but not within the limits that the request sets."),
    ],
)
def test_a_wish_is_told_from_what_cannot_run(options: dict[str, int], verdict: str) -> None:
    asked = {**SMALL, "recompute": "full", **options}
    assert verdict in estimate_text(estimate(**asked), question(asked))


def test_a_schedule_that_cannot_run_names_the_rule() -> None:
    asked = {"model": "deepseek-v3", "gpus": 24, "pp": 3, "schedule": "dualpipe", "framework": "deepseek"}
    with pytest.raises(BadInput, match="needs an even number of ranks, not 3"):
        estimate(**asked)


def test_experts_are_split_like_dense_layers_unless_they_are_shared_out() -> None:
    """Megatron's own default: expert tensor ranks are the tensor ranks."""
    asked = {"model": "mixtral-8x7b", "gpus": 8, "tp": 8, "global_batch": 8}
    assert estimate(**asked).plan.expert_tensor_parallel == 8
    assert estimate(**{**asked, "tp": 4, "ep": 2}).plan.expert_tensor_parallel == 1


def test_a_nearly_full_gpu_is_called_tight() -> None:
    asked = {**SMALL, "tp": 2, "pp": 2, "dp": 2, "recompute": "selective"}
    peak = estimate(**asked).peak_memory_bytes
    tight, roomy = (
        estimate(**asked, hbm=f"{peak * factor / 1e9:.3f}GB", hbm_reserve="0GB") for factor in (1.05, 1.3)
    )
    assert any("Memory is tight: 5 % stay free" in note for note in tight.notes)
    assert not any("tight" in note for note in roomy.notes)


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    text = " ".join(["needs 85.4 GB or 120 ms or 25 %"] * 12)
    for shown in (paragraph(text), bullets([text])):
        lines = shown.splitlines()
        assert len(lines) > 1
        assert not any(line.strip().startswith(("GB", "ms", "%")) for line in lines)
        assert "\u00a0" not in shown


@pytest.mark.parametrize(
    ("sentence", "clause"),
    [
        ("ZeRO-2 does not go with 4 pipeline ranks.", "ZeRO-2 does not go with 4 pipeline ranks"),
        ("KV heads do not split.", "KV heads do not split"),
        ("DualPipe needs an even number of ranks.", "DualPipe needs an even number of ranks"),
        ("Pipeline rank 0 needs 3 GB.", "pipeline rank 0 needs 3 GB"),
        ("A mixture of experts trains.", "a mixture of experts trains"),
        ("8 heads do not split.", "8 heads do not split"),
    ],
)
def test_a_sentence_becomes_a_clause_without_breaking_names(sentence: str, clause: str) -> None:
    assert lower_first(sentence) == clause


def test_a_clause_becomes_a_sentence() -> None:
    assert upper_first("the leanest plan") == "The leanest plan"
