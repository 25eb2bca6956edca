"""Offloaded activations are copied in every layer: the solver against brute force over slow host links."""

from __future__ import annotations

from small import small_requests
from test_solver_optimum import agrees_with_brute_force
from toys import vary

from planner.spec import Pin, PlanRequest

LINKS = (1e6, 1e7, 1e8)
"""Copies take longer than the toy's layers, about as long, less. [byte/s]"""
PIN = Pin(field="offload", allowed=("activations",), option="--offload activations")


def offloading(request: PlanRequest, link: float) -> PlanRequest:
    """The request with activations offloaded over another link to the host."""
    host = request.cluster.accelerator.host.model_copy(update={"pcie_bytes_per_s": link})
    accelerator = request.cluster.accelerator.model_copy(update={"host": host})
    cluster = request.cluster.model_copy(update={"accelerator": accelerator})
    changed = request.model_copy(update={"cluster": cluster, "pins": (PIN,)})
    return vary(changed, limits={"offloads": ("none", "activations")})


def test_the_optimum_with_offloaded_activations_equals_brute_force() -> None:
    requests = [offloading(request, LINKS[seed % 3]) for seed, request in small_requests(6, 3000)]
    assert sum([agrees_with_brute_force(request) for request in requests]) >= 3
