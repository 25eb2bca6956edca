"""Peak memory of every pipeline rank, by owner: state, activations in flight, loss, transients, extras."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from planner.cost.activations import (
    LayerActivations,
    dummy_gradient_bytes,
    layer_activation_bytes,
    loss_bytes,
    token_region_divisor,
    tokens_per_micro_batch,
)
from planner.cost.offload import (
    OF_ACTIVATIONS,
    OF_PARAMETERS,
    host_state_bytes,
    resident_state,
    shard_weight_bytes,
)
from planner.cost.schedule import in_flight
from planner.cost.setting import Setting
from planner.cost.stage import ChunkLoad, chunk_loads
from planner.cost.states import (
    LocalParameters,
    StateBytes,
    bucket_bytes,
    keeps_whole_weights,
    layer_local_parameters,
    load_local_parameters,
    owned_parameters,
    padded_vocabulary,
)
from planner.cost.terms import Memory
from planner.spec.model import LayerKind
from planner.spec.plan import Plan, Schedule
from planner.spec.request import PlanRequest

DOUBLE_MODEL: frozenset[Schedule] = frozenset({"dualpipe"})
"""Schedules that hold two copies of the model's stages on every rank (DeepSeek-V3 report, table 2)."""

LAUNCH_BOUND_FLOP = 1e11
"""Work of one h x h product on a tensor rank below which launches, not products, pace a layer: some 230
launches of 10 us against about 13 such products. Observed on tests/data/measured/sweep_calibration.jsonl: the
window is absent up to 0.8e11 and present from 1.4e11, for three model sizes and t = 4 and 8. [FLOP]"""

GATHERED_BYTES = 4.0
"""Per token and hidden element: the two gathered 16-bit inputs of a layer's forward pass. [byte]"""
EMBEDDED_BYTES = 2.0
"""The same for the embedding's output, which is whole until its reduce-scatter. [byte]"""


def layer_state_bytes(kind: LayerKind, setting: Setting, request: PlanRequest) -> StateBytes:
    """Persistent state of one layer of this kind that stays on one GPU. [byte]."""
    return resident_state(layer_local_parameters(kind, setting, request), setting, request)


def without_waiting(request: PlanRequest) -> PlanRequest:
    """Return the request of runs in which no gathered tensor waits: what plans need, not what they fill.

    The rest of a rank's memory is linear in its layers; what waits takes only the room that they leave.
    """
    framework = request.framework
    if not framework.memory.gathered_window_bytes:
        return request
    memory = framework.memory.model_copy(update={"gathered_window_bytes": 0.0})
    return request.model_copy(update={"framework": framework.model_copy(update={"memory": memory})})


def activation_multiple(setting: Setting, rank: Any) -> Any:
    """Micro-batches whose activations a pipeline rank holds at its fullest moment, in whole-rank units. [1].

    ``in_flight`` counts (micro-batch, chunk) pairs; one pair is 1/v of a rank's layers.
    """
    pairs = in_flight(
        setting.schedule, rank, setting.pipeline_parallel, setting.virtual_stages, setting.num_microbatches
    )
    return pairs / np.asarray(setting.virtual_stages)


def merge_loads(chunks: list[ChunkLoad]) -> ChunkLoad:
    """The sum of a rank's chunks."""
    kinds = {kind for chunk in chunks for kind in chunk.layers}
    return ChunkLoad(
        layers={kind: sum(chunk.layers.get(kind, 0) for chunk in chunks) for kind in kinds},
        recompute_layers=sum(chunk.recompute_layers for chunk in chunks),
        embedding=sum(chunk.embedding for chunk in chunks),
        head=sum(chunk.head for chunk in chunks),
        mtp=sum(chunk.mtp for chunk in chunks),
    )


