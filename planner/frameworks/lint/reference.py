"""A frozen reference model beside the trained one, whose weights the memory of a plan does not count."""

from __future__ import annotations

from collections.abc import Iterator

from planner.cost.parameters import total_parameters
from planner.frameworks.launch import LaunchFile
from planner.frameworks.lint.findings import Finding, finding, place
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest
from planner.units import format_bytes

WEIGHT_BYTES = 2.0
"""Of a frozen copy in 16 bits. [byte per parameter]"""


def reference_findings(launch: LaunchFile, request: PlanRequest, plan: Plan) -> Iterator[Finding]:
    """Yield a warning with the size of the reference; adapters are switched off to make one, at no cost."""
    if not launch.get("reference", False) or request.workload.frozen_weights:
        return
    shards = plan.shard_group_size if plan.zero_stage == 3 else 1
    ranks = plan.tensor_parallel * plan.pipeline_parallel * shards
    size = WEIGHT_BYTES * float(total_parameters(request.model)) / ranks
    message = (
        f"a frozen reference model is held beside the trained one: about {format_bytes(size)} a GPU more "
        "than the memory counted here, unless it waits on the host"
    )
    yield finding(place(launch, "reference"), "warning", "setting-means-less", message)
