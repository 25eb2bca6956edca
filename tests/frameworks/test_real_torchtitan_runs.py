"""torchtitan 0.2.2's own trainer runs our TOML on CPU processes: same losses as one process, our groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from launch_plans import TINY, request_of

from planner.frameworks import load_framework
from planner.frameworks.files import write
from planner.frameworks.launch import stages_of, with_stages
from planner.spec import Plan
from planner.spec.ranks import groups


def is_old() -> bool:
    """0.2.2; 0.3 trains with flex attention only, whose backward pass has no CPU kernel."""
    try:
        return version("torchtitan").startswith("0.2.")
    except PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not is_old(), reason="torchtitan 0.2.2 is not installed (.ci/frameworks FOLDER --slow)"
    ),
]

MODEL = TINY.model_copy(
    update={"num_layers": 5, "hidden_size": 64, "head_dim": 8, "ffn_hidden_size": 128, "vocab_size": 256}
)
LENGTH = 32
TOLERANCE = 2e-5
"""fp32 sums in another order over two steps; seen: up to 1e-6."""

PLANS: dict[str, dict[str, Any]] = {
    "fsdp2-tp2": {"tensor_parallel": 2, "sequence_parallel": True, "data_parallel": 2, "zero_stage": 3,
                  "shard_group_size": 2, "micro_batch": 2, "num_microbatches": 2, "recompute": "full"},
    "pp2-fsdp2": {"pipeline_parallel": 2, "schedule": "1f1b", "data_parallel": 2, "zero_stage": 2,
                  "shard_group_size": 2, "num_microbatches": 4},
    "interleaved-dp2": {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "interleaved",
                        "data_parallel": 2, "zero_stage": 3, "shard_group_size": 2, "num_microbatches": 4},
    "hsdp4": {"data_parallel": 4, "zero_stage": 3, "shard_group_size": 2, "num_microbatches": 2},
    "pp2-fsdp2-tp2": {"tensor_parallel": 2, "sequence_parallel": True, "pipeline_parallel": 2,
                      "schedule": "1f1b", "data_parallel": 2, "zero_stage": 3, "shard_group_size": 2,
                      "num_microbatches": 4},
}  # fmt: skip


def run(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """Train two steps and return what every rank wrote."""
    files, out = folder / "files", folder / "out"
    files.mkdir(parents=True)
    out.mkdir()
    for name, text in write(plan, request_of(plan, MODEL, load_framework("torchtitan"), LENGTH)).items():
        (files / name).write_text(text)
    program = str(Path(__file__).with_name("torchtitan_run.py"))
    count = f"--nproc-per-node={plan.num_gpus}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", count, program]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_DATASETS_CACHE": str(folder / "cache"),
    }
    done = subprocess.run(
        [*command, str(files), str(out)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(plan.num_gpus)]


@lru_cache
def alone(folder: Path) -> tuple[float, ...]:
    """Losses of one process with the whole batch of 8 sequences."""
    plan = with_stages(Plan(micro_batch=2, num_microbatches=4, precision="fp32"), MODEL)
    return tuple(run(plan, folder)[0]["losses"])


@pytest.mark.parametrize("name", PLANS)
def test_the_first_steps_equal_one_process(name: str, tmp_path: Path, tmp_path_factory: Any) -> None:
    plan = Plan(**PLANS[name], precision="fp32")
    assert plan.global_batch == 8
    stages = plan.pipeline_parallel * plan.virtual_stages
    if stages > 1:  # five layers: the first stage takes what is left over
        counts = [5 - (stages - 1) * (5 // stages), *[5 // stages] * (stages - 1)]
        plan = plan.model_copy(update={"stages": stages_of(counts, plan)})
    plan = with_stages(plan, MODEL)
    reference = alone(tmp_path_factory.getbasetemp() / "one-process")
    assert len(reference) == 2
    assert reference[1] < reference[0]
    ranks = run(plan, tmp_path)
    last_stage = groups(plan, "pipeline")[0][-1]
    assert ranks[last_stage]["losses"] == pytest.approx(reference, abs=TOLERANCE)
    for rank, seen in enumerate(ranks):
        check_groups(plan, rank, seen["groups"])


def check_groups(plan: Plan, rank: int, seen: dict[str, list[int]]) -> None:
    """The groups that the trainer made are those of the rank map."""
    for ours, theirs in (("tensor", "tp"), ("pipeline", "pp"), ("data", "batch")):
        assert seen[theirs] == next(members for members in groups(plan, ours) if rank in members)
    assert len(seen["fsdp"]) == plan.shard_group_size
    assert set(seen["fsdp"]) | set(seen["dp_replicate"]) <= set(seen["batch"])
