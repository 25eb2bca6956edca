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

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.cost.data_parallel import data_parallel_time, optimizer_offload_time, optimizer_time
from planner.cost.orders import BIDIRECTIONAL
from planner.cost.setting import Settings
from planner.cost.stage import V_SHAPED, ChunkLoad
from planner.cost.states import load_local_parameters
from planner.solver.space import Rows
from planner.solver.tables import Floats, WorkTimes, settings_by_category
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
    busiest: Busiest

    def take(self, chosen: npt.NDArray[Any]) -> PipelineBound:
        """The entries of some rows."""
        busiest = Busiest(self.busiest.least[chosen], self.busiest.second[chosen])
        return PipelineBound(self.least[chosen], self.others[chosen], busiest)


def pipeline_bound(rows: Rows, work: WorkTimes, extra_layer_s: Any = 0.0) -> PipelineBound:
    """Lower bounds of the pipeline's makespan over every layout.

    Parameters
    ----------
    work
        Phases of the same rows.
    extra_layer_s
        Seconds that every layer needs beyond ``work.layers`` (recompute of all layers). [s]

    Notes
    -----
    Layouts either keep the busiest rank at its least value U, or raise it to the next one U'. In the first
    case
    the last rank, whose share is at least W - (p - 1) U, gives the entry bounds above; in the second T >= m
    U'.
    """
    m = rows.values("num_microbatches").astype(np.float64)
    busiest = busiest_seconds(rows, work, extra_layer_s)
    entry = _through_last_rank(rows, work, busiest.least, extra_layer_s)
    weighted = _weighted_path(rows, work, extra_layer_s)
    least = np.maximum(np.maximum(m * busiest.least, entry), weighted)
    return PipelineBound(least, np.maximum(m * busiest.second, weighted), busiest)


def whole_model_seconds(work: WorkTimes, extra_layer_s: Any) -> Floats:
    """W: one micro-batch through the whole model, without what every rank pays anyway. [s]."""
    return np.asarray(work.layer_seconds + work.ends_seconds + extra_layer_s * sum(work.counts.values()))


def busiest_seconds(rows: Rows, work: WorkTimes, extra_layer_s: Any = 0.0) -> Busiest:
    """Least possible and next possible work of the busiest rank.

    Notes
    -----
    With one kind of layer a rank that holds n of them and an end works n u + end, so the busiest rank's
    work is one of these values, the smallest for which all ranks together have room for L layers; the
    next one up is the smallest of these values above it. With several kinds the mean W / p, and the fullest
    rank's
    share of each kind, bound it. Two-way schedules average two ranks: the mean is all that holds.
    """
    p = rows.values("pipeline_parallel").astype(np.float64)
    engine = work.engine.total
    mean = whole_model_seconds(work, extra_layer_s) / p
    if len(work.counts) > 1:
        shares = [
            np.ceil(count / p) * (work.layers[kind].total + extra_layer_s)
            for kind, count in work.counts.items()
        ]
        least = np.maximum(mean, np.max(shares, axis=0))
        least = np.where(_in(rows, BIDIRECTIONAL), mean, least)
        return Busiest(least + engine, least + engine)
    ((kind, count),) = work.counts.items()
    layer = work.layers[kind].total + extra_layer_s
    ends = _end_seconds(rows, work)
    levels = np.sort(np.stack(_levels(mean, layer, ends)), axis=0)
    room = _room(rows, layer, ends, levels)
    enough = room >= count
    least = np.min(np.where(enough, levels, np.inf), axis=0)
    second = np.min(np.where(enough & (levels > least * (1 + 1e-9)), levels, np.inf), axis=0)
    two_way = _in(rows, BIDIRECTIONAL)
    return Busiest(np.where(two_way, mean, least) + engine, np.where(two_way, mean, second) + engine)


def _end_seconds(rows: Rows, work: WorkTimes) -> tuple[Floats, Floats]:
    """What the first and the last rank work beside layers; a V brings both ends to the first rank."""
    first, last = work.first.total, work.last.total
    together = _in(rows, V_SHAPED) | (rows.values("pipeline_parallel") == 1)
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
    p = rows.values("pipeline_parallel").astype(np.float64)
    slack = 1 + 1e-9

    def fits(end: Any) -> Floats:
        count = np.floor((level * slack - end) / layer)
        return np.where(level * slack >= end, count, -np.inf)

    inner = np.where(p > 2, (p - 2) * fits(0.0), 0.0)
    return np.asarray(fits(ends[0]) + np.where(p > 1, fits(ends[1]), 0.0) + inner)


