"""What holds the best plan back: the largest terms, and the constraints without slack."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from planner.cost.words import memory_words, time_words
from planner.explain.changes import with_hbm
from planner.explain.ladders import BUBBLE, DOMAIN
from planner.explain.loss import loss_phrase
from planner.explain.optimum import better_answer
from planner.explain.side_words import described
from planner.rules import TABULAR_RULES, Rule
from planner.rules.user import pin_rule
from planner.solver.space import FIELDS
from planner.spec import PlanRequest
from planner.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from planner.solver.result import Estimate

TIGHT_MEMORY = 0.1
"""Memory is called tight when less than this fraction is free."""
_RULES = {rule.name: rule for rule in TABULAR_RULES}
TIGHT_BUBBLE = 0.8
"""The bubble budget is called tight when more than this fraction of it is used."""


def binding(best: Estimate, request: PlanRequest) -> list[str]:
    """Say what limits the plan, from its own numbers."""
    found = [_time_sentence(best), _memory_sentence(best, request)]
    plan, budget = best.plan, request.max_bubble
    if plan.pipeline_parallel > 1 and budget is not None:
        used = bubble_fraction(best)
        word = "binds" if used > TIGHT_BUBBLE * budget else "has slack"
        found.append(f"Bubble budget {word}: {100 * used:.1f} % of ideal time, {100 * budget:.0f} % allowed.")
    domain = request.cluster.nvlink_domain
    if plan.tensor_parallel == domain and request.cluster.num_gpus > domain:
        found.append(f"The fast domain binds: t={plan.tensor_parallel} fills its {domain} GPUs.")
    if plan.num_microbatches == 1:
        found.append("The batch binds: one micro-batch per replica, so no more replicas can be fed.")
    return found


def bubble_fraction(estimate: Estimate) -> float:
    """Bubble relative to the pipeline's busy time on the rank that sets the pace. [1]."""
    time = estimate.time
    after = time.data_comm_s + time.optimizer_s + time.offload_s + time.host_s + time.straggler_s
    busy = float(time.total - time.bubble_s - after)
    return float(time.bubble_s) / busy if busy > 0 else 0.0


def price_of_limits(best: Estimate, request: PlanRequest, seconds: float = 10.0) -> Iterator[str]:
    """Lift one limit at a time and search again: what each of them costs, as soon as it is known.

    Parameters
    ----------
    seconds
        Time limit of these searches together. [s]

    Notes
    -----
    Lifting a limit forbids nothing, so that the plan stays unless another one beats it by more than 1 %.
    """
    deadline = time.monotonic() + seconds
    for words, lifted, rule in lifted_requests(request):
        left_s = max(deadline - time.monotonic(), 0.0)
        found = better_answer(best, lifted, left_s, None if rule is None else (rule, request))
        if found.best is not None:
            loss = loss_phrase(best, found.best, request.goal)
            yield f"{words} the best plan would be {described(found.best.plan)}: {loss}."
        elif found.is_proven:
            yield f"{words} the plan would stay."
        else:
            yield f"{words} no better plan was found in the time given."


def lifted_requests(request: PlanRequest) -> list[tuple[str, PlanRequest, Rule | None]]:
    """How to say that one limit is lifted, the request without it, and its rule if it is one over fields."""
    found: list[tuple[str, PlanRequest, Rule | None]] = []
    if request.goal != "memory":
        found.append(("With twice the HBM", with_hbm(request, 2.0), None))
    if request.max_bubble is not None and request.cluster.num_gpus > 1:
        free = request.model_copy(update={"max_bubble": None})
        found.append(("Without a bubble budget", free, _RULES[BUBBLE]))
    crosses = request.cluster.num_gpus > request.cluster.nvlink_domain
    if crosses and not request.allow_tensor_parallel_across_nodes:
        wider = request.model_copy(update={"allow_tensor_parallel_across_nodes": True})
        found.append(("With tensor parallelism allowed across nodes", wider, _RULES[DOMAIN]))
    for pin in request.pins:
        others = tuple(other for other in request.pins if other != pin)
        # without a pin on recompute, fewer layers may be recomputed than with it
        is_over_fields = pin.field in FIELDS and pin.field != "recompute"
        rule = pin_rule(pin) if is_over_fields else None
        found.append((f"Without {pin.option}", request.model_copy(update={"pins": others}), rule))
    return found


def _time_sentence(best: Estimate) -> str:
    terms: list[tuple[str, Any]] = sorted(best.time.as_dict().items(), key=lambda item: -item[1])
    total = best.step_time_s
    words = ", ".join(
        f"{time_words(name)} {format_seconds(value)} ({100 * value / total:.0f} %)"
        for name, value in terms[:3]
    )
    return f"Time goes to {words}."


def _memory_sentence(best: Estimate, request: PlanRequest) -> str:
    usable, peak = request.cluster.usable_hbm_bytes, best.peak_memory_bytes
    free = usable - peak
    word = "binds" if free < TIGHT_MEMORY * usable else "has slack"
    terms = sorted(best.stages[best.worst_stage].as_dict().items(), key=lambda item: -item[1])
    name, value = terms[0]
    return (
        f"Memory {word}: {format_bytes(peak)} of {format_bytes(usable)} used, {format_bytes(free)} free; "
        f"the largest part is {memory_words(name)} with {format_bytes(value)}."
    )
