"""A lower bound of the makespan over every layout, from one chain of operations through each pipeline rank.

Letters: p ranks, v chunks a rank, m micro-batches; f_j and b_j the seconds of rank j's forward and backward
pass of one micro-batch, F and B their sums over all ranks. The first micro-batch goes through every stage to
the loss and back to rank j, which then works off everything that is left to it; its last backward pass still
has to reach rank 0. None of these chains is longer than the makespan:

    GPipe        F + B + (m - 1) (f_j + b_j)
    1F1B         F + B + (m - 1) b_j + (m - p + j) f_j
    interleaved  F + m b_j + (forward passes left to rank j) + last chunks of the ranks after j and first
                 chunks of those before, backward

F and B do not depend on the layout. A step of T seconds therefore gives every rank a largest number of
layers, and no layout is faster than the least T for which all ranks together have room for the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.cost.orders import round_size
from planner.cost.setting import Settings
from planner.solver.capacity import RankMemory, most_layers, placed_together, rank_memories, recomputing_first
from planner.solver.space import Rows
from planner.solver.tables import Floats, Phases, WorkTimes, settings_of_memory
from planner.spec.model import LayerKind
from planner.spec.request import PlanRequest

CHAINED = ("gpipe", "1f1b", "interleaved")
"""Schedules whose backward pass is one operation, so that the chains above exist."""
HALVINGS = 12
"""The bound is the lower end of an interval halved this often: within 1 / 4096 of the bound before."""
MOST_CELLS = 2_000_000
"""Pairs of a rank and a setting that are looked at together: 16 MB an array."""
MOST_TRIED = 8
"""Numbers of recomputed layers a chunk that are tried with memory."""
FEW_CELLS = 100_000
"""So few are not worth a block of their own for every number of ranks."""
ROUND_OFF = 1e-9
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class _Seconds:
    """Forward and backward seconds, one entry a setting."""

    forward: Floats
    backward: Floats

    @classmethod
    def of(cls, phases: Phases, again: Floats) -> _Seconds:
        return cls(phases.forward, phases.backward_input + phases.backward_weight + again * phases.recompute)


@dataclass(frozen=True)
class _Chains:
    """The chain through each rank, as [rank, setting]: how often it passes the rank, what else it holds."""

    fixed: Floats
    """Beside the rank's own layers. [s]"""
    forward: Floats
    backward: Floats
    most: Floats
    """Layers that a rank may hold whatever the time."""


@dataclass(frozen=True)
class _Layers:
    """Layers that have to find room, as [rank, setting]."""

    count: int
    seconds: Floats
    """One layer along the chain. [s]"""
    again: Floats
    """Its recompute. [s]"""
    recomputed: Floats
    """The first so many of a rank's layers are recomputed at least."""
    most: Floats

    def room(self, free_s: Floats) -> Floats:
        """Most layers that take no longer than ``free_s``."""
        few = free_s / (self.seconds + self.again)
        many = (free_s - self.again * self.recomputed) / self.seconds
        held = np.floor(np.where(few <= self.recomputed, few, many))
        return np.minimum(held, self.most)


def chain_bound(rows: Rows, work: WorkTimes, again: Floats, known_s: Floats) -> Floats:
    """Lower bound of the makespan of every layout, at least ``known_s``. [s].

    Parameters
    ----------
    work
        Phases of the same rows.
    again
        1 where every layer is recomputed, 0 where perhaps none is.
    known_s
        A bound from elsewhere.

    Notes
    -----
    With several kinds of layer the most frequent one is placed on its own, the others taken as free, and all
    of them as if each were of the fastest kind: bounds, both of them.
    """
    bound = known_s.copy()
    for taken in _blocks(rows):
        part, own = rows.take(taken), work.take(taken)
        chains = _chains(part, own, again[taken])
        subsets = placed_together(Counter(work.counts))
        layers = [_plain(chains, own, again[taken], tuple(kinds), kinds.total()) for kinds in subsets]
        bound[taken] = _least(chains, layers, known_s[taken])
    return bound


