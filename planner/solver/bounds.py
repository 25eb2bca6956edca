"""Lower bounds of the pipeline's time over every layout of the layers, many settings at once.

Letters: p ranks, v chunks a rank, m micro-batches, W seconds of one micro-batch through the whole model, w_i
of it on rank i (what every rank pays anyway included), U the busiest rank's, u one layer's, L layers.

Every schedule keeps each rank busy for m w_i, hence T >= m U. Rank i moreover starts only after a first
micro-batch went through the ranks before it, and (where a backward pass is one operation) the last one
still has to come back through them:

    1F1B, GPipe      T >= m w_i + sum over j < i of w_j
    ZB-H1            T >= m w_i + sum over j < i of F_j
    interleaved      T >= m w_i + (forward and backward of chunk 0 of every j < i)

ZB-H2's steps interlock, and the V-shaped and two-way schedules enter from both ends: only T >= m U is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.cost.data_parallel import tail_time
from planner.cost.orders import BIDIRECTIONAL
from planner.cost.setting import Settings
from planner.cost.stage import V_SHAPED, ChunkLoad
from planner.cost.states import load_local_parameters
from planner.solver.space import Rows
from planner.solver.tables import OF_TAIL, Floats, Phases, WorkTimes, settings_by_category
from planner.spec.model import LayerKind
from planner.spec.request import PlanRequest


@dataclass(frozen=True)
class Busiest:
    """Lower bounds of the busiest rank's seconds per micro-batch."""

    least: Floats
    """Over all layouts."""
    second: Floats
    """Over all layouts that do not reach ``least``."""


@dataclass(frozen=True)
class PipelineBound:
    """Lower bounds of the makespan: of layouts with the lightest busiest rank, and of all others. [s]."""

    least: Floats
    others: Floats
    floor: Floats
    """Of every layout, whatever follows the makespan included."""
    busiest: Busiest

    @property
    def makespan(self) -> Floats:
        """Lower bound over every layout. [s]."""
        return np.maximum(np.minimum(self.least, self.others), self.floor)


def pipeline_bound(rows: Rows, work: WorkTimes, again: Any = 0.0) -> PipelineBound:
    """Lower bounds of the pipeline's makespan over every layout.

    Parameters
    ----------
    work
        Phases of the same rows.
    again
        1 where every layer is recomputed, 0 where perhaps none is.

    Notes
    -----
    Layouts either keep the busiest rank at its least value U, or raise it to the next one U'. In the first
    case the last rank, whose share is at least W - (p - 1) U, gives the entry bounds above; in the second
    T >= m U'. With several kinds of layer U is only a lower bound of the busiest rank, so T >= m U is all.
    """
    m = rows.values("num_microbatches").astype(np.float64)
    busiest = busiest_seconds(rows, work, again)
    weighted = _weighted_path(rows, work, again)
    if len(work.counts) > 1:
        return PipelineBound(m * busiest.least, np.full(len(rows), np.inf), weighted, busiest)
    entry = _through_last_rank(rows, work, busiest.least, again)
    steady = np.maximum(m * busiest.least, weighted)
    return PipelineBound(np.maximum(steady, entry), m * busiest.second, weighted, busiest)


def _alone(rows: Rows) -> npt.NDArray[np.bool_]:
    return np.asarray(rows.values("pipeline_parallel") == 1)


def main_kind(work: WorkTimes) -> LayerKind:
    """The kind of which the model has the most layers."""
    return max(work.counts, key=lambda kind: work.counts[kind])


def layer_seconds(work: WorkTimes, kind: LayerKind, again: Any) -> Floats:
    """One micro-batch through a layer, its recompute included where ``again`` is 1. [s]."""
    phases = work.layers[kind]
    return np.asarray(phases.total + again * phases.recompute)


def whole_model_seconds(work: WorkTimes, again: Any) -> Floats:
    """W: one micro-batch through the whole model, without what every rank pays anyway. [s]."""
    return np.asarray(work.layer_seconds + work.ends_seconds + again * work.recompute_seconds)


