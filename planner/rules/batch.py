"""The batch: replicas, micro-batch and their count make up the global batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.rules.rule import Column, rule
from planner.rules.words import counted
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest


def _fits_a_batch(request: PlanRequest, unit: Column) -> Column:
    """Whether a multiple of ``unit`` lies in the range of batches that the request allows."""
    low = request.workload.global_batch
    high = request.workload.global_batch_max or low
    return np.asarray(high) // unit * unit >= low


def _nearest_batches(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    low = request.workload.global_batch
    high = request.workload.global_batch_max or low
    replicas, micro_step = plan.data_parallel, plan.data_parallel * plan.micro_batch
    return {
        "batch": str(low) if high == low else f"{low} to {high}",
        "replicas": counted(replicas, "replica"),
        "over_replicas": f" over {replicas} replicas" if replicas > 1 else "",
        "micro_batches": counted(plan.num_microbatches, "micro-batch", "es"),
        "by_replicas": _around(low, replicas),
        "by_micro_step": _around(low, micro_step),
    }


def _around(batch: int, unit: int) -> str:
    below, above = batch // unit * unit, -(-batch // unit) * unit
    return f"{above}" if below in {0, above} else f"{below} and {above}"


@rule(source="global batch = d b m; Megatron-LM num_microbatches_calculator.py", numbers=_nearest_batches)
def replicas_divide_the_global_batch(request: PlanRequest, data_parallel: Column) -> Column:
    """A global batch of {batch} sequences does not split evenly over {replicas} (nearest
    batch: {by_replicas}).
    """
    return _fits_a_batch(request, data_parallel)


@rule(source="global batch = d b m; Megatron-LM num_microbatches_calculator.py", numbers=_nearest_batches)
def micro_batch_divides_the_replica_batch(
    request: PlanRequest, micro_batch: Column, data_parallel: Column
) -> Column:
    """A global batch of {batch} sequences{over_replicas} does not split into
    micro-batches of {micro_batch} (nearest batch: {by_micro_step}).
    """
    return _fits_a_batch(request, np.asarray(micro_batch) * data_parallel)


@rule(source="global batch = d b m; DeepSpeed config.py _batch_assertion", numbers=_nearest_batches)
def microbatches_make_up_the_global_batch(
    request: PlanRequest, num_microbatches: Column, micro_batch: Column, data_parallel: Column
) -> Column:
    """{replicas} x {micro_batches} of {micro_batch} are
    {plan.global_batch} sequences, not the global batch of {batch}.
    """
    batch = np.asarray(num_microbatches) * micro_batch * data_parallel
    low = request.workload.global_batch
    high = request.workload.global_batch_max or low
    return np.logical_and(batch >= low, batch <= high)


BATCH_RULES = (
    replicas_divide_the_global_batch,
    micro_batch_divides_the_replica_batch,
    microbatches_make_up_the_global_batch,
)
