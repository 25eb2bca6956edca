"""In which order ranks are numbered: what the framework has, and where another order is another plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.rules.rule import Column, implies, is_in, rule
from planner.rules.words import ranks_words
from planner.spec.plan import DEFAULT_ORDER, Plan
from planner.spec.request import PlanRequest


def _orders(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    return {
        "orders": ", ".join(request.framework.limits.rank_orders),
        "default": DEFAULT_ORDER,
        "expert_ranks": ranks_words(expert=plan.expert_parallel, expert_tensor=plan.expert_tensor_parallel),
        "tensor_and_context_ranks": ranks_words(tensor=plan.tensor_parallel, context=plan.context_parallel),
    }


@rule(source="Megatron-LM arguments.py: --use-tp-pp-dp-mapping; meshes of the others", numbers=_orders)
def framework_has_the_rank_order(request: PlanRequest, rank_order: Column) -> Column:
    """{request.framework.name} does not number ranks {rank_order}, only {orders}."""
    return is_in(rank_order, request.framework.limits.rank_orders)


@rule(source="arithmetic: with one rank of either axis both orders number alike", numbers=_orders)
def rank_order_has_two_axes_to_order(
    request: PlanRequest, rank_order: Column, pipeline_parallel: Column, data_parallel: Column
) -> Column:
    """Rank orders differ only with several pipeline and several data ranks, not with {pipeline_parallel} and
    {data_parallel}: the plan says {default}, not {rank_order}.
    """
    both = np.logical_and(np.asarray(pipeline_parallel) > 1, np.asarray(data_parallel) > 1)
    return implies(rank_order != DEFAULT_ORDER, both)


@rule(
    source="Megatron-LM parallel_state.py: not pp-last needs expert replicas = data replicas", numbers=_orders
)
def far_replicas_hold_every_expert(
    request: PlanRequest,
    rank_order: Column,
    tensor_parallel: Column,
    context_parallel: Column,
    expert_parallel: Column,
    expert_tensor_parallel: Column,
) -> Column:
    """With {rank_order} each data-parallel replica holds every expert: the number of expert and
    expert-tensor ranks has to be that of tensor and context ranks, and the plan has
    {expert_ranks} and {tensor_and_context_ranks}.
    """
    experts = np.asarray(expert_parallel) * expert_tensor_parallel
    whole = experts == np.asarray(tensor_parallel) * context_parallel
    return implies(np.logical_and(request.model.is_moe, rank_order != DEFAULT_ORDER), whole)


@rule(
    source="Megatron-LM parallel_state.py: dense models get a grid of experts without context ranks",
    numbers=_orders,
)
def far_replicas_go_with_context_ranks(
    request: PlanRequest, rank_order: Column, context_parallel: Column
) -> Column:
    """{request.framework.name} does not number {context_parallel} context ranks of a dense model
    {rank_order}: with context parallelism it is {default}.
    """
    limits = request.framework.limits
    refused = limits.far_replicas_exclude_context and not request.model.is_moe
    applies = np.logical_and(refused, rank_order != DEFAULT_ORDER)
    return implies(applies, np.asarray(context_parallel) == 1)


RANK_ORDER_RULES = (
    framework_has_the_rank_order,
    rank_order_has_two_axes_to_order,
    far_replicas_hold_every_expert,
    far_replicas_go_with_context_ranks,
)