def busiest_seconds(rows: Rows, work: WorkTimes, again: Any = 0.0) -> Busiest:
    """Least possible and next possible work of the busiest rank.

    Notes
    -----
    With one kind of layer a rank that holds n of them and an end works n u + end, so the busiest rank's
    work is one of these values, the smallest for which all ranks together have room for L layers; the
    next one up is the smallest of these values above it (one rank alone has only one). With several kinds
    the same holds as a lower bound for the most frequent kind (the others taken as free), and the mean
    W / p is another. Two-way schedules average two ranks: half of what such a pair works, a pair being one of
    p / 2 that hold n layers, the first of them both ends.
    """
    engine = work.engine.total
    pair = np.where(_in(rows, BIDIRECTIONAL), 2.0, 1.0)
    mean = pair * whole_model_seconds(work, again) / rows.values("pipeline_parallel")
    kind = main_kind(work)
    count, layer, ends = work.counts[kind], layer_seconds(work, kind, again), _end_seconds(rows, work)
    alike = mean if len(work.counts) == 1 else pair * (count * layer + work.ends_seconds) * mean_share(rows)
    levels = np.sort(np.stack(_levels(alike, layer, ends)), axis=0)
    enough = _room(rows, layer, ends, levels) >= count
    least = np.min(np.where(enough, levels, np.inf), axis=0)
    second = np.min(np.where(enough & (levels > least * (1 + 1e-9)), levels, np.inf), axis=0)
    if len(work.counts) > 1:
        least = second = np.maximum(mean, np.where(_alone(rows), 0.0, least))
    second = np.where(_alone(rows), np.inf, second)
    return Busiest(least / pair + engine, second / pair + engine)


