"""Every command: exit codes, one-sentence refusals, frozen JSON keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from planner.cli import main
from planner.cli.group import COMMANDS
from planner.explain.leanest import Verdict
from planner.solver.result import PlanResult

SMALL = ["--model", "llama-3-8b", "--gpus", "8", "--global-batch", "64"]
PINNED = ["--tp", "2", "--pp", "1", "--cp", "1"]


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def data(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "--help" in result.output
    assert len(result.output.splitlines()) > 5


def test_help_lists_every_command_with_a_sentence() -> None:
    text = run("--help").output
    for command in COMMANDS:
        line = next(line for line in text.splitlines() if line.strip().startswith(command))
        assert len(line.split()) > 3
    assert "Exit codes" in text


def test_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert version("plan-parallel") in run("--version").output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "100c", "--gpus", "8"], "100c"),
        (["--gpus", "8"], "--model"),
        (["--model", "100b"], "--gpus"),
        (["--model", "100b", "--gpus", "0"], "--gpus 0"),
        (["--model", "100b", "--gpus", "-1"], "--gpus -1"),
        (["--model", "100b", "--gpus", "nan"], "nan"),
        (["--model", "100b", "--gpus", "8", "--tp", "0"], "--tp 0"),
        (["--model", "100b", "--gpus", "8", "--tp", "4,!4"], "leave no value"),
        (["--model", "100b", "--gpus", "8", "--zero", "7"], "--zero 7"),
        (["--model", "100b", "--gpus", "8", "--schedule", "zbv"], "zb-v"),
        (["--model", "100b", "--gpus", "8", "--hardware", "h101"], "h101"),
        (["--model", "100b", "--gpus", "8", "--precision", "int4"], "int4"),
        (["--model", "100b", "--gpus", "8", "--framework", "megatorn"], "megatron"),
        (["--model", "100b", "--gpus", "8", "--goal", "fast"], "--goal"),
        (["--model", "100b", "--gpus", "8", "--max-bubble", "-1"], "--max-bubble"),
        (["--model", "100b", "--gpus", "8", "--global-batch", "9:3"], "--global-batch"),
        (["--model", "100b", "--gpus", "8", "--no-recompute", "--recompute", "full"], "contradict"),
        (["--model", "100b", "--gpus", "8", "--top", "0"], "--top"),
        (["--model", "100b", "--gpus", "8", "--time-limit", "nan"], "--time-limit"),
        (["--modle", "100b"], "--model"),
        (["plann"], "plann"),
        (["estimate", *SMALL, "--tp", "1,2"], "one value"),
        (["estimate", *SMALL, "--plan", "no-such.json"], "no-such.json"),
        (["why-not", *SMALL], "--tp 16"),
        (["compare", "0", "1", *SMALL], "rank"),
        (["models", "no-such-model"], "no-such-model"),
        (["hardware", "no-such-part"], "no-such-part"),
        (["validate", "no-such.jsonl"], "no-such.jsonl"),
        (["check", "no-such.sh", *SMALL], "no-such.sh"),
        (["check", "no-such.sh", "--set", "TP:8"], "write NAME=VALUE"),
    ],
)
def test_bad_input_exits_2_with_one_sentence_and_no_traceback(words: list[str], told: str) -> None:
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert told in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert len(result.stderr.strip()) > 10
    assert result.stdout == ""


PLAN_KEYS = {
    "rank", "tensor_parallel", "pipeline_parallel", "virtual_stages", "schedule", "data_parallel",
    "context_parallel", "expert_parallel", "expert_tensor_parallel", "zero_stage", "shard_group_size",
    "sequence_parallel", "micro_batch", "num_microbatches", "recompute", "stages", "step_time_s", "time_s",
    "memory_bytes", "peak_memory_gb", "tokens_per_s_per_gpu", "mfu", "explanation",
}  # fmt: skip


def test_plan_json_has_the_promised_keys_and_adds_up() -> None:
    report = data(*SMALL, *PINNED, "--top", "2")
    assert {"status", "gap_pct", "solve_s", "plans", "conflict", "relaxations"} <= set(report)
    assert report["status"] == "optimal"
    assert [plan["rank"] for plan in report["plans"]] == list(range(1, len(report["plans"]) + 1))
    for plan in report["plans"]:
        assert set(plan) >= PLAN_KEYS
        assert sum(plan["time_s"].values()) == pytest.approx(plan["step_time_s"])
        assert sum(plan["memory_bytes"].values()) == pytest.approx(plan["peak_memory_gb"] * 1e9)
        assert set(plan["stages"][0]) >= {"layers", "recompute_layers", "peak_memory_bytes"}
        assert max(stage["peak_memory_bytes"] for stage in plan["stages"]) == pytest.approx(
            plan["peak_memory_gb"] * 1e9
        )
        assert sum(stage["layers"] for stage in plan["stages"]) == 32
    times = [plan["step_time_s"] for plan in report["plans"]]
    assert times == sorted(times)
    assert report["plans"][0]["explanation"]


def test_plan_text_says_everything_in_order() -> None:
    result = run(*SMALL, *PINNED, "--top", "1")
    assert result.exit_code == 0
    parts = [
        "llama-3-8b on 8 x",
        "tok/s/GPU",
        "Why plan 1",
        "Time of a step",
        "What binds",
        "Assumed",
        "Proof:",
    ]
    places = [result.output.index(part) for part in parts]
    assert places == sorted(places)
    assert max(len(line) for line in result.output.splitlines()) <= 118


def test_estimate_prices_one_plan() -> None:
    report = data("estimate", *SMALL, "--tp", "2", "--pp", "2", "--micro-batch", "1", "--recompute", "full")
    assert (report["tensor_parallel"], report["pipeline_parallel"], report["data_parallel"]) == (2, 2, 2)
    assert report["num_microbatches"] == 32
    assert report["legal"] is True
    assert report["fits"] is True
    assert [stage["layers"] for stage in report["stages"]] == [16, 16]


def test_an_illegal_estimate_exits_3_and_names_the_rule() -> None:
    result = run("estimate", *SMALL, "--tp", "3", "--dp", "2")
    assert result.exit_code == 3
    assert "32 attention heads do not split evenly over 3 tensor ranks" in " ".join(result.output.split())
    assert "ranks_fill_the_cluster" in result.output


def test_the_chapters_175b_on_64_a100_is_refused_with_the_missing_bytes() -> None:
    result = run(
        "estimate", "--model", "gpt3-175b", "--hardware", "a100-sxm-80gb", "--gpus", "64",
        "--tp", "1", "--pp", "8", "--dp", "8", "--zero", "1",
    )  # fmt: skip
    assert result.exit_code == 3
    assert "GB are missing" in " ".join(result.output.split())


def test_a_plan_file_goes_round(tmp_path: Path) -> None:
    first = data(*SMALL, *PINNED, "--top", "1")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(first))
    again = data("estimate", *SMALL, "--plan", str(path))
    assert again["step_time_s"] == pytest.approx(first["plans"][0]["step_time_s"])
    same = data("compare", str(path), f"{path}#1", *SMALL)
    assert same["difference_pct"] == pytest.approx(0.0)
    assert same["settings"] == {}


def test_launch_writes_files_that_check_accepts(tmp_path: Path) -> None:
    words = ["launch", *SMALL, *PINNED, "--framework", "megatron", "--out", str(tmp_path)]
    result = run(*words)
    assert result.exit_code == 0, result.output
    scripts = [path for path in result.stdout.split() if path.endswith((".sh", ".yaml", ".args"))]
    assert scripts
    checked = run("check", *scripts, *SMALL, "--no-search")
    assert checked.exit_code == 0, checked.output


def test_nothing_fits_exits_3_with_the_conflict() -> None:
    result = run(*SMALL, "--tp", "3", "--time-limit", "5", "--json")
    assert result.exit_code == 3
    report = json.loads(result.stdout)
    assert report["status"] == "infeasible"
    assert report["plans"] == []
    assert {member["rule"] for member in report["conflict"]} == {
        "attention_heads_divide_over_tensor_ranks", "pin:--tp 3",
    }  # fmt: skip


def test_catalogs_frameworks_and_rules_are_listed() -> None:
    assert len(data("models")) > 50
    assert len(data("hardware")) > 20
    assert {row["name"] for row in data("frameworks")} >= {"megatron", "torchtitan"}
    assert all(row["source"] for row in data("rules"))
    assert data("models", "llama-3-8b")["total_parameters"] == 8_030_261_248
    for command in ("models", "hardware", "frameworks", "rules"):
        assert run(command).exit_code == 0


def test_plan_writes_the_page_and_the_trace_and_replaces_nothing_unasked(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the page needs the extra html")
    page, trace = tmp_path / "plan.html", tmp_path / "step.json"
    words = [*SMALL, *PINNED, "--top", "1", "--html", str(page), "--trace", str(trace)]
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["status"] == "optimal"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    refused = run(*words)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert run(*words, "--force").exit_code == 0


def test_no_trace_without_a_plan(tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    result = run(*SMALL, "--tp", "3", "--trace", str(trace))
    assert result.exit_code == 3
    assert "no plan to trace" in result.stderr
    assert not trace.exists()


def test_time_that_runs_out_before_a_plan_exits_4(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_args: Any, **_options: Any) -> PlanResult:
        return PlanResult(status="time-limit", solve_s=1.0, num_settings=7)

    monkeypatch.setattr("planner.solver.solve", nothing)
    monkeypatch.setattr("planner.explain.leanest.any_plan", lambda *_, **__: Verdict(is_settled=False))
    result = run(*SMALL)
    assert result.exit_code == 4
    assert "--time-limit" in result.stdout
    assert "Nothing fits" not in result.stdout


def test_ctrl_c_exits_130_with_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: Any, **_options: Any) -> PlanResult:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.solver.solve", interrupted)
    result = run(*SMALL)
    assert result.exit_code == 130
    assert result.stderr.strip() == "Interrupted."


def test_why_searches_again_around_every_setting() -> None:
    """Pinned to t=2 the best plan has neighbours that differ in what is left; the tables are left out."""
    found = data("why", *SMALL, *PINNED)
    assert found["plans"][0]["rank"] == 1
    fields = {reason["field"] for reason in found["reasons"]}
    assert {"tensor_parallel", "zero_stage", "micro_batch", "recompute"} <= fields
    text = " ".join(run("why", *SMALL, *PINNED).stdout.split())
    assert "the best plan with t=1 is" in text or "nothing with t=1 beats that" in text
    assert "Without --tp 2" in text
    assert "Time of a step" not in text


@pytest.mark.parametrize("pins", [["--tp", "4"], ["--pp", "2"]])
def test_why_not_prices_the_choice_against_the_best(pins: list[str]) -> None:
    result = run("why-not", *SMALL, *pins)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert f"The best plan with {' '.join(pins)} is" in text
    assert "Where the time differs" in text


@pytest.mark.parametrize(
    ("pins", "rule"),
    [
        (["--pp", "4", "--zero", "3"], "ZeRO-3 does not go with 4 pipeline ranks"),
        (["--schedule", "dualpipe"], "megatron has no schedule dualpipe"),
        (["--tp", "16"], "16 tensor ranks need 16 GPUs or more; the cluster has 8"),
    ],
)
def test_why_not_names_the_rule_that_refuses_a_choice(pins: list[str], rule: str) -> None:
    result = run("why-not", *SMALL, *pins, "--time-limit", "5")
    assert result.exit_code == 3
    text = " ".join(result.output.split())
    assert rule in text
    assert f"without {pins[0]} {pins[1]}" in text


def test_why_not_and_compare_take_plan_files_and_launch_files(tmp_path: Path) -> None:
    plans = tmp_path / "plan.json"
    plans.write_text(run(*SMALL, *PINNED, "--top", "1", "--json").stdout)
    assert run("launch", *SMALL, "--plan", str(plans), "--out", str(tmp_path / "run")).exit_code == 0
    script = str(tmp_path / "run" / "args.sh")
    for path in (str(plans), script):
        result = run("why-not", *SMALL, "--plan", path)
        assert result.exit_code == 0, result.output
        assert "against the best plan" in " ".join(result.output.split())
    compared = data("compare", str(plans), script, *SMALL)
    assert compared["difference_pct"] == pytest.approx(0.0, abs=0.1)


def test_check_searches_a_better_plan_for_a_megatron_script(tmp_path: Path) -> None:
    words = ["launch", *SMALL, "--tp", "8", "--framework", "megatron", "--out", str(tmp_path)]
    assert run(*words).exit_code == 0
    result = run("check", str(tmp_path / "args.sh"), *SMALL, "--time-limit", "10")
    assert result.exit_code == 0, result.output
    assert "better-plan" in result.output
    assert "better  " in result.output


def test_the_options_of_a_help_page_stand_under_headings_in_the_order_of_use() -> None:
    text = run("plan", "--help").output
    heads = ["The problem:", "The machine, without a file:", "Pins: ", "The search:", "Options:"]
    places = [text.index(f"\n{head}") for head in heads]
    assert places == sorted(places)
    options = ["--model", "--hbm ", "--tp,", "--goal", "--json"]
    for option, start, end in zip(options, places, [*places[1:], len(text)], strict=True):
        assert start < text.index(f"  {option}") < end, option


def test_a_help_page_leaves_out_headings_without_options() -> None:
    text = run("check", "--help").output
    assert "The problem:" in text
    assert "Pins: " not in text


def test_check_says_where_nothing_faster_is_found(tmp_path: Path) -> None:
    assert run("launch", *SMALL, *PINNED, "--framework", "megatron", "--out", str(tmp_path)).exit_code == 0
    launched = str(tmp_path / "args.sh")
    best = json.loads(run(*SMALL, "--top", "1", "--json").stdout)
    best_files = tmp_path / "best"
    assert run("launch", *SMALL, "--framework", "megatron", "--out", str(best_files)).exit_code == 0
    result = run("check", str(best_files / "args.sh"), *SMALL, "--time-limit", "10")
    assert result.exit_code == 0, result.output
    assert result.output.endswith("The planner found no faster plan.\n")
    assert "better" not in result.output
    assert best["status"] == "optimal"
    assert "better  " in run("check", launched, *SMALL, "--time-limit", "10").output


def test_recompute_modules_have_to_exist() -> None:
    result = run("estimate", *SMALL, "--recompute", "selective", "--recompute-modules", "mlp,layer_norm")
    assert result.exit_code == 2
    assert "'layer_norm' is not one of core_attn, mlp" in result.stderr
    assert result.stderr.rstrip().endswith("did you mean 'layernorm'?")


def test_rules_name_their_numbers_in_words() -> None:
    text = run("rules").output
    assert "<num heads> attention heads do not split evenly over <tensor parallel> tensor ranks." in text
    assert "{" not in text


def test_a_sweep_without_any_plan_exits_3_and_prints_no_progress_into_files() -> None:
    pins = [
        "--tp",
        "1",
        "--dp",
        "8",
        "--zero",
        "0",
        "--micro-batch",
        "1",
        "--no-recompute",
        "--processes",
        "1",
    ]
    nothing = run("sweep", "--model", "llama-3-70b", "--gpus", "8", *pins)
    assert nothing.exit_code == 3, nothing.output
    assert "no legal plan fits" in nothing.stdout
    some = run("sweep", "--model", "350m", "--gpus", "8", *pins)
    assert some.exit_code == 0, some.output
    assert nothing.stderr == some.stderr == ""