def chain_bound_within(
    rows: Rows, work: WorkTimes, again: Floats, first: Floats, known_s: Floats, request: PlanRequest
) -> Floats:
    """``chain_bound`` of the layouts that memory leaves. [s].

    Parameters
    ----------
    first
        Where each chunk recomputes its first n layers, a lower bound of n; 0 elsewhere.

    Notes
    -----
    Every n from there on is tried, the larger ones together: without memory, as they only get slower.
    """
    bound = known_s.copy()
    for chosen, _ in settings_of_memory(rows):
        for block in _blocks(rows.take(chosen)):
            taken = chosen[block]
            part, own = rows.take(taken), work.take(taken)
            setting = next(settings_of_memory(part))[1]
            chains = _chains(part, own, again[taken])
            placed = _Placed(chains, own, again[taken], setting, request)
            least = np.full(len(taken), np.inf)
            counted = first[taken] > 0
            for more in range(MOST_TRIED if np.any(counted) else 1):
                layers = placed.layers(first[taken] + more, is_bound_by_memory=True)
                least = np.minimum(least, _least(chains, layers, known_s[taken]))
            if np.any(counted):
                layers = placed.layers(first[taken] + MOST_TRIED, is_bound_by_memory=False)
                least = np.where(counted, np.minimum(least, _least(chains, layers, known_s[taken])), least)
            bound[taken] = np.maximum(bound[taken], least)
    return bound


@dataclass(frozen=True)
class _Placed:
    """Layers of one kind of settings, with the memory of their ranks."""

    chains: _Chains
    work: WorkTimes
    again: Floats
    setting: Settings
    request: PlanRequest

    def layers(self, first: Floats, is_bound_by_memory: bool) -> list[_Layers]:
        """What has to find room where each chunk recomputes its first n layers (0: as ``again`` says)."""
        found = []
        for memory, room, held_with in self._memories:
            plain = _plain(self.chains, self.work, self.again, memory.kinds, memory.num_layers)
            most = np.minimum(plain.most, np.where(first > 0, held_with(first), room))
            found.append(
                replace(
                    plain,
                    again=self._again(memory.kinds) * (first > 0),
                    recomputed=self._recomputed(first),
                    most=most if is_bound_by_memory else plain.most,
                )
            )
        return found

    def _again(self, kinds: tuple[LayerKind, ...]) -> Floats:
        phases = np.min([self.work.layers[kind].recompute for kind in kinds], axis=0)
        return np.asarray(self.chains.backward * phases)

    def _recomputed(self, first: Floats) -> Floats:
        """Layers that a rank recomputes if it holds as many: of several chunks the end's may be empty."""
        p, v = np.asarray(self.setting.pipeline_parallel), np.asarray(self.setting.virtual_stages)
        ranks = np.arange(len(self.chains.fixed))[:, None]
        at_end = (v > 1) & ((ranks == 0) | (ranks == p - 1))
        return np.asarray((v - at_end) * first)

    @cached_property
    def _memories(self) -> list[tuple[RankMemory, Floats, Callable[[Floats], Floats]]]:
        memories = []
        for memory in rank_memories(self.setting, self.request):
            room = most_layers(self.setting, self.request, memory)
            memories.append((memory, room, recomputing_first(self.setting, self.request, memory, room)))
        return memories


