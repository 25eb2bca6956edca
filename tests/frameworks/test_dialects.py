"""Configurations of trainers around other frameworks: read as the run that they start.

Every text is made up for the test. What a name means, and what a trainer does when nothing is said, is from
the trainer's own arguments, named in its dialect.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dialect_files import (
    ACCELERATE_DEEPSPEED,
    AUTOMODEL,
    AXOLOTL,
    CASES,
    FACTORY,
    FOUNDRY,
    OPENRLHF,
    PADDLE,
    SWIFT,
    TORCHTUNE,
    TRAINER,
    VERL,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.api import complete, question, review_files
from planner.cost.longest import longest_sentence
from planner.errors import BadInput
from planner.frameworks.dialects import DIALECTS, dialect_of
from planner.frameworks.files import WRITERS, read_files, read_text, to_plan, write
from planner.frameworks.launch import LaunchFile
from planner.frameworks.lint import adopt, batch_of, gpus_of, lint, model_of
from planner.request import Question
from planner.spec import PlanRequest


def asked(model: Any, gpus: int, framework: str, batch: int | None) -> PlanRequest:
    options = {"model": model, "gpus": gpus, "framework": framework, "global_batch": batch}
    return question({name: value for name, value in options.items() if value is not None})


def understood(launch: LaunchFile) -> dict[str, Any]:
    """What the launch file means: the plan's fields, and what the request takes from it."""
    gpus = gpus_of(launch) or 16
    model = model_of(launch) or "llama-3-8b"
    request = adopt(launch, asked(model, gpus, launch.framework, batch_of(launch, gpus)))
    plan = to_plan(launch, request)
    habits, workload = request.framework.memory, request.workload
    return {
        **plan.model_dump(),
        "num_gpus": plan.num_gpus,
        "global_batch": plan.global_batch,
        "model": request.model.name,
        "num_layers": request.model.num_layers,
        "seq_length": workload.seq_length,
        "frozen": workload.frozen_weights,
        "optimizer": habits.optimizer_bytes,
        "logits": habits.loss_peak_bytes,
    }


@pytest.mark.parametrize(("path", "source", "framework", "expected"), CASES)
def test_a_trainers_file_is_the_run_below(
    path: str, source: str, framework: str, expected: dict[str, Any]
) -> None:
    launch = read_text(source, path)
    assert launch.framework == framework
    said = understood(launch)
    assert {name: said[name] for name in expected} == expected
    assert not launch.unreadable and not launch.unknown


JUNK = (
    "",
    "-1",
    "0",
    "1e9",
    "9" * 12,
    "[1, 2]",
    "null",
    "true",
    "~",
    "²",
    "0.5",
    "{a: 1}",
    "'x",
    "none",
    "7",
    "auto",
)


WORD = re.compile(r"[\w./-]+")


def assert_read_or_refused(source: str, path: str) -> None:
    try:
        meant = understood(read_text(source, path))
    except BadInput as error:
        assert str(error)
    else:
        assert meant["num_gpus"] >= 1
        assert meant["global_batch"] >= 1


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_spoilt_files_are_read_or_refused(data: st.DataObject) -> None:
    path, source, _, _ = data.draw(st.sampled_from(CASES))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from([match.span() for match in WORD.finditer(source)]))
        source = source[: at[0]] + data.draw(st.sampled_from(JUNK)) + source[at[1] :]
    assert_read_or_refused(source, path)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "source"), [case[:2] for case in CASES])
def test_any_one_spoilt_word_is_read_or_refused(path: str, source: str) -> None:
    for match in WORD.finditer(source):
        for junk in JUNK:
            assert_read_or_refused(source[: match.start()] + junk + source[match.end() :], path)


def test_zeros_and_lists_in_the_place_of_words_are_read_or_refused() -> None:
    """Values that divide nothing and that no table has: the kinds that single words were not safe from."""
    for path, source, _, _ in CASES:
        for match in WORD.finditer(source):
            for junk in ("0", "[1, 2]"):
                assert_read_or_refused(source[: match.start()] + junk + source[match.end() :], path)


def test_long_comments_are_looked_through_once() -> None:
    assert dialect_of("# a long introduction\n" * 5_000 + "nothing\n") is None
    assert dialect_of('# one\n\n  # two\n{ "train_iters": 10 }\n') == "gpt-neox"


def test_every_dialect_has_a_case() -> None:
    assert {dialect_of(source) for _, source, _, _ in CASES} - {None} == {name for name, *_ in DIALECTS}


@pytest.mark.parametrize("framework", WRITERS)
def test_no_file_that_we_write_is_taken_for_a_dialect(framework: str) -> None:
    request = asked("llama-3-8b", 8, framework, 64)
    for text in write(complete({}, request), request).values():
        assert dialect_of(text) is None


