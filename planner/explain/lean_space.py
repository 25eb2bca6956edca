"""The settings of a request from the leanest model state up, with lower bounds of their peak memory.

A *state* is what the bytes of weights, gradients and optimizer depend on: the degrees, the ZeRO stage, the
shard group, the offload and the number format. States are bounded first, all at once, by their bytes on the
mean pipeline rank. Only the leanest are then completed (micro-batch, schedule, recompute, ...) and bounded
with everything else that memory holds; whoever reads stops when the states left need too much already.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.cost.offload import OF_STATE, host_state_bytes, resident_state
from planner.cost.orders import BIDIRECTIONAL
from planner.cost.states import load_local_parameters
from planner.cost.step import mean_load
from planner.rules.memory import HOST_BUFFER_FACTOR
from planner.solver.capacity import rank_memory
from planner.solver.space import MOST_PAIRS, Codes, Join, Rows, Space
from planner.solver.tables import settings_by_category, settings_of_memory
from planner.spec import Plan, PlanRequest

Floats = npt.NDArray[np.float64]

DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
"""Their product is the number of GPUs that a plan uses."""
STATE_OF_WORK = (
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "precision",
)
"""Fields of a state that the work of a layer depends on as well."""
FIRST_STATES, MOST_STATES, GROWTH = 64, 1024, 4
"""States that are completed at once: the first table, the largest, and the growth from table to table."""
MOST_LISTED = 1_000_000
"""States that are listed; of more, an even sample is: 250 MB with all that orders them."""
EQUAL = 1e-9
"""Relative rounding error of a sum of bytes."""


@dataclass(frozen=True)
class Table:
    """Completed settings of some states, and lower bounds of what they and all later ones need. [byte]."""

    rows: Rows
    bound_bytes: Floats
    rest_bytes: float
    """No setting of a later table needs less; infinite at the last one."""


class LeanSpace:
    """The settings that the rules over fields admit and host memory allows, in order of their states.

    Parameters
    ----------
    deadline
        When no more states are listed or completed, on the monotonic clock; some are in any case. [s]
    """

    def __init__(self, request: PlanRequest, deadline: float = np.inf) -> None:
        self._request = request
        self.deadline = deadline
        self._space = Space.of(request)
        self.is_whole = True
        """Whether every state and setting was looked at so far; otherwise some, evenly spread, were not."""
        tables, bounds = zip(*self._listed(), strict=True)
        rows, least = Rows.concatenate(list(tables)), np.concatenate(bounds)
        order = np.argsort(least, kind="stable")
        self._rows, self.state_bytes = rows.take(order), least[order]

    def __len__(self) -> int:
        return len(self.state_bytes)

    def may_hold(self, usable_bytes: float) -> bool:
        """Whether the model state of some setting fits into a GPU."""
        return bool(np.any(self.state_bytes <= usable_bytes * (1 + EQUAL)))

    def tables(self) -> Iterator[Table]:
        """Completed settings, those of the leanest states first."""
        start, size = 0, FIRST_STATES
        while start < len(self):
            stop = min(start + size, len(self))
            rows, bound = self.completed(np.arange(start, stop))
            rest = float(self.state_bytes[stop]) if stop < len(self) else np.inf
            if len(rows):
                yield Table(rows, bound, rest)
            most = MOST_PAIRS * size // max(len(rows), 1)
            start, size = stop, max(min(size * GROWTH, MOST_STATES, most), 1)

    def completed(self, chosen: Codes) -> tuple[Rows, Floats]:
        """Every setting with one of these states, and the least that its fullest rank needs. [byte].

        Of settings that differ only in how a replica's batch is cut into micro-batches, the one with the
        smallest micro-batch stands for all: it never needs more memory, and no rule ties the cut to
        recompute or sharding. Where gradients stay whole between micro-batches, a batch in one piece may need
        less, so every cut is looked at.
        """
        space, parts = self._space, []
        may_defer = self._request.framework.memory.defers_reduction != "never"
        joins = [
            (space.work, STATE_OF_WORK),
            (space.batches, ("data_parallel", "micro_batch")),
            (space.schedules, ("pipeline_parallel",)),
        ]
        for part in self._parts(self._rows.take(chosen), joins):
            rows = part if may_defer else smallest_cut(part)
            rows = rows.cross(space.recomputes.codes)
            rows, _ = space.ordered(rows.take(space.admitted(rows, ("recompute",))), first_only=True)
            parts.append(rows)
        rows = Rows.concatenate(parts)
        return rows, least_bytes(rows, self._request)

    def _listed(self) -> Iterator[tuple[Rows, Floats]]:
        """States with the least that each one's mean rank needs, until there are enough of them."""
        space, number = self._space, 0
        schedules = {str(name) for name in space.domains["schedule"].tolist()}
        copies = 2 if schedules and schedules <= BIDIRECTIONAL else 1
        _, first = np.unique(space.work.key(STATE_OF_WORK), return_index=True)
        works = Rows(space.domains, {field: space.work.codes[field][first] for field in STATE_OF_WORK})
        shapes = space.shapes
        for field, other in (("data_parallel", space.batches), ("pipeline_parallel", space.schedules)):
            shapes = shapes.take(np.isin(shapes.codes[field], other.codes[field]))
        joins = [
            (shapes, ("tensor_parallel", "context_parallel")),
            (space.sharding, ("pipeline_parallel",)),
            (space.shards, ("data_parallel", "context_parallel", "zero_stage")),
        ]
        for part in self._parts(works, joins):
            rows = part.take(_host_allows(part, self._request))
            yield rows, copies * _mean_state_bytes(rows, self._request)
            number += len(rows)
            if number >= MOST_LISTED:
                self.is_whole = False
                return

    def _parts(self, rows: Rows, joins: Sequence[Join]) -> Iterator[Rows]:
        """Rows joined with one table after the other: the first part, and those that follow in time."""
        parts = self._space.grown(rows, joins)
        yield next(parts)
        for part in parts:
            if time.monotonic() > self.deadline:
                self.is_whole = False
                return
            yield part


