"""The solver decides the rank order: as brute force says on three tiers, and only where it can matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checker import faults, price_faults
from reference import priced_plans
from toys import TOY, tiny_dense, tiny_moe, toy_cluster, vary

from planner.catalog import load_cluster, load_model
from planner.cost.step import step_time
from planner.explain.leanest import any_plan
from planner.frameworks import load_framework
from planner.solver import evaluate, solve
from planner.solver.scale import TIME_TOLERANCE_S
from planner.solver.scan import Scan
from planner.spec import Cluster, Link, Pin, PlanRequest, Workload
from planner.spec.plan import DEFAULT_ORDER, FAR_REPLICAS

BOTH = {"rank_orders": (DEFAULT_ORDER, FAR_REPLICAS)}
ONLY_FAR = Pin(field="rank_order", allowed=(FAR_REPLICAS,), option=f"--rank-order {FAR_REPLICAS}")
NEVER_FAR = Pin(field="rank_order", forbidden=(FAR_REPLICAS,), option=f"--rank-order !{FAR_REPLICAS}")


FEW = (
    Pin(field="sequence_parallel", allowed=(False,), option="--sp off"),
    Pin(field="micro_batch", allowed=(1,), option="--micro-batch 1"),
)

PIPED = Pin(field="pipeline_parallel", minimum=2, option="--pp 2:")


def tiers(gpus: int, node: int, rack: int, network_bytes_per_s: float) -> Cluster:
    """Nodes in racks with a network of their own, and a slow, oversubscribed one between racks."""
    cluster = toy_cluster(gpus, gpus_per_node=node)
    inside, outside = cluster.links
    between = Link(name="rack", group_gpus=rack, bytes_per_s=network_bytes_per_s, latency_s=5e-6, **TOY)
    outer = outside.model_copy(
        update={"bytes_per_s": network_bytes_per_s / 4, "oversubscription": 4.0, "latency_s": 2e-5}
    )
    return cluster.model_copy(update={"links": (inside, between, outer)})


def requests() -> list[PlanRequest]:
    """Small questions on three tiers, dense and not, each with few choices beside the order."""
    found = []
    for index, (gpus, node, rack) in enumerate(
        ((8, 2, 4), (8, 1, 4), (6, 1, 2), (6, 2, 3), (4, 1, 2), (8, 4, 8), (12, 2, 6))
    ):
        moe = index % 2 == 1
        limits: dict[str, Any] = {
            **BOTH, "schedules": ("none", "1f1b") if index % 3 else ("none", "gpipe", "interleaved"),
            "zero_stages": (0, 1) if index % 2 else (1, 3), "zero_stages_with_pipeline": (0, 1, 3),
            "hybrid_sharding": index in (2, 6), "recompute": ("none",), "offloads": ("none",),
            "context_parallel_kinds": ("ring",), "uneven_stages": "even",
        }  # fmt: skip
        request = vary(
            tiny_moe() if moe else tiny_dense(),
            limits=limits, model={"num_layers": 2 + index % 3, **({"num_experts": 4} if moe else {})},
            workload={"global_batch": 6, "seq_length": 96}, max_bubble=None, pins=FEW,
        )  # fmt: skip
        cluster = tiers(gpus, node, rack, 2e9 * (1 + index))
        request = request.model_copy(update={"cluster": cluster, "prefer_simple": False})
        found += [request, request.model_copy(update={"pins": (*FEW, PIPED)})]
    return found


@pytest.mark.parametrize("pin", [None, ONLY_FAR, NEVER_FAR], ids=["free", "far", "default"])
def test_the_optimum_equals_brute_force_on_three_tiers(pin: Pin | None) -> None:
    orders = []
    for request in requests():
        asked = request if pin is None else request.model_copy(update={"pins": (*request.pins, pin)})
        known = priced_plans(asked)
        answer = solve(asked, top=2, workers=1)
        assert answer.status == ("optimal" if known else "infeasible")
        for found in answer.plans:
            assert faults(found.plan, asked) == []
            assert price_faults(found.plan, asked, found.step_time_s, found.peak_memory_bytes) == []
        if known:
            assert answer.plans[0].step_time_s == pytest.approx(known[0][0], abs=TIME_TOLERANCE_S, rel=0)
            orders.append(answer.plans[0].plan.rank_order)
    assert len(orders) >= 5
    assert (FAR_REPLICAS in orders) == (pin is not NEVER_FAR), orders


def test_the_second_order_is_a_candidate_only_where_it_can_cost_something_else() -> None:
    """t=4 fills the nodes of 4; t=2 does not; one node holds everything."""
    request = vary(tiny_dense(), limits={**BOTH, "schedules": ("none", "1f1b")}, max_bubble=None)
    found = Scan(request).expand(np.arange(len(Scan(request).steady_s))).rows
    far = found.values("rank_order") == FAR_REPLICAS
    assert np.any(far)
    near = found.values("tensor_parallel") * found.values("context_parallel")
    assert set(near[far].tolist()) <= {1, 2, 3}
    assert np.all(found.values("pipeline_parallel")[far] > 1)
    assert np.all(found.values("data_parallel")[far] > 1)
    one_node = request.model_copy(update={"cluster": toy_cluster(8, gpus_per_node=8)})
    alone = Scan(one_node).expand(np.arange(len(Scan(one_node).steady_s))).rows
    assert len(alone) and set(alone.values("rank_order").tolist()) == {DEFAULT_ORDER}


def nvlink_72() -> PlanRequest:
    """A 100B model on eight NVLink domains of 64 GPUs, ZeRO-1 and two-way tensor parallelism."""
    pins = (
        Pin(field="tensor_parallel", allowed=(2,)),
        Pin(field="pipeline_parallel", allowed=(4,)),
        Pin(field="context_parallel", allowed=(1,)),
        Pin(field="virtual_stages", allowed=(10,)),
    )
    return PlanRequest(
        model=load_model("100b"),
        cluster=load_cluster("gb200-nvl72", 512),
        workload=Workload(global_batch=1024, seq_length=4096),
        framework=load_framework("megatron"),
        pins=pins,
    )


def test_a_pipeline_inside_the_nvlink_domain_wins_where_sends_show() -> None:
    """The best plan of each order, to the term: sends get cheaper, gradients dearer."""
    request = nvlink_72()
    best = solve(request, top=1).plans[0]
    assert best.plan.rank_order == FAR_REPLICAS
    other = evaluate(best.plan.model_copy(update={"rank_order": DEFAULT_ORDER}), request)
    assert other.violations == ()
    assert best.step_time_s < other.step_time_s
    assert float(best.time.pipeline_comm_s) < 0.2 * float(other.time.pipeline_comm_s)
    assert float(best.time.data_comm_s) > float(other.time.data_comm_s)


def test_where_both_cost_the_same_the_default_is_said() -> None:
    """t = 8 in nodes of 8: the other order prices to the same number, and the answer has the default."""
    request = nvlink_72().model_copy(update={"cluster": load_cluster("h100-sxm-80gb", 512)})
    pins = tuple(pin for pin in request.pins if pin.field in {"context_parallel", "virtual_stages"})
    eight = Pin(field="tensor_parallel", allowed=(8,))
    answer = solve(request.model_copy(update={"pins": (*pins, eight)}), top=1).plans[0]
    assert answer.plan.pipeline_parallel > 1
    assert answer.plan.rank_order == DEFAULT_ORDER
    other = answer.plan.model_copy(update={"rank_order": FAR_REPLICAS})
    assert float(step_time(other, request).total) == answer.step_time_s


def test_a_pinned_order_is_found_where_both_cost_the_same() -> None:
    request = vary(tiny_dense(), limits=BOTH, max_bubble=None, pins=(ONLY_FAR,), cluster={"gpus_per_node": 4})
    tensor = Pin(field="tensor_parallel", allowed=(2,), option="--tp 2")
    one_node = request.model_copy(update={"cluster": toy_cluster(8, 8), "pins": (ONLY_FAR, tensor)})
    answer = solve(one_node, top=1)
    assert answer.plans[0].plan.rank_order == FAR_REPLICAS


def test_whether_anything_fits_is_asked_in_the_pinned_order() -> None:
    request = vary(tiny_dense(), limits=BOTH, max_bubble=None, pins=(ONLY_FAR,))
    verdict = any_plan(request, 5.0, search=False)
    assert verdict.witness is not None
    assert verdict.witness.rank_order == FAR_REPLICAS
    refused = vary(tiny_dense(), max_bubble=None, pins=(ONLY_FAR,))
    assert any_plan(refused, 5.0).is_impossible
    assert solve(refused).status == "infeasible"
