"""What must hold for any input: a sentence or an answer whose figures are finite and not negative."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from planner.api import complete
from planner.catalog import load_cluster
from planner.errors import BadInput, PlannerError
from planner.frameworks import load_framework
from planner.report.json import dumps, estimate_report
from planner.solver.evaluate import evaluate
from planner.spec import Cluster, Model, Plan, PlanRequest, Workload

HANG_S = 20.0
"""Longest time of one input: far above the slowest honest one (about 1 s)."""
LONGEST_SENTENCE = 1500
"""Characters of an error; lists of known names are the longest part."""
SIGNED = {"difference_pct", "time_error_pct", "memory_error_pct", "mean_signed_pct", "spearman", "regret_pct"}
"""Figures that may be negative: differences and correlations."""
PYTHON_WORDS = re.compile(
    r"Traceback|KeyError|TypeError|AttributeError|NoneType|object has no attribute|<class '|pydantic|"
    r"https://errors|site-packages|has no len|not subscriptable|unhashable"
)


class Hang(Exception):
    """The input took longer than ``HANG_S``."""


@contextmanager
def no_longer_than(seconds: float = HANG_S) -> Iterator[None]:
    """Raise ``Hang`` in the main thread when the block takes too long."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def assert_sentence(error: PlannerError | str) -> None:
    """An error for people: one line, not empty, no Python words, of bearable length."""
    text = str(error)
    assert text.strip(), "the error says nothing"
    assert "\n" not in text, f"more than one line: {text!r}"
    assert len(text) <= LONGEST_SENTENCE, f"{len(text)} characters: {text[:300]!r} ..."
    assert not PYTHON_WORDS.search(text), f"speaks Python: {text!r}"
    assert not any(ord(char) < 32 for char in text), f"control characters: {text!r}"


def assert_figures(data: Any, key: str = "") -> None:
    """No figure anywhere in a report is NaN, infinite, or negative (but differences)."""
    if isinstance(data, dict):
        for name, value in data.items():
            assert_figures(value, str(name))
    elif isinstance(data, list | tuple):
        for value in data:
            assert_figures(value, key)
    elif isinstance(data, float | int) and not isinstance(data, bool):
        assert math.isfinite(data), f"{key} is {data}"
        assert data >= 0 or key in SIGNED, f"{key} is {data}"


def assert_priceable(request: PlanRequest, plan: Plan | None = None) -> None:
    """The plan (or the plainest one) has a price that JSON can say, or a sentence says why not."""
    try:
        estimate = evaluate(plan or complete({}, request), request)
    except BadInput as error:
        assert_sentence(error)
        return
    report = estimate_report(estimate)
    dumps(report)
    assert_figures(report)
    assert report["step_time_s"] > 0, "a step takes no time"
    assert report["peak_memory_gb"] > 0, "a plan needs no memory"
    for violation in estimate.violations:
        assert_sentence(violation.sentence)


def assert_model(model: Model) -> None:
    """A model that was accepted can be priced on a few GPUs."""
    assert_priceable(
        PlanRequest(
            model=model,
            cluster=load_cluster("h100-sxm-80gb", 16),
            workload=Workload(global_batch=32, seq_length=min(model.seq_length, 1_000_000)),
            framework=load_framework("megatron"),
        )
    )


def assert_cluster(cluster: Cluster, model: Model) -> None:
    """A machine that was accepted prices an ordinary model."""
    formats = [name for name in ("bf16", "fp16", "fp8", "fp32") if name in cluster.accelerator.gemm]
    precision: Any = formats[0] if formats else "bf16"
    assert_priceable(
        PlanRequest(
            model=model,
            cluster=cluster,
            workload=Workload(
                global_batch=max(64, cluster.num_gpus), seq_length=4096, precisions=(precision,)
            ),
            framework=load_framework("megatron"),
        )
    )
