"""Time of one optimizer step: exactly for one plan, and for many plans at once with evenly loaded stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.cost.activations import token_region_divisor, tokens_per_micro_batch
from planner.cost.collectives import send_time
from planner.cost.data_parallel import data_parallel_time, optimizer_time
from planner.cost.layer import embedding_time, head_time, layer_time, mtp_time
from planner.cost.layer_comm import ELEMENT_BYTES, stage_group
from planner.cost.offload import optimizer_offload_time
from planner.cost.orders import BIDIRECTIONAL
from planner.cost.schedule import bubble, simulate
from planner.cost.setting import Setting
from planner.cost.stage import ChunkLoad, chunk_loads
from planner.cost.states import LocalParameters, load_local_parameters
from planner.cost.terms import StepTime
from planner.cost.work import LayerTime, WorkTime
from planner.spec.model import LayerKind
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest


@dataclass(frozen=True)
class UnitTimes:
    """Phases of everything a chunk can hold, for one micro-batch; a chunk is a linear sum of them."""

    layers: Mapping[LayerKind, LayerTime]
    embedding: LayerTime
    head: LayerTime
    mtp: LayerTime
    engine: LayerTime
    """What a pipeline rank pays per micro-batch whatever it holds."""

    def chunk(self, load: ChunkLoad, chunks_per_rank: Any = 1) -> LayerTime:
        """Phases of one of a rank's chunks; its recompute is already added to ``backward_input``."""
        total: LayerTime = self.embedding * load.embedding + self.head * load.head + self.mtp * load.mtp
        total = total + self.engine * (1.0 / chunks_per_rank)
        share = load.recompute_layers / np.maximum(load.num_layers, 1e-12)
        for kind, count in load.layers.items():
            layer = self.layers[kind]
            recomputed = LayerTime(backward_input=layer.recompute * share)
            total = total + (layer + recomputed) * count
        return total


def unit_times(setting: Setting, request: PlanRequest) -> UnitTimes:
    """Price each kind of layer and the ends of the model once for a setting. Arrays broadcast."""
    model = request.model
    return UnitTimes(
        layers={kind: layer_time(kind, setting, request) for kind in model.kind_counts},
        embedding=embedding_time(setting, request),
        head=head_time(setting, request),
        mtp=mtp_time(setting, request) if model.mtp_depth else LayerTime(),
        engine=LayerTime(
            forward=WorkTime(host_s=request.framework.time.microbatch_overhead_s / 3),
            backward_input=WorkTime(host_s=request.framework.time.microbatch_overhead_s * 2 / 3),
        ),
    )


def hop_time(setting: Setting, request: PlanRequest) -> Any:
    """Time of one activation's way to the next stage: 2 b s h / c bytes, / t with SP or scattered. [s]."""
    habits, cluster = request.framework.time, request.cluster
    divisor = setting.tensor_parallel if habits.scatters_sends else token_region_divisor(setting)
    tokens = tokens_per_micro_batch(setting, request) / divisor
    group = stage_group(setting)
    seconds = send_time(ELEMENT_BYTES * request.model.hidden_size * tokens, group, cluster)
    if habits.send_stall_nodes is None:
        return seconds
    gpus = np.asarray(setting.tensor_parallel) * setting.context_parallel * setting.data_parallel
    nodes = gpus * setting.pipeline_parallel / cluster.gpus_per_node
    return seconds + np.where(nodes >= habits.send_stall_nodes, habits.send_stall_s, 0.0)


def exposed_hops(setting: Setting, request: PlanRequest) -> Any:
    """Hops on the critical path of one step. [1].

    Notes
    -----
    Blocking sends: ``2 (p-1) m / p + 2 (p-2)`` times the chunks of a rank; interleaved schedules that overlap
    their sends: warm-up and flush, ``2 (p v - 1)`` (physics 5.3, simulated), and of the steady state's what
    the framework does not hide.
    """
    p, v, m = (
        np.asarray(x) for x in (setting.pipeline_parallel, setting.virtual_stages, setting.num_microbatches)
    )
    if setting.schedule == "interleaved" and request.framework.time.pipeline_sends_overlap:
        shown = 1.0 - request.framework.time.pipeline_sends_hidden_fraction
        hops = 2.0 * (p * v - 1) + shown * 2.0 * (p - 1) * m / p * v
    else:
        hops = (2.0 * (p - 1) * m / p + 2.0 * np.maximum(p - 2, 0)) * v
    return np.where(p > 1, hops, 0.0)


def step_time(plan: Plan, request: PlanRequest) -> StepTime:
    """Price one plan exactly: every stage by its own load, the schedule by simulation. [s].

    The busy terms are those of the rank with the most work; ``bubble_s`` is the rest of the makespan.
    """
    units = unit_times(plan, request)
    loads = chunk_loads(plan, request.model)
    cache: dict[Any, LayerTime] = {}
    times = [[_cached(cache, units, load, plan.virtual_stages) for load in chunks] for chunks in loads]
    forward, inputs, weights = (
        _seconds(times, phase) for phase in ("forward", "backward_input", "backward_weight")
    )
    timeline = simulate(plan.schedule, forward, inputs, weights, plan.num_microbatches)
    pace = int(np.argmax(timeline.busy_s))
    work = _rank_work(times, plan, pace)
    local = _rank_parameters(loads, plan, request, pace)
    idle = max(timeline.step_s(plan.schedule) - timeline.busy_s[pace], 0.0)
    return _assemble(work, local, plan, request, idle)


