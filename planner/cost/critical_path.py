"""The longest chain of operations of a simulated pipeline: how often it uses each stage's passes.

A chain is a path in the graph of dependencies, whatever the durations. Its length, summed with the durations
of *another* distribution of the layers, is therefore a lower bound of that one's makespan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from planner.cost.orders import BIDIRECTIONAL, SPLIT_BACKWARD, neighbours, num_chunks, rank_orders
from planner.cost.program import KINDS, Matrix, durations_of, ends_of, period_of, program_of, ticks_of
from planner.cost.stage import stage_order
from planner.spec.plan import Schedule

MOST_WALKED = 20_000
"""Forward passes of the largest pipeline whose chain is read off a full simulation: about 0.1 s."""
PHASES = {"F": (0,), "D": (1,), "W": (2,), "B": (1, 2)}
"""Forward, input gradient and weight gradient that each kind of operation consists of."""

Chain = Mapping[tuple[int, int, int], int]
"""How often the chain uses (pipeline rank, chunk, phase); phases are forward, input and weight gradient."""


def critical_path(schedule: Schedule, f: Matrix, d: Matrix, w: Matrix, m: int) -> Chain | None:
    """Return the longest chain of ``m`` micro-batches, None where it cannot be told cheaply.

    Parameters
    ----------
    f, d, w
        Seconds of forward, input gradient and weight gradient as [pipeline rank][chunk].

    Notes
    -----
    A long steady state is cut short. When one period more lengthens the chain by exactly one period of one
    rank, the chain stays on that rank, and it may stay there for any number of periods.
    """
    p, v = len(f), len(f[0])
    if p * v * m <= MOST_WALKED:
        return _by_stage(_walk(schedule, f, d, w, m), schedule, p, v)
    period, settled = period_of(schedule, p)
    short = settled + (m - settled) % period
    if m <= short + period or p * v * (short + period) > MOST_WALKED:
        return None
    low, high = (_walk(schedule, f, d, w, count) for count in (short, short + period))
    grown = {slot: high[slot] - low[slot] for slot in high | low if high[slot] != low[slot]}
    chunks = num_chunks(schedule, v)
    if len({slot // (4 * chunks) for slot in grown}) != 1 or set(grown.values()) != {period}:
        return None
    steps = (m - short) // period
    longer = Counter({slot: low[slot] + steps * grown.get(slot, 0) for slot in high | low})
    return _by_stage(longer, schedule, p, v)


@lru_cache(maxsize=256)
def chains_through_ranks(schedule: Schedule, p: int, v: int, m: int) -> tuple[Chain, ...]:
    """One chain of every layout through each rank, first to last.

    The first micro-batch passes every stage to the loss and comes back to the rank; everything that is left
    to the rank follows in its order; where that ends with a backward pass, it goes on to the first stage.
    """
    feeds, forward = neighbours(schedule, p, v), stage_order(schedule, p, v)
    chains = []
    for rank, order in enumerate(rank_orders(schedule, p, v, m)):
        chain: Counter[tuple[int, int, int]] = Counter({(*place, 0): 1 for place in forward})
        start = next(index for index, op in enumerate(order) if op[0] != "F")
        back = forward[forward.index((rank, order[start][1])) + 1 :]
        way = feeds[rank, order[-1][1]] if order[-1][0] == "B" else None
        while way is not None:
            back.append(way)
            way = feeds[way]
        for place in back:
            chain[*place, 1] += 1
            chain[*place, 2] += schedule not in SPLIT_BACKWARD
        for (kind, chunk), times in Counter((op[0], op[1]) for op in order[start:]).items():
            for phase in PHASES[kind]:
                chain[rank, chunk, phase] += times
        chains.append(chain)
    return tuple(chains)


def _walk(schedule: Schedule, f: Matrix, d: Matrix, w: Matrix, m: int) -> Counter[int]:
    """How often the longest chain uses each duration, walked back from the last operation to end."""
    durations = durations_of(schedule, f, d, w)
    program = program_of(schedule, len(f), len(f[0]), m, ticks_of(schedule, durations))
    ends = ends_of(program, durations, 0.0)
    index = max(program.last, key=lambda last: ends[last])
    used: Counter[int] = Counter()
    while index:
        used[program.slots[index]] += 1
        previous, upstream = program.previous[index], program.upstream[index]
        index = previous if ends[previous] >= ends[upstream] else upstream
    return used


def _by_stage(used: Counter[int], schedule: Schedule, p: int, v: int) -> Chain:
    """Count by stage; the second direction of a two-way schedule runs the mirrored rank's stage."""
    chunks = num_chunks(schedule, v)
    chain: Counter[tuple[int, int, int]] = Counter()
    for slot, times in used.items():
        place, kind = divmod(slot, 4)
        rank, chunk = divmod(place, chunks)
        if schedule in BIDIRECTIONAL and chunk == 1:
            rank, chunk = p - 1 - rank, 0
        for phase in PHASES[KINDS[kind]]:
            chain[rank, chunk, phase] += times
    return chain
