"""The exact price of any layout of one setting, from the setting's row in the tables.

The same sum as ``cost.step.step_time``, with the phases of layers taken from the table instead of priced
again:
makespan of the simulated schedule, sends, synchronisation and optimizer of the pace-setting rank, overhead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf
from typing import Any

import numpy as np

from planner.cost.data_parallel import tail_time
from planner.cost.memory import DOUBLE_MODEL, stage_memory
from planner.cost.orders import BIDIRECTIONAL
from planner.cost.program import Matrix
from planner.cost.schedule import Timeline, simulate
from planner.cost.setting import Settings
from planner.cost.stage import ChunkLoad, spread_recomputed, stage_order
from planner.cost.states import load_local_parameters
from planner.cost.step import exposed_hops, hop_time, straggler_fraction
from planner.solver.alike import Alike
from planner.solver.chain_pool import ChainPool
from planner.solver.rank_shares import RankShares
from planner.solver.space import Rows
from planner.solver.tables import WorkTimes
from planner.spec.model import LayerKind
from planner.spec.plan import Plan, Schedule, StagePlan
from planner.spec.request import PlanRequest

Times = tuple[tuple[float, ...], ...]
SHAPE = ("schedule", "pipeline_parallel", "virtual_stages")
"""Fields that a setting's layouts depend on."""
Phase = tuple[float, float, float, float]
"""Forward, input gradient, weight gradient, recompute. [s]"""


@dataclass(frozen=True)
class Layout:
    """Layers of every stage in the order the data flows, and recomputed layers of every rank."""

    layers: tuple[int, ...]
    recomputed: tuple[int, ...]


@dataclass(frozen=True)
class Known:
    """What settings of one search share."""

    chains: ChainPool = field(default_factory=ChainPool)
    shares: dict[tuple[Any, ...], RankShares | None] = field(default_factory=dict)
    """By ``SHAPE``, every layout; None where they cannot be listed."""