def stage_memory(
    load: ChunkLoad, setting: Setting, request: PlanRequest, rank: Any, mirror: ChunkLoad | None = None
) -> Memory:
    """Peak memory of one pipeline rank that holds ``load`` (all its chunks together).

    Parameters
    ----------
    load
        Layers by kind, and the ends of the model on this rank; counts may be arrays.
    setting
        A plan, or candidate settings whose integer fields may be arrays.
    rank : int or array
        Pipeline rank, which decides how many micro-batches are in flight. [1].
    mirror
        Under DualPipe, the load of rank p-1-r: the stage of the second model copy, which feeds the pipe from
        the other end. Without it, a second ``load`` stands in.

    Notes
    -----
    State, saved activations and loss are linear in the load. The transient is the largest of a few moments
    of the backward pass, so it is not.
    """
    copies = 2.0 if setting.schedule in DOUBLE_MODEL and mirror is None else 1.0
    own, load = load, load if mirror is None else merge_loads([load, mirror])
    layers = {kind: layer_activation_bytes(kind, setting, request) for kind in load.layers}
    resident = _resident_bytes(own, setting, request, rank, mirror, layers)
    local = load_local_parameters(load, setting, request) * copies
    state = resident_state(local, setting, request)
    loss = loss_bytes(setting, request) * load.head
    memory = Memory(
        weights_bytes=state.weights_bytes,
        gradients_bytes=state.gradients_bytes,
        optimizer_bytes=state.optimizer_bytes,
        activations_bytes=resident,
        loss_bytes=loss,
        transient_bytes=np.maximum(_transient_bytes(load, setting, request, layers) - loss, 0.0)
        + _gathered_bytes(load, setting, request)
        + _passing_gradient_bytes(local, setting, request),
        framework_bytes=_framework_bytes(load, setting, request),
    )
    return _with_overheads(memory, setting, request)


def memory(plan: Plan, request: PlanRequest) -> tuple[Memory, ...]:
    """Peak memory of every pipeline rank, first to last. [byte].

    The last answer is kept: rules and prices ask for the same plan one after the other.
    """
    asked = _LAST.get("asked")
    if asked is None or asked[0] is not plan or asked[1] is not request:
        asked = _LAST["asked"] = (plan, request, _memory(plan, request))
    return asked[2]


_LAST: dict[str, tuple[Plan, PlanRequest, tuple[Memory, ...]]] = {}
"""Plan, request and answer of the last question; both are frozen, so the same objects have one answer."""


def _memory(plan: Plan, request: PlanRequest) -> tuple[Memory, ...]:
    """Ranks that hold the same kinds of layer are priced together."""
    loads = [merge_loads(chunks) for chunks in chunk_loads(plan, request.model)]
    mirrors = loads[::-1] if plan.schedule in DOUBLE_MODEL else None
    alike: defaultdict[tuple[frozenset[LayerKind], ...], list[int]] = defaultdict(list)
    for rank, held in enumerate(zip(loads, *([] if mirrors is None else [mirrors]), strict=True)):
        alike[tuple(frozenset(load.layers) for load in held)].append(rank)
    found: dict[int, Memory] = {}
    for ranks in alike.values():
        mirror = None if mirrors is None else _side_by_side([mirrors[rank] for rank in ranks])
        own = _side_by_side([loads[rank] for rank in ranks])
        priced = stage_memory(own, plan, request, np.array(ranks), mirror)
        terms = {name: np.broadcast_to(value, len(ranks)).tolist() for name, value in priced.items()}
        for place, rank in enumerate(ranks):
            found[rank] = Memory(**{name: values[place] for name, values in terms.items()})
    return tuple(found[rank] for rank in range(len(loads)))


def host_bytes(plan: Plan, request: PlanRequest) -> float:
    """What one GPU of the fullest pipeline rank keeps in host memory, without buffers. [byte].

    Model state (``cost.offload.host_state_bytes``), and the saved activations of all micro-batches in flight.
    """
    loads = [merge_loads(chunks) for chunks in chunk_loads(plan, request.model)]
    if plan.schedule in DOUBLE_MODEL:
        loads = [merge_loads(list(both)) for both in zip(loads, loads[::-1], strict=True)]
    found = []
    for rank, load in enumerate(loads):
        needed = host_state_bytes(load_local_parameters(load, plan, request), plan, request)
        if plan.offload in OF_ACTIVATIONS:
            layers = {kind: layer_activation_bytes(kind, plan, request) for kind in load.layers}
            needed = needed + _saved_bytes(load, plan, request, layers) * activation_multiple(plan, rank)
        found.append(float(needed))
    return max(found)


def _side_by_side(loads: list[ChunkLoad]) -> ChunkLoad:
    """Loads of several ranks that hold the same kinds of layer, as arrays."""
    return ChunkLoad(
        {kind: np.array([float(load.layers[kind]) for load in loads]) for kind in loads[0].layers},
        *(np.array([float(getattr(load, name)) for load in loads]) for name in COUNTS),
    )


COUNTS = ("recompute_layers", "embedding", "head", "mtp")
"""What a load has beside its layers, in the order of ``ChunkLoad``."""


Activations = Mapping[LayerKind, LayerActivations]
"""Of one layer of each kind that a rank holds."""


