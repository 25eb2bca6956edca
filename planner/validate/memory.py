"""Which predicted memory figure a measured one is compared with, and in which unit the row states it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.cost.memory import memory
from planner.cost.split import default_stages
from planner.cost.terms import Memory
from planner.spec.framework import MemoryHabits
from planner.spec.plan import Plan, Recompute, StagePlan
from planner.spec.request import PlanRequest
from planner.units import GB, GIB

GIB_SOURCES = ("simumax", "nanotron", "h200_202506")
"""Sources whose ``peak_memory_gb`` was printed by torch in GiB and copied as it stands."""


def measured_memory_bytes(row: Mapping[str, Any]) -> float | None:
    """Return the row's measured peak memory, None where it states none. [byte]."""
    stated = (row.get("measured") or {}).get("peak_memory_gb")
    return None if stated is None else float(stated) * stated_unit_bytes(row)


def stated_unit_bytes(row: Mapping[str, Any]) -> float:
    """Return what the row's source calls a GB: 2^30 where torch's figures were copied, else 1e9. [byte]."""
    source = f"{row.get('source', '')} {row.get('framework', '')}".lower()
    return GIB if any(name in source for name in GIB_SOURCES) else GB


def compared_memory(
    stages: Sequence[Memory], row: Mapping[str, Any], habits: MemoryHabits, capacity_bytes: float = math.inf
) -> float:
    """Return the predicted figure of the kind and the rank that the row's figure has. [byte].

    ``memory_kind`` of the row decides between allocated, reserved and device memory; unknown means what the
    framework's log prints. The rank is the fullest one, or the first where the log comes from rank 0. Beyond
    the GPU's capacity the allocator gives back what it only holds: no log shows more where tensors fit.
    """
    kind = (row.get("measured") or {}).get("memory_kind")
    if kind not in ("allocated", "reserved", "device"):
        kind = habits.reported
    figures = [_figure(one, kind, capacity_bytes) for one in stages]
    return figures[0] if habits.reported_rank == "first" else max(figures)


def _figure(memory: Memory, kind: str, capacity_bytes: float) -> float:
    allocated = float(memory.allocated_bytes)
    if kind == "allocated":
        return allocated
    room = max(capacity_bytes - float(memory.context_bytes), allocated)
    reserved = min(float(memory.reserved_bytes), room)
    return reserved if kind == "reserved" else reserved + float(memory.context_bytes)


LOSS_COMPILED_SINCE = 202501
"""Year and month from which torchtitan's compile switch covers the loss as well as the blocks."""


def habits_of_run(habits: MemoryHabits, compiled: bool, source: str) -> MemoryHabits:
    """Return the habits of a run that says whether it was compiled.

    Benchmark pages carry their month in the name (``llama3_h100_202412``); without one, the run is recent.
    """
    month = re.search(r"(?<!\d)(20[2-9]\d(?:0[1-9]|1[0-2]))(?!\d)", source)
    is_recent = month is None or int(month.group(1)) >= LOSS_COMPILED_SINCE
    loss = habits.compiled_loss_bytes if compiled and is_recent else habits.eager_loss_bytes
    peak, parallel = loss or (habits.loss_peak_bytes, habits.parallel_loss_bytes)
    changes = {"compiled_blocks": compiled, "loss_peak_bytes": peak, "parallel_loss_bytes": parallel}
    return habits.model_copy(update=changes)


def splits_sequence(habits: MemoryHabits) -> bool:
    """Return whether tensor ranks split the sequence where a row does not say (not before FlashAttention)."""
    return habits.fused_attention and habits.unsaid_sequence_parallel


RECOMPUTE_ORDER: tuple[tuple[Recompute, tuple[str, ...]], ...] = (
    ("selective", ("mlp", "moe_act", "mla_up_proj", "layernorm")),
    ("full", ()),
)
"""What is tried, cheapest first; the modules are those that the published Megatron recipes name."""

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of every stage's layers that are tried."""

OFFLOAD_LAYER_INPUTS = frozenset({"maxtext"})
"""Frameworks whose published recipes keep the inputs of recomputed layers on the host where HBM is short
(MaxText: ``decoder_layer_input: offload``)."""


NAMED_LAYERS = frozenset({"primus"})
"""Frameworks that recompute whole layers of a list (Primus: ``recompute_layer_ids``): "full" alone says how
they are recomputed and not which, so that a row without the list leaves its recompute open."""


def settled_recompute(row: Mapping[str, Any], plan: Plan, request: PlanRequest) -> Plan:
    """Return the plan as the row states it, with the least recompute that fits where that is left open."""
    if not states_recompute(row):
        return least_recompute(plan, request)
    if request.framework.name in NAMED_LAYERS and plan.recompute == "full":
        shares = (_covering(plan, request, "full", (), share) for share in (0.0, *SHARES))
        return next((candidate for candidate in shares if _fits(candidate, request)), plan)
    return plan


def least_recompute(plan: Plan, request: PlanRequest) -> Plan:
    """Return the plan with the least recompute that fits, for a row that does not state its recompute.

    The recipes behind published tables turn on what their memory needs and often do not say so. Tried in
    order: as read, then a growing share of every stage's layers, selectively and fully, at last (see
    ``OFFLOAD_LAYER_INPUTS``) with the inputs of layers on the host. A plan that fits nowhere stays as read.
    """
    if _fits(plan, request):
        return plan
    present = {"mlp", "layernorm"}
    present |= {"moe_act"} if request.model.is_moe else set()
    present |= {"mla_up_proj"} if request.model.is_mla else set()
    for recompute, modules in RECOMPUTE_ORDER:
        named = tuple(module for module in modules if module in present)
        for share in SHARES:
            candidate = _covering(plan, request, recompute, named, share)
            if _fits(candidate, request):
                return candidate
    offloaded = candidate.model_copy(update={"offload": "activations"})
    can_offload = request.framework.name in OFFLOAD_LAYER_INPUTS
    return offloaded if can_offload and _fits(offloaded, request) else plan


def _covering(
    plan: Plan, request: PlanRequest, recompute: Recompute, modules: tuple[str, ...], share: float
) -> Plan:
    """Return the plan with a share of every stage's layers recomputed."""
    stages = plan.stages or default_stages(plan, request.model, request.framework.limits.default_split)
    covered = tuple(
        StagePlan(chunk_layers=stage.chunk_layers, recompute_layers=round(share * stage.layers))
        for stage in stages
    )
    changes = {"recompute": recompute, "recompute_modules": modules, "stages": covered}
    return plan.model_copy(update=changes)


def _fits(plan: Plan, request: PlanRequest) -> bool:
    return max(float(one.total) for one in memory(plan, request)) <= request.cluster.usable_hbm_bytes


def states_recompute(row: Mapping[str, Any]) -> bool:
    """Whether the row's source itself says what is recomputed."""
    assumed = any("recompute" in str(entry) for entry in row.get("assumed") or ())
    return (row.get("config") or {}).get("recompute") is not None and not assumed
