"""What verl checks of batches and ranks around its training engine."""

from __future__ import annotations

import pytest

from planner.api import question
from planner.frameworks.files import read_text, to_plan
from planner.frameworks.lint import adopt
from planner.frameworks.lint.needs import need_findings

ACTOR = "actor_rollout_ref.actor."
COMMAND = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=1024 data.max_prompt_length=1024 "
    "data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct "
    f"{ACTOR}strategy=fsdp {ACTOR}ppo_mini_batch_size=256 "
    "trainer.n_gpus_per_node=8 trainer.nnodes=1 "
)
REQUEST = question({"model": "qwen2.5-7b", "gpus": 8, "framework": "deepspeed"})


def said(more: str) -> list[tuple[str, str]]:
    """Severity and message of what the command is told."""
    launch = read_text(f"{COMMAND}{more}\n", "run.sh")
    return [(entry.severity, entry.message) for entry in need_findings(launch, REQUEST)]


@pytest.mark.parametrize(
    ("more", "severity", "message"),
    [
        (
            "data.train_batch_size=60",
            "error",
            "60 x 1 answers are not a multiple of 8 GPUs (nearest: 56",
        ),
        (
            "data.train_batch_size=128",
            "error",
            "ppo_mini_batch_size 256 is more than data.train_batch_size 128",
        ),
        (
            f"{ACTOR}ulysses_sequence_parallel_size=2 actor_rollout_ref.model.use_remove_padding=False",
            "error",
            "needs actor_rollout_ref.model.use_remove_padding True",
        ),
        (
            f"{ACTOR}ppo_micro_batch_size=32 {ACTOR}ppo_micro_batch_size_per_gpu=4",
            "error",
            "does not go with",
        ),
        (
            "actor_rollout_ref.rollout.tensor_model_parallel_size=3",
            "error",
            "engines of 3 GPUs do not fill 8",
        ),
        (
            f"{ACTOR}use_dynamic_bsz=True {ACTOR}ppo_max_token_len_per_gpu=1024",
            "warning",
            "hold no sample of 1024 + 1024 tokens",
        ),
    ],
)
def test_relations_that_verl_checks_are_said(more: str, severity: str, message: str) -> None:
    assert [what for what, words in said(more) if message in words] == [severity]


@pytest.mark.parametrize(
    "more",
    [
        "",
        "data.train_batch_size=1000 actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
        f"{ACTOR}use_dynamic_bsz=True {ACTOR}ppo_max_token_len_per_gpu=2048 data.train_batch_size=60",
    ],
)
def test_runs_that_verl_starts_are_told_nothing(more: str) -> None:
    assert said(more) == []


def test_a_micro_batch_of_all_gpus_is_shared_among_them() -> None:
    for ranks, each in ((1, 4), (2, 8)):
        settings = f"{ACTOR}ppo_micro_batch_size=32 {ACTOR}ulysses_sequence_parallel_size={ranks}"
        launch = read_text(f"{COMMAND}{settings}\n", "run.sh")
        assert to_plan(launch, adopt(launch, REQUEST)).micro_batch == each


def test_weights_are_sharded_over_the_ranks_that_are_said() -> None:
    for size, group in ((4, 4), (8, 8), (16, 8), (-1, 8)):
        settings = f"{ACTOR}ppo_micro_batch_size_per_gpu=4 {ACTOR}fsdp_config.fsdp_size={size}"
        launch = read_text(f"{COMMAND}{settings}\n", "run.sh")
        assert to_plan(launch, adopt(launch, REQUEST)).shard_group_size == group


GROUPS = (
    "accelerate launch --num_processes 4 train_grpo.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct "
    "--per_device_train_batch_size 3 --num_generations {group} --max_length 2048 --bf16 true {more}\n"
)


@pytest.mark.parametrize(
    ("group", "more", "says"),
    [
        (8, "", "micro-batch 3 x 4 GPUs x 1 steps = 12 answers are not whole groups of --num_generations 8"),
        (6, "", ""),
        (8, "--gradient_accumulation_steps 2", ""),
        (8, "--generation_batch_size 20", "--generation_batch_size 20 answers are not whole groups"),
    ],
)
def test_answers_of_a_step_are_whole_groups_of_one_prompts(group: int, more: str, says: str) -> None:
    launch = read_text(GROUPS.format(group=group, more=more), "run.sh")
    request = question({"model": "qwen2.5-7b", "gpus": 4, "framework": launch.framework})
    told = [entry.message for entry in need_findings(launch, request)]
    assert len(told) == bool(says)
    assert all(says in message for message in told)
