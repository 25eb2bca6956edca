"""Plans that real trainers run on CPU processes, and what they have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from launch_plans import TINY

from planner.frameworks.launch import stages_of, with_stages
from planner.spec import Plan

MODEL = TINY.model_copy(
    update={"num_layers": 5, "hidden_size": 64, "head_dim": 8, "ffn_hidden_size": 128, "vocab_size": 256}
)
LENGTH = 32
SEQUENCES = 8
STEPS = 2
TOLERANCE = 2e-5
"""fp32 sums in another order over two steps; seen: up to 1e-6."""


def alone() -> Plan:
    """One process with the whole batch."""
    return with_stages(Plan(micro_batch=2, num_microbatches=4, precision="fp32"), MODEL)


def laid_out(settings: Mapping[str, Any]) -> Plan:
    """A plan of the whole batch; of five layers the first stage takes what is left over."""
    plan = Plan(**settings, precision="fp32")
    assert plan.global_batch == SEQUENCES
    stages = plan.pipeline_parallel * plan.virtual_stages
    if stages > 1:
        each = MODEL.num_layers // stages
        counts = [MODEL.num_layers - (stages - 1) * each, *[each] * (stages - 1)]
        plan = plan.model_copy(update={"stages": stages_of(counts, plan)})
    return with_stages(plan, MODEL)


def start(processes: int, words: Sequence[str], **environment: str) -> str:
    """Run a program on so many CPU processes; return what it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def assert_trains_alike(losses: Sequence[float], reference: Sequence[float]) -> None:
    """The losses of one process, which fall."""
    assert len(reference) == STEPS
    assert reference[1] < reference[0]
    assert losses == pytest.approx(reference, abs=TOLERANCE)