class SettingPrice:
    """Prices layouts of one setting.

    Parameters
    ----------
    values
        The setting's fields.
    work, index
        Phases of settings, and which of them are this one's.
    around
        Seconds beside the makespan and what follows it, and the factor of waiting, where they are known.
    """

    def __init__(
        self,
        values: dict[str, Any],
        work: WorkTimes,
        index: int,
        request: PlanRequest,
        known: Known | None = None,
        around: tuple[float, float] | None = None,
    ) -> None:
        self.values = values
        self.work, self.index = work, index
        self.known = Known() if known is None else known
        self._around = around
        self._priced: dict[Layout, tuple[Matrix, Matrix, Matrix]] = {}
        self.chains = self.known.chains
        self.request = request
        self.setting = Settings(**values)
        self.p: int = values["pipeline_parallel"]
        self.v: int = values["virtual_stages"]
        self.m: int = values["num_microbatches"]
        self.schedule: Schedule = values["schedule"]
        self.order = stage_order(self.schedule, self.p, self.v)
        self.kinds: dict[LayerKind, Phase] = {k: _phase(phases, index) for k, phases in work.layers.items()}
        self.embedding, self.head = _phase(work.first, index), _phase(work.last, index)
        self.engine = tuple(value / self.v for value in _phase(work.engine, index))

    @cached_property
    def alike(self) -> Alike:
        """The setting as a group of its own."""
        domains = {name: np.array([value]) for name, value in self.values.items()}
        rows = Rows(domains, {name: np.zeros(1, dtype=np.int64) for name in domains})
        fixed, growth = np.array([self._fixed_s]), np.array([self._growth])
        return Alike(rows, self.work.take(np.array([self.index])), fixed, growth, self.request)

    def plan(self, layout: Layout) -> Plan:
        """The setting with this layout."""
        chunks: list[list[int]] = [[0] * self.v for _ in range(self.p)]
        for (rank, chunk), count in zip(self.order, layout.layers, strict=True):
            chunks[rank][chunk] = count
        stages = tuple(
            StagePlan(chunk_layers=tuple(held), recompute_layers=count)
            for held, count in zip(chunks, layout.recomputed, strict=True)
        )
        return Plan(**self.values, stages=stages)

    def seconds(self, layout: Layout, worth_s: float = inf) -> float:
        """Step time of the layout, or some time not below ``worth_s`` that it takes at least. [s]."""
        loads = self.loads(layout)
        forward, inputs, weights = self._priced[layout] = self._matrices(loads)
        timeline = self._timeline(forward, inputs, weights)
        pace = int(np.argmax(timeline.busy_s))
        busy = timeline.busy_s[pace]
        makespan = busy + max(timeline.step_s(self.schedule) - busy, 0.0)
        if (least := self.finish(makespan, 0.0)) >= worth_s:
            return least
        ranks = [pace, self.p - 1 - pace] if self.schedule in BIDIRECTIONAL else [pace]
        share = 1.0 / len(ranks)
        forward_s = share * sum(sum(forward[rank]) for rank in ranks)
        backward_s = share * sum(sum(inputs[rank]) + sum(weights[rank]) for rank in ranks)
        load = merged(chunk for rank in ranks for chunk in loads[rank])
        return self.finish(makespan, self.tail(load, forward_s, backward_s))

    def least_seconds(self, layout: Layout) -> float:
        """Step time at least: the longest known chain of the layout. [s]."""
        matrices = self._matrices(self.loads(layout))
        passes = np.array([[matrix[rank][chunk] for matrix in matrices] for rank, chunk in self.order])
        return self.finish(float(self.chains.longest(passes, self.schedule, self.p, self.v, self.m)), 0.0)

    def learn(self, layout: Layout) -> None:
        """Keep the longest chain of the layout for the bounds of others."""
        passes = self._priced.get(layout) or self.passes(layout)
        self.chains.learn(self.schedule, passes, self.m)

    def passes(self, layout: Layout) -> tuple[Matrix, Matrix, Matrix]:
        """Forward, input-gradient and weight-gradient seconds as [rank][chunk]."""
        return self._matrices(self.loads(layout))

    def _timeline(self, *matrices: list[list[float]]) -> Timeline:
        """The simulated schedule; settings that differ only in sharding share it."""
        frozen = tuple(tuple(tuple(row) for row in matrix) for matrix in matrices)
        return _simulated(self.schedule, *frozen, self.m)

    def tail(self, load: ChunkLoad, forward_s: float, backward_s: float) -> float:
        """Synchronisation and optimizer of the pace-setting rank. [s]."""
        local = load_local_parameters(load, self.setting, self.request)
        return float(tail_time(local, self.setting, self.request, forward_s, backward_s))

    def finish(self, makespan_s: float, tail_s: float) -> float:
        """The step of a pipeline's makespan and what follows it. [s]."""
        return (makespan_s + tail_s + self._fixed_s) * self._growth

    @cached_property
    def _fixed_s(self) -> float:
        if self._around is not None:
            return self._around[0]
        hops = exposed_hops(self.setting, self.request) * hop_time(self.setting, self.request)
        return float(hops) + self.request.framework.time.step_overhead_s

    @cached_property
    def _growth(self) -> float:
        if self._around is not None:
            return self._around[1]
        return 1.0 + float(straggler_fraction(self.setting, self.request))

    def loads(self, layout: Layout) -> list[list[ChunkLoad]]:
        """Loads as [rank][chunk], recomputed layers spread over a rank's chunks as ``chunk_loads`` does."""
        loads: list[list[ChunkLoad]] = [[ChunkLoad()] * self.v for _ in range(self.p)]
        again = self._spread(layout)
        start, stages = 0, len(self.order)
        counts: dict[tuple[int, int], dict[LayerKind, int]] = {}
        for place, count in zip(self.order, layout.layers, strict=True):
            counts[place] = self._kinds_between(start, start + count)
            start += count
        for rank, chunk in sorted(self.order):
            is_last = (rank, chunk) == self.order[stages - 1]
            loads[rank][chunk] = ChunkLoad(
                layers=counts[rank, chunk], recompute_layers=again[rank][chunk],
                embedding=int((rank, chunk) == self.order[0]), head=int(is_last),
                mtp=self.request.model.mtp_depth * is_last,
            )  # fmt: skip
        return loads

    def chunk_layers(self, layers: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Layers of every chunk as [rank][chunk]."""
        held = dict(zip(self.order, layers, strict=True))
        return [tuple(held[rank, chunk] for chunk in range(self.v)) for rank in range(self.p)]

    def _spread(self, layout: Layout) -> list[tuple[int, ...]]:
        """Recomputed layers of every chunk as [rank][chunk]."""
        if not any(layout.recomputed):
            return [(0,) * self.v] * self.p
        held = self.chunk_layers(layout.layers)
        return [spread_recomputed(*pair) for pair in zip(held, layout.recomputed, strict=True)]

    def rank_bytes(self, layout: Layout) -> list[float]:
        """Peak memory of every rank. [byte]."""
        loads = [merged(chunks) for chunks in self.loads(layout)]
        mirrors = reversed(loads) if self.schedule in DOUBLE_MODEL else [None] * self.p
        return [
            float(stage_memory(load, self.setting, self.request, rank, mirror).total)
            for rank, (load, mirror) in enumerate(zip(loads, mirrors, strict=True))
        ]

    def _kinds_between(self, start: int, stop: int) -> dict[LayerKind, int]:
        if len(self.kinds) == 1:
            return {next(iter(self.kinds)): stop - start} if stop > start else {}
        found: dict[LayerKind, int] = {}
        for kind in self.request.model.layer_kinds[start:stop]:
            found[kind] = found.get(kind, 0) + 1
        return found

    def _matrices(
        self, loads: list[list[ChunkLoad]]
    ) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
        phases = [[self._known_phases(load) for load in chunks] for chunks in loads]
        forward, inputs, weights = (
            [[phase[index] for phase in chunks] for chunks in phases] for index in range(3)
        )
        return forward, inputs, weights

    def _known_phases(self, load: ChunkLoad) -> tuple[float, float, float]:
        """``chunk_phases`` of loads that recur."""
        key = (tuple(load.layers.items()), load.recompute_layers, load.embedding, load.head)
        if key not in self._phases:
            self._phases[key] = self.chunk_phases(load)
        return self._phases[key]

    @cached_property
    def _phases(self) -> dict[tuple[Any, ...], tuple[float, float, float]]:
        return {}

    def chunk_phases(self, load: ChunkLoad) -> tuple[float, float, float]:
        """Forward, input-gradient (recompute included) and weight-gradient time of a chunk. [s]."""
        total = [self.engine[phase] for phase in range(3)]
        share = load.recompute_layers / max(load.num_layers, 1e-12)
        for kind, count in load.layers.items():
            times = self.kinds[kind]
            for phase in range(3):
                total[phase] += times[phase] * count
            total[1] += times[3] * share * count
        for phase in range(3):
            total[phase] += self.embedding[phase] * load.embedding + self.head[phase] * load.head
        return total[0], total[1], total[2]


@lru_cache(maxsize=4096)
def _simulated(schedule: Schedule, forward: Times, inputs: Times, weights: Times, m: int) -> Timeline:
    return simulate(schedule, forward, inputs, weights, m)


def _phase(phases: Any, index: int) -> Phase:
    return (
        float(phases.forward[index]), float(phases.backward_input[index]),
        float(phases.backward_weight[index]), float(phases.recompute[index]),
    )  # fmt: skip


def merged(chunks: Iterable[ChunkLoad]) -> ChunkLoad:
    """The sum of chunks."""
    layers: dict[LayerKind, Any] = {}
    recomputed: Any = 0
    embedding: Any = 0
    head: Any = 0
    mtp: Any = 0
    for chunk in chunks:
        for kind, count in chunk.layers.items():
            layers[kind] = layers.get(kind, 0) + count
        recomputed += chunk.recompute_layers
        embedding, head, mtp = embedding + chunk.embedding, head + chunk.head, mtp + chunk.mtp
    return ChunkLoad(layers, recomputed, embedding, head, mtp)
