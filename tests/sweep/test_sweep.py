"""Sweeps: the grid, money, resuming, tables."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.cli import main
from planner.errors import BadInput
from planner.request import Question
from planner.solver import evaluate
from planner.spec import Plan
from planner.sweep import Economy, Outcome, run, scenarios
from planner.sweep.execute import read_state
from planner.sweep.grid import cluster_sizes
from planner.sweep.show import batch_budget, csv_text, efficiencies, page, table

OPTIONS = {"model": "llama-3-8b", "global_batch": "64", "seq_length": "2048", "pins": {"recompute": "none"}}


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("64:512", [64, 128, 256, 512]), ("96:500", [96, 192, 384, 500]), ("8,4,8", [4, 8]), ("7:7", [7])],
)
def test_sizes(text: str, sizes: list[int]) -> None:
    assert cluster_sizes(text) == sizes


@pytest.mark.parametrize("text", ["0:8", "8:4", "a", "1.5", "", "-8", "4:", "nan"])
def test_bad_sizes_are_one_sentence(text: str) -> None:
    with pytest.raises(BadInput):
        cluster_sizes(text)


def test_money_by_hand() -> None:
    """8 GPUs at 2 USD are 16 USD an hour; a step trains 64 x 2048 tokens."""
    request = Question(model="llama-3-8b", gpus=8, global_batch=64, seq_length=2048).request()
    plan = Plan(data_parallel=8, num_microbatches=8, zero_stage=2, shard_group_size=8)
    estimate = evaluate(plan, request)
    figures = Economy(training_tokens=1e12, usd_per_gpu_hour=2.0).figures(estimate, request)
    tokens = 64 * 2048
    hours = estimate.step_time_s / 3600
    assert figures["usd_per_million_tokens"] == pytest.approx(16 * hours / tokens * 1e6)
    steps = -(-(10**12) // tokens)
    assert figures["days"] == pytest.approx(steps * hours / 24)
    assert figures["usd"] == pytest.approx(16 * hours * steps)
    assert figures["days_with_failures"] == pytest.approx(figures["days"] / figures["goodput"])
    assert 0 < figures["goodput"] < 1


def test_no_price_means_no_dollars() -> None:
    request = Question(model="llama-3-8b", gpus=8, global_batch=64, seq_length=2048).request()
    silent = request.cluster.accelerator.model_copy(update={"price": None})
    cluster = request.cluster.model_copy(update={"accelerator": silent})
    request = request.model_copy(update={"cluster": cluster})
    estimate = evaluate(Plan(data_parallel=8, num_microbatches=8), request)
    figures = Economy(training_tokens=1e12).figures(estimate, request)
    assert figures["usd_per_million_tokens"] is None and figures["usd"] is None and figures["days"] > 0


def _outcome(gpus: int, rate: float | None, hardware: str = "h100") -> Outcome:
    figures = {"tokens_per_s_per_gpu": rate, "tokens_per_s": rate * gpus} if rate else {}
    status = "optimal" if rate else "infeasible"
    return Outcome(key=f"{hardware}{gpus}", gpus=gpus, hardware=hardware, status=status, figures=figures,
                   reason="" if rate else "no legal plan fits")  # fmt: skip


def test_efficiency_is_relative_to_the_smallest_size_of_the_same_part() -> None:
    rows = [_outcome(16, 90.0), _outcome(8, 100.0), _outcome(8, 50.0, "a100"), _outcome(32, None)]
    assert efficiencies(rows) == pytest.approx({"h1008": 1.0, "h10016": 0.9, "a1008": 1.0})


def test_batch_budget_names_the_last_size_that_works() -> None:
    rows = [_outcome(8, 100.0), _outcome(16, 99.0), _outcome(32, None), _outcome(64, None)]
    (sentence,) = batch_budget(rows)
    assert "carries 16 GPUs" in sentence and "at 32" in sentence
    assert batch_budget(rows[:2]) == []


def test_a_rerun_asks_only_what_is_open(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    grid = scenarios("8,16", "h100", OPTIONS)
    first = list(run(grid[:1], Economy(), state=state, processes=1))
    state.write_text(state.read_text() + '{"key": "cut sho')
    assert [outcome.key for outcome in read_state(state)] == [grid[0].key]
    state.write_text("".join(f"{line}\n" for line in state.read_text().splitlines()[:1]))
    both = list(run(grid, Economy(), state=state, processes=1))
    assert both[0] == first[0]
    assert {outcome.gpus for outcome in both} == {8, 16}
    assert len(state.read_text().splitlines()) == 2
    shown = table(both)
    assert "llama" not in shown and "tok/s" in shown
    rows = list(csv.DictReader(io.StringIO(csv_text(both))))
    assert [row["gpus"] for row in rows] == ["8", "16"] and float(rows[0]["scaling_efficiency"]) == 1.0


def test_a_foreign_state_file_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    state.write_text("not a state\nat all\n")
    with pytest.raises(BadInput, match=r"state.jsonl:1"):
        read_state(state)


def test_a_refused_question_is_an_outcome() -> None:
    (outcome,) = run(scenarios("8", "h100", {**OPTIONS, "model": "no-such"}), Economy(), processes=1)
    assert outcome.status == "refused" and "no-such" in outcome.reason


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "llama-3-8b"],
        ["--gpus", "8"],
        ["--model", "llama-3-8b", "--gpus", "8", "--tokens", "-1"],
        ["--model", "llama-3-8b", "--gpus", "8", "--mtbf", "0s"],
        ["--model", "llama-3-8b", "--gpus", "8", "--storage", "fast"],
        ["--model", "llama-3-8b", "--gpus", "9:8"],
    ],
)
def test_bad_options_exit_with_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["sweep", *arguments])
    assert result.exit_code == 2, result.output


def test_the_page_has_the_table_the_figure_and_nothing_from_outside() -> None:
    pytest.importorskip("plotly", reason="the page needs the extra html")
    figures = {
        "step_time_s": 2.0, "tokens_per_s": 8e5, "tokens_per_s_per_gpu": 1e5, "mfu": 0.5,
        "peak_memory_bytes": 5e10, "usd_per_million_tokens": 0.1,
    }  # fmt: skip
    fits = Outcome(key="a", gpus=8, hardware="h<1>", status="optimal", plan="t=1", figures=figures)
    none = Outcome(key="b", gpus=16, hardware="h<1>", status="infeasible", reason="no legal plan fits")
    text = page([none, fits], "Scaling of x")
    assert "<td class='text'>h&lt;1&gt;</td><td class='text'>8</td><td class='text'>2 s</td>" in text
    assert "no legal plan fits" in text
    assert '<div id="scaling" class="figure">' in text
    assert 'name="viewport"' in text
    assert "src=" not in text.partition("<script")[0]
