"""The ranks of a plan are priced together and get what each gets alone."""

from __future__ import annotations

import pytest
from toys import tiny_dense, tiny_moe

from planner.cost.memory import memory, merge_loads, stage_memory
from planner.cost.stage import chunk_loads
from planner.spec import Plan, PlanRequest, StagePlan


def plans() -> list[tuple[PlanRequest, Plan]]:
    dense, mixed = tiny_dense(), tiny_moe()
    layers = dense.model.num_layers
    uneven = tuple(
        StagePlan(chunk_layers=(count,), recompute_layers=min(again, count))
        for count, again in ((1, 0), (layers - 2, 1), (1, 1))
    )
    common = {"num_microbatches": 6, "data_parallel": 1, "micro_batch": 1}
    return [
        (dense, Plan(pipeline_parallel=3, schedule="1f1b", recompute="full", stages=uneven, **common)),
        (dense, Plan(pipeline_parallel=2, schedule="interleaved", virtual_stages=2, **common)),
        (dense, Plan(pipeline_parallel=2, schedule="dualpipe", **common)),
        (mixed, Plan(pipeline_parallel=2, schedule="1f1b", zero_stage=1, **common)),
        (mixed, Plan(pipeline_parallel=2, schedule="dualpipe", recompute="full", **common)),
    ]


@pytest.mark.parametrize("case", range(5))
def test_each_rank_of_a_plan_has_the_memory_of_its_own_load(case: int) -> None:
    request, plan = plans()[case]
    loads = [merge_loads(chunks) for chunks in chunk_loads(plan, request.model)]
    mirrors = loads[::-1] if plan.schedule == "dualpipe" else [None] * len(loads)
    found = memory(plan, request)
    assert len(found) == plan.pipeline_parallel
    for rank, (load, mirror) in enumerate(zip(loads, mirrors, strict=True)):
        alone = stage_memory(load, plan, request, rank, mirror)
        assert found[rank].as_dict() == alone.as_dict()
