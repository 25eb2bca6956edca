"""The emitted PyTorch script trains on CPU processes: same loss as one process, groups of the rank map."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from launch_plans import TINY, request_of

from planner.frameworks import load_framework
from planner.frameworks.files import write
from planner.frameworks.launch import stages_of, with_stages
from planner.spec import Plan
from planner.spec.ranks import groups

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="torch is not installed (.ci/frameworks)"
    ),
]

MODEL = TINY.model_copy(
    update={"num_layers": 5, "hidden_size": 64, "head_dim": 8, "ffn_hidden_size": 128, "vocab_size": 256}
)
LENGTH = 32
TOLERANCE = 2e-5
"""fp32 sums in another order over two steps; seen: up to 1e-6."""

PLANS: dict[str, dict[str, Any]] = {
    "fsdp2-tp2": {"tensor_parallel": 2, "data_parallel": 2, "zero_stage": 3, "shard_group_size": 2,
                  "num_microbatches": 4, "sequence_parallel": True, "recompute": "full"},
    "dp4": {"data_parallel": 4, "num_microbatches": 2},
    "pp2-fsdp2": {"pipeline_parallel": 2, "schedule": "1f1b", "data_parallel": 2, "zero_stage": 2,
                  "shard_group_size": 2, "num_microbatches": 4},
    "interleaved": {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "interleaved",
                    "data_parallel": 2, "zero_stage": 3, "shard_group_size": 2, "num_microbatches": 4},
    "zb-v": {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "zb-v", "num_microbatches": 8},
    "hsdp4-tp2": {"tensor_parallel": 2, "data_parallel": 4, "zero_stage": 3, "shard_group_size": 2,
                  "num_microbatches": 2},
    "pp2-fsdp2-tp2": {"tensor_parallel": 2, "pipeline_parallel": 2, "schedule": "1f1b", "data_parallel": 2,
                      "zero_stage": 3, "shard_group_size": 2, "num_microbatches": 4,
                      "sequence_parallel": True},
}  # fmt: skip


def run(plan: Plan, folder: Path) -> list[float]:
    """Start the emitted script and return the losses that it prints."""
    profile = load_framework("pytorch")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in write(plan, request_of(plan, MODEL, profile, LENGTH)).items():
        (folder / name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={plan.num_gpus}",
        "--standalone",
    ]
    command += [str(folder / "train.py"), "--steps", "2", "--dump-groups", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line["loss"] for line in lines]


@lru_cache
def alone(folder: Path) -> tuple[float, ...]:
    """Losses of one process with the whole batch of 8 sequences."""
    plan = with_stages(Plan(micro_batch=2, num_microbatches=4, precision="fp32"), MODEL)
    return tuple(run(plan, folder))


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
    assert run(plan, tmp_path) == pytest.approx(reference, abs=TOLERANCE)
    check_groups(plan, tmp_path)


def check_groups(plan: Plan, folder: Path) -> None:
    """Every rank's groups, as the running script saw them, against the rank map."""
    for rank in range(plan.num_gpus):
        seen = json.loads((folder / f"groups-{rank}.json").read_text())
        for name in ("tensor", "pipeline"):
            assert seen[name] == next(members for members in groups(plan, name) if rank in members)
        data = next(members for members in groups(plan, "data") if rank in members)
        assert set(seen["shard"]) | set(seen["replicate"]) <= set(data)
        assert len(seen["shard"]) * len(seen["replicate"]) == len(data)
