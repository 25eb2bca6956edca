"""The linter: what it finds, on which line, in which format."""

from __future__ import annotations

import json
import re

import pytest

from planner.catalog import load_cluster, load_model
from planner.errors import BadInput
from planner.frameworks import load_framework
from planner.frameworks.files import read_files, read_text
from planner.frameworks.lint import Finding, batch_of, format_findings, gpus_of, lint, model_of, review
from planner.spec import PlanRequest, Workload

SCRIPT = """#!/bin/bash
TP=8
ARGS=(
  --tensor-model-parallel-size $TP
  --pipeline-model-parallel-size 2
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32
  --micro-batch-size 1
  --global-batch-size 256
  --seq-length 8192
  --use-distributed-optimizer
  --bf16
)
torchrun pretrain_gpt.py "${ARGS[@]}"
"""


def request_for(num_gpus: int, framework: str = "megatron", model: str = "llama-3-8b") -> PlanRequest:
    return PlanRequest(
        model=load_model(model),
        cluster=load_cluster("h100-sxm-80gb", num_gpus),
        workload=Workload(global_batch=64, seq_length=8192),
        framework=load_framework(framework),
    )


def found(
    source: str, num_gpus: int = 64, framework: str = "megatron", path: str = "run.sh"
) -> dict[str, Finding]:
    launch = read_text(source, path)
    return {finding.rule: finding for finding in lint(launch, request_for(num_gpus, framework))}


def test_a_sound_script_has_no_errors() -> None:
    assert not [finding for finding in found(SCRIPT).values() if finding.severity == "error"]


def test_heads_that_do_not_divide_are_reported_where_the_degree_was_written() -> None:
    # 32 heads over 7 tensor ranks; the value stands in a variable, the setting on line 4
    finding = found(SCRIPT.replace("TP=8", "TP=7"), 7 * 2 * 4)["attention_heads_divide_over_tensor_ranks"]
    assert (finding.path, finding.line, finding.severity) == ("run.sh", 4, "error")
    assert 8 in finding.valid
    assert 7 not in finding.valid


def test_gpus_that_the_degrees_do_not_fill_make_no_run() -> None:
    finding = found(SCRIPT, 24)["settings-make-a-run"]
    assert "24 GPUs are not a multiple of tensor x pipeline x context parallel = 16" in finding.message


def test_a_batch_that_does_not_divide_names_the_nearest() -> None:
    # 64 GPUs / 16 = 4 replicas; 254 = 63.5 x 4
    finding = found(SCRIPT.replace("size 256", "size 254"))["settings-make-a-run"]
    assert "nearest is 252 or 256" in finding.message


def test_memory_that_does_not_suffice_is_told_with_what_is_missing() -> None:
    source = SCRIPT.replace("TP=8", "TP=1").replace("--micro-batch-size 1", "--micro-batch-size 8")
    finding = found(source)["out-of-memory"]
    assert finding.line == 7
    assert "pipeline rank" in finding.message
    needed, usable, missing = (
        float(number) for number in re.findall(r"([\d.]+) GB(?: of| too much|,)", finding.message)[:3]
    )
    assert missing > 1
    assert missing == pytest.approx(needed - usable, abs=0.11)  # each rounded to 0.1 GB


def test_old_and_unknown_keys_are_reported_and_not_fatal() -> None:
    source = SCRIPT.replace("--bf16", "--bf16 --checkpoint-activations --no-such-flag 3")
    findings = found(source)
    assert "--recompute-granularity full" in findings["deprecated-key"].message
    assert "--no-such-flag" in findings["unknown-key"].message
    assert findings["unknown-key"].line == 11
    assert findings["unknown-key"].severity == "warning"


def test_what_the_framework_would_not_have_told_is_said() -> None:
    # 8190 tokens over 8 sequence-parallel ranks: 1023.75
    source = SCRIPT.replace("8192", "8190").replace("--bf16", "--bf16 --sequence-parallel")
    finding = found(source)["sequence_divides_over_sequence_ranks"]
    assert "the first forward pass fails" in finding.message


def test_numbers_of_another_model_are_noticed() -> None:
    finding = found(SCRIPT.replace("--hidden-size 4096", "--hidden-size 5120"))["model-differs"]
    assert "5120" in finding.message
    assert "4096" in finding.message
    assert finding.line == 6


def test_tensor_ranks_across_nodes_and_bubbles_are_slow() -> None:
    source = SCRIPT.replace("TP=8", "TP=16").replace("size 256", "size 4")
    findings = found(source)
    assert findings["tensor-parallel-across-nodes"].severity == "warning"
    assert findings["tensor-parallel-across-nodes"].line == 4
    assert "of the" not in findings["pipeline-bubble"].rule


def test_far_replicas_with_context_ranks_are_refused_where_they_were_written() -> None:
    """Megatron lays its grid of experts over t ranks of a replica, not over t c of them."""
    far = SCRIPT.replace("  --bf16\n", "  --bf16\n  --use-tp-pp-dp-mapping\n  --context-parallel-size 2\n")
    finding = found(far)["far_replicas_go_with_context_ranks"]
    assert (finding.line, finding.severity) == (12, "error")
    assert finding.valid == ("tp-cp-ep-dp-pp",)
    assert "far_replicas_go_with_context_ranks" not in found(far.replace("size 2\n)", "size 1\n)"))


def test_bridge_refuses_megatron_fsdp_with_far_replicas() -> None:
    source = (
        "model.tensor_model_parallel_size=2\nddp.use_megatron_fsdp=true\ndist.use_tp_pp_dp_mapping=true\n"
    )
    finding = found(source, 64, "megatron-bridge", "overrides.txt")["settings-need-others"]
    assert finding.line == 3


