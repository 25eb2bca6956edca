"""From step time to a whole run: failures, checkpoints, batch efficiency, days and dollars.

Letters: M mean time between failures, delta blocking time of one checkpoint, tau time between checkpoints,
R restart time, B batch, D training tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

LLAMA3_UNEXPECTED = 419
LLAMA3_GPU_HOURS = 54 * 24 * 16384
FAILURES_PER_GPU_HOUR = LLAMA3_UNEXPECTED / LLAMA3_GPU_HOURS
"""419 unexpected interruptions in 54 days on 16,384 H100. [Llama 3 report, table 5]"""
CHECKPOINT_BYTES_PER_PARAMETER = 14.0
"""16-bit weights, fp32 master and two moments. [Llama 3 8B checkpoints are 12-14 bytes a parameter]"""
STORAGE_BYTES_PER_S = 2e12
"""Sustained rate of a large cluster's file system. [Llama 3 report: 2 TB/s sustained, 7 TB/s peak]"""
RESTART_S = 600.0
"""Detection, scheduling, communicator set-up, loading, warm-up: 5-20 minutes at 10,000 GPUs. [assumed]"""
BLOCKING_FRACTION = 0.05
"""Part of a checkpoint's write that stops training when it is saved asynchronously.

PyTorch with IBM report 148.8 s falling to 6.3 s for a 7B model (4 %). [measured]"""
POWER_LINES_FACTOR, POWER_LINES_EXPONENT, POWER_LINES_SEQUENCE = 0.0471, 0.462, 2048
"""Critical batch in sequences of 2048 tokens against training tokens. [arXiv 2505.13738]"""


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """What is left of the wall clock after failures and checkpoints."""

    mean_time_between_failures_s: Any
    checkpoint_bytes: Any
    checkpoint_s: Any
    """Blocking time of one checkpoint."""
    interval_s: Any
    """Time between checkpoints that wastes least."""
    fraction: Any
    """Share of the wall clock that trains."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A whole training run at a steady step time."""

    steps: Any
    duration_s: Any
    gpu_hours: Any
    usd: Any


def mean_time_between_failures(num_gpus: Any, failures_per_gpu_hour: Any = FAILURES_PER_GPU_HOUR) -> Any:
    """Mean time between failures of a job in which any GPU's failure stops all (series system). [s]."""
    return HOUR_S / (np.asarray(failures_per_gpu_hour) * num_gpus)


def young_interval(checkpoint_s: Any, mtbf_s: Any) -> Any:
    """Time between checkpoints by Young's first-order rule, sqrt(2 delta M). [s]."""
    return np.sqrt(2.0 * np.asarray(checkpoint_s) * mtbf_s)


def daly_interval(checkpoint_s: Any, mtbf_s: Any) -> Any:
    """Time between checkpoints by Daly's higher-order rule; M itself where a checkpoint takes over 2 M. [s].

    Notes
    -----
    ``sqrt(2 delta M) (1 + (1/3) sqrt(delta / 2M) + (delta / 2M) / 9) - delta``.

    References
    ----------
    Daly, "A higher order estimate of the optimum checkpoint interval" (2006), equation 37.
    """
    delta, mean = np.asarray(checkpoint_s, dtype=float), np.asarray(mtbf_s, dtype=float)
    ratio = delta / (2.0 * mean)
    interval = young_interval(delta, mean) * (1.0 + np.sqrt(ratio) / 3.0 + ratio / 9.0) - delta
    return np.where(ratio < 1.0, interval, mean)


def waste(interval_s: Any, checkpoint_s: Any, mtbf_s: Any, restart_s: Any = RESTART_S) -> Any:
    """Share of the wall clock lost: delta/tau for checkpoints, (tau/2 + R)/M for failures, at most 1."""
    lost = np.asarray(checkpoint_s) / interval_s + (np.asarray(interval_s) / 2.0 + restart_s) / mtbf_s
    return np.minimum(lost, 1.0)


def checkpoint_size(parameters: Any, bytes_per_parameter: Any = CHECKPOINT_BYTES_PER_PARAMETER) -> Any:
    """Bytes of one full checkpoint of the training state. [byte]."""
    return np.asarray(parameters) * bytes_per_parameter


def goodput(
    parameters: Any,
    num_gpus: Any,
    failures_per_gpu_hour: Any = FAILURES_PER_GPU_HOUR,
    storage_bytes_per_s: Any = STORAGE_BYTES_PER_S,
    blocking_fraction: Any = BLOCKING_FRACTION,
    restart_s: Any = RESTART_S,
) -> Goodput:
    """Price failures and checkpoints of a run at Daly's interval.

    Parameters
    ----------
    parameters : int or array
        Parameters of the model. [1]
    num_gpus : int or array
        GPUs whose failure stops the job. [1]
    failures_per_gpu_hour
        Unexpected interruptions per GPU and hour. [1/h]
    storage_bytes_per_s
        Rate at which the whole job writes a checkpoint. [byte/s]
    blocking_fraction
        Part of the write that stops training: 1 for synchronous checkpoints. [1]
    restart_s
        From a failure to the next training step. [s]
    """
    mtbf = mean_time_between_failures(num_gpus, failures_per_gpu_hour)
    size = checkpoint_size(parameters)
    blocking = size / storage_bytes_per_s * blocking_fraction
    interval = daly_interval(blocking, mtbf)
    return Goodput(
        mean_time_between_failures_s=mtbf,
        checkpoint_bytes=size,
        checkpoint_s=blocking,
        interval_s=interval,
        fraction=1.0 - waste(interval, blocking, mtbf, restart_s),
    )


def critical_batch_tokens(training_tokens: Any) -> Any:
    """Batch beyond which more tokens per step stop paying, against the tokens of the whole run. [token].

    Notes
    -----
    ``0.0471 D^0.462`` sequences of 2048 tokens: 34 million tokens for a run of 1e12. The law was fitted up
    to a few billion parameters; take it as an order of magnitude.

    References
    ----------
    Power Lines (arXiv 2505.13738).
    """
    sequences = POWER_LINES_FACTOR * np.asarray(training_tokens, dtype=float) ** POWER_LINES_EXPONENT
    return sequences * POWER_LINES_SEQUENCE


def batch_efficiency(batch_tokens: Any, critical_tokens: Any) -> Any:
    """Share of the tokens that a run with this batch makes good use of: 1 / (1 + B/B_crit).

    References
    ----------
    McCandlish et al. (arXiv 1812.06162): tokens needed grow by (1 + B/B_crit) over the smallest batch.
    """
    return 1.0 / (1.0 + np.asarray(batch_tokens) / critical_tokens)


def run_cost(
    training_tokens: Any,
    tokens_per_step: Any,
    step_time_s: Any,
    num_gpus: Any,
    usd_per_gpu_hour: Any,
    goodput_fraction: Any = 1.0,
) -> Run:
    """Days and dollars of a run: whole steps at a steady step time, stretched by the goodput."""
    steps = np.ceil(np.asarray(training_tokens) / tokens_per_step)
    duration = steps * step_time_s / goodput_fraction
    gpu_hours = duration * num_gpus / HOUR_S
    return Run(steps=steps, duration_s=duration, gpu_hours=gpu_hours, usd=gpu_hours * usd_per_gpu_hour)
