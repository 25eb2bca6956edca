"""What the solver proposes for a framework can be written for it, and reads back."""

from __future__ import annotations

import pytest
from launch_plans import TINY, cluster_of

from planner.api import expressible_plan
from planner.frameworks import load_framework
from planner.frameworks.files import WRITERS, as_run, inexpressible, read_files, to_plan, write
from planner.frameworks.nanotron.split import split_layers
from planner.spec import Cluster, Model, Pin, PlanRequest, Workload


def request_for(framework: str, cluster: Cluster, **pins: int) -> PlanRequest:
    return PlanRequest(
        model=Model(**TINY.model_dump() | {"num_layers": 10}),
        cluster=cluster,
        workload=Workload(global_batch=64, seq_length=1024),
        framework=load_framework(framework),
        pins=tuple(Pin(field=field, allowed=(value,)) for field, value in pins.items()),
        max_bubble=None,
    )


@pytest.mark.parametrize("framework", WRITERS)
@pytest.mark.parametrize(
    "field",
    [
        "tensor_parallel",
        pytest.param("pipeline_parallel", marks=pytest.mark.slow),
        pytest.param("context_parallel", marks=pytest.mark.slow),
    ],
)
def test_the_best_plan_can_be_written(framework: str, field: str) -> None:
    request = request_for(framework, cluster_of(8), **{field: 2})
    limit = getattr(request.framework.limits, f"max_{field}")
    if limit == 1:
        pytest.skip(f"{framework} has no {field}")
    plan, said = expressible_plan(request, time_limit_s=20, workers=1)
    assert not inexpressible(plan, request)
    assert to_plan(read_files(write(plan, request)), request) == plan
    assert bool(said) == (framework == "nanotron" and plan.pipeline_parallel > 1)


def test_nanotron_keeps_its_own_split() -> None:
    """Ten layers over two ranks: five do not pass half of layers and head (4.26 of 4.39 million), six do."""
    request = request_for("nanotron", cluster_of(8), pipeline_parallel=2)
    plan, said = expressible_plan(request, time_limit_s=20, workers=1)
    assert [stage.layers for stage in plan.stages] == split_layers(request.model, 2)
    assert as_run(plan, request) == plan
    assert any("nanotron itself places them" in sentence for sentence in said)
