"""Memory: the fullest pipeline rank fits into HBM. Priced by ``planner.cost.memory``."""

from __future__ import annotations

from typing import Any

from planner.cost.memory import host_bytes, memory
from planner.cost.words import memory_words
from planner.rules.rule import rule
from planner.rules.stages import STAGE_RULES
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest
from planner.units import format_bytes


def has_priceable_stages(plan: Plan, request: PlanRequest) -> bool:
    """Whether the stages' shape allows a price at all."""
    shape = STAGE_RULES[:2]
    return all(statement.admits(plan, request) for statement in shape)


def _fullest(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    stages = memory(plan, request)
    rank = max(range(len(stages)), key=lambda index: float(stages[index].total))
    needed, usable = float(stages[rank].total), request.cluster.usable_hbm_bytes
    terms = sorted(stages[rank].as_dict().items(), key=lambda term: -term[1])
    largest = ", ".join(f"{memory_words(name)} {format_bytes(value)}" for name, value in terms[:4] if value)
    return {
        "rank": rank,
        "needed": format_bytes(needed),
        "usable": format_bytes(usable),
        "missing": format_bytes(needed - usable),
        "largest": largest,
    }


@rule(source="HBM of the accelerator; cost/memory.py", field="micro_batch", numbers=_fullest)
def every_stage_fits_in_memory(request: PlanRequest, plan: Plan) -> bool:
    """Pipeline rank {rank} needs {needed} and the GPU has {usable}: {missing} are missing ({largest})."""
    if not has_priceable_stages(plan, request):
        return True
    return max(float(stage.total) for stage in memory(plan, request)) <= request.cluster.usable_hbm_bytes


HOST_BUFFER_FACTOR = 1.5
"""Pinned buffers and copies on the host: ``additional_buffer_factor`` of DeepSpeed's memory estimators.
PyTorch rounds pinned allocations up to powers of two."""


OFFLOADED_WORDS = {
    "optimizer": "optimizer state",
    "parameters": "weights, gradients and optimizer state",
    "activations": "activations",
    "parameters+activations": "model state and activations",
}


def host_bytes_per_node(plan: Plan, request: PlanRequest) -> float:
    """Host memory that a node needs for what its GPUs offload. [byte].

    Notes
    -----
    1.5 times what the fullest rank keeps there (``cost.memory.host_bytes``), for each GPU of the node.

    References
    ----------
    DeepSpeed runtime/zero/stage3.py, ``estimate_zero3_model_states_mem_needs``.
    """
    gpus = min(request.cluster.gpus_per_node, plan.num_gpus)
    return gpus * HOST_BUFFER_FACTOR * host_bytes(plan, request)


def _host(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    return {
        "offloaded": OFFLOADED_WORDS.get(plan.offload, ""),
        "needed": format_bytes(host_bytes_per_node(plan, request)),
        "usable": format_bytes(request.cluster.accelerator.host.node_memory_bytes),
    }


@rule(
    source="DeepSpeed memory estimators: 16 or 18 bytes a parameter on the host, times 1.5",
    field="offload",
    numbers=_host,
)
def offloaded_state_fits_in_host_memory(request: PlanRequest, plan: Plan) -> bool:
    """The {offloaded} that a node's GPUs offload needs {needed} of host memory, the node has {usable}."""
    if plan.offload == "none" or not has_priceable_stages(plan, request):
        return True
    return host_bytes_per_node(plan, request) <= request.cluster.accelerator.host.node_memory_bytes


MEMORY_RULES = (every_stage_fits_in_memory, offloaded_state_fits_in_host_memory)
