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

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.solver.space import Rows
from planner.solver.tables import Floats, Phases, WorkTimes
from planner.spec.model import LayerKind

CHAINED = ("gpipe", "1f1b", "interleaved")
"""Schedules whose backward pass is one operation, so that the chains above exist."""
HALVINGS = 12
"""The bound is the lower end of an interval halved this often: within 1 / 4096 of the bound before."""
MOST_CELLS = 2_000_000
"""Pairs of a rank and a setting that are looked at together: 16 MB an array."""
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
    """The chain through each rank, as [rank, setting]: seconds beside layers, and of one more layer."""

    fixed: Floats
    layer: dict[LayerKind, Floats]
    most: Floats
    """Layers that a rank may hold whatever the time."""


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
    With several kinds of layer each kind is fitted on its own, the others taken as free: still a bound.
    """
    bound = known_s.copy()
    p = rows.values("pipeline_parallel")
    chained = (p > 1) & np.isin(rows.values("schedule"), CHAINED)
    chained &= rows.values("num_microbatches") >= p
    order = np.flatnonzero(chained)
    order = order[np.argsort(p[order], kind="stable")]
    while len(order):
        longest = int(p[order[-1]])
        taken = order[p[order] > longest // 2][-max(MOST_CELLS // longest, 1) :]
        order = order[: len(order) - len(taken)]
        chains = _chains(rows.take(taken), work.take(taken), again[taken])
        bound[taken] = _least(chains, work.counts, known_s[taken])
    return bound


def _least(chains: _Chains, counts: dict[LayerKind, int], known_s: Floats) -> Floats:
    """Least T at which every kind of layer has room, as the lower end of an interval."""
    low, high = known_s, 2 * known_s
    for step in range(HALVINGS + 1):
        middle = low if step == 0 else (low + high) / 2
        free = middle * (1 + ROUND_OFF) - chains.fixed
        enough = np.all(free >= 0, axis=0)
        for kind, layer in chains.layer.items():
            room = np.minimum(np.floor(np.maximum(free, 0.0) / layer), chains.most)
            enough &= np.sum(room, axis=0) >= counts[kind]
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return np.asarray(low)


def _chains(rows: Rows, work: WorkTimes, again: Floats) -> _Chains:
    p, m = rows.values("pipeline_parallel"), rows.values("num_microbatches")
    ranks = np.arange(int(p.max()))[:, None]
    kinds = {kind: _Seconds.of(phases, again) for kind, phases in work.layers.items()}
    first, last, engine = (
        _Seconds.of(phases, 0.0 * again) for phases in (work.first, work.last, work.engine)
    )
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
    more_forward = np.where(interleaved, m - p, more_forward)
    more_backward = np.where(interleaved, m, m - 1)
    least = sum(work.counts.values()) // (p * rows.values("virtual_stages"))
    around = _around(rows, ranks, least, kinds, (first, last, engine))
    fixed = whole.forward + np.where(interleaved, around, whole.backward)
    fixed = fixed + more_forward * own.forward + more_backward * own.backward
    layer = {
        kind: more_forward * each.forward + more_backward * each.backward for kind, each in kinds.items()
    }
    most = rows.values("virtual_stages") * (least + 1)
    most = np.where(interleaved, most, sum(work.counts.values())) * np.ones(ranks.shape)
    beyond = ranks >= p
    return _Chains(np.where(beyond, -np.inf, fixed), layer, np.where(beyond, 0, most))


def _around(
    rows: Rows,
    ranks: npt.NDArray[np.int64],
    least: npt.NDArray[np.int64],
    kinds: dict[LayerKind, _Seconds],
    ends: tuple[_Seconds, ...],
) -> Any:
    """What an interleaved chain holds beside F and the m - p forward and m backward passes of rank j.

    Parameters
    ----------
    least
        Whole layers of a stage on average: a stage holds as many or one more, at least one unless it is the
        first or the last of all (``layouts.counts_allowed``).

    Notes
    -----
    Before its first backward pass rank j has done p forward passes of every chunk but the last, and
    2 (p - 1 - j) + 1 more: of its last chunk, and beyond p of them of its first one again.
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
    more = 2 * (p - 1 - ranks) + 1
    last_chunk = np.where(ranks == p - 1, last.forward, inner_layers * lightest.forward) + engine.forward / v
    first_chunk = (least + 1) * heaviest + engine.forward / v + (ranks == 0) * first.forward
    return chunks + (p - more) * np.where(more <= p, last_chunk, first_chunk)