def test_a_better_plan_is_found_and_its_gain_told() -> None:
    slow = "--bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    launch = read_text(SCRIPT.replace("--bf16", slow), "run.sh")
    result = review(launch, request_for(16), search_s=20)
    assert result.better is not None
    assert result.estimate is not None
    note = next(finding for finding in result.findings if finding.rule == "better-plan")
    gain = result.estimate.step_time_s / result.better.step_time_s - 1
    assert f"{100 * gain:.0f} % faster" in note.message


def test_deepspeed_json_points_at_its_lines() -> None:
    source = """{
  "train_batch_size": 100,
  "train_micro_batch_size_per_gpu": 3,
  "gradient_accumulation_steps": 4,
  "zero_optimization": {
    "stage": 3,
    "cpu_offload": true,
    "no_such_key": 1
  }
}
"""
    findings = found(source, 8, "deepspeed", "ds.json")
    assert findings["settings-make-a-run"].line == 3
    assert findings["deprecated-key"].line == 7
    assert findings["unknown-key"].line == 8


def test_a_deepspeed_batch_that_the_replicas_do_not_make_names_the_nearest() -> None:
    # OpenRLHF issue 346: 2 x 18 x 7 = 252, and the next batch of whole micro-steps is 266
    source = """{
  "train_batch_size": 256,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 18,
  "zero_optimization": {"stage": 2}
}"""
    message = found(source, 7, "deepspeed", "ds.json")["settings-make-a-run"].message
    assert "x 7 replicas = 252 (nearest batch: 252 and 266)" in message


def test_context_ranks_do_not_overlay_data_ranks() -> None:
    # torchtitan issue 1184: dp_shard 8 x cp 8 on 8 GPUs
    source = "[parallelism]\ndata_parallel_shard_degree = 8\ncontext_parallel_degree = 8\n"
    finding = found(source, 8, "torchtitan", "run.toml")["ranks_fill_the_cluster"]
    assert (finding.line, finding.severity, finding.valid) == (2, "error", (1,))


def test_layers_that_do_not_divide_name_the_stages_that_do() -> None:
    source = SCRIPT.replace("--num-layers 32", "--num-layers 46").replace(
        "model-parallel-size 2", "model-parallel-size 4"
    )
    message = found(source)["settings-make-a-run"].message
    assert "even stages take 1, 2, 23, 46 ranks" in message


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("torchrun --nnodes 4 --nproc-per-node 8", 32),
        ("torchrun --nproc-per-node=8", 8),
        ("torchrun --nnodes $NODES --nproc-per-node 8", None),  # known when it runs
        ("torchrun", None),
    ],
)
def test_the_launcher_tells_the_gpus(launcher: str, gpus: int | None) -> None:
    assert gpus_of(read_text(SCRIPT.replace("torchrun", launcher), "run.sh")) == gpus


@pytest.mark.parametrize(("accumulation", "batch"), [("", 16), ("gradient_accumulation_steps: 8", 128)])
def test_accelerate_accumulates_only_when_told(accumulation: str, batch: int | None) -> None:
    source = f"distributed_type: FSDP\nnum_processes: 16\n{accumulation}\n"
    launch = read_text(source, "config.yaml", "accelerate")
    assert batch_of(launch, gpus_of(launch)) == batch
    assert batch_of(read_text(SCRIPT, "run.sh"), 16) is None


def test_a_model_is_read_from_the_script() -> None:
    model = model_of(read_text(SCRIPT, "run.sh"))
    assert model is not None
    assert (model.num_layers, model.hidden_size, model.num_heads, model.head_dim) == (32, 4096, 32, 128)


def test_formats() -> None:
    finding = Finding("a,b.sh", 3, "error", "some-rule", "50 % of\nit", (1, 2))
    assert format_findings([finding]) == "a,b.sh:3: error: 50 % of\nit [some-rule]\n"
    expected = "::error file=a%2Cb.sh,line=3,title=some-rule::50 %25 of%0Ait\n"
    assert format_findings([finding], "github") == expected
    assert json.loads(format_findings([finding], "json"))["findings"][0]["valid"] == [1, 2]
    with pytest.raises(BadInput, match="did you mean 'json'"):
        format_findings([finding], "jsn")


def test_a_variable_that_the_files_leave_open_is_an_error_until_it_is_set() -> None:
    script = {
        "run.sh": "PP=$1\ntorchrun pretrain_gpt.py --tensor-model-parallel-size $TP --bf16 \\\n"
        " --pipeline-model-parallel-size $PP --micro-batch-size 1 --global-batch-size ${GBS:-64}\n"
    }
    request = request_for(8)
    open_ones = [entry for entry in lint(read_files(script), request) if entry.rule == "unset-variable"]
    assert [(entry.line, entry.severity) for entry in open_ones] == [(2, "error"), (3, "error")]
    assert "reads $TP, which the files do not set; say it with --set TP=VALUE" in open_ones[0].message
    assert "--set 1=VALUE" in open_ones[1].message
    assert read_files(script, variables={"1": "4"}).get("pipeline_parallel") == 4
    told = read_files(script, variables={"TP": "2", "PP": "4", "GBS": "128"})
    assert (told.get("tensor_parallel"), told.get("pipeline_parallel"), told.get("global_batch")) == (
        2,
        4,
        128,
    )
    assert not [
        entry for entry in lint(told, request) if entry.rule in {"unset-variable", "unreadable-value"}
    ]


def test_variables_are_set_in_scripts_only() -> None:
    files = {"ds_config.json": '{"train_batch_size": 64, "zero_optimization": {"stage": 2}}'}
    assert read_files(files, variables={"TP": "2"}).get("zero_stage") == 2
