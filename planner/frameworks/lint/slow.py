"""Findings about speed: what costs a large share of the step, and which setting it hangs on."""

from __future__ import annotations

from collections.abc import Iterator

from planner.frameworks.launch import LaunchFile
from planner.frameworks.lint.findings import Finding, finding, place
from planner.solver.result import Estimate
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest
from planner.units import format_seconds

TELLING_SHARE = 0.10
"""A cause that takes less of the step is not worth a warning: about the time error of a plan itself."""

CAUSES: dict[str, tuple[str, str, str]] = {
    "tensor_comm_s": (
        "tensor_parallel",
        "exposed-tensor-communication",
        "exposed tensor-parallel communication",
    ),
    "context_comm_s": ("context_parallel", "exposed-context-communication", "exposed context communication"),
    "expert_comm_s": ("expert_parallel", "exposed-expert-communication", "exposed expert all-to-all"),
    "pipeline_comm_s": ("pipeline_parallel", "exposed-pipeline-communication", "exposed pipeline sends"),
    "bubble_s": ("num_microbatches", "pipeline-bubble", "the pipeline bubble"),
    "data_comm_s": ("zero_stage", "exposed-data-communication", "exposed gradient and weight communication"),
    "recompute_s": ("recompute", "recompute", "recomputation"),
    "offload_s": ("offload", "offload", "offload traffic"),
}
"""Term of the step time to the plan field it hangs on, rule name and words."""


def slow_findings(launch: LaunchFile, request: PlanRequest, estimate: Estimate) -> Iterator[Finding]:
    """Yield a warning for every cause above ``TELLING_SHARE`` of the step, and for groups on slow links."""
    step_s = estimate.step_time_s
    for term, seconds in estimate.time.as_dict().items():
        if term in CAUSES and seconds > TELLING_SHARE * step_s:
            field, rule, words = CAUSES[term]
            message = f"{words} takes {format_seconds(seconds)} of {format_seconds(step_s)} a step"
            at = place(launch, field, "pipeline_parallel")
            hint = _overlap_hint(request, estimate.plan) if term == "data_comm_s" else ""
            yield finding(at, "warning", rule, f"{message} ({100 * seconds / step_s:.0f} %){hint}")
    yield from _spans(launch, request, estimate.plan)


def _overlap_hint(request: PlanRequest, plan: Plan) -> str:
    """The flags without which Megatron-LM hides none of it."""
    habits = request.framework.time
    flags = ["--overlap-grad-reduce"] if not habits.gradient_sync_overlaps else []
    if plan.zero_stage > 0 and not habits.parameter_gather_overlaps:
        flags.append("--overlap-param-gather")
    if not flags or request.framework.name != "megatron":
        return ""
    return f"; the computation hides it with {' and '.join(flags)}"


def _spans(launch: LaunchFile, request: PlanRequest, plan: Plan) -> Iterator[Finding]:
    """Groups that reach over a slower tier than they should."""
    domain = request.cluster.nvlink_domain
    if plan.tensor_parallel > 1 and domain % plan.tensor_parallel:
        message = (
            f"{plan.tensor_parallel} tensor ranks cross the fast domain of {domain} GPUs; "
            f"every layer's all-reduce then runs over {request.cluster.links[-1].name}"
        )
        yield finding(place(launch, "tensor_parallel"), "warning", "tensor-parallel-across-nodes", message)
    if plan.zero_stage < 3:
        return
    span = plan.shard_group_size * plan.tensor_parallel
    for link in request.cluster.links:
        if link.oversubscription > 1 and span > _reach_below(request, link.name):
            message = (
                f"ZeRO-3 gathers weights over {plan.shard_group_size} ranks, across {link.name} which is "
                f"{link.oversubscription:g} times oversubscribed; shard inside it (HSDP), replicate over it"
            )
            yield finding(place(launch, "shard_group_size"), "warning", "sharding-over-slow-spine", message)


def _reach_below(request: PlanRequest, name: str) -> int:
    """GPUs that reach each other without the named tier."""
    names = [link.name for link in request.cluster.links]
    index = names.index(name)
    return request.cluster.links[index - 1].group_gpus if index else 1