def _resident_bytes(
    load: ChunkLoad, setting: Setting, request: PlanRequest, rank: Any, mirror: ChunkLoad | None,
    layers: Activations,
) -> Any:  # fmt: skip
    """Saved activations that stay on the GPU: all in flight, or two layers' worth when they go to the host.

    Offloaded activations leave layer by layer and come back one layer ahead (double buffering); of recomputed
    layers (all, or none: ``activation_offload_recompute``) those are the inputs. Under DualPipe the p + 1
    micro-batches in flight are p - r of the own stage and r + 1 of the mirrored one.
    """
    if setting.offload in OF_ACTIVATIONS:
        every = replace(load, recompute_layers=load.num_layers * np.minimum(load.recompute_layers, 1))
        return 2.0 * _saved_bytes(every, setting, request, layers) / np.maximum(load.num_layers, 1)
    saved = _saved_bytes(load, setting, request, layers)
    if mirror is not None:
        half = np.asarray(setting.num_microbatches) / 2.0
        own = np.minimum(setting.pipeline_parallel - rank, half)
        return saved * own + _saved_bytes(mirror, setting, request, layers) * np.minimum(rank + 1, half)
    return saved * activation_multiple(setting, rank)


def _saved_bytes(load: ChunkLoad, setting: Setting, request: PlanRequest, layers: Activations) -> Any:
    """Saved activations of one micro-batch; recomputed layers are spread over the kinds in proportion."""
    share = load.recompute_layers / np.maximum(load.num_layers, 1)
    together = _recomputed_together(load, setting, request)
    total: Any = 0.0
    for kind, count in load.layers.items():
        layer = layers[kind]
        total = total + count * (layer.plain - share * (layer.plain - layer.recomputed / together))
    if request.model.mtp_depth:
        last = layer_activation_bytes(request.model.mtp_kind, setting, request)
        total = total + load.mtp * (last.plain - share * (last.plain - last.recomputed))
    return total


def _recomputed_together(load: ChunkLoad, setting: Setting, request: PlanRequest) -> Any:
    """Layers that a full recompute repeats together: a group of the framework's, within a chunk. [1]."""
    group = request.framework.memory.recomputed_together if setting.recompute == "full" else 1
    return np.maximum(np.minimum(group, load.num_layers / np.maximum(setting.virtual_stages, 1)), 1.0)


def _transient_bytes(load: ChunkLoad, setting: Setting, request: PlanRequest, layers: Activations) -> Any:
    """Largest backward transient of any layer on the rank, live recompute included.

    Of a group of n layers all n live, and of them only the first one's input was kept.
    """
    recomputes = np.minimum(load.recompute_layers, 1)
    others = recomputes * (_recomputed_together(load, setting, request) - 1.0)
    moments = [
        layer.transient - (1 - recomputes) * (layer.plain - layer.recomputed) + others * layer.plain
        for layer in layers.values()
    ]
    return reduce(np.maximum, moments, 0.0)


def _gathered_bytes(load: ChunkLoad, setting: Setting, request: PlanRequest) -> Any:
    """Whole units of ZeRO-3 on the GPU at once, and the gradients of the unit being reduced.

    Where the shards lie on the host, the copies of them from which a unit is gathered come on top.
    """
    if setting.zero_stage < 3:
        return 0.0
    habits = request.framework.memory
    units = [layer_local_parameters(kind, setting, request) for kind in load.layers]
    largest = reduce(np.maximum, [unit.total for unit in units], 0.0)
    ends = load_local_parameters(replace(load, layers={}, mtp=0), setting, request).total
    gathered: Any = np.where(keeps_whole_weights(setting), 0.0, 1.0)
    copied: Any = 0.0
    if setting.offload in OF_PARAMETERS:
        gathered = gathered if habits.sharded_weights_are_master else 1.0
        copied = reduce(np.maximum, [owned_parameters(unit, setting) for unit in units], 0.0)
    reduced = 0.0 if request.workload.frozen_weights else habits.reduced_units
    return (
        gathered * (habits.gathered_units * largest + ends) * habits.weight_bytes
        + gathered * habits.gathered_units * copied * shard_weight_bytes(setting, request)
        + largest * habits.reduced_gradient_bytes * reduced
    )


def _passing_gradient_bytes(local: LocalParameters, setting: Setting, request: PlanRequest) -> Any:
    """16-bit gradients that a backward pass leaves until they are added to the fp32 ones, with ZeRO."""
    if setting.zero_stage == 0 or request.workload.frozen_weights:
        return 0.0
    return local.total * bucket_bytes(setting, request.framework.memory)


