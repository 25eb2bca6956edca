"""Why nothing fits: a minimal set of rules that exclude every plan, each shown necessary, and what helps.

Two levels. Where the rules over plan fields exclude every setting, CP-SAT's core is the conflict. Where
settings remain, memory excludes them, and the user's limits that survive deletion are the conflict with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.cost.words import plan_words
from planner.explain.changes import with_hbm_bytes
from planner.explain.relaxations import Relaxation, relaxations
from planner.rules import RULES, pin_rules
from planner.rules.rule import Rule
from planner.spec import Plan, PlanRequest
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.solver.result import Estimate

MEMORY = "every_stage_fits_in_memory"
BUBBLE = "bubble_stays_within_budget"
DOMAIN = "tensor_ranks_stay_inside_the_fast_domain"
ENDLESS_HBM_BYTES = 1e18
"""More than any plan needs."""
MOST_ROUNDS = 8
"""Bisections of the HBM; each round at least halves the interval."""
HBM_PRECISION = 0.01
"""The smallest sufficient HBM is found to this relative precision."""


@dataclass(frozen=True)
class Member:
    """One rule of the conflict. ``sentence`` has the numbers of a plan that breaks this member alone."""

    rule: str
    sentence: str
    source: str
    without: Plan | None = None
    """A plan or setting that exists once this member is dropped: why the member is necessary."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        without = plan_words(self.without) if self.without else None
        return {
            "rule": self.rule,
            "sentence": self.sentence,
            "source": self.source,
            "possible_without": without,
        }


@dataclass(frozen=True)
class Conflict:
    """Why no plan exists, and the changes that make one possible."""

    members: tuple[Member, ...]
    relaxations: tuple[Relaxation, ...] = ()
    least_memory: Estimate | None = None
    """The plan that needs the least memory, where memory is part of the conflict."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rules."""
        return tuple(member.rule for member in self.members)

    @property
    def paragraph(self) -> str:
        """The conflict as a person would say it."""
        if not self.members:
            return "No plan was found, and no small set of rules explains it within the time given."
        said = [member.sentence.rstrip(".") for member in self.members]
        if len(said) == 1:
            return f"{said[0]}."
        return f"These cannot all hold: {'; '.join(said)}. Without any one of them a plan exists."


def explain_conflict(request: PlanRequest, *, seconds: float = 10.0) -> Conflict:
    """Find a minimal conflict of an infeasible request and the cheapest relaxation of each kind.

    Parameters
    ----------
    seconds
        Time limit of each search. [s]
    """
    from planner.solver.core import RuleCore

    core = RuleCore(request, seconds)
    if core.conflict:
        named = {rule.name: rule for rule in (*RULES, *pin_rules(request))}
        members = tuple(_member(named[name], core.witness(name), request) for name in core.conflict)
        found = Conflict(members)
    else:
        found = _memory_conflict(request, seconds)
    return replace(found, relaxations=relaxations(request, found.names, found.least_memory, seconds))


def lifted(request: PlanRequest, name: str) -> PlanRequest:
    """The request without one of the limits that a user or the machine sets."""
    if name == MEMORY:
        return with_hbm_bytes(request, ENDLESS_HBM_BYTES)
    if name == BUBBLE:
        return request.model_copy(update={"max_bubble": None})
    if name == DOMAIN:
        return request.model_copy(update={"allow_tensor_parallel_across_nodes": True})
    pins = tuple(pin for pin in request.pins if f"pin:{pin.option}" != name)
    return request.model_copy(update={"pins": pins})


def least_memory(request: PlanRequest, seconds: float) -> Estimate | None:
    """Return the legal plan with (to ``HBM_PRECISION``) the smallest peak memory, whatever the HBM."""
    best = _solve(lifted(request, MEMORY), seconds)
    if best is None:
        return None
    low, reserved = request.cluster.usable_hbm_bytes, request.cluster.reserved_hbm_bytes
    for _ in range(MOST_ROUNDS):
        if best.peak_memory_bytes <= low * (1 + HBM_PRECISION):
            break
        middle = (low + best.peak_memory_bytes) / 2
        found = _solve(with_hbm_bytes(request, middle + reserved), seconds)
        if found is None:
            low = middle
        else:
            best = found
    return best


def _memory_conflict(request: PlanRequest, seconds: float) -> Conflict:
    """Memory and the limits that, together with it, leave no plan; found by deletion."""
    kept = [f"pin:{pin.option}" for pin in request.pins]
    if not request.allow_tensor_parallel_across_nodes:
        kept.insert(0, DOMAIN)
    if request.max_bubble is not None:
        kept.insert(0, BUBBLE)
    smallest = request
    for name in list(kept):
        without = lifted(smallest, name)
        if _solve(without, seconds) is None:
            smallest = without
            kept.remove(name)
    named = {rule.name: rule for rule in (*RULES, *pin_rules(request))}
    least = least_memory(smallest, seconds)
    witnesses = {name: _solve(lifted(smallest, name), seconds) for name in kept}
    members = [
        _member(named[name], witness.plan if witness else None, request)
        for name, witness in witnesses.items()
    ]
    members.append(_memory_member(least, request, named[MEMORY]))
    return Conflict(tuple(members), least_memory=least)


def _memory_member(least: Estimate | None, request: PlanRequest, rule: Rule) -> Member:
    if least is None:
        return Member(rule.name, "No plan fits into the GPU's memory", rule.source)
    total, usable = least.peak_memory_bytes, request.cluster.usable_hbm_bytes
    sentence = (
        f"the leanest plan ({plan_words(least.plan)}) needs {format_bytes(total)} on its fullest GPU, "
        f"which has {format_bytes(usable)}: {format_bytes(total - usable)} are missing"
    )
    return Member(rule.name, sentence, rule.source, least.plan)


def _member(rule: Rule, witness: Plan | None, request: PlanRequest) -> Member:
    if rule.name.startswith("pin:"):
        return Member(rule.name, f"you asked for {rule.name.removeprefix('pin:')}", rule.source, witness)
    said = rule.broken_sentence(witness, request) if witness else rule.name.replace("_", " ")
    return Member(rule.name, said, rule.source, witness)


def _solve(request: PlanRequest, seconds: float) -> Estimate | None:
    from planner.solver import solve

    return solve(request, top=1, time_limit_s=seconds).best
