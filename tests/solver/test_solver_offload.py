"""Offload that copies in every layer: the solver against brute force over slow host links."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from reference import priced_plans, settings
from small import MOST_SETTINGS, small_requests, with_memory
from test_solver_optimum import agrees_with_brute_force
from toys import tiny_dense, toy_cluster, vary

from planner.solver import solve
from planner.spec import Pin, PlanRequest

LINKS = (1e6, 1e7, 1e8)
"""Copies take longer than the toy's layers, about as long, less. [byte/s]"""
HEADROOMS = (1.0, 1.02, 1.01, 1.005)
"""Plenty of memory, and a little over the framework's fixed share (``small.with_memory``)."""
WHOLE: dict[str, Any] = {
    "recompute": ("none", "full"), "partial_recompute": False, "recompute_per_stage": False,
}  # fmt: skip
SHARDED: dict[str, Any] = {"zero_stages": (2, 3), "zero_stages_with_pipeline": (2, 3)}
FEW = 24
"""Settings of a request in a quick test."""


def offloading(request: PlanRequest, link: float, *kinds: str, **limits: Any) -> PlanRequest:
    """The request over another link to the host, in a framework that offloads these and is asked to."""
    host = request.cluster.accelerator.host.model_copy(update={"pcie_bytes_per_s": link})
    accelerator = request.cluster.accelerator.model_copy(update={"host": host})
    cluster = request.cluster.model_copy(update={"accelerator": accelerator})
    pin = Pin(field="offload", allowed=kinds, option="--offload")
    changed = request.model_copy(update={"cluster": cluster, "pins": (pin,)})
    return vary(changed, limits={"offloads": ("none", *kinds), **limits})


def keeping(request: PlanRequest, **habits: Any) -> PlanRequest:
    """The request in a framework with other habits of memory."""
    memory = request.framework.memory.model_copy(update=habits)
    return vary(request, framework={"memory": memory})


def offloading_requests(
    number: int, first_seed: int, most: int, *kinds: str, habits: dict[str, Any] | None = None, **limits: Any
) -> Iterator[PlanRequest]:
    """That many requests of at most ``most`` settings, over fast and slow links, in much and little room.

    What follows the pipeline is priced for its busiest rank. State that leaves over a slow link makes that a
    question of which rank is busiest, so every second request has no pipeline; the others have a link as fast
    as the layers, alike ones, and hardly any vocabulary.
    """
    found = 0
    for seed, request in small_requests(1000, first_seed):
        has_pipeline = seed % 2 == 1 and not request.model.is_moe
        link = 2.5e8 if has_pipeline else LINKS[seed % 3]
        chosen = keeping(offloading(request, link, *kinds, **limits), **habits or {})
        if has_pipeline:
            chosen = vary(chosen, model={"vocab_size": 16}, limits={"vocab_multiple": 1})
        else:
            chosen = vary(chosen, limits={"max_pipeline_parallel": 1})
        if 0 < sum(1 for _ in islice(settings(chosen), most + 1)) <= most:
            found += 1
            yield with_memory(chosen, HEADROOMS[seed % 4])
        if found == number:
            return


def test_the_optimum_with_offloaded_activations_equals_brute_force() -> None:
    requests = [
        offloading(request, LINKS[seed % 3], "activations") for seed, request in small_requests(6, 3000)
    ]
    assert sum([agrees_with_brute_force(request) for request in requests]) >= 3


KINDS: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    # beside full recompute the inputs of the layers travel, all of them
    "checkpoints": (("activations",), {**WHOLE, "activation_offload_recompute": ("none", "full")}, {}),
    # as DeepSpeed does it
    "parameters": (("parameters",), SHARDED, {}),
    # as FSDP does, which keeps whole weights under ZeRO-2 and with a pipeline, and may reduce late
    "fsdp": (
        ("parameters",),
        {**SHARDED, "parameter_offload_zero_stages": (2, 3)},
        {"sharded_weights_are_master": True, "defers_reduction": "dense"},
    ),
    "zero-offload": (("parameters", "optimizer"), SHARDED, {"offloads_gradients": True}),
    "both": (
        ("parameters", "parameters+activations"),
        {**SHARDED, **WHOLE, "activation_offload_recompute": ("full",)},
        {},
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_optimum_with_each_kind_of_offload_equals_brute_force(name: str) -> None:
    kinds, limits, habits = KINDS[name]
    requests = offloading_requests(4, 4000, FEW, *kinds, habits=habits, **limits)
    assert sum([agrees_with_brute_force(request) for request in requests]) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
@pytest.mark.parametrize("name", KINDS)
def test_the_optimum_with_each_kind_of_offload_equals_brute_force_on_more(name: str, block: int) -> None:
    kinds, limits, habits = KINDS[name]
    first = 10_000 * (block + 1)
    requests = offloading_requests(12, first, MOST_SETTINGS, *kinds, habits=habits, **limits)
    assert sum([agrees_with_brute_force(request) for request in requests]) >= 3


def test_parameters_leave_where_nothing_else_fits() -> None:
    """Between what the leanest plans with and without their weights on the GPU need."""
    limits = {"offloads": ("none", "optimizer", "parameters"), "zero_stages": (3,)}
    pins = (Pin(field="data_parallel", allowed=(4,), option="--dp 4"),)
    request = vary(tiny_dense(), limits=limits).model_copy(update={"pins": pins, "cluster": toy_cluster(4)})
    least: dict[str, float] = {}
    for _, peak, plan in priced_plans(request):
        least[plan.offload] = min(peak, least.get(plan.offload, peak))
    assert least["parameters"] < least["optimizer"] < least["none"]
    between = (least["parameters"] + least["optimizer"]) / 2
    tight = request.model_copy(update={"cluster": toy_cluster(4, hbm_bytes=between)})
    (best,) = solve(tight, top=1).plans
    assert best.plan.offload == "parameters"
