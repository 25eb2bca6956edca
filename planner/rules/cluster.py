"""The machine: ranks fill the cluster, tensor ranks stay inside the fast domain, the number format exists."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.rules.rule import Column, divides, is_in, rule
from planner.rules.words import counted, ranks_words
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest


def _products(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    ranks = ranks_words(
        tensor=plan.tensor_parallel,
        context=plan.context_parallel,
        pipeline=plan.pipeline_parallel,
        data=plan.data_parallel,
    )
    few = plan.num_gpus < request.cluster.num_gpus
    return {
        "ranks_take": f"{ranks} {'takes' if plan.num_gpus == 1 else 'take'} {counted(plan.num_gpus, 'GPU')}",
        "use": ", all of which a plan uses (--allow-idle lifts this rule)" if few else "",
    }


@rule(source="Megatron-LM parallel_state.py: world % (tp cp pp)", field="data_parallel", numbers=_products)
def ranks_fill_the_cluster(
    request: PlanRequest,
    tensor_parallel: Column,
    context_parallel: Column,
    pipeline_parallel: Column,
    data_parallel: Column,
) -> Column:
    """{ranks_take}, and the cluster has {request.cluster.num_gpus}{use}."""
    ranks = np.asarray(tensor_parallel) * context_parallel * pipeline_parallel * data_parallel
    if request.allow_idle:
        return ranks <= request.cluster.num_gpus
    return ranks == request.cluster.num_gpus


@rule(
    source="chapter 12.2.1: tensor parallelism stays inside the NVLink domain (40-65 % slower across nodes)"
)
def tensor_ranks_stay_inside_the_fast_domain(request: PlanRequest, tensor_parallel: Column) -> Column:
    """{tensor_parallel} tensor ranks do not fit evenly into the fast domain of
    {request.cluster.nvlink_domain} GPUs and would cross it over slow links (--allow-tp-across-nodes
    lifts this rule).
    """
    is_torus = request.cluster.links[0].is_torus
    lifted = request.allow_tensor_parallel_across_nodes or is_torus
    domain = request.cluster.nvlink_domain
    if request.allow_idle and domain == request.cluster.num_gpus:
        inside = np.asarray(tensor_parallel) <= domain
    else:
        inside = divides(tensor_parallel, domain)
    return np.logical_or(lifted, inside)


@rule(source="data sheet of the accelerator: no peak rate means no such matrix product")
def accelerator_has_the_precision(request: PlanRequest, precision: Column) -> Column:
    """{request.cluster.accelerator.name} has no {precision} matrix products."""
    return is_in(precision, tuple(request.cluster.accelerator.compute.peak_flop_per_s))


@rule(source="the user's choice of number formats")
def precision_is_among_the_choices(request: PlanRequest, precision: Column) -> Column:
    """{precision} is not among the number formats that the request allows."""
    return is_in(precision, request.workload.precisions)


CLUSTER_RULES = (
    ranks_fill_the_cluster,
    tensor_ranks_stay_inside_the_fast_domain,
    accelerator_has_the_precision,
    precision_is_among_the_choices,
)
