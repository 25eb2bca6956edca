"""The order in which each pipeline rank works: forward, backward and weight-gradient operations by schedule.

An operation is ``(kind, chunk, micro_batch)``. ``F`` is a forward pass of one chunk, ``B`` a whole backward
pass, ``D`` and ``W`` its halves (input and weight gradients) where a schedule separates them.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

import numpy as np

from planner.cost.stage import stage_order
from planner.spec.plan import Schedule

OpKind = Literal["F", "B", "D", "W"]
Op = tuple[OpKind, int, int]
SPLIT_BACKWARD: frozenset[Schedule] = frozenset({"zb-h1", "zb-h2", "zb-v"})
"""Schedules that always run weight gradients as operations of their own."""
BIDIRECTIONAL: frozenset[Schedule] = frozenset({"dualpipe"})
"""Micro-batches enter from both ends; every rank holds two stages."""


def num_chunks(schedule: Schedule, virtual_stages: int) -> int:
    """Chunks that operations of a rank refer to: the virtual stages, or the two directions of DualPipe."""
    return 2 if schedule in BIDIRECTIONAL else virtual_stages


@lru_cache(maxsize=512)
def neighbours(schedule: Schedule, p: int, v: int) -> dict[tuple[int, int], tuple[int, int] | None]:
    """Map (rank, chunk) to the (rank, chunk) that feeds it, None where the model begins."""
    if schedule in BIDIRECTIONAL:
        first = {(rank, 0): (rank - 1, 0) if rank else None for rank in range(p)}
        second = {(rank, 1): (rank + 1, 1) if rank < p - 1 else None for rank in range(p)}
        return first | second
    order = stage_order(schedule, p, v)
    return {stage: order[index - 1] if index else None for index, stage in enumerate(order)}


@lru_cache(maxsize=512)
def followers(schedule: Schedule, p: int, v: int) -> dict[tuple[int, int], tuple[int, int] | None]:
    """Map (rank, chunk) to the (rank, chunk) that it feeds, None where the model ends."""
    feeds = neighbours(schedule, p, v)
    after = {before: stage for stage, before in feeds.items() if before is not None}
    return {stage: after.get(stage) for stage in feeds}


def rank_orders(
    schedule: Schedule, p: int, v: int, m: int, ticks: tuple[int, int, int] = (1, 1, 1)
) -> list[list[Op]]:
    """Return every rank's operations, first to last. ``ticks``: relative F, D, W, read by ZB-V only."""
    if schedule == "none" or p == 1:
        return [[op for i in range(m) for op in _one_microbatch(v, i)]]
    if schedule == "gpipe":
        return [[("F", 0, i) for i in range(m)] + [("B", 0, i) for i in range(m)] for _ in range(p)]
    if schedule == "interleaved":
        return _interleaved(p, v, m)
    if schedule == "zb-h1":
        return [_zero_bubble(m, p - 1 - rank, rank) for rank in range(p)]
    if schedule == "zb-h2":
        return [_zero_bubble(m, 2 * (p - 1 - rank), 2 * rank) for rank in range(p)]
    if schedule == "zb-v":
        return _greedy_v(p, m, ticks)
    if schedule == "dualpipe":
        half, ends = p // 2, [min(rank, p - 1 - rank) for rank in range(p)]
        return [_dualpipe(half, end, m // 2 - p + end + 1, r >= half) for r, end in enumerate(ends)]
    if schedule == "dualpipe-v":
        return [_dualpipe(p, rank, m - 2 * p + rank + 1) for rank in range(p)]
    return [_one_forward_one_backward(m, p - 1 - rank) for rank in range(p)]


def _one_microbatch(v: int, index: int) -> list[Op]:
    forward: list[Op] = [("F", chunk, index) for chunk in range(v)]
    return forward + [("B", chunk, index) for chunk in reversed(range(v))]


def _one_forward_one_backward(m: int, warm_up: int) -> list[Op]:
    warm_up = min(warm_up, m)
    ops: list[Op] = [("F", 0, i) for i in range(warm_up)]
    for i in range(m - warm_up):
        ops += [("F", 0, i + warm_up), ("B", 0, i)]
    return ops + [("B", 0, i) for i in range(m - warm_up, m)]


def round_size(p: Any, m: Any) -> Any:
    """Micro-batches that go through one chunk before the next: p, or m / floor(m / p) as in PyTorch. [1]."""
    return m // np.maximum(m // p, 1)


def _interleaved(p: int, v: int, m: int) -> list[list[Op]]:
    """Megatron's order: groups of micro-batches (``round_size``) walk through the chunks."""
    group = int(round_size(p, m))
    rounds = [range(start, min(start + group, m)) for start in range(0, m, group)]
    forward: list[Op] = [("F", chunk, i) for each in rounds for chunk in range(v) for i in each]
    backward: list[Op] = [("B", chunk, i) for each in rounds for chunk in reversed(range(v)) for i in each]
    orders = []
    for rank in range(p):
        warm_up = min(2 * (p - rank - 1) + (v - 1) * group, m * v)
        steady = list(chain.from_iterable(zip(forward[warm_up:], backward, strict=False)))
        orders.append(forward[:warm_up] + steady + backward[m * v - warm_up :])
    return orders


def _zero_bubble(m: int, warm_up: int, delay: int) -> list[Op]:
    """ZB-H1 and H2: weight gradients lag ``delay`` micro-batches behind the input gradients."""
    warm_up = min(warm_up, m)
    ops: list[Op] = [("F", 0, i) for i in range(warm_up)]
    for i in range(m):
        if i + warm_up < m:
            ops.append(("F", 0, i + warm_up))
        ops.append(("D", 0, i))
        if i >= delay:
            ops.append(("W", 0, i - delay))
    return ops + [("W", 0, i) for i in range(max(0, m - delay), m)]


class _DualPipeRank:
    """Builds one rank's order, step by step, in the letters of DualPipe's own step names (nB1W1F1, ...).

    Phase 0 is the direction that enters at this rank's end of the pipe, phase 1 the one that leaves here.
    """

    def __init__(self, flipped: bool) -> None:
        self.ops: list[Op] = []
        self.flipped = flipped
        self.counts: Counter[tuple[str, int]] = Counter()
        self.pending: deque[tuple[int, int]] = deque()

    def forward(self, phase: int) -> None:
        self._emit("F", "F", phase)

    def backward(self, phase: int, split: bool = False) -> None:
        chunk, index = self._emit("D" if split else "B", "B", phase)
        if split:
            self.pending.append((chunk, index))

    def weights(self) -> None:
        self.ops.append(("W", *self.pending.popleft()))

    def _emit(self, kind: OpKind, counted: str, phase: int) -> tuple[int, int]:
        index = self.counts[counted, phase]
        self.counts[counted, phase] += 1
        chunk = phase ^ int(self.flipped)
        self.ops.append((kind, chunk, index))
        return chunk, index


def _dualpipe(half: int, rank: int, main_steps: int, flipped: bool = False) -> list[Op]:
    """DualPipe's eight steps on the rank that is ``rank`` away from its end of a half pipe."""
    build, inner = _DualPipeRank(flipped), half - rank - 1
    for _ in range(2 * inner):
        build.forward(0)
    for _ in range(rank + 1):
        build.forward(0)
        build.forward(1)
    for _ in range(inner):
        build.backward(1, split=True)
        build.weights()
        build.forward(1)
    for _ in range(main_steps):
        for ahead, behind in ((0, 1), (1, 0)):
            build.forward(ahead)
            build.backward(behind)
    for _ in range(inner):
        build.backward(1)
        build.forward(1)
        build.backward(0)
    for step in range(rank + 1):
        build.backward(1, split=2 * step + (rank % 2) > rank + 1 or (rank % 2 == 1 and 2 * step == rank + 1))
        build.backward(0, split=2 * step >= rank + 1 - ((rank + 1) % 2))
    for _ in range(inner):
        build.weights()
        build.backward(0, split=True)
    while build.pending:
        build.weights()
    return build.ops


def _greedy_v(p: int, m: int, ticks: tuple[int, int, int]) -> list[list[Op]]:
    """ZB-V by list scheduling: input gradients first, then forwards, then weight gradients.

    At most 2p chunks are in flight on a rank (the memory of 1F1B's first rank). ``ticks`` are the relative
    durations of F, D and W, because the published scheduler works on profiled times too.
    """
    lasting = dict(zip("FDW", ticks, strict=True))
    ranks = [_GreedyRank(rank, p, m) for rank in range(p)]
    done: dict[tuple[str, int, int, int], int] = {}
    clock = 0
    while any(len(rank.ops) < 6 * m for rank in ranks):
        for rank in ranks:
            if rank.free_at <= clock and (op := rank.choose(done, clock)) is not None:
                rank.free_at = clock + lasting[op[0]]
                done[op[0], rank.rank, op[1], op[2]] = rank.free_at
        clock += 1
    return [rank.ops for rank in ranks]


class _GreedyRank:
    """One rank of the list scheduler."""

    def __init__(self, rank: int, p: int, m: int) -> None:
        self.rank, self.p, self.m = rank, p, m
        self.ops: list[Op] = []
        self.pending: deque[tuple[int, int]] = deque()
        self.counts: Counter[tuple[str, int]] = Counter()
        self.in_flight = 0
        self.free_at = 0

    def choose(self, done: dict[tuple[str, int, int, int], int], clock: int) -> Op | None:
        """Take the best operation that can start at ``clock``."""
        for kind, chunk in (("D", 1), ("D", 0), ("F", 1), ("F", 0)):
            index = self.counts[kind, chunk]
            if index < self.m and self._ready(kind, chunk, index, done, clock):
                self.counts[kind, chunk] += 1
                if kind == "D":
                    self.pending.append((chunk, index))
                else:
                    self.in_flight += 1
                return self._take((kind, chunk, index))  # type: ignore[arg-type]
        if self.pending:
            self.in_flight -= 1
            return self._take(("W", *self.pending.popleft()))
        return None

    def _take(self, op: Op) -> Op:
        self.ops.append(op)
        return op

    def _ready(
        self, kind: str, chunk: int, index: int, done: dict[tuple[str, int, int, int], int], clock: int
    ) -> bool:
        if kind == "F":
            room = 2 * self.p - (chunk == 0) * 1
            if self.in_flight >= room:
                return False
            before = neighbours("zb-v", self.p, 2)[self.rank, chunk]
            return before is None or done.get(("F", *before, index), clock + 1) <= clock
        after = followers("zb-v", self.p, 2)[self.rank, chunk]
        if after is None:
            return done.get(("F", self.rank, chunk, index), clock + 1) <= clock
        return done.get(("D", *after, index), clock + 1) <= clock
