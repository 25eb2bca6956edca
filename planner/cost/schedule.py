"""Pipeline schedules: what is in flight, closed forms for equal stages, a simulator for any stages.

Letters: p pipeline ranks, v chunks a rank, m micro-batches, F forward, D input-gradient and W weight-gradient
time of one micro-batch on one rank (all its chunks), B = D + W.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from planner.cost.orders import BIDIRECTIONAL, Op, followers, neighbours, num_chunks, rank_orders
from planner.errors import BadInput
from planner.spec.plan import Schedule

Matrix = Sequence[Sequence[float]]
"""Seconds as [pipeline rank][chunk]."""


CHUNKS: dict[Schedule, int] = {"zb-v": 2, "dualpipe-v": 2, "dualpipe": 1}
"""Virtual stages of the schedules whose shape fixes them."""
MOST_OPERATIONS = 150_000
"""Forward passes of the largest pipeline that is simulated: about 2 s and 300 MB."""
MOST_TO_SETTLE = 60_000
"""Forward passes after which a pipeline that has not settled is extrapolated all the same."""
TAIL = 4
"""Operations a chunk, in units of p, that are the state of a pipeline: what is in flight, and more."""
STEADY = 1e-9
"""Difference between the ranks' delays, relative to the delay, that is rounding."""
LONG_PROGRAM = 8_000
"""Forward passes of a program too large (2 MB and more) to keep many of."""


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
    """Ends of the last operations of every rank (``_Program.tail``); empty where nothing was simulated."""

    def step_s(self, schedule: Schedule) -> float:
        """Time between two steps: ZB-H2 lets them interlock (post-validated optimizer), the others do not."""
        return self.span_s if schedule == "zb-h2" else self.makespan_s


def in_flight(schedule: Schedule, rank: Any, p: Any, v: Any, m: Any) -> Any:
    """Count the (micro-batch, chunk) pairs whose activations rank ``rank`` holds at its peak. [1].

    One pair is 1/v of the rank's layers (one of its two stages for DualPipe).

    Notes
    -----
    GPipe ``m v``; 1F1B ``min(m, p - r)``; interleaved ``min(m v, 2 (p - r - 1) + (v - 1) p + 1)``; ZB-H1
    ``min(m, p)``; ZB-H2 ``min(m, 2p - 1)``; ZB-V ``min(2m, 2p)``; DualPipe and DualPipeV ``p + 1`` and
    ``2p + 1`` chunks.

    References
    ----------
    Megatron-LM ``schedules.py``; Zero Bubble (arXiv 2401.10241) table 1; DualPipe README.
    """
    rank, p, v, m = (np.asarray(value) for value in (rank, p, v, m))
    pairs = {
        "none": np.minimum(m, 1) * v,
        "gpipe": m * v,
        "1f1b": np.minimum(m, p - rank),
        "interleaved": np.minimum(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1),
        "zb-h1": np.minimum(m, p) + 0 * rank,
        "zb-h2": np.minimum(m, 2 * p - 1) + 0 * rank,
        "zb-v": np.minimum(m * 2, 2 * p) + 0 * rank,
        "dualpipe": np.minimum(m, p + 1) + 0 * rank,
        "dualpipe-v": np.minimum(2 * m, 2 * p + 1) + 0 * rank,
    }
    return pairs[schedule]


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


@dataclass(frozen=True, slots=True)
class _Program:
    """All operations in one order that respects every dependency; index 0 is the start of time."""

    previous: tuple[int, ...]
    upstream: tuple[int, ...]
    hops: tuple[int, ...]
    slots: tuple[int, ...]
    """Which duration: ((rank * chunks + chunk) * 4 + kind)."""
    last: tuple[int, ...]
    """Last operation of each rank."""
    first: tuple[int, ...]
    tail: tuple[int, ...]
    """The last ``TAIL`` p operations a chunk of every rank."""
    ops: tuple[tuple[int, Op], ...]


_KINDS = {"F": 0, "D": 1, "W": 2, "B": 3}


def _program(schedule: Schedule, p: int, v: int, m: int, ticks: tuple[int, int, int]) -> _Program:
    build = _build_long if p * v * m > LONG_PROGRAM else _build_short
    return build(schedule, p, v, m, ticks)


@lru_cache(maxsize=64)
def _build_short(schedule: Schedule, p: int, v: int, m: int, ticks: tuple[int, int, int]) -> _Program:
    return _build(schedule, p, v, m, ticks)


@lru_cache(maxsize=2)
def _build_long(schedule: Schedule, p: int, v: int, m: int, ticks: tuple[int, int, int]) -> _Program:
    return _build(schedule, p, v, m, ticks)


def _build(schedule: Schedule, p: int, v: int, m: int, ticks: tuple[int, int, int]) -> _Program:
    orders, chunks = rank_orders(schedule, p, v, m, ticks), num_chunks(schedule, v)
    index: dict[tuple[str, int, int, int], int] = {}
    rows: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
    ops: list[tuple[int, Op]] = []
    last, first, position = [0] * p, [0] * p, [0] * p
    while len(rows) <= sum(map(len, orders)):
        before = len(rows)
        for rank, order in enumerate(orders):
            while position[rank] < len(order):
                op = order[position[rank]]
                source = _source(schedule, p, v, rank, op)
                if source is not None and source not in index:
                    break
                slot = (rank * chunks + op[1]) * 4 + _KINDS[op[0]]
                hop = int(source is not None and source[1] != rank)
                rows.append((last[rank], index[source] if source else 0, hop, slot))
                last[rank] = index["F" if op[0] == "F" else _done_name(op), rank, op[1], op[2]] = (
                    len(rows) - 1
                )
                first[rank] = first[rank] or last[rank]
                position[rank] += 1
                ops.append((rank, op))
        if len(rows) == before:
            raise BadInput(f"schedule {schedule} cannot run {m} micro-batches on {p} pipeline stages")
    previous, upstream, hops, slots = zip(*rows, strict=True)
    tail = _tail(ops, [min(len(order), TAIL * p * chunks) for order in orders])
    return _Program(previous, upstream, hops, slots, tuple(last), tuple(first), tail, tuple(ops))


