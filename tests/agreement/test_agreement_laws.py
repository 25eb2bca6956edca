"""Laws of the cost module as properties of random plans: a better machine is never slower, and so on."""

from __future__ import annotations

import pytest
from agreement_plans import groups

from planner.cost.memory import memory
from planner.cost.offload import OF_STATE
from planner.cost.step import step_time
from planner.cost.terms import Memory
from planner.solver.evaluate import evaluate
from planner.spec import Cluster, Plan, PlanRequest

REQUESTS = 4
ROUNDING = 1e-9
PACE_CHANGES, PACE_CHANGES_ON_HOST = 1e-3, 5e-2
"""Synchronisation is priced on the busiest rank; a faster machine can make another rank the busiest. The
same holds of the update on the host, which takes longer."""


def seconds(plan: Plan, request: PlanRequest) -> float:
    return float(step_time(plan, request).total)


def peak(plan: Plan, request: PlanRequest) -> float:
    return max(float(stage.total) for stage in memory(plan, request))


def on(cluster: Cluster, request: PlanRequest) -> PlanRequest:
    return request.model_copy(update={"cluster": cluster})


def with_memory(request: PlanRequest, **changes: float) -> PlanRequest:
    """The request on GPUs with another HBM."""
    part = request.cluster.accelerator
    memory_now = part.memory.model_copy(update=changes)
    return on(
        request.cluster.model_copy(update={"accelerator": part.model_copy(update={"memory": memory_now})}),
        request,
    )


def with_links(request: PlanRequest, tier: int, **factors: float) -> PlanRequest:
    """The request on a network whose tier has some figures multiplied."""
    links = list(request.cluster.links)
    changed = {name: getattr(links[tier], name) * factor for name, factor in factors.items()}
    links[tier] = links[tier].model_copy(update=changed)
    return on(request.cluster.model_copy(update={"links": tuple(links)}), request)


@pytest.mark.parametrize("factor", [1.5, 4.0])
def test_more_memory_bandwidth_is_never_slower(factor: float) -> None:
    for request, plans in groups(400, REQUESTS):
        rate = request.cluster.accelerator.memory.hbm_bytes_per_s
        faster = with_memory(request, hbm_bytes_per_s=rate * factor)
        for plan in plans:
            change = PACE_CHANGES_ON_HOST if plan.offload in OF_STATE else PACE_CHANGES
            slack = ROUNDING if plan.pipeline_parallel == 1 else change
            assert seconds(plan, faster) <= seconds(plan, request) * (1 + slack), plan


@pytest.mark.parametrize("tier", [0, -1])
@pytest.mark.parametrize("factors", [{"bytes_per_s": 3.0}, {"latency_s": 0.5, "base_s": 0.0}])
def test_a_better_link_is_never_slower(tier: int, factors: dict[str, float]) -> None:
    for request, plans in groups(500, REQUESTS):
        better = with_links(request, tier, **factors)
        for plan in plans:
            assert seconds(plan, better) <= seconds(plan, request) * (1 + ROUNDING), plan


def test_oversubscription_is_never_faster() -> None:
    for request, plans in groups(550, REQUESTS):
        worse = with_links(request, -1, oversubscription=3.0)
        for plan in plans:
            assert seconds(plan, worse) >= seconds(plan, request) * (1 - ROUNDING), plan


def test_more_memory_changes_neither_time_nor_need_and_fits_no_less() -> None:
    for request, plans in groups(600, REQUESTS):
        larger = with_memory(request, hbm_bytes=2 * request.cluster.accelerator.memory.hbm_bytes)
        for plan in plans[:4]:
            small, large = evaluate(plan, request), evaluate(plan, larger)
            assert large.step_time_s == small.step_time_s
            assert large.peak_memory_bytes == small.peak_memory_bytes
            assert large.fits or not small.fits


def test_a_higher_zero_stage_never_needs_more_memory() -> None:
    """Not counting what ZeRO-3 gathers for a moment, which is much where a rank holds a few layers only.

    FSDP under a pipeline is left out: it keeps whole gradients between micro-batches (``cost.states``).
    """
    compared = strict = 0
    for request, plans in groups(700, 2 * REQUESTS):
        for plan in plans:
            group = plan.data_parallel * plan.context_parallel
            keeps_gradients = request.framework.memory.sharded_weights_are_master
            if group == 1 or (keeps_gradients and plan.pipeline_parallel > 1):
                continue
            ranks = [memory(sharded(plan, stage, group), request) for stage in range(4)]
            for same_rank in zip(*ranks, strict=True):
                states = [state_bytes(one) for one in same_rank]
                assert states == sorted(states, reverse=True), (states, plan)
            totals = [max(float(one.total) for one in stages) for stages in ranks]
            compared += 1
            assert totals[2] <= totals[1] * (1 + ROUNDING) <= totals[0] * (1 + 2 * ROUNDING), (totals, plan)
            if plan.pipeline_parallel == 1 and group >= 4 and request.model.num_layers >= 16:
                strict += 1
                assert totals[3] <= totals[2] * (1 + ROUNDING), (totals, plan)
    assert compared > 50 and strict > 5


def sharded(plan: Plan, zero_stage: int, group: int) -> Plan:
    return plan.model_copy(update={"zero_stage": zero_stage, "shard_group_size": group if zero_stage else 1})


def state_bytes(stage: Memory) -> float:
    return float(stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes)


def test_recomputing_more_layers_never_needs_more_memory_nor_less_time() -> None:
    compared = 0
    for request, plans in groups(800, 2 * REQUESTS):
        for plan in plans:
            if plan.recompute != "full":
                continue
            less = plan.model_copy(
                update={"stages": tuple(s.model_copy(update={"recompute_layers": s.recompute_layers // 2})
                                        for s in plan.stages)}
            )  # fmt: skip
            compared += 1
            assert peak(plan, request) <= peak(less, request) * (1 + ROUNDING), plan
            assert seconds(plan, request) >= seconds(less, request) * (1 - ROUNDING), plan
    assert compared > 20


def test_more_microbatches_take_longer_and_use_no_less_memory() -> None:
    for request, plans in groups(900, REQUESTS):
        for plan in plans:
            step = plan.pipeline_parallel * (2 if plan.pipeline_parallel > 1 else 1)
            more = plan.model_copy(update={"num_microbatches": plan.num_microbatches + step})
            assert seconds(more, request) > seconds(plan, request), plan
            assert peak(more, request) >= peak(plan, request) * (1 - ROUNDING), plan


def test_a_longer_micro_batch_never_needs_less_memory_nor_time() -> None:
    for request, plans in groups(1000, REQUESTS):
        for plan in plans:
            double = plan.model_copy(update={"micro_batch": 2 * plan.micro_batch})
            assert peak(double, request) >= peak(plan, request) * (1 - ROUNDING), plan
            assert seconds(double, request) > seconds(plan, request), plan
