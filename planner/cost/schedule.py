"""Pipeline schedules: what is in flight, closed forms for equal stages, a simulator for any stages.

Letters: p pipeline ranks, v chunks a rank, m micro-batches, F forward, D input-gradient and W weight-gradient
time of one micro-batch on one rank (all its chunks), B = D + W.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.cost.orders import BIDIRECTIONAL, round_size
from planner.cost.program import Matrix, durations_of, ends_of, period_of, program_of, ticks_of
from planner.errors import BadInput
from planner.spec.plan import Schedule

CHUNKS: dict[Schedule, int] = {"zb-v": 2, "dualpipe-v": 2, "dualpipe": 1}
"""Virtual stages of the schedules whose shape fixes them."""
MOST_OPERATIONS = 150_000
"""Forward passes of the largest pipeline that is simulated: about 2 s and 300 MB."""
MOST_TO_SETTLE = 60_000
"""Forward passes after which a pipeline that has not settled is extrapolated all the same."""
STEADY = 1e-9
"""Difference between the ranks' delays, relative to the delay, that is rounding."""
SHORT = 3
"""Up to so many times the micro-batches that settle a pipeline, all of them are simulated at once."""


@dataclass(frozen=True, slots=True)
class Event:
    """One operation on one rank."""

    rank: int
    kind: str
    chunk: int
    micro_batch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the simulator saw. ``events`` is empty unless they were asked for."""

    makespan_s: float
    busy_s: tuple[float, ...]
    """Work of each rank."""
    span_s: float
    """Longest time from a rank's first to its last operation."""
    events: tuple[Event, ...] = ()
    finish_s: tuple[float, ...] = ()
    """Ends of the last operations of every rank (``Program.tail``); empty where nothing was simulated."""

    def step_s(self, schedule: Schedule) -> float:
        """Time between two steps: ZB-H2 lets them interlock (post-validated optimizer), the others do not."""
        return self.span_s if schedule == "zb-h2" else self.makespan_s


def in_flight(schedule: Schedule, rank: Any, p: Any, v: Any, m: Any) -> Any:
    """Count the (micro-batch, chunk) pairs whose activations rank ``rank`` holds at its peak. [1].

    One pair is 1/v of the rank's layers (one of its two stages for DualPipe).

    Notes
    -----
    GPipe ``m v``; 1F1B ``min(m, p - r)``; interleaved ``min(m v, 2 (p - r - 1) + (v - 1) p + 1)`` (for p read
    ``round_size`` where it does not divide m); ZB-H1 ``min(m, p)``; ZB-H2 ``min(m, 2p - 1)``; ZB-V
    ``min(2m, 2p)``; DualPipe and DualPipeV ``p + 1`` and ``2p + 1`` chunks.

    References
    ----------
    Megatron-LM ``schedules.py``; Zero Bubble (arXiv 2401.10241) table 1; DualPipe README.
    """
    rank, p, v, m = (np.asarray(value) for value in (rank, p, v, m))
    every = 0 * rank
    if schedule == "none":
        return np.minimum(m, 1) * v
    if schedule == "gpipe":
        return m * v
    if schedule == "1f1b":
        return np.minimum(m, p - rank)
    if schedule == "interleaved":
        return np.minimum(m * v, 2 * (p - rank - 1) + (v - 1) * round_size(p, m) + 1)
    if schedule in ("zb-h1", "zb-h2"):
        return np.minimum(m, p if schedule == "zb-h1" else 2 * p - 1) + every
    if schedule == "dualpipe":
        return np.minimum(m, p + 1) + every
    return np.minimum(2 * m, 2 * p if schedule == "zb-v" else 2 * p + 1) + every


def bubble(
    schedule: Schedule, forward: Any, input_grad: Any, weight_grad: Any, p: Any, v: Any, m: Any
) -> Any:
    """Return the idle time of a rank with equal stages, first to last operation of the pipeline. [s].

    Notes
    -----
    ``(p-1)`` times: GPipe, 1F1B ``F + B``; interleaved ``(F + B) / v`` (m a multiple of p; more otherwise);
    ZB-H1 ``max(F + D - W, F)``; ZB-H2 ``max(F + D - 2W, 0)``, because its optimizer step is validated
    afterwards and steps of different ranks interlock. DualPipe: the largest of ``n F``, ``n (F + D - W)`` and
    ``n (2 D - W) - F`` with ``n = p/2 - 1``; DualPipeV the same with ``n = (p-1)/2``, F/2 taken off.
    The two passes of a pair release their results one by one; a fused pair would add D. ZB-V: the stagger of
    its first forwards, ``(p-1) F/2``, a lower bound when F, D and W differ.

    References
    ----------
    physics: closed forms, checked by ``simulate``; arXiv 2401.10241, 2405.15362, DualPipe README.
    """
    f, d, w = forward, input_grad, weight_grad
    hops = np.asarray(p) - 1
    if schedule in ("gpipe", "1f1b"):
        return hops * (f + d + w)
    if schedule == "interleaved":
        return hops * (f + d + w) / v
    if schedule == "zb-h1":
        return hops * np.maximum(f + d - w, f)
    if schedule == "zb-h2":
        return hops * np.maximum(f + d - 2 * w, 0.0)
    if schedule == "zb-v":
        return hops * f / 2
    if schedule in ("dualpipe", "dualpipe-v"):
        is_v = schedule == "dualpipe-v"
        turns = hops / 2 if is_v else np.maximum(np.asarray(p) / 2 - 1, 0)
        longest = np.maximum(
            np.maximum(turns * f, turns * (f + d - w)), turns * (2 * d - w) - (f / 2 if is_v else f)
        )
        return np.where(turns > 0, longest, 0.0)
    return 0.0 * hops


