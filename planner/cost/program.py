"""A schedule as a program: all operations in one order that respects every dependency, and when each ends.

Building a program takes Python some microseconds an operation, so programs are kept; running one with other
durations takes a tenth of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from operator import itemgetter

from planner.cost.orders import BIDIRECTIONAL, Op, OpKind, followers, neighbours, num_chunks, rank_orders
from planner.errors import BadInput
from planner.spec.plan import Schedule

Matrix = Sequence[Sequence[float]]
"""Seconds as [pipeline rank][chunk]."""
TAIL = 4
"""Operations a chunk, in units of p, that are the state of a pipeline: what is in flight, and more."""
LONG_PROGRAM = 8_000
"""Forward passes of a program too large (2 MB and more) to keep many of."""


@dataclass(frozen=True, slots=True)
class Program:
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
    ops: tuple[Op, ...]


KINDS: tuple[OpKind, ...] = ("F", "D", "W", "B")
MICRO_BATCH = itemgetter(2)
"""Of an operation."""
_DONE = "FDW"
"""Kinds of results that operations announce."""


def program_of(schedule: Schedule, p: int, v: int, m: int, ticks: tuple[int, int, int]) -> Program:
    """Return the program of a schedule; ``ticks`` as in ``rank_orders``."""
    build = _build_long if p * v * m > LONG_PROGRAM else _build_short
    return build(schedule, p, v, m, ticks)


@lru_cache(maxsize=64)
def _build_short(schedule: Schedule, p: int, v: int, m: int, ticks: tuple[int, int, int]) -> Program:
    return _build(schedule, p, v, m, ticks)


@lru_cache(maxsize=6)
def _build_long(schedule: Schedule, p: int, v: int, m: int, ticks: tuple[int, int, int]) -> Program:
    return _build(schedule, p, v, m, ticks)


def _build(schedule: Schedule, p: int, v: int, m: int, ticks: tuple[int, int, int]) -> Program:
    orders, chunks = rank_orders(schedule, p, v, m, ticks), num_chunks(schedule, v)
    impossible = BadInput(f"schedule {schedule} cannot run {m} micro-batches on {p} pipeline stages")
    if any(max(order, key=MICRO_BATCH)[2] >= m for order in orders if order):
        raise impossible
    needs = _needs(schedule, p, v, m)
    done = [0] * (len(_DONE) * p * chunks * m)
    previous, upstream, hops, slots = [0], [0], [0], [0]
    ops: list[Op] = []
    last, first, reached = [0] * p, [0] * p, [0] * p
    while len(ops) < sum(map(len, orders)):
        before = len(ops)
        for rank, order in enumerate(orders):
            need, latest, began = needs[rank], last[rank], len(ops)
            for op in islice(order, reached[rank], None):
                source, hop, slot, own = need[op[1]][op[0]]
                arrival = done[source + op[2]] if source >= 0 else 0
                if source >= 0 and not arrival:
                    break
                previous.append(latest)
                upstream.append(arrival)
                hops.append(hop)
                slots.append(slot)
                ops.append(op)
                latest = done[own + op[2]] = len(ops)
            first[rank] = first[rank] or min(began + 1, latest)
            reached[rank] += len(ops) - began
            last[rank] = latest
        if len(ops) == before:
            raise impossible
    tail = _tail(previous, last, [min(len(order), TAIL * p * chunks) for order in orders])
    rows = (tuple(previous), tuple(upstream), tuple(hops), tuple(slots))
    return Program(*rows, tuple(last), tuple(first), tail, tuple(ops))


def _needs(schedule: Schedule, p: int, v: int, m: int) -> list[list[dict[OpKind, tuple[int, ...]]]]:
    """What each [rank][chunk][kind] waits for, whether that is sent, its duration, what it announces.

    What is waited for and announced are offsets of micro-batch 0 in a table of finished operations, -1 where
    nothing arrives. Weight gradients feed nobody; both kinds of backward pass announce the input gradient.
    """
    chunks = num_chunks(schedule, v)

    def offset(kind: str, rank: int, chunk: int) -> int:
        return ((_DONE.index(kind) * p + rank) * chunks + chunk) * m

    needs: list[list[dict[OpKind, tuple[int, ...]]]] = [[{} for _ in range(chunks)] for _ in range(p)]
    for rank, chunk in product(range(p), range(chunks)):
        for number, kind in enumerate(KINDS):
            source = _source(schedule, p, v, rank, chunk, kind)
            arrives = -1 if source is None else offset(*source)
            hop = int(source is not None and source[1] != rank)
            own = offset("D" if kind == "B" else kind, rank, chunk)
            needs[rank][chunk][kind] = (arrives, hop, (rank * chunks + chunk) * 4 + number, own)
    return needs


def _tail(previous: list[int], last: list[int], wanted: list[int]) -> tuple[int, ...]:
    """Indices of the last operations of every rank, latest first."""
    places: list[int] = []
    for index, count in zip(last, wanted, strict=True):
        at = index
        for _ in range(count):
            places.append(at)
            at = previous[at]
    return tuple(places)


def _source(
    schedule: Schedule, p: int, v: int, rank: int, chunk: int, kind: OpKind
) -> tuple[str, int, int] | None:
    """Kind, rank and chunk of the result that an operation waits for, None where nothing arrives."""
    if kind == "W":
        return ("D", rank, chunk)
    if kind == "F":
        feeds = neighbours(schedule, p, v)[rank, chunk]
        return None if feeds is None else ("F", *feeds)
    after = followers(schedule, p, v)[rank, chunk]
    return ("F", rank, chunk) if after is None else ("D", *after)


def ends_of(program: Program, durations: list[float], send_s: float) -> list[float]:
    """When each operation of the program ends, index 0 being the start of time. [s].

    The last answer is kept: a layout's makespan and its longest chain are asked for one after the other.
    """
    asked = _LAST.get("asked")
    if asked is None or asked[0] is not program or asked[1:3] != (durations, send_s):
        asked = _LAST["asked"] = (program, durations, send_s, _ends_of(program, durations, send_s))
    return asked[3]


_LAST: dict[str, tuple[Program, list[float], float, list[float]]] = {}
"""Program, durations, delay and answer of the last question; nobody changes any of them."""


def _ends_of(program: Program, durations: list[float], send_s: float) -> list[float]:
    ends = [0.0]
    append, delay = ends.append, (0.0, send_s)
    taken = map(durations.__getitem__, program.slots)
    rows = zip(program.previous, program.upstream, program.hops, taken, strict=True)
    next(rows)
    if send_s == 0:
        for previous, upstream, _, duration in rows:
            own, arrival = ends[previous], ends[upstream]
            append((own if own > arrival else arrival) + duration)
        return ends
    for previous, upstream, hop, duration in rows:
        own, arrival = ends[previous], ends[upstream] + delay[hop]
        append((own if own > arrival else arrival) + duration)
    return ends


def ticks_of(schedule: Schedule, durations: list[float]) -> tuple[int, int, int]:
    """Relative F, D, W in units of a quarter of F, for the schedule that adapts its order to them."""
    if schedule != "zb-v":
        return (1, 1, 1)
    f, d, w = (sum(durations[kind::4]) for kind in range(3))
    unit = max(f, 1e-30) / 4
    return 4, min(max(1, round(d / unit)), 16), min(max(1, round(w / unit)), 16)


def period_of(schedule: Schedule, p: int) -> tuple[int, int]:
    """Return micro-batches after which the order repeats, and after which the pipeline has settled."""
    if schedule in ("none", "gpipe", "1f1b", "zb-h1", "zb-h2"):
        return 1, 4 * p
    if schedule == "interleaved":
        return p, 2 * p
    return 2, 4 * p


def durations_of(schedule: Schedule, f: Matrix, d: Matrix, w: Matrix) -> list[float]:
    """Flatten to one list indexed by ``Program.slots``; DualPipe's second chunk is the mirrored stage."""
    flat: list[float] = []
    for rank in range(len(f)):
        places = [(rank, chunk) for chunk in range(len(f[rank]))]
        if schedule in BIDIRECTIONAL:
            places = [(rank, 0), (len(f) - 1 - rank, 0)]
        for row, chunk in places:
            both = d[row][chunk] + w[row][chunk]
            flat += [f[row][chunk], d[row][chunk], w[row][chunk], both]
    return flat
