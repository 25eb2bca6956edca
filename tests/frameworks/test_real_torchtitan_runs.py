"""torchtitan 0.2.2's own trainer runs our TOML on CPU processes: same losses as one process, our groups."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from launch_plans import request_of
from trained import LENGTH, MODEL, alone, assert_trains_alike, laid_out, start

from planner.frameworks import load_framework
from planner.frameworks.files import write
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
    start(plan.num_gpus, [program, str(files), str(out)], HF_DATASETS_CACHE=str(folder / "cache"))
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(plan.num_gpus)]


@lru_cache
def reference(folder: Path) -> tuple[float, ...]:
    """Losses of one process with the whole batch."""
    return tuple(run(alone(), folder)[0]["losses"])


@pytest.mark.parametrize("name", PLANS)
def test_the_first_steps_equal_one_process(name: str, tmp_path: Path, tmp_path_factory: Any) -> None:
    plan = laid_out(PLANS[name])
    ranks = run(plan, tmp_path)
    last_stage = groups(plan, "pipeline")[0][-1]
    told = reference(tmp_path_factory.getbasetemp() / "one-process")
    assert_trains_alike(ranks[last_stage]["losses"], told)
    for rank, seen in enumerate(ranks):
        check_groups(plan, rank, seen["groups"])


def check_groups(plan: Plan, rank: int, seen: dict[str, list[int]]) -> None:
    """The groups that the trainer made are those of the rank map."""
    for ours, theirs in (("tensor", "tp"), ("pipeline", "pp"), ("data", "batch")):
        assert seen[theirs] == next(members for members in groups(plan, ours) if rank in members)
    assert len(seen["fsdp"]) == plan.shard_group_size
    assert set(seen["fsdp"]) | set(seen["dp_replicate"]) <= set(seen["batch"])