def test_a_named_deepspeed_file_is_read_where_it_is_given() -> None:
    source = FACTORY.replace("ds_z3_offload_config", "settings")
    request = asked("llama-3-8b", 8, "deepspeed", 32)
    with pytest.raises(BadInput, match=r"settings\.json: name it together with the script"):
        to_plan(read_text(source, "sft.yaml"), request)
    stage_two = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}'
    launch = read_files({"sft.yaml": source, "cache/settings.json": stage_two})
    plan = to_plan(launch, request)
    assert (plan.zero_stage, plan.offload, plan.num_microbatches) == (2, "none", 4)


def test_an_accelerate_command_runs_the_engine_of_its_file() -> None:
    command = "accelerate launch --config_file zero2.yaml train.py --per_device_train_batch_size 2"
    launch = read_files({"zero2.yaml": ACCELERATE_DEEPSPEED, "run.sh": command})
    request = asked("llama-3-8b", 8, "deepspeed", 64)
    plan = to_plan(launch, request)
    assert (launch.framework, plan.zero_stage, plan.micro_batch, plan.num_microbatches) == (
        "deepspeed",
        2,
        2,
        4,
    )


def test_ring_attention_beside_deepspeed_pads_sequences_for_its_ranks() -> None:
    source = OPENRLHF.replace("--max_len 4096", "--max_len 4001 --ring_attn_size 2")
    launch = read_text(source, "run.sh")
    request = adopt(launch, asked("llama-3-8b", 8, "deepspeed", 64))
    plan = to_plan(launch, request)
    assert (plan.context_parallel, plan.context_parallel_kind, plan.data_parallel) == (2, "ring", 4)
    assert request.workload.seq_length == 4004
    assert not [entry for entry in lint(launch, request) if entry.severity == "error"]


def test_chunks_that_divide_are_named_where_no_number_of_ranks_does() -> None:
    source = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 40 --pipeline-model-parallel-size 2"
    source += " --num-virtual-stages-per-pipeline-rank 12 --micro-batch-size 1 --global-batch-size 32"
    request = asked("llama-2-13b", 8, "megatron", 32)
    (refused,) = [entry for entry in lint(read_text(source, "run.sh"), request) if entry.severity == "error"]
    assert "even stages take 1, 2, 4, 5, 10, 20 chunks a rank" in refused.message


def test_a_model_that_nanotron_describes_is_llama_shaped() -> None:
    source = (
        "parallelism: {dp: 1, pp: 1, tp: 1}\ntokens: {micro_batch_size: 1, sequence_length: 128}\nmodel:\n"
    )
    source += "  model_config: {hidden_size: 64, intermediate_size: 160, num_attention_heads: 4,\n"
    source += "    num_hidden_layers: 2, num_key_value_heads: 4, vocab_size: 512}\n"
    model = model_of(read_text(source, "tiny.yaml"))
    assert model is not None and model.gated_mlp and not model.tied_embeddings
    bare = model_of(
        read_text("--num-layers 2 --hidden-size 64 --num-attention-heads 4", "args.sh", "megatron")
    )
    assert bare is not None and not bare.gated_mlp and bare.tied_embeddings


def test_a_length_that_only_cuts_samples_is_said_to_and_yields_to_the_users(tmp_path: Path) -> None:
    source = FACTORY.replace("8192", "200000").replace("enable_liger_kernel: true\n", "")
    script = tmp_path / "sft.yaml"
    script.write_text(source, encoding="utf-8")
    options = {"gpus": 8, "framework": None}
    found = review_files([str(script)], Question(**options), 0.0)
    (error,) = [entry for entry in found.findings if entry.rule == "out-of-memory"]
    assert found.estimate is not None
    fitting = longest_sentence(found.estimate.plan, found.request)
    assert error.message.endswith(
        f"; {fitting}; cutoff_len only cuts samples: say with --seq-length how long the longest are"
    )
    script.write_text(source + "packing: true\n", encoding="utf-8")
    assert "only cuts samples" not in str(review_files([str(script)], Question(**options), 0.0).findings)
    shorter = review_files([str(script)], Question(**options, seq_length=4096), 0.0)
    assert shorter.request.workload.seq_length == 4096 and not shorter.has_errors


CUTS = {
    "pad.yml": (AXOLOTL, "pad_to_sequence_len: true"),
    "pack.yml": (AXOLOTL, "sample_packing: true"),
    "tune.yaml": (TORCHTUNE, "dataset: {packed: true}"),
    "foundry.yaml": (FOUNDRY, "max_duration: 1ep"),
}
"""A file, and a line with which its rows are full."""


@pytest.mark.parametrize("path", CUTS)
def test_a_length_up_to_which_rows_are_filled_cuts_nothing(path: str) -> None:
    source, line = CUTS[path]
    launch = read_text(f"{source}\n{line}\n", path)
    at = launch.place("seq_length")
    assert at is not None
    long = replace(launch, fields={**launch.fields, "seq_length": replace(at, value=10_000_000)})
    request = asked("llama-3-8b", 8, launch.framework, 64)
    (error,) = [entry for entry in lint(long, request) if entry.rule == "out-of-memory"]
    assert "only cuts samples" not in error.message and "tokens fit" in error.message


