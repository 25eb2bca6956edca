"""How many layers each pipeline rank can hold: memory of all layouts at once, for many settings.

Memory of a rank is linear in its layers and in how many of them are recomputed, but for transients that
depend
only on whether there are any. A few priced loads therefore give every load:

    bytes(n, x) = fixed + n * layer - x * saved        (x recomputed layers; ``fixed`` differs for x = 0)

``layer`` and ``saved`` grow linearly with the micro-batches that the rank keeps in flight, so two ranks
give all ranks.
Under a two-way schedule two ranks hold the same two stages; a load is of both, all of it in the stage with
fewer micro-batches in flight, and each rank counts for half of it.
With several kinds of layer there are two lower bounds of what any mix needs, and both have to fit: the
smallest figure stands for every layer; or the most frequent kind is placed alone, the others taken as free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.cost.memory import activation_multiple, layer_state_bytes, stage_memory, without_waiting
from planner.cost.orders import BIDIRECTIONAL
from planner.cost.setting import Settings
from planner.cost.stage import V_SHAPED, ChunkLoad
from planner.solver.space import Codes, Rows
from planner.solver.tables import Floats, WorkTimes, settings_by_category, settings_of_memory
from planner.spec.model import LayerKind
from planner.spec.request import PlanRequest

OF_STATE = (
    "tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel", "pipeline_parallel",
    "data_parallel", "precision", "zero_stage", "offload",
)  # fmt: skip
"""Fields that the state of a layer reads (``cost/states.py``), beside the sharding group."""
MOST_LAYERS = 1_000_000.0
"""Stands for 'no limit'."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes of a rank's loads, one entry a setting; a first axis of two is rank 0 and the last rank."""

    fixed: Floats
    """What no load avoids, without the ends of the model."""
    layer: Floats
    saved: Floats
    first_end: Floats
    last_end: Floats
    multiple: Floats
    """Micro-batches in flight."""
    model: Floats
    """All these layers together on ranks that keep the fewest micro-batches in flight."""
    kinds: tuple[LayerKind, ...]
    num_layers: int
    """Layers of these kinds in the model."""


def rank_memories(setting: Settings, request: PlanRequest) -> Iterator[RankMemory]:
    """Bytes of a rank's loads of all layers, and of the most frequent kind alone."""
    priced = _priced_kinds(setting, request)
    for counts in placed_together(Counter(request.model.kind_counts)):
        yield _of_kinds(setting, priced, counts)


def placed_together(counts: Counter[LayerKind]) -> list[Counter[LayerKind]]:
    """All layers, and the most frequent kind alone where there are several."""
    return [counts] if len(counts) == 1 else [counts, Counter(dict(counts.most_common(1)))]


def rank_memory(setting: Settings, request: PlanRequest) -> RankMemory:
    """Bytes of a rank's loads of all layers."""
    return next(rank_memories(setting, request))