def _through_last_rank(rows: Rows, work: WorkTimes, busiest: Floats, extra_layer_s: Any) -> Floats:
    """Bound by the last rank's work and the way to it, when no rank works more than ``busiest``."""
    p = rows.values("pipeline_parallel").astype(np.float64)
    m = rows.values("num_microbatches").astype(np.float64)
    engine = work.engine.total
    whole = whole_model_seconds(work, extra_layer_s) + p * engine
    last = np.maximum(whole - (p - 1) * busiest, work.last.total + engine)
    schedule = rows.values("schedule")
    plain = (schedule == "1f1b") | (schedule == "gpipe")
    lightest = np.min([phases.total for phases in work.layers.values()], axis=0)
    inner_layers = np.floor(sum(work.counts.values()) / (p * rows.values("virtual_stages")))
    chunk_zero = np.maximum(p - 2, 0.0) * inner_layers * lightest
    way = np.where(plain, whole - last, np.where(schedule == "interleaved", chunk_zero, 0.0))
    return np.asarray(np.where(_in(rows, V_SHAPED | BIDIRECTIONAL), 0.0, m * last) + way)


def _weighted_path(rows: Rows, work: WorkTimes, extra_layer_s: Any) -> Floats:
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
    whole = whole_model_seconds(work, extra_layer_s) + p * work.engine.total
    return np.where(plain, whole / share, 0.0)


def _in(rows: Rows, schedules: Any) -> Any:
    return np.isin(rows.values("schedule"), sorted(schedules))


def tail_bound(rows: Rows, work: WorkTimes, busiest: Floats, request: PlanRequest) -> Floats:
    """Lower bound of synchronisation and optimizer where the busiest rank works ``busiest``. [s].

    Notes
    -----
    The pace-setting rank then holds (U - end) / u layers: one of three ranks (first, inner, last), and the
    cheapest
    counts. The bound uses the largest computation that can hide the exchange, U in either direction. One
    pipeline rank holds everything: exact. With several kinds of layer and a pipeline nothing is assumed.
    """
    bound = np.zeros(len(rows))
    for chosen, setting in settings_by_category(rows, vary=("zero_stage", "offload")):
        bound[chosen] = _tail_of_group(
            rows.take(chosen), setting, work.take(chosen), busiest[chosen], request
        )
    return bound


def _tail_of_group(
    rows: Rows, setting: Settings, work: WorkTimes, busiest: Floats, request: PlanRequest
) -> Floats:
    alone = np.asarray(setting.pipeline_parallel) == 1
    whole = ChunkLoad(dict(work.counts), embedding=1, head=1, mtp=request.model.mtp_depth)
    forward = sum(count * work.layers[kind].forward for kind, count in work.counts.items())
    forward = forward + work.first.forward + work.last.forward + work.engine.forward
    again = np.where(rows.values("recompute") == "none", 0.0, 1.0)
    backward = _everything(work) - forward + again * work.recompute_seconds
    exact = _tail(whole, setting, request, forward, backward)
    if len(work.counts) > 1:
        return np.asarray(np.where(alone, exact, 0.0))
    ((kind, layer),) = work.layers.items()
    ends = _end_seconds(rows, work)
    options = []
    for place, end in enumerate((ends[0], ends[1], np.zeros(len(rows)))):
        each = layer.total + again * layer.recompute
        held = np.floor((busiest - work.engine.total - end) / each * (1 + 1e-9) + 1e-9)
        load = ChunkLoad({kind: np.maximum(held, 0)}, embedding=int(place == 0), head=int(place == 1))
        after = _tail(load, setting, request, busiest, busiest)
        options.append(np.where(held >= 0, after, np.inf))
    spread = np.min(options, axis=0)
    spread = np.where(_in(rows, BIDIRECTIONAL), 0.0, spread)
    return np.asarray(np.where(alone, exact, spread))


def _everything(work: WorkTimes) -> Floats:
    """One micro-batch on a single rank that holds the whole model, without recompute. [s]."""
    return work.layer_seconds + work.ends_seconds + work.engine.total


def _tail(
    load: ChunkLoad, setting: Settings, request: PlanRequest, forward_s: Any, backward_s: Any
) -> Floats:
    local = load_local_parameters(load, setting, request)
    after = data_parallel_time(local, setting, request, forward_s, backward_s)
    after = after + optimizer_time(local, setting, request)
    return np.asarray(after + optimizer_offload_time(local, setting, request))
