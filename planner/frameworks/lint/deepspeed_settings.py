"""ZeRO++ of DeepSpeed: a second, smaller copy of the weights, which no plan shows."""

from __future__ import annotations

from collections.abc import Iterator

from planner.cost.parameters import total_parameters
from planner.frameworks.launch import LaunchFile
from planner.frameworks.lint.findings import Finding, finding
from planner.spec.request import PlanRequest
from planner.units import format_bytes

WEIGHT_BYTES = 2.0
"""Of a parameter in the second copy. [byte]"""


def deepspeed_findings(launch: LaunchFile, request: PlanRequest) -> Iterator[Finding]:
    """Yield what hpZ needs of the GPUs, and what it costs.

    References
    ----------
    ZeRO++ (arXiv 2306.10209) section 3.2; DeepSpeed utils/groups.py, ``_create_zero_param_parallel_group``.
    """
    at, ranks = launch.fields.get("second_copy_ranks"), launch.get("second_copy_ranks", 1)
    gpus = launch.get("num_gpus", request.cluster.num_gpus)
    if at is None or ranks <= 1:
        return
    if gpus % min(ranks, gpus):
        near = min((n for n in range(1, gpus + 1) if gpus % n == 0), key=lambda n: (abs(n - ranks), n))
        message = f"{at.key} {ranks} does not divide {gpus} GPUs (nearest: {near})"
        yield finding(at, "error", "settings-need-others", message)
        return
    copy_bytes = WEIGHT_BYTES * total_parameters(request.model) / min(ranks, gpus)
    message = (
        f"{at.key} {ranks}: its second copy of the weights, {format_bytes(copy_bytes)} on each GPU, is not "
        "counted, and gathering from it is priced like gathering over all ranks"
    )
    yield finding(at, "warning", "setting-means-less", message)
