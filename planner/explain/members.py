"""What a member of a conflict says: its rule, in numbers that the user gave or that the rule needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from planner.explain.sentences import listed, lower_first, upper_first
from planner.rules import check
from planner.rules.rule import Rule
from planner.spec import Plan, PlanRequest

FILLED = "ranks_fill_the_cluster"
RANKS = {
    "tensor_parallel": "tensor",
    "context_parallel": "context",
    "pipeline_parallel": "pipeline",
    "data_parallel": "data",
}
"""How a sentence names the ranks of a degree."""
OTHER_COUNTS = ("virtual_stages", "expert_parallel", "expert_tensor_parallel", "micro_batch")
WORDS = ("schedule", "recompute", "offload", "precision", "context_parallel_kind")
"""Fields whose values are words."""
MOST_NAMED = 8
"""Valid values that a sentence names."""


def plainest(plan: Plan, rule: Rule, request: PlanRequest, asked: Collection[str]) -> Plan:
    """The plan with settings that nobody asked for at their plainest, as long as it still breaks the rule."""
    for field in (field for field in rule.scope if field not in asked):
        for value in _plain_values(field, request):
            plainer = plan.model_copy(update={field: value})
            if not rule.admits(plainer, request):
                plan = plainer
                break
    return plan


def _plain_values(field: str, request: PlanRequest) -> Sequence[Any]:
    words = {"schedule": ("none", "1f1b"), "recompute": ("none",), "offload": ("none",)}
    if field in words:
        return words[field]
    if field == "num_microbatches":
        return (request.workload.global_batch,)
    return (1,) if field in (*RANKS, *OTHER_COUNTS) else ()


def rule_sentence(rule: Rule, witness: Plan | None, request: PlanRequest, asked: Collection[str] = ()) -> str:
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
    if len(rule.scope) == 1 and rule.scope[0] in WORDS and rule.scope[0] not in asked:
        return f"{said}, with which the rest could hold"
    return said + (_valid_words(rule, plain, request) if rule.scope[0] in asked else "")


def _valid_words(rule: Rule, plan: Plan, request: PlanRequest) -> str:
    """The values that would do, where the rule is about one setting that the user gave."""
    if len(rule.scope) > 1:
        return ""
    free = request.model_copy(update={"pins": ()})
    found = next((each for each in check(plan, free) if each.rule == rule.name), None)
    allowed = [] if found is None else [value for value in found.allowed if not isinstance(value, bool)]
    if not allowed:
        return ""
    more = ", ..." if len(allowed) > MOST_NAMED else ""
    return f"; {', '.join(map(str, allowed[:MOST_NAMED]))}{more} would do"


def _ranks_sentence(
    plain: Plan, witness: Plan, rule: Rule, request: PlanRequest, asked: Collection[str]
) -> str:
    """Why the degrees that were asked for cannot fill the cluster."""
    gpus = request.cluster.num_gpus
    plan = plain if plain.num_gpus > gpus or gpus % plain.num_gpus else witness
    sizes = [(getattr(plan, field), name) for field, name in RANKS.items()]
    said = [
        f"{size} {name}"
        for (size, name), field in zip(sizes, RANKS, strict=True)
        if size > 1 or field in asked
    ]
    product = math.prod(size for size, _ in sizes)
    ranks = f"{' x '.join(said)} {'rank' if product == 1 else 'ranks'}"
    if product > gpus:
        return f"{ranks} need {product} GPUs or more; the cluster has {gpus}"
    if gpus % product and not request.allow_idle:
        return f"{ranks} do not divide the {gpus} GPUs of the cluster"
    return rule.broken_sentence(plan, request)


def together(rules: Sequence[str], pins: Sequence[str]) -> str:
    """The conflict in one sentence or two: what was asked for, against what holds.

    Parameters
    ----------
    rules
        Clauses of the rules.
    pins
        Options, in the user's words and order.
    """
    clauses = [clause.rstrip(".") for clause in rules]
    if not pins:
        only = len(clauses) == 1
        return f"{upper_first(clauses[0])}." if only else f"These cannot all hold: {_clauses(clauses)}."
    asked = f"You asked for {listed(pins)}"
    if not clauses:
        return f"{asked}: nothing is all of that."
    if len(clauses) == 1:
        return f"{asked}, but {lower_first(clauses[0])}."
    return f"{asked}, but then these cannot all hold: {_clauses(clauses)}."


def _clauses(clauses: Sequence[str]) -> str:
    return "; ".join(lower_first(clause) for clause in clauses)