def test_prompts_and_answers_are_cut_together() -> None:
    source = OPENRLHF.replace("--max_len 4096", "--prompt_max_len 1024 --generate_max_len 300000")
    launch = read_text(source, "ppo.sh")
    request = asked("llama-3-8b", 8, launch.framework, 64)
    (error,) = [entry for entry in lint(launch, request) if entry.rule == "out-of-memory"]
    assert "; prompt_max_len + generate_max_len only cut samples" in error.message


def test_a_model_that_the_catalog_lacks_is_named(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SWIFT.replace("Qwen3-30B-A3B-mcore", "Owl-7X-Base-mcore"), encoding="utf-8")
    with pytest.raises(BadInput, match=r"run\.sh:3: the catalog has no model Owl-7X-Base-mcore: say"):
        review_files([str(script)], Question(), 0.0)


def test_what_a_trainer_switches_on_satisfies_the_settings_that_need_it() -> None:
    source = SWIFT.rstrip() + " --overlap_param_gather true --overlap_grad_reduce true --fp16 true\n"
    launch = read_text(source, "run.sh")
    found = lint(launch, asked("qwen3-30b-a3b", 16, "megatron", 16))
    assert "settings-need-others" not in {entry.rule for entry in found}
    assert understood(launch)["precision"] == "fp16"


def test_stages_of_automodel_round_where_they_are_told_to() -> None:
    """48 layers in stages of 5 are 10 stages, not a multiple of 4 ranks (pipelining/functional.py)."""
    more = "{tp_size: 1, pipeline: {pp_schedule: Interleaved1F1B, layers_per_stage: 5, ROUND}, "
    source = AUTOMODEL.replace("{tp_size: 1, ", more).replace("pp_size: 2", "pp_size: 4")
    request = asked("qwen3-30b-a3b", 16, "automodel", 64)
    with pytest.raises(BadInput, match="10 stages, not a multiple of 4 pipeline ranks"):
        to_plan(read_text(source.replace(", ROUND", ""), "a.yaml"), request)
    for rounding, counts in (("up", [4] * 12), ("down", [6] * 8)):
        text = source.replace("ROUND", f"round_virtual_stages_to_pp_multiple: {rounding}")
        plan = to_plan(read_text(text, "a.yaml"), request)
        assert sorted(count for stage in plan.stages for count in stage.chunk_layers) == counts


def test_a_run_in_fp32_is_slow_and_not_refused() -> None:
    source = TRAINER.replace("--bf16 True", "--tf32 True")
    found = lint(read_text(source, "run.sh"), asked("llama-2-13b", 8, "accelerate", 128))
    rules = {entry.rule: entry.severity for entry in found}
    assert rules["trains-in-fp32"] == "warning" and "accelerator_has_the_precision" not in rules


def test_models_are_found_under_the_names_of_their_checkpoints() -> None:
    names = {
        "Qwen/Qwen3-30B-A3B-Thinking-2507-FP8": "qwen3-30b-a3b",
        "unsloth/Meta-Llama-3-8B-Instruct-bnb-4bit": "llama-3-8b",
        "/models/Qwen3-30B-A3B_torch_dist/": "qwen3-30b-a3b",
    }
    for said, name in names.items():
        launch = read_text(TRAINER.replace("meta-llama/Llama-2-13b-hf", said), "run.sh")
        model = model_of(launch)
        assert model is not None and model.name == name
    builders = {"qwen2_5.qwen2_5_1_5b_base": "qwen2.5-1.5b", "qwen3.lora_qwen3_8b": "qwen3-8b"}
    for said, name in builders.items():
        model = model_of(read_text(TORCHTUNE.replace("llama3_1.llama3_1_70b", said), "a.yaml"))
        assert model is not None and model.name == name


def test_paddle_refuses_sharded_gradients_in_a_pipeline() -> None:
    request = asked("llama-2-13b", 16, "paddle", 16)
    found = lint(read_text(PADDLE.replace("stage1", "stage2"), "sft.json"), request)
    (refused,) = [entry for entry in found if entry.severity == "error"]
    assert (refused.rule, refused.line, refused.valid) == ("zero_stage_goes_with_the_pipeline", 4, (0, 1))


def test_sequence_parallelism_over_one_rank_is_left_off_in_silence() -> None:
    source = VERL.replace(
        "actor.megatron.tensor_model_parallel_size=2", "actor.megatron.tensor_model_parallel_size=1"
    )
    source = source.replace("pipeline_model_parallel_size=2", "pipeline_model_parallel_size=3")
    request = asked("qwen2.5-7b", 16, "megatron", 128)
    rules = [entry.rule for entry in lint(read_text(source, "run.sh"), request)]
    assert "settings-make-a-run" in rules and "sequence_parallelism_needs_tensor_ranks" not in rules