def plan_at(rows: Rows, index: int) -> Plan:
    """The plan of one row, its stages left open."""
    return Plan(**{field: rows.domains[field][codes[index]].item() for field, codes in rows.codes.items()})


def smallest_cut(rows: Rows) -> Rows:
    """Of rows equal but for micro-batch and number of micro-batches, with equal product, the smallest cut."""
    cut = ("micro_batch", "num_microbatches")
    key = rows.key(field for field in rows.codes if field not in cut)
    batch = rows.values(cut[0]) * rows.values(cut[1])
    order = np.lexsort((rows.values("micro_batch"), batch, key))
    changes = (np.diff(key[order]) != 0) | (np.diff(batch[order]) != 0)
    first = np.concatenate([np.ones(min(len(rows), 1), dtype=bool), changes])
    return rows.take(order[first])


def least_bytes(rows: Rows, request: PlanRequest) -> Floats:
    """Lower bound of each setting's peak memory over all its layouts. [byte].

    Notes
    -----
    The fullest rank holds at least the mean: ``fixed + (all layers + both ends) / p``; twice as much where
    every stage lies on two ranks.
    """
    bound = np.zeros(len(rows))
    for chosen, setting in settings_of_memory(rows):
        priced = rank_memory(setting, request)
        ranks = np.asarray(setting.pipeline_parallel)
        copies = 2 if setting.schedule in BIDIRECTIONAL else 1
        spread: Any = copies * (priced.model + priced.first_end + priced.last_end) / ranks
        bound[chosen] = (priced.fixed + spread) * (1 - EQUAL)
    return bound


def _mean_state_bytes(rows: Rows, request: PlanRequest) -> Floats:
    """Weights, gradients and optimizer state of the mean rank: at most what the fullest one needs. [byte].

    Notes
    -----
    The most chunks that a rank may have and a schedule without a second model copy stand for all: whole
    gradients that are kept for one chunk at a time get smaller with more of them.
    """
    least, chunks = np.zeros(len(rows)), int(max(1, request.model.num_layers))
    for chosen, setting in settings_by_category(rows, schedule="none", virtual_stages=chunks):
        local = load_local_parameters(mean_load(setting, request), setting, request)
        least[chosen] = resident_state(local, setting, request).total * (1 - EQUAL)
    return least


def _host_allows(rows: Rows, request: PlanRequest) -> npt.NDArray[np.bool_]:
    """Whether the state that a node's GPUs offload can lie in host memory; the mean rank stands for all.

    Notes
    -----
    A lower bound of ``planner.rules.memory.host_bytes_per_node``, which counts the fullest rank.
    """
    allows = ~np.isin(rows.values("offload"), sorted(OF_STATE))
    offloaded = np.flatnonzero(~allows)
    part = rows.take(offloaded)
    usable = request.cluster.accelerator.host.node_memory_bytes
    for chosen, setting in settings_by_category(part):
        local = load_local_parameters(mean_load(setting, request), setting, request)
        used: Codes = np.prod([part.take(chosen).values(name) for name in DEGREES], axis=0)
        gpus = np.minimum(request.cluster.gpus_per_node, used)
        needed = gpus * HOST_BUFFER_FACTOR * host_state_bytes(local, setting, request)
        allows[offloaded[chosen]] = needed * (1 - EQUAL) <= usable
    return allows