def _framework_bytes(load: ChunkLoad, setting: Setting, request: PlanRequest) -> Any:
    """Stand-ins for weight gradients, library workspaces and pipeline messages."""
    habits = request.framework.memory
    dummy: Any = 0.0
    if habits.dummy_weight_gradients and not request.workload.frozen_weights:
        dummies = [dummy_gradient_bytes(kind, setting, request) for kind in load.layers]
        dummy = reduce(np.maximum, dummies, 0.0)
        vocabulary = padded_vocabulary(request, setting) / setting.tensor_parallel
        dummy = dummy + 2.0 * vocabulary * request.model.hidden_size * load.head
    region = tokens_per_micro_batch(setting, request) / token_region_divisor(setting)
    messages = 2.0 * 2.0 * request.model.hidden_size * region
    piped = np.asarray(setting.pipeline_parallel) > 1
    replicas = np.asarray(setting.data_parallel) * setting.context_parallel
    fixed = habits.workspace_bytes + np.where(~piped & (replicas > 1), habits.bucket_bytes, 0.0)
    return dummy + fixed + np.where(piped, messages, 0.0)


def _window_bytes(setting: Setting, request: PlanRequest) -> Any:
    """Gathered tensors that the allocator cannot reuse yet because their stream is behind the host.

    In the published nanotron sweep the window is about the same multiple of T h for every model and p, the
    depth of the launch queue, wherever the host gets that far ahead, and nothing elsewhere. It does without
    a pipeline; in the warm-up of one (t <= p^2, observed; beyond 8 stages if the rest lasts as long, m > 2p),
    which gathers no more than its p - 1 passes over L / p layers and the embedding do unless the device is
    busy; in one of two stages only within a node, or where a layer keeps the device busy for longer than its
    launches take the host. Without a steady state (m <= p) it takes a pipeline and a model that fits into the
    window whole.
    """
    p, t = np.asarray(setting.pipeline_parallel), np.asarray(setting.tensor_parallel)
    tokens = tokens_per_micro_batch(setting, request)
    h = request.model.hidden_size
    in_node = t <= request.cluster.gpus_per_node
    busy = in_node & (2.0 * tokens * h * h / t > LAUNCH_BOUND_FLOP)
    near = t * p * np.asarray(setting.data_parallel) <= request.cluster.gpus_per_node
    runs_ahead = (p == 1) | ((p > 2) & (t <= p * p)) | busy | near
    depth: Any = request.framework.memory.gathered_window_bytes
    m, layers = np.asarray(setting.num_microbatches), request.model.num_layers
    one_pass = GATHERED_BYTES * layers / p + EMBEDDED_BYTES
    is_steady = m > np.where((p > 8) & ~busy, 2 * p, p)
    is_small = (p > 1) & (m <= p) & (GATHERED_BYTES * layers <= depth)
    runs_ahead = runs_ahead & (is_steady | is_small)
    depth = np.where((p > 2) & ~busy, np.minimum(depth, (p - 1) * one_pass), depth)
    depth = np.where(m > p, depth, np.minimum(depth, np.minimum(m, p) * one_pass))
    return np.where(runs_ahead & (t > 1), depth * h * tokens, 0.0)


def _with_overheads(memory: Memory, setting: Setting, request: PlanRequest) -> Memory:
    """Add what the allocator and the driver hold beside the tensors.

    Tensors that wait for their stream fill what is left and no more: an allocator that runs out synchronises
    and takes them back.
    """
    habits = request.framework.memory
    context = habits.context_bytes + habits.communicator_bytes * _live_groups(setting)
    if habits.gathered_window_bytes:
        room = (request.cluster.usable_hbm_bytes - context) / habits.reserved_over_allocated - memory.total
        waiting = np.minimum(_window_bytes(setting, request), np.maximum(room * (1 - ROUNDING), 0.0))
        memory = replace(memory, framework_bytes=memory.framework_bytes + waiting)
    return replace(
        memory,
        fragmentation_bytes=memory.total * (habits.reserved_over_allocated - 1.0),
        context_bytes=context,
    )


ROUNDING = 1e-9
"""Relative rounding error of a sum of bytes: what just fits is not to exceed the memory by it."""


def _live_groups(setting: Setting) -> Any:
    degrees = (
        setting.tensor_parallel,
        setting.pipeline_parallel,
        setting.data_parallel,
        setting.context_parallel,
        setting.expert_parallel,
    )
    return sum(np.where(np.asarray(degree) > 1, 1.0, 0.0) for degree in degrees)


__all__ = [
    "LocalParameters", "activation_multiple", "layer_activation_bytes", "layer_state_bytes", "memory",
    "merge_loads", "stage_memory", "without_waiting",
]  # fmt: skip