def _tail(ops: list[tuple[int, Op]], wanted: list[int]) -> tuple[int, ...]:
    """Indices of the last operations of every rank, latest first."""
    places: list[list[int]] = [[] for _ in wanted]
    for index in range(len(ops), 0, -1):
        rank = ops[index - 1][0]
        if len(places[rank]) < wanted[rank]:
            places[rank].append(index)
    return tuple(index for rank_places in places for index in rank_places)


def _done_name(op: Op) -> str:
    """Weight gradients feed nobody; both kinds of backward pass announce the input gradient."""
    return "W" if op[0] == "W" else "D"


def _source(schedule: Schedule, p: int, v: int, rank: int, op: Op) -> tuple[str, int, int, int] | None:
    """Return the operation whose result this one waits for, None where nothing arrives."""
    kind, chunk, index = op
    if kind == "W":
        return ("D", rank, chunk, index)
    if kind == "F":
        feeds = neighbours(schedule, p, v)[rank, chunk]
        return None if feeds is None else ("F", *feeds, index)
    after = followers(schedule, p, v)[rank, chunk]
    return ("F", rank, chunk, index) if after is None else ("D", *after, index)


def _ends(program: _Program, durations: list[float], send_s: float) -> list[float]:
    ends = [0.0]
    append, delay = ends.append, (0.0, send_s)
    rows = zip(program.previous, program.upstream, program.hops, program.slots, strict=True)
    next(rows)
    for previous, upstream, hop, slot in rows:
        own, arrival = ends[previous], ends[upstream] + delay[hop]
        append((own if own > arrival else arrival) + durations[slot])
    return ends


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
    durations = _durations(schedule, forward, backward_input, backward_weight)
    busy = _busy(schedule, forward, backward_input, backward_weight, m)
    period, settled = _period(schedule, p)
    if p * max(p, v * min(m, settled + 2 * period)) > MOST_OPERATIONS:
        return _at_the_pace_of_the_busiest(schedule, forward, backward_input, backward_weight, busy, m)
    while not with_events and m > settled + 2 * period:
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


def _period(schedule: Schedule, p: int) -> tuple[int, int]:
    """Return micro-batches after which the order repeats, and after which the pipeline has settled."""
    if schedule in ("none", "gpipe", "1f1b", "zb-h1", "zb-h2"):
        return 1, 4 * p
    if schedule == "interleaved":
        return p, 2 * p
    return 2, 4 * p


def _ticks(schedule: Schedule, durations: list[float]) -> tuple[int, int, int]:
    """Relative F, D, W in units of a quarter of F, for the schedule that adapts its order to them."""
    if schedule != "zb-v":
        return (1, 1, 1)
    f, d, w = (sum(durations[kind::4]) for kind in range(3))
    unit = max(f, 1e-30) / 4
    return 4, min(max(1, round(d / unit)), 16), min(max(1, round(w / unit)), 16)


def _durations(schedule: Schedule, f: Matrix, d: Matrix, w: Matrix) -> list[float]:
    """Flatten to one list indexed by ``_Program.slots``; DualPipe's second chunk is the mirrored stage."""
    flat: list[float] = []
    for rank in range(len(f)):
        places = [(rank, chunk) for chunk in range(len(f[rank]))]
        if schedule in BIDIRECTIONAL:
            places = [(rank, 0), (len(f) - 1 - rank, 0)]
        for row, chunk in places:
            both = d[row][chunk] + w[row][chunk]
            flat += [f[row][chunk], d[row][chunk], w[row][chunk], both]
    return flat


def _busy(schedule: Schedule, f: Matrix, d: Matrix, w: Matrix, m: int) -> tuple[float, ...]:
    work = [m * (sum(f[rank]) + sum(d[rank]) + sum(w[rank])) for rank in range(len(f))]
    if schedule in BIDIRECTIONAL:
        return tuple((one + other) / 2 for one, other in zip(work, reversed(work), strict=True))
    return tuple(work)


def _full(
    schedule: Schedule, p: int, v: int, m: int, durations: list[float], send_s: float,
    busy: tuple[float, ...], with_events: bool,
) -> Timeline:  # fmt: skip
    program = _program(schedule, p, v, m, _ticks(schedule, durations))
    ends = _ends(program, durations, send_s)
    starts = [ends[first] - durations[program.slots[first]] for first in program.first]
    span = max(ends[last] - start for last, start in zip(program.last, starts, strict=True))
    events: tuple[Event, ...] = ()
    if with_events:
        slots = program.slots
        events = tuple(
            Event(rank, op[0], op[1], op[2], ends[i] - durations[slots[i]], ends[i])
            for i, (rank, op) in enumerate(program.ops, start=1)
        )
    return Timeline(max(ends), busy, span, events, tuple(ends[index] for index in program.tail))
