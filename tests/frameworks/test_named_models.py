"""Files that name a model of the catalog, and the scripts around Hugging Face's trainer."""

from __future__ import annotations

import pytest

from planner.api import Question, review_files
from planner.frameworks.files import read_files, read_text
from planner.frameworks.launcher_keys import LAUNCHER_KEYS
from planner.frameworks.lint import Review, gpus_of, model_of

TITAN = """[model]
name = "{name}"
flavor = "{flavor}"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
"""


def reviewed(tmp_path, asked: Question | None = None, **sources: str) -> Review:
    """Review files whose names have ``__`` for the dot."""
    paths = []
    for name, source in sources.items():
        path = tmp_path / name.replace("__", ".")
        path.write_text(source, encoding="utf-8")
        paths.append(str(path))
    return review_files(paths, asked or Question(), search_s=0)


@pytest.mark.parametrize(
    ("name", "flavor", "model"),
    [
        ("llama3", "70B", "llama-3-70b"),
        ("deepseek_v3", "16B", "deepseek-v2-lite"),
        ("llama4", "17bx16e", "llama-4-scout"),
        ("qwen3", "30B-A3B", "qwen3-30b-a3b"),
    ],
)
def test_a_flavour_of_torchtitan_is_a_model_of_the_catalog(name: str, flavor: str, model: str) -> None:
    found = model_of(read_text(TITAN.format(name=name, flavor=flavor), "run.toml"))
    assert found is not None
    assert found.name == model


def test_a_flavour_that_the_catalog_lacks_is_no_model() -> None:
    assert model_of(read_text(TITAN.format(name="llama3", flavor="debugmodel"), "run.toml")) is None


def test_maxtext_names_its_model() -> None:
    found = model_of(read_text("model_name: llama3.1-70b\nper_device_batch_size: 2\n", "run.yml"))
    assert found is not None
    assert found.name == "llama-3-70b"


def test_another_model_in_the_question_is_told(tmp_path) -> None:
    asked = Question(model="llama-3-8b", gpus=64)
    found = reviewed(tmp_path, asked, run__toml=TITAN.format(name="llama3", flavor="70B"))
    told = {entry.rule: entry.message for entry in found.findings}
    assert "the files train llama-3-70b, the question is about llama-3-8b" in told["model-differs"]


def test_a_torchtitan_command_says_its_ranks_model_and_checkpointing() -> None:
    source = (
        "torchrun --nproc_per_node=8 --nnodes=4 -m torchtitan.train --module llama3 --config llama3_70b "
        "--parallelism.tensor_parallel_degree 8 --training.seq_len 8192 activation-checkpoint:full\n"
    )
    launch = read_text(source, "run.sh")
    model = model_of(launch)
    assert not launch.unreadable
    assert (gpus_of(launch), launch.get("seq_length"), launch.get("recompute")) == (32, 8192, "full")
    assert model is not None
    assert model.name == "llama-3-70b"


DEEPSPEED = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
TRAINER = (
    "--model_name_or_path meta-llama/Llama-2-13b-hf --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 2 --gradient_checkpointing True --cutoff_len 2048\n"
)


def test_a_deepspeed_script_and_its_file_make_a_run(tmp_path) -> None:
    script = "deepspeed --num_gpus 8 train.py --deepspeed ds.json " + TRAINER
    found = reviewed(tmp_path, run__sh=script, ds__json=DEEPSPEED)
    plan = found.plan
    assert plan is not None
    assert found.request.model.name == "llama-2-13b"
    assert (plan.num_gpus, plan.micro_batch, plan.num_microbatches) == (8, 4, 2)
    assert (plan.zero_stage, plan.recompute, found.request.workload.seq_length) == (3, "full", 2048)


FSDP = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 16
fsdp_config:
  fsdp_version: {version}
  fsdp_{key}: {value}