def _blocks(rows: Rows) -> Iterator[npt.NDArray[np.int64]]:
    """Rows that have chains, in blocks of a similar number of ranks unless there are few."""
    p = rows.values("pipeline_parallel")
    chained = (p > 1) & np.isin(rows.values("schedule"), CHAINED)
    chained &= rows.values("num_microbatches") >= p
    order = np.flatnonzero(chained)
    order = order[np.argsort(p[order], kind="stable")]
    while len(order):
        longest = int(p[order[-1]])
        alike = order if len(order) * longest <= FEW_CELLS else order[p[order] > longest // 2]
        taken = alike[-max(MOST_CELLS // longest, 1) :]
        order = order[: len(order) - len(taken)]
        yield taken


def _least(chains: _Chains, layers: list[_Layers], known_s: Floats) -> Floats:
    """Least T at which all layers have room, as the lower end of an interval."""
    low, high = known_s, 2 * known_s
    for step in range(HALVINGS + 1):
        middle = low if step == 0 else (low + high) / 2
        free = middle * (1 + ROUND_OFF) - chains.fixed
        enough = np.all(free >= 0, axis=0)
        for each in layers:
            enough &= np.sum(each.room(np.maximum(free, 0.0)), axis=0) >= each.count
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return np.asarray(low)


def _plain(
    chains: _Chains, work: WorkTimes, again: Floats, kinds: tuple[LayerKind, ...], count: int
) -> _Layers:
    """Layers as fast as the fastest of some kinds."""
    each = [_Seconds.of(work.layers[kind], again) for kind in kinds]
    seconds = np.min(
        [chains.forward * kind.forward + chains.backward * kind.backward for kind in each], axis=0
    )
    nothing = np.zeros_like(seconds)
    return _Layers(count, seconds, nothing, nothing, chains.most)


def _chains(rows: Rows, work: WorkTimes, again: Floats) -> _Chains:
    p, m = rows.values("pipeline_parallel"), rows.values("num_microbatches")
    ranks = np.arange(int(p.max()))[:, None]
    kinds = {kind: _Seconds.of(phases, again) for kind, phases in work.layers.items()}
    ends = (work.first, work.last, work.engine)
    first, last, engine = (_Seconds.of(phases, 0.0 * again) for phases in ends)
    is_first, is_last = ranks == 0, ranks == p - 1
    own = _Seconds(
        engine.forward + is_first * first.forward + is_last * last.forward,
        engine.backward + is_first * first.backward + is_last * last.backward,
    )
    whole = _Seconds(
        *(
            sum(work.counts[kind] * getattr(each, name) for kind, each in kinds.items())
            + getattr(first, name) + getattr(last, name) + p * getattr(engine, name)
            for name in PASSES
        )
    )  # fmt: skip
    interleaved = rows.values("schedule") == "interleaved"
    more_forward = np.where(rows.values("schedule") == "gpipe", m - 1, m - p + ranks)
    more_forward = np.where(interleaved, m - round_size(p, m), more_forward)
    more_backward = np.where(interleaved, m, m - 1) + np.zeros(ranks.shape)
    least = sum(work.counts.values()) // (p * rows.values("virtual_stages"))
    around = _around(rows, ranks, least, kinds, (first, last, engine))
    fixed = whole.forward + np.where(interleaved, around, whole.backward)
    fixed = fixed + more_forward * own.forward + more_backward * own.backward
    most = rows.values("virtual_stages") * (least + 1)
    most = np.where(interleaved, most, sum(work.counts.values())) * np.ones(ranks.shape)
    beyond = ranks >= p
    return _Chains(np.where(beyond, -np.inf, fixed), more_forward, more_backward, np.where(beyond, 0, most))


def _around(
    rows: Rows,
    ranks: npt.NDArray[np.int64],
    least: npt.NDArray[np.int64],
    kinds: dict[LayerKind, _Seconds],
    ends: tuple[_Seconds, ...],
) -> Any:
    """What an interleaved chain holds beside F and the m - g forward and m backward passes of rank j.

    Parameters
    ----------
    least
        Whole layers of a stage on average: a stage holds as many or one more, at least one unless it is the
        first or the last of all (``layouts.counts_allowed``).

    Notes
    -----
    Before its first backward pass rank j has done g forward passes of every chunk but the last, g being the
    micro-batches of a round (``round_size``, mostly p), and 2 (p - 1 - j) + 1 more: of its last chunk, and
    beyond g of them of its first one again.
    """
    first, last, engine = ends
    p, v = rows.values("pipeline_parallel"), rows.values("virtual_stages")
    lightest = _Seconds(
        *(np.min([getattr(kind, name) for kind in kinds.values()], axis=0) for name in PASSES)
    )
    heaviest = np.max([kind.forward for kind in kinds.values()], axis=0)
    inner_layers = np.maximum(least, 1)
    inner = np.maximum(p - 2 - ranks, 0) + np.maximum(ranks - 1, 0)
    chunks = inner * (inner_layers * lightest.backward + engine.backward / v)
    chunks = chunks + (ranks < p - 1) * (last.backward + engine.backward / v)
    chunks = chunks + (ranks > 0) * (first.backward + engine.backward / v)
    group, more = round_size(p, rows.values("num_microbatches")), 2 * (p - 1 - ranks) + 1
    last_chunk = np.where(ranks == p - 1, last.forward, inner_layers * lightest.forward) + engine.forward / v
    first_chunk = (least + 1) * heaviest + engine.forward / v + (ranks == 0) * first.forward
    return chunks + (group - more) * np.where(more <= group, last_chunk, first_chunk)
