"""The emitted PyTorch script trains on CPU processes: same loss as one process, groups of the rank map."""

from __future__ import annotations

import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from launch_plans import request_of
from trained import LENGTH, MODEL, STEPS, alone, assert_trains_alike, laid_out, start

from planner.frameworks import load_framework
from planner.frameworks.files import write
from planner.spec import Plan
from planner.spec.ranks import groups

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="torch is not installed (.ci/frameworks)"
    ),
]

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
    "pp2-fsdp2-tp2-far": {"tensor_parallel": 2, "pipeline_parallel": 2, "schedule": "1f1b",
                          "data_parallel": 2, "zero_stage": 2, "shard_group_size": 2, "num_microbatches": 4,
                          "rank_order": "tp-cp-ep-pp-dp"},
}  # fmt: skip


def run(plan: Plan, folder: Path) -> list[float]:
    """Start the emitted script and return the losses that it prints."""
    profile = load_framework("pytorch")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in write(plan, request_of(plan, MODEL, profile, LENGTH)).items():
        (folder / name).write_text(text)
    words = [str(folder / "train.py"), "--steps", str(STEPS), "--dump-groups", str(folder)]
    printed = start(plan.num_gpus, words)
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [line["loss"] for line in lines]


@lru_cache
def reference(folder: Path) -> tuple[float, ...]:
    """Losses of one process with the whole batch."""
    return tuple(run(alone(), folder))


@pytest.mark.parametrize("name", PLANS)
def test_the_first_steps_equal_one_process(name: str, tmp_path: Path, tmp_path_factory: Any) -> None:
    plan = laid_out(PLANS[name])
    told = reference(tmp_path_factory.getbasetemp() / "one-process")
    assert_trains_alike(run(plan, tmp_path), told)
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