def _priced_kinds(setting: Settings, request: PlanRequest) -> dict[LayerKind, Floats]:
    """Bytes of the loads that determine all others, of each kind, as [load, rank 0 or last, setting]."""
    ranks = _ends_of_pipeline(setting)
    loads = _LOADS if setting.recompute != "none" else _LOADS[: len(_LOADS) // 2]
    needing = without_waiting(request)
    return {kind: _priced(kind, loads, setting, needing, ranks) for kind in request.model.kind_counts}


def _ends_of_pipeline(setting: Settings) -> Codes:
    """The ranks that are priced: those with the most and the fewest micro-batches in flight."""
    p = np.asarray(setting.pipeline_parallel)
    return np.stack([p // 2 if setting.schedule in BIDIRECTIONAL else np.zeros_like(p), p - 1])


def _in_flight(setting: Settings, ranks: Codes) -> Floats:
    """Micro-batches in flight on each rank; on two ranks that share their stages, of the emptier stage."""
    if setting.schedule not in BIDIRECTIONAL:
        return np.asarray(activation_multiple(setting, ranks))
    p, half = np.asarray(setting.pipeline_parallel), np.asarray(setting.num_microbatches) / 2
    return np.asarray(np.minimum(np.minimum(p - ranks, ranks + 1), half))


def _of_kinds(setting: Settings, priced: dict[LayerKind, Floats], counts: Counter[LayerKind]) -> RankMemory:
    """The smallest figure of some kinds of layer."""
    ranks = _ends_of_pipeline(setting)
    bytes_of = [priced[kind] for kind in counts]
    one, two, first, last = (np.stack([priced[index] for priced in bytes_of]) for index in range(4))
    layer, saved = two - one, np.zeros_like(one)
    fixed, first_end, last_end = one - layer, first - one, last - one
    if setting.recompute != "none":
        some, all_, first, last = (np.stack([priced[index] for priced in bytes_of]) for index in range(4, 8))
        saved = some - all_
        fixed = np.minimum(fixed, some + saved - 2 * layer)
        first_end, last_end = np.minimum(first_end, first - all_), np.minimum(last_end, last - all_)
    return RankMemory(
        fixed=np.min(fixed, axis=0)[0],
        layer=np.min(layer, axis=0),
        saved=np.max(saved, axis=0),
        first_end=np.min(first_end, axis=0)[0],
        last_end=np.min(last_end, axis=0)[1],
        multiple=np.broadcast_to(_in_flight(setting, ranks), ranks.shape),
        model=np.einsum("ks,k->s", np.min(layer - saved, axis=1), np.array([*counts.values()], dtype=float)),
        kinds=tuple(counts),
        num_layers=counts.total(),
    )


_LOADS = (
    (1, 0, 0, 0),
    (2, 0, 0, 0),
    (1, 0, 1, 0),
    (1, 0, 0, 1),
    (2, 1, 0, 0),
    (2, 2, 0, 0),
    (2, 2, 1, 0),
    (2, 2, 0, 1),
)
"""Loads that are priced: layers, recomputed ones, whether the embedding and the head are there."""


def _priced(
    kind: LayerKind, loads: tuple[tuple[int, ...], ...], setting: Settings, request: PlanRequest, ranks: Codes
) -> Floats:
    """Bytes of each load as [load, rank 0 or last, setting]."""
    layers, recomputed, first, last = (np.array(column)[:, None, None] for column in zip(*loads, strict=True))
    load = ChunkLoad(
        {kind: layers}, recomputed, embedding=first, head=last, mtp=request.model.mtp_depth * last
    )
    mirror = ChunkLoad() if setting.schedule in BIDIRECTIONAL else None
    total = stage_memory(load, setting, request, ranks, mirror).total
    return np.broadcast_to(total, (len(loads), *ranks.shape))


def most_layers(setting: Settings, request: PlanRequest, memory: RankMemory) -> Floats:
    """Upper bound of the layers that each rank can hold, as [rank, setting]; ranks beyond p hold none."""
    p = np.asarray(setting.pipeline_parallel)
    ranks = np.arange(int(p.max(initial=1)))[:, None] + np.zeros_like(p)
    per_layer = _by_rank(setting, memory, ranks, p, memory.layer - memory.saved)
    free = request.cluster.usable_hbm_bytes - memory.fixed - _ends(setting, memory, ranks, p)
    with np.errstate(divide="ignore"):
        count = np.where(per_layer > 0, np.floor(free / per_layer * (1 + 1e-12)), MOST_LAYERS)
    count = np.clip(np.where(free < 0, -1.0, count), -1.0, MOST_LAYERS)
    return np.where(ranks < p, count / _sharing(setting), 0.0)


def fits_somehow(rows: Rows, request: PlanRequest) -> npt.NDArray[np.bool_]:
    """Whether memory allows some layout of each setting; False is proven, True is not."""
    return fits_and_first(rows, request)[0]


def fits_widest(rows: Rows, request: PlanRequest) -> npt.NDArray[np.bool_]:
    """Whether memory allows some layout when all replicas share one copy of the state; False is proven.

    A smaller sharding group never needs less, so a setting that fails fails with every group.
    """
    fits = holds_state(rows, request)
    kept = np.flatnonzero(fits)
    for chosen, setting in settings_of_memory(rows.take(kept)):
        widest = _widest(setting)
        for memory in rank_memories(widest, request):
            fits[kept[chosen]] &= _room(widest, request, memory)[0]
    return fits


def _widest(setting: Settings) -> Settings:
    replicas = np.asarray(setting.data_parallel) * setting.context_parallel
    return replace(setting, shard_group_size=replicas)


def holds_state(rows: Rows, request: PlanRequest) -> npt.NDArray[np.bool_]:
    """Whether all ranks together hold the layers' state, of which replicas share one copy; False is proven.

    Notes
    -----
    A rank needs no less than the state of its layers, and that is linear in them, so p ranks need no less
    than the state of all layers. Settings that differ in nothing that state reads are priced once, with one
    micro-batch and the most chunks, which make whole gradients that wait or add up the fewest.
    """
    _, first, alike = np.unique(rows.key(OF_STATE), return_index=True, return_inverse=True)
    few = rows.take(first)
    needed = np.zeros(len(few))
    for chosen, setting in settings_by_category(few, ("precision", "zero_stage", "offload")):
        for kind, count in request.model.kind_counts.items():
            leanest = replace(_widest(setting), num_microbatches=1, virtual_stages=request.model.num_layers)
            needed[chosen] += count * layer_state_bytes(kind, leanest, request).total
    free = few.values("pipeline_parallel") * request.cluster.usable_hbm_bytes
    return np.asarray((needed <= free * (1 + 1e-9))[alike])


def holds_one_layer(rows: Rows, request: PlanRequest) -> npt.NDArray[np.bool_]:
    """Whether one micro-batch of one layer fits beside nothing else; False is proven, True is not.

    Rows are those of ``Space.work``: what is not fixed yet takes the value that needs the least. State,
    communicators and the pipeline's messages count as nothing, and the kind of layer and of recompute that
    needs the least stands for all.
    """
    least = np.full(len(rows), np.inf)
    for recompute in ("none", "selective", "full"):
        for chosen, setting in settings_by_category(rows, recompute=recompute):
            for kind in request.model.kind_counts:
                load = ChunkLoad({kind: 1}, int(recompute != "none"))
                memory = stage_memory(load, setting, request, 0)
                needed = memory.activations_bytes + memory.transient_bytes
                least[chosen] = np.minimum(least[chosen], needed)
    return least <= request.cluster.usable_hbm_bytes


def fits_and_first(rows: Rows, request: PlanRequest) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Whether memory allows some layout of each setting, and the least recompute that it takes.

    Returns
    -------
    fits
        False is proven, True is not: every rank holds at least one layer (at least none where chunks may be
        empty), and together they hold all.
    first
        Where a framework recomputes the first n layers of every chunk, a lower bound of n, 0 elsewhere. [1]
    """
    fits, first = np.ones(len(rows), dtype=bool), np.zeros(len(rows))
    for chosen, setting in settings_of_memory(rows):
        for memory in rank_memories(setting, request):
            enough, room = _room(setting, request, memory)
            fits[chosen] &= enough
            first[chosen] = np.maximum(first[chosen], _least_first(setting, request, memory, room))
    return fits, first


def _room(
    setting: Settings, request: PlanRequest, memory: RankMemory
) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Whether all ranks together could hold the layers, and how many of them each one could hold."""
    room = most_layers(setting, request, memory)
    p = np.asarray(setting.pipeline_parallel)
    free = p * (request.cluster.usable_hbm_bytes - memory.fixed) - memory.first_end - memory.last_end
    enough = np.sum(room, axis=0) >= memory.num_layers
    return np.all(room >= 0, axis=0) & enough & (memory.model <= free * (1 + 1e-9)), room


def _least_first(setting: Settings, request: PlanRequest, memory: RankMemory, room: Floats) -> Floats:
    """Least n for which all ranks together hold the model when each chunk recomputes its first n layers.

    A rank then recomputes at most v n layers, so it holds at most (f + v n s) / l of them, and never more
    than with all of them recomputed (``room``). What fits without recompute is another setting, hence n >= 1.
    """
    limits = request.framework.limits
    counted = limits.recomputes_partially(setting.recompute) and not limits.recompute_per_stage
    p = np.asarray(setting.pipeline_parallel)
    if setting.recompute == "none" or not counted:
        return np.zeros(len(p))
    held_with = recomputing_first(setting, request, memory, room)
    low, high = np.ones(len(p)), np.full(len(p), float(request.model.num_layers))
    for _ in range(int(np.ceil(np.log2(request.model.num_layers + 1)))):
        middle = np.floor((low + high) / 2)
        enough = np.sum(held_with(middle), axis=0) >= memory.num_layers
        low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
    return low


def recomputing_first(
    setting: Settings, request: PlanRequest, memory: RankMemory, room: Floats
) -> Callable[[Floats], Floats]:
    """Upper bound of the layers of each rank, as [rank, setting], where every chunk recomputes its first n.

    Parameters
    ----------
    room
        The same with all layers recomputed (``most_layers``).

    Returns
    -------
    callable
        Takes n, one a setting. A rank recomputes at most v n layers, so it holds at most (f + v n s) / l.
    """
    p = np.asarray(setting.pipeline_parallel)
    ranks = np.arange(int(p.max(initial=1)))[:, None] + np.zeros_like(p)
    layer, saved = (_by_rank(setting, memory, ranks, p, part) for part in (memory.layer, memory.saved))
    free = request.cluster.usable_hbm_bytes - memory.fixed - _ends(setting, memory, ranks, p)

    def held_with(first: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            chunks = _sharing(setting) * np.asarray(setting.virtual_stages)
            holds = (free + first * chunks * np.maximum(saved, 0.0)) / layer
        held = np.where(layer > 0, np.floor(holds * (1 + 1e-9)), MOST_LAYERS) / _sharing(setting)
        return np.where(ranks < p, np.minimum(held, room), 0.0)

    return held_with


def _ends(
    setting: Settings, memory: RankMemory, ranks: npt.NDArray[np.int64], p: npt.NDArray[np.int64]
) -> Floats:
    """Bytes of the model's ends on each rank; a V brings both to rank 0."""
    if setting.schedule in BIDIRECTIONAL:
        return np.where((ranks == 0) | (ranks == p - 1), memory.first_end + memory.last_end, 0.0)
    last = np.zeros_like(p) if setting.schedule in V_SHAPED else p - 1
    return np.where(ranks == 0, memory.first_end, 0.0) + np.where(ranks == last, memory.last_end, 0.0)


def _sharing(setting: Settings) -> int:
    """Ranks that hold the same stages: two under a two-way schedule, where a load is of both together."""
    return 2 if setting.schedule in BIDIRECTIONAL else 1


def busiest_recomputing(rows: Rows, work: WorkTimes, request: PlanRequest) -> Floats:
    """Lower bound of the busiest rank's work where memory forces recompute; 0 elsewhere. [s].

    Notes
    -----
    With f free bytes, l bytes and u seconds a layer, s bytes saved and r seconds paid for each recomputed
    one, a rank
    that works at most A seconds on layers holds at most the smallest of A/u, (A + r f/s) / (u + r l/s)
    and f / (l - s) layers, fractions allowed. U is the least A + ends for which all ranks hold L together.
    """
    bound = np.zeros(len(rows))
    for chosen, setting in settings_of_memory(rows):
        if setting.recompute == "none" or setting.schedule in BIDIRECTIONAL:
            continue
        own = work.take(chosen)
        for memory in rank_memories(setting, request):
            least = _least_busy(setting, request, own, memory)
            bound[chosen] = np.maximum(bound[chosen], least + own.engine.total)
    return bound


def _least_busy(setting: Settings, request: PlanRequest, work: WorkTimes, memory: RankMemory) -> Floats:
    p = np.asarray(setting.pipeline_parallel)
    ranks = np.arange(int(p.max(initial=1)))[:, None] + np.zeros_like(p)
    per_layer, saved = (_by_rank(setting, memory, ranks, p, part) for part in (memory.layer, memory.saved))
    free = request.cluster.usable_hbm_bytes - memory.fixed - _ends(setting, memory, ranks, p)
    kinds = [work.layers[kind] for kind in memory.kinds]
    seconds = np.min([phases.total for phases in kinds], axis=0)
    again = np.min([phases.recompute for phases in kinds], axis=0)
    last = np.zeros_like(p) if setting.schedule in V_SHAPED else p - 1
    ends = np.where(ranks == 0, work.first.total, 0.0) + np.where(ranks == last, work.last.total, 0.0)
    rate = again / np.maximum(saved, 1.0)
    most = np.where(per_layer > saved, free / np.maximum(per_layer - saved, 1.0), MOST_LAYERS)
    low = np.zeros(len(p))
    high = (seconds + again) * memory.num_layers + np.max(ends, axis=0)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        own = middle - ends
        held = np.minimum(own / seconds, (own + rate * free) / (seconds + rate * per_layer))
        held = np.where((ranks < p) & (own > 0), np.clip(np.minimum(held, most), 0.0, None), 0.0)
        enough = np.sum(held, axis=0) >= memory.num_layers
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return low


BISECTIONS = 14
"""The bound is the lower end of an interval halved this often: within 1e-4 of the whole."""


def _by_rank(setting: Settings, memory: RankMemory, ranks: Codes, p: Codes, part: Floats) -> Floats:
    """Bytes a layer as [rank, setting], from those of rank 0 and of the last rank."""
    multiple = _in_flight(setting, np.minimum(ranks, p - 1))
    spread = memory.multiple[0] - memory.multiple[1]
    weight = np.where(spread != 0, (multiple - memory.multiple[1]) / np.where(spread == 0, 1.0, spread), 0.0)
    return np.asarray(part[1] + weight * (part[0] - part[1]))