def with_recompute(rows: Rows, work: WorkTimes, first: Floats) -> WorkTimes:
    """The phases, with what every rank at least recomputes counted as what every rank pays anyway.

    Parameters
    ----------
    first
        Lower bound of n where each chunk recomputes its first n layers, 0 elsewhere.

    Notes
    -----
    One rank alone holds all layers and recomputes n. A rank's only chunk has at least one layer. Of several
    chunks each holds at least q = floor(L / (p v)), at least one, and recomputes the lesser of n and that;
    but for the model's first and last chunk, which may be empty: the ends are lighter by as much.
    """
    p, v = rows.values("pipeline_parallel"), rows.values("virtual_stages")
    each = np.maximum(sum(work.counts.values()) // (p * v), 1)
    surely = np.where(p == 1, first, np.minimum(first, np.where(v == 1, 1, each)))
    again = surely * np.min([phases.recompute for phases in work.layers.values()], axis=0)
    relief = np.where(v > 1, again, 0.0)
    return WorkTimes(
        work.layers, _later(work.first, -relief), _later(work.last, -relief), _later(work.engine, v * again),
        work.counts,
    )  # fmt: skip


def _later(phases: Phases, seconds: Floats) -> Phases:
    return replace(phases, backward_input=phases.backward_input + seconds)


def mean_share(rows: Rows) -> Floats:
    """Share of the model that one of p ranks holds on average. [1]."""
    return np.asarray(1.0 / rows.values("pipeline_parallel"))


def _end_seconds(rows: Rows, work: WorkTimes) -> tuple[Floats, Floats]:
    """What the first and the last rank work beside layers; a V brings both ends to the first rank."""
    first, last = work.first.total, work.last.total
    together = _in(rows, V_SHAPED | BIDIRECTIONAL) | (rows.values("pipeline_parallel") == 1)
    return np.where(together, first + last, first), np.where(together, 0.0, last)


def _levels(mean: Floats, layer: Floats, ends: tuple[Floats, Floats]) -> list[Floats]:
    """Values n u, n u + first end, n u + last end around the mean, one of which suffices."""
    levels = []
    for end in (0.0, *ends):
        least = np.maximum(np.ceil((mean - end) / layer * (1 - 1e-12)), 0.0)
        levels += [(least + step) * layer + end for step in range(3)]
    return levels


def _room(rows: Rows, layer: Floats, ends: tuple[Floats, Floats], level: Floats) -> Floats:
    """Layers that all ranks hold when none works more than ``level``; -inf when an end alone is more."""
    p = rows.values("pipeline_parallel") / np.where(_in(rows, BIDIRECTIONAL), 2.0, 1.0)
    slack = 1 + 1e-9

    def fits(end: Any) -> Floats:
        count = np.floor((level * slack - end) / layer)
        return np.where(level * slack >= end, count, -np.inf)

    inner = np.where(p > 2, (p - 2) * fits(0.0), 0.0)
    return np.asarray(fits(ends[0]) + np.where(p > 1, fits(ends[1]), 0.0) + inner)


def _through_last_rank(rows: Rows, work: WorkTimes, busiest: Floats, again: Any) -> Floats:
    """Bound by the last rank's work and the way to it, when no rank works more than ``busiest``."""
    p = rows.values("pipeline_parallel").astype(np.float64)
    m = rows.values("num_microbatches").astype(np.float64)
    engine = work.engine.total
    whole = whole_model_seconds(work, again) + p * engine
    last = np.maximum(whole - (p - 1) * busiest, work.last.total + engine)
    schedule = rows.values("schedule")
    plain = (schedule == "1f1b") | (schedule == "gpipe")
    lightest = np.min([phases.total for phases in work.layers.values()], axis=0)
    inner_layers = np.floor(sum(work.counts.values()) / (p * rows.values("virtual_stages")))
    chunk_zero = np.maximum(p - 2, 0.0) * inner_layers * lightest
    way = np.where(plain, whole - last, np.where(schedule == "interleaved", chunk_zero, 0.0))
    return np.asarray(np.where(_in(rows, V_SHAPED | BIDIRECTIONAL), 0.0, m * last) + way)


def _weighted_path(rows: Rows, work: WorkTimes, again: Any) -> Floats:
    """Mean of the 1F1B bounds of all ranks with weights that make every rank's share count the same.

    Notes
    -----
    With weights proportional to ((m - 1)/m)^(p - 1 - i) the mean of m w_i + sum over j < i of w_j is
    W / (1 - (1 - 1/m)^p), whatever the layout.
    """
    p, m = rows.values("pipeline_parallel"), rows.values("num_microbatches").astype(np.float64)
    schedule = rows.values("schedule")
    plain = (schedule == "1f1b") | (schedule == "gpipe")
    share = 1.0 - (1.0 - 1.0 / m) ** p
    whole = whole_model_seconds(work, again) + p * work.engine.total
    return np.where(plain, whole / share, 0.0)


def _in(rows: Rows, schedules: Any) -> Any:
    return np.isin(rows.values("schedule"), sorted(schedules))


def bound_with_tail(
    rows: Rows, work: WorkTimes, pipeline: PipelineBound, floor: Floats, request: PlanRequest
) -> tuple[Floats, Floats]:
    """Lower bound of the makespan and what follows it, over every layout, and of the latter alone. [s].

    Parameters
    ----------
    floor
        Another lower bound of the makespan of every layout. [s]

    Notes
    -----
    Of both sorts of layouts the better one counts.
    """
    m = rows.values("num_microbatches")
    tail = tail_bound(rows, work, pipeline.busiest.least, request)
    others = pipeline.others.copy()
    low = np.flatnonzero((others < pipeline.least + tail) & (m > 1))
    others[low] += tail_bound(rows.take(low), work.take(low), pipeline.busiest.second[low], request)
    spread = np.minimum(pipeline.least + tail, others)
    least = with_tail(rows, np.maximum(floor, pipeline.floor), tail, pipeline.busiest.least)
    return np.maximum(spread, least), tail


def with_tail(rows: Rows, floor: Floats, tail: Floats, busiest: Floats) -> Floats:
    """What follows added to a lower bound T' of the makespan of every layout. [s].

    Notes
    -----
    A busiest rank that works U' beyond T'/m makes m U' the makespan, so T'/m stands for U' (``least_tail``).
    """
    return np.asarray(floor + least_tail(tail, floor / rows.values("num_microbatches"), busiest))


def least_tail(tail: Any, worked: Any, busiest: Any) -> Any:
    """Lower bound of what follows where the busiest rank works ``worked`` a micro-batch. [s].

    Parameters
    ----------
    tail, busiest
        Lower bound of what follows where it works ``busiest``: longer by x, it exposes at most 2 x less.
    """
    return np.maximum(tail - 2.0 * np.maximum(worked - busiest, 0.0), 0.0)


def tail_bound(rows: Rows, work: WorkTimes, busiest: Floats, request: PlanRequest) -> Floats:
    """Lower bound of synchronisation and optimizer where the busiest rank works ``busiest``. [s].

    Notes
    -----
    The pace-setting rank then holds at least (U - end - others) / u layers of the most frequent kind, others
    being all layers of other kinds, and at least (U - end) / (slowest layer) of some kinds, of which the one
    that adds least stands for all. It is one of three ranks (first, inner, last), and the cheapest counts.
    The bound uses the largest computation that can hide the exchange, in either direction the part of U that
    its most lopsided component spends there. One pipeline rank holds everything: exact.

    A rank that works U' > U exposes at most 2 (U' - U) less, so with m >= 2 micro-batches m U + tail(U) is
    below m U' + tail(U') as well: where U is only a lower bound of the busiest rank, it still holds. With
    m = 1 it would not, and 0 is returned where there are several kinds.
    """
    bound = np.zeros(len(rows))
    for chosen, setting in settings_by_category(rows, vary=OF_TAIL):
        bound[chosen] = _tail_of_group(
            rows.take(chosen), setting, work.take(chosen), busiest[chosen], request
        )
    if len(work.counts) > 1:
        bound = np.where((rows.values("num_microbatches") > 1) | _alone(rows), bound, 0.0)
    return bound


def _tail_of_group(
    rows: Rows, setting: Settings, work: WorkTimes, busiest: Floats, request: PlanRequest
) -> Floats:
    whole = ChunkLoad(dict(work.counts), embedding=1, head=1, mtp=request.model.mtp_depth)
    forward = sum(count * work.layers[kind].forward for kind, count in work.counts.items())
    forward = forward + work.first.forward + work.last.forward + work.engine.forward
    again = np.where(rows.values("recompute") == "none", 0.0, 1.0)
    backward = _everything(work) - forward + again * work.recompute_seconds
    exact = _tail(whole, setting, request, forward, backward)
    if np.all(_alone(rows)):
        return exact
    main, ends = main_kind(work), _end_seconds(rows, work)
    others = sum(
        count * layer_seconds(work, kind, again) for kind, count in work.counts.items() if kind != main
    )
    slowest = np.max([layer_seconds(work, kind, again) for kind in work.counts], axis=0)
    forward_share, backward_share = largest_shares(work, again)
    hiding = (forward_share * busiest, backward_share * busiest)
    options = []
    for place, end in enumerate((ends[0], ends[1], np.zeros(len(rows)))):
        left = busiest - work.engine.total - end
        held = np.floor((left - others) / layer_seconds(work, main, again) * (1 + 1e-9) + 1e-9)
        ends_held = {"embedding": int(place == 0), "head": int(place == 1)}
        load = ChunkLoad({main: np.maximum(held, 0)}, **ends_held)
        after = _tail(load, setting, request, *hiding)
        if len(work.counts) > 1:
            every = np.floor(left / slowest * (1 + 1e-9) + 1e-9)
            loads = [ChunkLoad({kind: np.maximum(every, 0)}, **ends_held) for kind in work.counts]
            tails = [_tail(load, setting, request, *hiding) for load in loads]
            after = np.maximum(after, np.min(tails, axis=0))
        options.append(np.where(left >= 0, after, np.inf))
    spread = np.min(options, axis=0)
    spread = np.where(_in(rows, BIDIRECTIONAL), 0.0, spread)
    return np.asarray(np.where(_alone(rows), exact, spread))


def largest_shares(work: WorkTimes, again: Any) -> tuple[Floats, Floats]:
    """Largest part of any component's time that is forward, and that is backward. [1].

    Notes
    -----
    A rank's work is a sum of components (layers, ends, what every rank pays), so no rank spends a larger part
    of it there. Perhaps nothing is recomputed, and perhaps every layer where ``again`` is 1. The ends are
    lighter where chunks may be empty (``with_recompute``): one that takes less than nothing says nothing.
    """
    forward, backward = [], []
    for phases in (*work.layers.values(), work.first, work.last, work.engine):
        recomputed = again * phases.recompute
        forward.append(_part(phases.forward, phases.total))
        backward.append(_part(phases.total - phases.forward + recomputed, phases.total + recomputed))
    return np.max(forward, axis=0), np.max(backward, axis=0)


def _part(part: Floats, whole: Floats) -> Floats:
    """The part of a component, at most 1; none of what takes no time. [1]."""
    nothing = (whole == 0) & (part == 0)
    return np.where(
        nothing, 0.0, np.where(whole > 0, np.minimum(part / np.where(whole > 0, whole, 1.0), 1.0), 1.0)
    )


def _everything(work: WorkTimes) -> Floats:
    """One micro-batch on a single rank that holds the whole model, without recompute. [s]."""
    return work.layer_seconds + work.ends_seconds + work.engine.total


def _tail(
    load: ChunkLoad, setting: Settings, request: PlanRequest, forward_s: Any, backward_s: Any
) -> Floats:
    local = load_local_parameters(load, setting, request)
    return np.asarray(tail_time(local, setting, request, forward_s, backward_s))
