"""What a member of a conflict says: its rule, in numbers that the user gave or that the rule needs."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any

from planner.explain.sentences import listed, lower_first, upper_first
from planner.rules import check
from planner.rules.rule import Rule
from planner.rules.words import counted, ranks_words
from planner.spec import Plan, PlanRequest

FILLED = "ranks_fill_the_cluster"
BUBBLE = "bubble_stays_within_budget"
EXPERTS = "expert_ranks_divide_the_replicas"
RANKS = {
    "tensor_parallel": "tensor",
    "context_parallel": "context",
    "pipeline_parallel": "pipeline",
    "data_parallel": "data",
}
"""How a sentence names the ranks of a degree."""
OTHER_COUNTS = ("virtual_stages", "expert_parallel", "expert_tensor_parallel", "micro_batch")
MOST_NAMED = 8
"""Valid values that a sentence names."""


def plainest(plan: Plan, rule: Rule, request: PlanRequest, asked: Set[str]) -> Plan:
    """The plan with settings that nobody asked for at their plainest, as long as it still breaks the rule.

    Of the degrees that fill the cluster, those count as asked for whose pins belong to the conflict.
    """
    kept = asked if rule.name == FILLED else asked | {pin.field for pin in request.pins}
    for field in (field for field in rule.scope if field not in kept):
        for value in _plain_values(field, plan, rule, request):
            plainer = plan.model_copy(update={field: value})
            if not rule.admits(plainer, request):
                plan = plainer
                break
    return plan


def _plain_values(field: str, plan: Plan, rule: Rule, request: PlanRequest) -> Sequence[Any]:
    if field == "schedule" and plan.pipeline_parallel > 1:
        return ("1f1b",) if "1f1b" in request.framework.limits.schedules else ()
    words = {"schedule": ("none",), "recompute": ("none",), "offload": ("none",)}
    if field in words:
        return words[field]
    if field == "num_microbatches":
        return (request.workload.global_batch,) if rule.name == BUBBLE else ()
    if field == "data_parallel" and rule.name == EXPERTS:
        return (request.cluster.num_gpus,)
    return (1,) if field in (*RANKS, *OTHER_COUNTS) else ()


def rule_sentence(
    rule: Rule, witness: Plan | None, request: PlanRequest, asked: Set[str] = frozenset()
) -> str:
    """The rule in the numbers of a plan that breaks it, without a full stop.

    Parameters
    ----------
    witness
        A plan that breaks this rule and no other, where one is known.
    asked
        Fields whose pins belong to the conflict.
    """
    if witness is None or rule.admits(witness, request):
        return rule.name.replace("_", " ")
    plain = plainest(witness, rule, request, asked)
    if rule.name == FILLED:
        return _ranks_sentence(plain, witness, rule, request, asked)
    said = rule.broken_sentence(plain, request)
    batch = request.workload.global_batch_max or request.workload.global_batch
    if rule.name == BUBBLE and plain.num_microbatches == batch and "num_microbatches" not in asked:
        return f"a global batch of {batch} is {counted(batch, 'micro-batch', 'es')} at most, and {said}"
    return said + (_valid_words(rule, plain, request) if rule.scope[0] in asked else "")


def _valid_words(rule: Rule, plan: Plan, request: PlanRequest) -> str:
    """The values that would do, where the rule is about one setting that the user gave."""
    if len(rule.scope) > 1:
        return ""
    free = request.model_copy(update={"pins": ()})
    found = next((each for each in check(plan, free) if each.rule == rule.name), None)
    allowed = [] if found is None else [value for value in found.allowed if not isinstance(value, bool)]
    if not allowed or ", it has " in rule.sentence:
        return ""
    more = ", ..." if len(allowed) > MOST_NAMED else ""
    return f"; {', '.join(map(str, allowed[:MOST_NAMED]))}{more} would do"


def _ranks_sentence(plain: Plan, witness: Plan, rule: Rule, request: PlanRequest, asked: Set[str]) -> str:
    """Why the degrees that were asked for cannot fill the cluster."""
    gpus = request.cluster.num_gpus
    plan = plain if plain.num_gpus > gpus or gpus % plain.num_gpus else witness
    product = math.prod(getattr(plan, field) for field in RANKS)
    several = any(getattr(plan, field) > 1 for field in RANKS)
    named = {name: getattr(plan, field) for field, name in RANKS.items() if several or field in asked} or {
        "data": 1
    }
    ranks = ranks_words(**named)
    if product > gpus:
        return f"{ranks} need {product} GPUs or more; the cluster has {gpus}"
    if gpus % product and not request.allow_idle:
        verb = "does" if product == 1 else "do"
        return f"{ranks} {verb} not divide the {gpus} GPUs of the cluster"
    return rule.broken_sentence(plan, request)


def together(rules: Sequence[str], pins: Sequence[str]) -> str:
    """The conflict in two sentences: what was asked for, against what holds; and what closes the other ways.

    Parameters
    ----------
    rules
        Clauses of the rules, the one that explains most first.
    pins
        Options, in the user's words and order.
    """
    clauses = [clause.rstrip(".") for clause in rules]
    asked = f"You asked for {listed(pins)}" if pins else ""
    if not clauses:
        return f"{asked}: nothing is all of that."
    first = f"{asked}, but {lower_first(clauses[0])}." if asked else f"{upper_first(clauses[0])}."
    others = [lower_first(clause) for clause in clauses[1:]]
    if not others:
        return first
    closed = "The other way is closed too" if len(others) == 1 else "The other ways are closed too"
    return f"{first} {closed}: {'; '.join(others)}."
