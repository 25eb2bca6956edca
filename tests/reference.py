"""Brute force: every legal plan of a small request by plain loops over ``check`` and the cost module.

Shares no code with the solver. Fields are assigned one after the other; a rule is asked as soon as all its
fields have a value. Stages are every composition of the layers, recomputed layers every count.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

from planner.cost.memory import memory
from planner.cost.step import step_time
from planner.rules import TABULAR_RULES, broken_rules, pin_rules
from planner.spec import Plan, PlanRequest, StagePlan
from planner.spec.plan import SCHEDULES, Offload

ORDER = (
    "tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel", "expert_parallel",
    "expert_tensor_parallel", "micro_batch", "num_microbatches", "schedule", "virtual_stages",
    "sequence_parallel", "context_parallel_kind", "recompute", "zero_stage", "shard_group_size", "offload",
    "precision", "rank_order",
)  # fmt: skip


def candidates(field: str, request: PlanRequest, given: dict[str, Any]) -> list[Any]:
    """Values worth trying, given the fields before; nothing legal is left out."""
    gpus = request.cluster.num_gpus
    batch = request.workload.global_batch_max or request.workload.global_batch
    choices: dict[str, list[Any]] = {
        "schedule": list(SCHEDULES),
        "context_parallel_kind": ["ring", "all_gather", "all_to_all"],
        "sequence_parallel": [False, True],
        "recompute": ["none", "selective", "full"],
        "zero_stage": [0, 1, 2, 3],
        "offload": list(get_args(Offload)),
        "precision": list(request.workload.precisions),
        "rank_order": ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"],
        "pipeline_parallel": list(range(1, request.model.num_layers + 1)),
        "virtual_stages": list(range(1, request.model.num_layers + 3)),
        "expert_parallel": list(range(1, max(request.model.num_experts, 1) + 1)),
        "micro_batch": list(range(1, batch + 1)),
        "num_microbatches": list(range(1, batch + 1)),
    }
    if field == "context_parallel_kind" and given["context_parallel"] == 1:
        return ["ring"]
    return choices.get(field, list(range(1, gpus + 1)))


def settings(request: PlanRequest) -> Iterator[dict[str, Any]]:
    """Every combination of fields that breaks no rule over fields."""
    rules = [rule for rule in (*TABULAR_RULES, *pin_rules(request)) if rule.is_tabular]
    due: dict[str, list[Any]] = {field: [] for field in ORDER}
    for rule in rules:
        due[max(rule.scope, key=ORDER.index)].append(rule)

    def assign(index: int, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if index == len(ORDER):
            yield dict(given)
            return
        field = ORDER[index]
        for value in candidates(field, request, given):
            given[field] = value
            if all(
                bool(rule.predicate(request, **{name: given[name] for name in rule.scope}))
                for rule in due[field]
            ):
                yield from assign(index + 1, given)
        given.pop(field, None)

    yield from assign(0, {})


def layouts(request: PlanRequest, setting: dict[str, Any]) -> Iterator[tuple[StagePlan, ...]]:
    """Every distribution of the layers over stages, with every count of recomputed layers.

    A plan that recomputes nothing is left to ``recompute = none``.
    """
    p, v = setting["pipeline_parallel"], setting["virtual_stages"]
    for counts in compositions(request.model.num_layers, p * v):
        chunks = [tuple(counts[chunk * p + rank] for chunk in range(v)) for rank in range(p)]
        if setting["recompute"] == "none":
            yield tuple(StagePlan(chunk_layers=chunk) for chunk in chunks)
            continue
        for recomputed in product(*(range(sum(chunk) + 1) for chunk in chunks)):
            if any(recomputed):
                yield tuple(
                    StagePlan(chunk_layers=chunk, recompute_layers=count)
                    for chunk, count in zip(chunks, recomputed, strict=True)
                )


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Ordered ways to write ``total`` as a sum of ``parts`` numbers from zero up."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def legal_plans(request: PlanRequest) -> Iterator[Plan]:
    """Every plan that breaks no rule."""
    for setting in settings(request):
        for stages in layouts(request, setting):
            plan = Plan(stages=stages, **setting)
            if not broken_rules(plan, request):
                yield plan


def priced_plans(request: PlanRequest) -> list[tuple[float, float, Plan]]:
    """Step time [s], peak memory [byte] and plan of every legal plan, fastest first."""
    priced = [
        (
            float(step_time(plan, request).total),
            max(float(stage.total) for stage in memory(plan, request)),
            plan,
        )
        for plan in legal_plans(request)
    ]
    return sorted(priced, key=lambda entry: entry[:2])
