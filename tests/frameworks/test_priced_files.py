"""``estimate --plan`` and ``why-not --plan`` price a launch file as ``check`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api import priced_file, review_files
from planner.request import Question
from planner.solver.evaluate import evaluate

ADAPTERS = (
    "base_model: Qwen/Qwen2.5-7B\nsequence_len: 4096\nmicro_batch_size: 1\nsample_packing: true\n"
    "gradient_accumulation_steps: 1\nbf16: true\nadapter: lora\nlora_r: 8\nflash_attention: true\n"
)
NAMED = "NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --parallelism.tensor_parallel_degree 2\n"
RING = ADAPTERS.replace("adapter: lora\nlora_r: 8\n", "context_parallel_size: 4\n")


@pytest.mark.parametrize(
    ("name", "source"), [("lora.yaml", ADAPTERS), ("run.sh", NAMED), ("ring.yaml", RING)]
)
def test_a_launch_file_costs_what_its_check_says(name: str, source: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(source)
    checked = review_files([str(path)], Question(gpus=8), search_s=0).estimate
    plan, request = priced_file(str(path), Question(gpus=8))
    priced = evaluate(plan, request)
    assert checked is not None
    assert priced.is_legal, priced.violations
    assert priced.step_time_s == checked.step_time_s
    assert priced.peak_memory_bytes == checked.peak_memory_bytes
    assert request.workload.global_batch == plan.global_batch


def test_what_the_user_says_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lora.yaml"
    path.write_text(ADAPTERS)
    _, request = priced_file(str(path), Question(gpus=16, seq_length=2048, model="llama-3-8b"))
    assert (request.cluster.num_gpus, request.workload.seq_length) == (16, 2048)
    assert request.model.name == "llama-3-8b"