def closed_form(
    schedule: Schedule, forward: Any, input_grad: Any, weight_grad: Any, p: Any, v: Any, m: Any
) -> Any:
    """Return the makespan of equal stages: ``m (F + D + W)`` plus the bubble. Arrays broadcast. [s]."""
    work = np.asarray(m) * (forward + input_grad + weight_grad)
    return work + bubble(schedule, forward, input_grad, weight_grad, p, v, m)


def simulate(
    schedule: Schedule,
    forward: Matrix,
    backward_input: Matrix,
    backward_weight: Matrix,
    num_microbatches: int,
    send_s: float = 0.0,
    with_events: bool = False,
) -> Timeline:
    """Run a schedule operation by operation over unequal stages.

    Parameters
    ----------
    forward, backward_input, backward_weight
        Seconds of one micro-batch as [pipeline rank][chunk].
    send_s
        Delay of a result on its way to another rank; the sender goes on working.
    with_events
        Simulate all micro-batches and return every operation; without it a long steady state is
        extrapolated from two shorter runs one period apart, longer ones until all ranks keep the same pace.

    Notes
    -----
    Beyond ``MOST_OPERATIONS`` forward passes (hundreds of pipeline ranks) nothing is simulated: the closed
    form of equal stages, all as slow as the busiest, stands in. It is exact for equal stages and above
    otherwise.
    """
    p, m = len(forward), num_microbatches
    v = len(forward[0])
    if (chunks := CHUNKS.get(schedule, v)) != v:
        raise BadInput(f"schedule {schedule} has {chunks} chunks on every pipeline rank, not {v}")
    if schedule in BIDIRECTIONAL and p > 1 and m % 2:
        raise BadInput(f"schedule {schedule} takes half of the micro-batches from each end: {m} is odd")
    durations = durations_of(schedule, forward, backward_input, backward_weight)
    busy = _busy(schedule, forward, backward_input, backward_weight, m)
    period, settled = period_of(schedule, p)
    if p * max(p, v * min(m, settled + 2 * period)) > MOST_OPERATIONS:
        return _at_the_pace_of_the_busiest(schedule, forward, backward_input, backward_weight, busy, m)
    while not with_events and m > max(settled + 2 * period, SHORT * (settled + period)):
        short = settled + (m - settled) % period
        low = _full(schedule, p, v, short, durations, send_s, busy, False)
        high = _full(schedule, p, v, short + period, durations, send_s, busy, False)
        if _is_steady(low, high) or p * v * min(m, 2 * settled) > MOST_TO_SETTLE:
            steps = (m - short) / period
            makespan = low.makespan_s + steps * (high.makespan_s - low.makespan_s)
            return Timeline(makespan, busy, low.span_s + steps * (high.span_s - low.span_s))
        settled *= 2
    return _full(schedule, p, v, m, durations, send_s, busy, with_events)


def _is_steady(low: Timeline, high: Timeline) -> bool:
    """Whether one more period delays all the last operations alike: then so does every further one.

    Ends are maxima of sums, so a state of the whole pipeline that moves as one goes on moving as one.
    """
    growth = [after - before for before, after in zip(low.finish_s, high.finish_s, strict=True)]
    return max(growth) - min(growth) <= STEADY * max(growth)


def _at_the_pace_of_the_busiest(
    schedule: Schedule, f: Matrix, d: Matrix, w: Matrix, busy: tuple[float, ...], m: int
) -> Timeline:
    """Timeline of a pipeline that is too long to simulate. [s]."""
    slowest = int(np.argmax(busy))
    forward, inputs, weights = (sum(matrix[slowest]) for matrix in (f, d, w))
    idle = bubble(schedule, forward, inputs, weights, len(f), len(f[0]), m)
    makespan = busy[slowest] + float(idle)
    return Timeline(makespan, busy, makespan)


def _busy(schedule: Schedule, f: Matrix, d: Matrix, w: Matrix, m: int) -> tuple[float, ...]:
    work = [m * (sum(f[rank]) + sum(d[rank]) + sum(w[rank])) for rank in range(len(f))]
    if schedule in BIDIRECTIONAL:
        return tuple((one + other) / 2 for one, other in zip(work, reversed(work), strict=True))
    return tuple(work)


def _full(
    schedule: Schedule, p: int, v: int, m: int, durations: list[float], send_s: float,
    busy: tuple[float, ...], with_events: bool,
) -> Timeline:  # fmt: skip
    program = program_of(schedule, p, v, m, ticks_of(schedule, durations))
    ends = ends_of(program, durations, send_s)
    starts = [ends[first] - durations[program.slots[first]] for first in program.first]
    span = max(ends[last] - start for last, start in zip(program.last, starts, strict=True))
    events: tuple[Event, ...] = ()
    if with_events:
        slots, of_rank = program.slots, len(durations) // p
        events = tuple(
            Event(slots[i] // of_rank, op[0], op[1], op[2], ends[i] - durations[slots[i]], ends[i])
            for i, op in enumerate(program.ops, start=1)
        )
    return Timeline(max(ends), busy, span, events, tuple(map(ends.__getitem__, program.tail)))
