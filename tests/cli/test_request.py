"""From what a user says to a request: units, defaults, assumptions, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from planner.api import pinned_plan, question
from planner.errors import BadInput
from planner.request import Question
from planner.rules import check
from planner.spec import PlanRequest


def ask(**options: Any) -> PlanRequest:
    return Question(**{"model": "llama-3-8b", "gpus": 8, **options}).request()


def test_nothing_said_is_assumed_and_admitted() -> None:
    request = ask()
    text = " ".join(request.assumptions)
    assert request.cluster.accelerator.name == "h100-sxm-80gb"
    assert request.framework.name == "megatron"
    assert request.workload.precisions == ("bf16",)
    # 2^22 tokens over the model's own 8192
    assert request.workload.global_batch == 512
    for option in (
        "--global-batch", "--seq-length", "--hardware", "--gpus-per-node", "--framework", "--precision",
        "--max-bubble",
    ):  # fmt: skip
        assert option in text


def test_what_is_said_is_not_assumed() -> None:
    request = ask(global_batch=64, seq_length=2048, precision="bf16", max_bubble="none")
    text = " ".join(request.assumptions)
    assert request.workload.global_batch == 64
    assert request.workload.seq_length == 2048
    assert request.max_bubble is None
    for option in ("--global-batch", "--seq-length", "--precision", "--max-bubble"):
        assert option not in text


@pytest.mark.parametrize(
    ("hardware", "asked", "chosen"),
    [
        ("a100-sxm-40gb", "fp16", "fp16"),  # at the rate of bf16, of which alone there are measurements
        ("mi355x-288gb", "mxfp8", "mxfp8"),
        ("v100-sxm2-32gb", None, "fp16"),  # no bf16 there
        ("h100-sxm-80gb", None, "bf16"),
    ],
)
def test_formats_are_those_of_the_data_sheet(hardware: str, asked: str | None, chosen: str) -> None:
    request = ask(hardware=hardware, precision=asked, framework="any")
    assert request.workload.precisions == (chosen,)
    assert asked or f"Number format {chosen}" in " ".join(request.assumptions)


def test_batches_as_ranges_and_tokens() -> None:
    ranged = ask(global_batch="128:256").workload
    assert (ranged.global_batch, ranged.global_batch_max) == (128, 256)
    # 4e6 tokens / 4096 = 976.6 sequences
    assert ask(global_batch="4Mtok", seq_length=4096).workload.global_batch == 977
    assert ask(global_batch="1k").workload.global_batch == 1000


def test_machine_overrides() -> None:
    cluster = ask(gpus=32, gpus_per_node=4, nic_bandwidth="12.5GB/s", hbm="40GB", hbm_reserve="2GB").cluster
    assert cluster.gpus_per_node == 4
    assert cluster.nvlink_domain == 4
    assert cluster.links[-1].bytes_per_s == 12.5e9
    assert cluster.usable_hbm_bytes == 38e9


def test_pins_by_option_word_or_field() -> None:
    request = ask(pins={"tp": "8", "pipeline_parallel": "1:4", "--zero": "1,2"})
    assert [pin.field for pin in request.pins] == ["tensor_parallel", "pipeline_parallel", "zero_stage"]
    assert request.pins[0].option == "--tp 8"


def test_a_target_and_goals() -> None:
    assert ask(step_time="2.5s").max_step_time_s == 2.5
    assert ask(goal="memory").goal == "memory"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": None}, "--model"),
        ({"model": "llama-3-9b0"}, "llama-3-9b0"),
        ({"gpus": None}, "--gpus"),
        ({"gpus": 0}, "--gpus 0"),
        ({"gpus": -8}, "--gpus -8"),
        ({"gpus": "nan"}, "--gpus"),
        ({"gpus": "many"}, "--gpus"),
        ({"gpus": 1.5}, "--gpus 1.5"),
        ({"gpus": 10**9}, "--gpus"),
        ({"hardware": "h1000"}, "h1000"),
        ({"gpus_per_node": 0}, "--gpus-per-node"),
        ({"global_batch": 0}, "--global-batch"),
        ({"global_batch": "64:32"}, "64 is more than 32"),
        ({"global_batch": "inf"}, "--global-batch"),
        ({"global_batch": "10tok"}, "at least one sequence"),
        ({"seq_length": -1}, "--seq-length"),
        ({"precision": "int4"}, "--precision"),
        ({"precision": "fp8", "hardware": "a100-sxm-80gb"}, "no fp8"),
        ({"framework": "megatorn"}, "megatron"),
        ({"goal": "speed"}, "--goal"),
        ({"max_bubble": 0}, "--max-bubble"),
        ({"max_bubble": "nan"}, "--max-bubble"),
        ({"step_time": "-1s"}, "--step-time"),
        ({"step_time": "1 furlong"}, "--step-time"),
        ({"hbm": "0"}, "--hbm"),
        ({"hbm_reserve": "100GB"}, "--hbm-reserve"),
        ({"nic_bandwidth": 0}, "--nic-bandwidth"),
        ({"oversubscription": 0.5}, "--oversubscription"),
        ({"pins": {"tpp": "8"}}, "tpp"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput) as caught:
        ask(**options)
    assert "\n" not in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("framework", "pins", "zero_stage"),
    [
        ("megatron", {"tp": "2"}, 1),
        ("torchtitan", {"tp": "2"}, 3),  # FSDP frees the weights after each layer ...
        ("torchtitan", {"pp": "2"}, 2),  # ... but not between the micro-batches of a pipeline
        ("torchtitan", {"tp": "8"}, 0),  # nobody to share with
        ("torchtitan", {"tp": "2", "zero": "2"}, 2),
        ("trl", {}, 3),
    ],
)
def test_a_plan_shards_as_its_framework_does_unless_told(
    framework: str, pins: dict[str, str], zero_stage: int
) -> None:
    request = ask(model="llama-3-8b", gpus=8, framework=framework, pins=pins)
    plan = pinned_plan(request)
    assert plan.zero_stage == zero_stage
    assert {broken.rule for broken in check(plan, request)} <= {"every_stage_fits_in_memory"}


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zb-v", 2)])
def test_a_plan_has_the_chunks_that_its_schedule_runs(schedule: str, chunks: int) -> None:
    pins = {"pp": "4", "schedule": schedule}
    request = ask(model="llama-3-8b", gpus=8, framework="torchtitan", pins=pins)
    assert pinned_plan(request).virtual_stages == chunks


@pytest.mark.parametrize(
    ("hardware", "framework"), [("h100", "megatron"), ("mi300x", "megatron"), ("tpu-v5p", "maxtext")]
)
def test_the_framework_is_one_that_the_accelerator_runs(hardware: str, framework: str) -> None:
    request = ask(model="gemma-2-9b", gpus=64, hardware=hardware)
    assert request.framework.name == framework
    assert any(sentence.startswith(f"Framework {framework}: ") for sentence in request.assumptions)
    assert ask(model="gemma-2-9b", gpus=64, hardware=hardware, framework="any").framework.name == "any"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"modle": "llama-3-8b", "gpus": 8}, "unknown option 'modle'; did you mean 'model'?"),
        ({"model": "llama-3-8b", "gpus": 8, "tpp": 2}, "unknown option 'tpp'; did you mean 'tp'?"),
        ({"model": "llama-3-8b", "gpus": 8, "zzz": 2}, "unknown option 'zzz'"),
    ],
)
def test_an_option_that_python_does_not_know_is_named_first(options: dict[str, object], told: str) -> None:
    with pytest.raises(BadInput) as caught:
        question(options)
    assert str(caught.value) == told
