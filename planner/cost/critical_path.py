"""The longest chain of operations of a simulated pipeline: how often it uses each stage's passes.

A chain is a path in the graph of dependencies, whatever the durations. Its length, summed with the durations
of *another* distribution of the layers, is therefore a lower bound of that one's makespan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from operator import itemgetter

from planner.cost.orders import (
    BIDIRECTIONAL,
    SPLIT_BACKWARD,
    followers,
    neighbours,
    num_chunks,
    rank_orders,
    round_size,
)
from planner.cost.program import KINDS, Matrix, durations_of, ends_of, period_of, program_of, ticks_of
from planner.cost.stage import stage_order
from planner.spec.plan import Schedule

MOST_WALKED = 20_000
"""Forward passes of the largest pipeline whose chain is read off a full simulation: about 0.1 s."""
KIND_AND_CHUNK = itemgetter(0, 1)
"""Of an operation."""
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


Chains = Callable[[Schedule, int, int, int], Sequence[Chain]]


def _of_many(chains_of: Chains, schedule: Schedule, p: int, v: int, m: int) -> Sequence[Chain]:
    """The chains of ``m`` micro-batches; many only lengthen a rank's order by the same operations again.

    Of a round of micro-batches to the next every chain grows alike, so that two short pipelines with as large
    rounds tell how.
    """
    in_rounds = schedule == "interleaved"
    if p * v * m <= MOST_WALKED or (in_rounds and round_size(p, m) != p):  # larger rounds only below p^2
        return chains_of(schedule, p, v, m)
    period, settled = period_of(schedule, p)
    short = settled + (m - settled) % period
    while in_rounds and round_size(p, short) != p:  # from some multiple of p on all rounds are of p
        short += p
    if m <= short + period:
        return chains_of(schedule, p, v, m)
    low, high = (chains_of(schedule, p, v, count) for count in (short, short + period))
    rounds = (m - short) // period
    return [
        {stage: times + (rounds - 1) * (times - before.get(stage, 0)) for stage, times in after.items()}
        for before, after in zip(low, high, strict=True)
    ]


@lru_cache(maxsize=256)
def chains_through_ranks(schedule: Schedule, p: int, v: int, m: int) -> tuple[Chain, ...]:
    """One chain of every layout through each rank, first to last.

    The first micro-batch passes every stage to the loss and comes back to the rank; everything that is left
    to the rank follows in its order; where that ends with a backward pass, it goes on to the first stage.
    """
    return tuple(_of_many(_through_ranks, schedule, p, v, m))


def _through_ranks(schedule: Schedule, p: int, v: int, m: int) -> list[Chain]:
    feeds, forward = neighbours(schedule, p, v), stage_order(schedule, p, v)
    to_the_loss = {(*place, 0): 1 for place in forward}
    chains: list[Chain] = []
    for rank, order in enumerate(rank_orders(schedule, p, v, m)):
        chain: Counter[tuple[int, int, int]] = Counter(to_the_loss)
        start = next(index for index, op in enumerate(order) if op[0] != "F")
        back = forward[forward.index((rank, order[start][1])) + 1 :]
        way = feeds[rank, order[-1][1]] if order[-1][0] == "B" else None
        while way is not None:
            back.append(way)
            way = feeds[way]
        for place in back:
            chain[*place, 1] += 1
            chain[*place, 2] += schedule not in SPLIT_BACKWARD
        for (kind, chunk), times in Counter(map(KIND_AND_CHUNK, order[start:])).items():
            for phase in PHASES[kind]:
                chain[rank, chunk, phase] += times
        chains.append(chain)
    return chains


@lru_cache(maxsize=64)
def chains_in_order(schedule: Schedule, p: int, v: int, m: int) -> tuple[Chain, ...]:
    """Chains of every layout that stay on one rank between the way to it and the way out.

    A rank is entered by the first forward or the first backward pass of one of its chunks: before it the
    micro-batch went through the stages that feed that one, or through all of them and back. Its operations
    follow in its order until the last of all, or the last backward pass of a chunk, which goes on to where
    the model begins. Of backward passes on other ranks only the input gradients count: these are waited for.
    """
    chains = _of_many(_in_order, schedule, p, v, m)
    return tuple({frozenset(chain.items()): chain for chain in chains}.values())


def _in_order(schedule: Schedule, p: int, v: int, m: int) -> list[Chain]:
    feeds, feeding = neighbours(schedule, p, v), followers(schedule, p, v)
    chains: list[Chain] = []
    for rank, order in enumerate(rank_orders(schedule, p, v, m)):
        backward = [(index, op[1]) for index, op in enumerate(order) if op[0] in "BD"]
        entries = {
            (op[0] == "F", op[1]): index for index, op in reversed(list(enumerate(order))) if op[0] != "W"
        }
        exits = [(len(order) - 1, None), *{chunk: (index, chunk) for index, chunk in backward}.values()]
        for ((is_forward, chunk), start), (stop, left) in product(entries.items(), exits):
            used = _ways(_line(feeds, (rank, chunk)), 0)
            if not is_forward:
                used += _ways([(rank, chunk), *(after := _line(feeding, (rank, chunk)))], 0) + _ways(after, 1)
            if left is not None:
                used += _ways(_line(feeds, (rank, left)), 1)
            for kind, own, _ in order[start : stop + 1]:
                for phase in PHASES[kind]:
                    used[rank, own, phase] += 1
            chains.append(_mirrored(used, schedule, p))
    return chains


def _line(
    neighbour: Mapping[tuple[int, int], tuple[int, int] | None], place: tuple[int, int]
) -> list[tuple[int, int]]:
    """The places that follow one another from a place on, without itself."""
    line, following = [], neighbour[place]
    while following is not None:
        line.append(following)
        following = neighbour[following]
    return line


def _ways(places: list[tuple[int, int]], phase: int) -> Counter[tuple[int, int, int]]:
    return Counter((*place, phase) for place in places)


def _mirrored(used: Mapping[tuple[int, int, int], int], schedule: Schedule, p: int) -> Chain:
    """The second direction of a two-way schedule runs the mirrored rank's stage."""
    if schedule not in BIDIRECTIONAL:
        return used
    chain: Counter[tuple[int, int, int]] = Counter()
    for (rank, chunk, phase), times in used.items():
        chain[p - 1 - rank if chunk else rank, 0, phase] += times
    return chain


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
    """Count by stage."""
    chunks = num_chunks(schedule, v)
    chain: Counter[tuple[int, int, int]] = Counter()
    for slot, times in used.items():
        place, kind = divmod(slot, 4)
        for phase in PHASES[KINDS[kind]]:
            chain[*divmod(place, chunks), phase] += times
    return _mirrored(chain, schedule, p)