"""
ACCELERATE = "accelerate launch --config_file fsdp.yaml --num_processes 16 sft.py " + TRAINER


def test_an_accelerate_script_and_its_file_make_a_run(tmp_path) -> None:
    settings = FSDP.format(version=2, key="reshard_after_forward", value="true")
    found = reviewed(tmp_path, run__sh=ACCELERATE, fsdp__yaml=settings)
    plan = found.plan
    assert plan is not None
    assert found.request.model.name == "llama-2-13b"
    assert (plan.num_gpus, plan.zero_stage, plan.precision) == (16, 3, "bf16")
    assert (plan.micro_batch, plan.num_microbatches, plan.recompute) == (4, 2, "full")


def test_an_accelerate_script_without_its_file_asks_for_it(tmp_path) -> None:
    found = reviewed(tmp_path, run__sh=ACCELERATE)
    assert found.plan is None
    assert any("fsdp.yaml" in entry.message for entry in found.findings)


def test_flags_of_accelerate_launch_need_no_file(tmp_path) -> None:
    script = (
        "accelerate launch --num_processes 8 --use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward false "
        "--mixed_precision bf16 sft.py --model-name-or-path Qwen/Qwen3-8B --max_length 4096\n"
    )
    found = reviewed(tmp_path, run__sh=script)
    assert found.plan is not None
    assert (found.request.model.name, found.plan.zero_stage, found.plan.precision) == ("qwen3-8b", 2, "bf16")


@pytest.mark.parametrize(("strategy", "stage"), [("FULL_SHARD", 3), ("SHARD_GRAD_OP", 2), ("NO_SHARD", 0)])
def test_the_first_fsdp_names_a_strategy(tmp_path, strategy: str, stage: int) -> None:
    settings = FSDP.format(version=1, key="sharding_strategy", value=strategy)
    found = reviewed(tmp_path, Question(model="llama-3-8b"), fsdp__yaml=settings)
    assert found.plan is not None
    assert found.plan.zero_stage == stage


def test_a_count_of_nodes_ends_at_the_next_word() -> None:
    assert LAUNCHER_KEYS["--nnodes"].convert(["4", "-m", "train"]) == 4
    assert LAUNCHER_KEYS["--nnodes"].convert("1:4") is None


def test_a_variable_in_place_of_a_model_is_no_model() -> None:
    launch = read_files({"run.sh": "deepspeed train.py --deepspeed x.json --model_name_or_path $MODEL\n"})
    assert model_of(launch) is None


@pytest.mark.parametrize(("said", "batch"), [(', "gradient_accumulation_steps": 4', 64), ("", 16)])
def test_deepspeed_takes_one_micro_batch_unless_told(tmp_path, said: str, batch: int) -> None:
    source = f'{{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": 1}}{said}}}'
    found = reviewed(tmp_path, Question(model="llama-3-8b", gpus=8), ds__json=source)
    assert found.request.workload.global_batch == batch


@pytest.mark.parametrize(
    ("recipe", "model"),
    [
        ("cfg = llama31_405b_pretrain_config()", "llama-3.1-405b"),
        ("cfg = qwen3_30b_a3b_sft_config(x)", "qwen3-30b-a3b"),
        ("cfg = llm.llama3_70b.pretrain_recipe(num_nodes=4)", "llama-3-70b"),
        ('cfg = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B")', "llama-3-8b"),
    ],
)
def test_a_recipe_names_its_model(recipe: str, model: str) -> None:
    source = f"from megatron.bridge import recipes\n{recipe}\ncfg.model.tensor_model_parallel_size = 2\n"
    found = model_of(read_text(source, "recipe.py"))
    assert found is not None
    assert found.name == model


def test_nanotron_shards_the_optimizer_alone(tmp_path) -> None:
    source = (
        "parallelism: {dp: 4, tp: 2, pp: 1}\n"
        "tokens: {sequence_length: 4096, micro_batch_size: 2, batch_accumulation_per_replica: 1}\n"
        "optimizer: {zero_stage: 3}\n"
    )
    found = reviewed(tmp_path, Question(model="llama-3-8b", gpus=8), run__yaml=source)
    told = {entry.rule: entry.message for entry in found.findings}
    assert (
        told["setting-means-less"] == "nanotron shards the optimizer alone: optimizer.zero_stage 3 runs as 1"
    )
