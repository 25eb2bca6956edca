"""Prices of parts of settings, many at once: vectorised calls of the cost module over tables of settings.

Letters: L layers, W seconds of one micro-batch through all layers and both ends, p pipeline ranks, m
micro-batches, t, c, d, b as in a plan. Steady work of a step is m W / p = B t c W / (N b): it depends on the
fields of ``Space.work`` alone, which is why those are priced first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from planner.cost.layer import layer_time
from planner.cost.layer_comm import PAIRED_SCHEDULES
from planner.cost.setting import Settings
from planner.cost.step import unit_times
from planner.cost.work import LayerTime
from planner.solver.deadline import ensure_time
from planner.solver.space import Codes, Rows
from planner.spec.model import LayerKind
from planner.spec.request import PlanRequest

Floats = npt.NDArray[np.float64]
OF_MEMORY = ("context_parallel_kind", "recompute", "precision", "schedule", "zero_stage", "offload")
CATEGORIES = (*OF_MEMORY, "rank_order")
"""Fields of which a ``Settings`` holds one value for all its candidates; memory does not read the last."""


OF_TAIL = ("zero_stage", "offload", "rank_order")
"""Categories that synchronisation and optimizer read (``cost/data_parallel.py``)."""


def settings_by_category(
    rows: Rows, vary: tuple[str, ...] = CATEGORIES, **fixed: Any
) -> Iterator[tuple[Codes, Settings]]:
    """Cut rows into groups that share the categories in ``vary``, each as one ``Settings``.

    Yields the rows' indices beside it. Categories left out of ``vary`` take the value of the group's first
    row unless ``fixed``; only leave out what the price at hand does not read.
    """
    key = rows.key([field for field in vary if field in rows.codes])
    for value in np.unique(key):
        chosen = np.flatnonzero(key == value)
        part = rows if len(chosen) == len(rows) else rows.take(chosen)
        fields: dict[str, Any] = {
            field: part.values(field) for field in part.codes if field not in CATEGORIES
        }
        fields |= {field: part.value(field, 0) for field in part.codes if field in CATEGORIES}
        yield chosen, Settings(**(fields | fixed))


def settings_of_memory(rows: Rows) -> Iterator[tuple[Codes, Settings]]:
    """``settings_by_category`` of what memory reads."""
    return settings_by_category(rows_of_memory(rows), OF_MEMORY)


def rows_of_memory(rows: Rows) -> Rows:
    """The same rows for all that memory reads, those that need the same alike.

    Of the kinds of context parallelism an all-to-all alone holds its own buffers (``cost/activations.py``),
    so any other stands for all others.
    """
    field = "context_parallel_kind"
    if field in rows.codes:
        kinds, codes = rows.domains[field], rows.codes[field]
        others = np.flatnonzero(kinds != "all_to_all")
        stands = np.where(kinds[codes] == "all_to_all", codes, others[0] if len(others) else 0)
        rows = Rows(rows.domains, {**rows.codes, field: stands.astype(codes.dtype)})
    return rows


LEADING = 0.75
"""Share of the layers whose work orders the first look at settings."""


@dataclass(frozen=True)
class Phases:
    """Seconds of one micro-batch by phase, one entry a row."""

    forward: Floats
    backward_input: Floats
    backward_weight: Floats
    recompute: Floats

    @classmethod
    def zeros(cls, length: int) -> Self:
        """Nothing to do, in every row."""
        return cls(*(np.zeros(length) for _ in range(4)))

    @staticmethod
    def concatenate(parts: list[Phases]) -> Phases:
        """Entries of several tables, one after the other."""
        names = ("forward", "backward_input", "backward_weight", "recompute")
        return Phases(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    @property
    def total(self) -> Floats:
        """All phases without recompute."""
        return self.forward + self.backward_input + self.backward_weight

    def put(self, chosen: Codes, time: LayerTime) -> None:
        """Enter the prices of some rows."""
        self.forward[chosen] = time.forward.total
        self.backward_input[chosen] = time.backward_input.total
        self.backward_weight[chosen] = time.backward_weight.total
        self.recompute[chosen] = time.recompute.total

    def take(self, chosen: npt.NDArray[Any]) -> Phases:
        """The entries of some rows."""
        return Phases(
            self.forward[chosen], self.backward_input[chosen],
            self.backward_weight[chosen], self.recompute[chosen],
        )  # fmt: skip


@dataclass(frozen=True)
class WorkTimes:
    """Phases of one layer of each kind and of both ends of the model (MTP modules stand at the last)."""

    layers: dict[LayerKind, Phases]
    first: Phases
    last: Phases
    engine: Phases
    """What every pipeline rank pays whatever it holds."""
    counts: dict[LayerKind, int]
    """Layers of each kind in the model."""

    def take(self, chosen: npt.NDArray[Any]) -> WorkTimes:
        """The entries of some rows."""
        layers = {kind: phases.take(chosen) for kind, phases in self.layers.items()}
        first, last, engine = (phases.take(chosen) for phases in (self.first, self.last, self.engine))
        return WorkTimes(layers, first, last, engine, self.counts)

    @staticmethod
    def concatenate(parts: list[WorkTimes]) -> WorkTimes:
        """Entries of several tables, one after the other."""
        layers = {kind: Phases.concatenate([part.layers[kind] for part in parts]) for kind in parts[0].layers}
        first, last, engine = (
            Phases.concatenate([getattr(part, name) for part in parts])
            for name in ("first", "last", "engine")
        )
        return WorkTimes(layers, first, last, engine, parts[0].counts)

    def put(self, chosen: npt.NDArray[Any], other: WorkTimes) -> None:
        """Replace the entries of some rows."""
        pairs = [(phases, other.layers[kind]) for kind, phases in self.layers.items()]
        pairs += [(self.first, other.first), (self.last, other.last), (self.engine, other.engine)]
        for own, new in pairs:
            for name in ("forward", "backward_input", "backward_weight", "recompute"):
                getattr(own, name)[chosen] = getattr(new, name)

    @property
    def layer_seconds(self) -> Floats:
        """All layers together, without recompute. [s]."""
        return np.asarray(sum(self.counts[kind] * phases.total for kind, phases in self.layers.items()))

    @property
    def recompute_seconds(self) -> Floats:
        """Recomputing all layers. [s]."""
        return np.asarray(sum(self.counts[kind] * phases.recompute for kind, phases in self.layers.items()))

    @property
    def ends_seconds(self) -> Floats:
        """Both ends together. [s]."""
        return self.first.total + self.last.total


def work_times(rows: Rows, request: PlanRequest) -> WorkTimes:
    """Price layers and ends for every row.

    Notes
    -----
    Without a schedule in the rows, the one that hides most is assumed, and without a ZeRO stage the one that
    communicates least in a micro-batch (0 or 1): both make the price a lower bound of every completion of
    the row.
    """
    counts = request.model.kind_counts
    layers = {kind: Phases.zeros(len(rows)) for kind in counts}
    first, last, engine = (Phases.zeros(len(rows)) for _ in range(3))
    fixed: dict[str, Any] = {} if "schedule" in rows.codes else {"schedule": most_hiding(request)}
    for chosen, setting in settings_by_category(rows, **fixed):
        units = unit_times(setting, request)
        for kind, phases in layers.items():
            phases.put(chosen, units.layers[kind])
        first.put(chosen, units.embedding)
        last.put(chosen, units.head + units.mtp * request.model.mtp_depth)
        engine.put(chosen, units.engine)
    return WorkTimes(layers, first, last, engine, dict(counts))


def leading_seconds(rows: Rows, request: PlanRequest, deadline: float = inf) -> Floats:
    """``steady_seconds`` of most of the layers alone: a first bound that is cheap. [s].

    The kinds of layer that are priced make up at least ``LEADING`` of the model.

    Raises
    ------
    OutOfTime
        The deadline passed. [s]
    """
    counts, layers = Counter(request.model.kind_counts), request.model.num_layers
    seconds, priced = np.zeros(len(rows)), 0
    for kind, count in counts.most_common():
        if priced >= LEADING * layers:
            break
        priced += count
        for chosen, setting in settings_by_category(rows, schedule=most_hiding(request)):
            ensure_time(deadline)
            time = layer_time(kind, setting, request)
            total = (time.forward + time.backward_input + time.backward_weight).total
            seconds[chosen] += count * total
    return seconds * _share(rows, request)


def most_hiding(request: PlanRequest) -> str:
    """Return the framework's schedule that hides the most expert traffic of a layer."""
    paired = [schedule for schedule in request.framework.limits.schedules if schedule in PAIRED_SCHEDULES]
    return paired[0] if paired else "none"


def steady_seconds(rows: Rows, work: WorkTimes, request: PlanRequest) -> Floats:
    """Lower bound of the step time of every completion of work rows. [s].

    Notes
    -----
    The busiest rank of any layout works at least the mean, m W / p per step, and m / p = B' t c / (N' b) with
    the batch B' and GPUs N' that the completion uses: at least the smallest batch over all GPUs.
    Recompute is not counted: how much there has to be is not known yet.
    """
    return np.asarray((work.layer_seconds + work.ends_seconds) * _share(rows, request))


def _share(rows: Rows, request: PlanRequest) -> Floats:
    """Least possible m / p. [1]."""
    replicas = rows.values("tensor_parallel") * rows.values("context_parallel")
    return np.asarray(
        request.workload.global_batch * replicas / request.cluster.num_gpus / rows.values("micro_batch")
    )