def balanced_step_time(settings: Setting, request: PlanRequest) -> StepTime:
    """Price candidate plans as if layers and both ends were spread evenly over the pipeline ranks. [s].

    Equal to ``step_time`` where stages are equal (one stage always is). Elsewhere the busiest rank of any
    layout has at least this mean work; synchronisation and optimizer are those of the mean parameters.
    """
    work = unit_times(settings, request).chunk(mean_load(settings, request))
    local = load_local_parameters(mean_load(settings, request), settings, request)
    idle = bubble(
        settings.schedule, work.forward.total, work.backward_input.total, work.backward_weight.total,
        settings.pipeline_parallel, settings.virtual_stages, settings.num_microbatches,
    )  # fmt: skip
    return _assemble(work, local, settings, request, idle)


def mean_load(setting: Setting, request: PlanRequest) -> ChunkLoad:
    """Load of one rank when everything is spread evenly, all its chunks together."""
    model, p = request.model, np.asarray(setting.pipeline_parallel, dtype=np.float64)
    kinds = Counter(model.layer_kinds)
    return ChunkLoad(
        layers={kind: count / p for kind, count in kinds.items()},
        recompute_layers=(0.0 if setting.recompute == "none" else model.num_layers) / p,
        embedding=1.0 / p,
        head=1.0 / p,
        mtp=model.mtp_depth / p,
    )


def _cached(cache: dict[Any, LayerTime], units: UnitTimes, load: ChunkLoad, chunks: int) -> LayerTime:
    key = (tuple(load.layers.items()), load.recompute_layers, load.embedding, load.head, load.mtp)
    if key not in cache:
        cache[key] = units.chunk(load, chunks)
    return cache[key]


def _seconds(times: list[list[LayerTime]], phase: str) -> list[list[float]]:
    totals = {id(chunk): float(getattr(chunk, phase).total) for chunks in times for chunk in chunks}
    return [[totals[id(chunk)] for chunk in chunks] for chunks in times]


def _rank_work(times: list[list[LayerTime]], plan: Plan, rank: int) -> LayerTime:
    total = sum(times[rank][1:], times[rank][0])
    if plan.schedule in BIDIRECTIONAL:
        mirrored = times[len(times) - 1 - rank]
        total = (total + sum(mirrored[1:], mirrored[0])) * 0.5
    return total


def _rank_parameters(
    loads: list[list[ChunkLoad]], plan: Plan, request: PlanRequest, rank: int
) -> LocalParameters:
    ranks = [rank, len(loads) - 1 - rank] if plan.schedule in BIDIRECTIONAL else [rank]
    chunks = [chunk for index in ranks for chunk in loads[index]]
    total = LocalParameters()
    for chunk in chunks:
        total = total + load_local_parameters(chunk, plan, request)
    return total


def _assemble(
    work: LayerTime, local: LocalParameters, setting: Setting, request: PlanRequest, idle_s: Any
) -> StepTime:
    """Put the step together from one rank's phases per micro-batch, its parameters and the idle time."""
    busy: WorkTime = work.total * np.asarray(setting.num_microbatches)
    forward_s, backward_s = work.forward.total, work.backward_input.total + work.backward_weight.total
    synchronisation = data_parallel_time(local, setting, request, forward_s, backward_s)
    terms = dict(busy.items())
    terms["data_comm_s"] = terms["data_comm_s"] + synchronisation
    terms["offload_s"] = terms["offload_s"] + optimizer_offload_time(local, setting, request)
    terms["host_s"] = terms["host_s"] + request.framework.time.step_overhead_s
    step = StepTime(
        **terms,
        pipeline_comm_s=exposed_hops(setting, request) * hop_time(setting, request),
        bubble_s=idle_s,
        optimizer_s=optimizer_time(local, setting, request),
    )
    return step + StepTime(straggler_s=step.total * straggler_fraction(setting, request))


def tight_memory_factor(peak_bytes: float, request: PlanRequest) -> float:
    """Return the slow-down of a plan that leaves the framework's allocator no room, 1 elsewhere. [1].

    Not part of ``step_time``, which knows no memory: whoever has both multiplies.
    """
    habits = request.framework.time
    is_tight = peak_bytes > habits.tight_memory_share * request.cluster.usable_hbm_bytes
    return habits.tight_memory_slowdown if is_tight else 1.0


def straggler_fraction(setting: Setting, request: PlanRequest) -> Any:
    """Growth of the step with the GPUs that wait for each other, per doubling beyond one node. [1]."""
    gpus = (
        np.asarray(setting.tensor_parallel) * setting.context_parallel * setting.data_parallel
        * np.asarray(setting.pipeline_parallel)
    )  # fmt: skip
    nodes = np.maximum(gpus / request.cluster.gpus_per_node, 1.0)
    return request.framework.time.straggler_per_doubling * np.log2(nodes)
