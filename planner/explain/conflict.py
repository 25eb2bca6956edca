"""Why nothing fits: a minimal set of rules that exclude every plan, each shown necessary, and what helps.

Two levels. Where the rules over plan fields exclude every setting, CP-SAT's core is the conflict. Where
settings remain, memory excludes them, and the limits that survive deletion are the conflict with it. Only
what was shown is said: a member is one whose removal was seen to leave a plan.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.cost.words import plan_words
from planner.explain.changes import with_hbm_bytes, with_host_bytes
from planner.explain.ladders import BUBBLE, DOMAIN, MEMORY
from planner.explain.members import FILLED, rule_sentence, together
from planner.explain.relaxations import ENDLESS_BYTES, HOST, Relaxation, least_host_plan, relaxations
from planner.explain.sentences import listed
from planner.rules import RULES, pin_rules
from planner.rules.rule import Rule
from planner.spec import FrameworkProfile, Plan, PlanRequest
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.explain.leanest import Leanest, Verdict
    from planner.solver.result import Estimate

PIN = "pin:"
LIMIT_WORDS = {BUBBLE: "the bubble budget", DOMAIN: "the fast domain", HOST: "host memory"}
"""How a sentence names a limit."""
AROUND = (HOST, DOMAIN, FILLED)
"""Rules that close a way around others rather than explain why there has to be one."""


@dataclass(frozen=True)
class Member:
    """One rule of the conflict. ``sentence`` has the numbers of a plan that breaks this member alone."""

    rule: str
    sentence: str
    source: str
    without: Plan | None = None
    """A plan or setting that exists once this member is dropped: why the member is necessary."""

    @property
    def pin(self) -> str:
        """The option that the user gave, where the member is one."""
        return self.rule.removeprefix(PIN) if self.rule.startswith(PIN) else ""

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
    least_host: Plan | None = None
    """The plan that needs the least host memory, where that is part of the conflict."""
    hopeless: tuple[str, ...] = ()
    """Kinds of change that alone do not help, one sentence each."""
    unsettled: tuple[str, ...] = ()
    """Limits of which it was not found out in time whether a plan exists without them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rules."""
        return tuple(member.rule for member in self.members)

    @property
    def paragraph(self) -> str:
        """The conflict as a person would say it."""
        pins = [member.pin for member in self.members if member.pin]
        rules = [member.sentence for member in self.members if not member.pin]
        if not self.members:
            text = "No small set of rules that explains this was found in the time given."
        else:
            text = together(rules, pins)
        if self.unsettled:
            text += f" Whether {' or '.join(self.unsettled)} matters was not found out in the time given."
        return text


def explain_conflict(
    request: PlanRequest,
    *,
    seconds: float = 10.0,
    frameworks: Sequence[FrameworkProfile] = (),
    without_pins: Estimate | None = None,
) -> Conflict:
    """Find a minimal conflict of an infeasible request and the cheapest relaxation of each kind.

    Parameters
    ----------
    seconds
        Time limit of the conflict, and again of the relaxations. [s]
    frameworks
        Frameworks that could be used instead of the request's.
    without_pins
        The best plan of the request without its pins, where it is known.
    """
    from planner.explain.leanest import has_settings
    from planner.solver.core import RuleCore

    core = RuleCore(request, seconds)
    if not has_settings(request, seconds) and core.conflict:
        named = {rule.name: rule for rule in (*RULES, *pin_rules(request))}
        names = sorted(core.conflict, key=lambda name: _place(name, request))
        asked = _asked(request, names)
        found = Conflict(tuple(_member(named[name], core.witness(name), request, asked) for name in names))
    else:
        found = _memory_conflict(request, time.monotonic() + seconds)
    leanest = found.least_memory.plan if found.least_memory else None
    relaxed = relaxations(request, found.names, seconds, leanest, frameworks, without_pins, found.least_host)
    return replace(found, relaxations=relaxed.found, hopeless=relaxed.hopeless)


def _place(name: str, request: PlanRequest) -> tuple[int, int]:
    """Rules first, the one that explains most in front; then pins as the user gave them."""
    options = [f"{PIN}{pin.option}" for pin in request.pins]
    if name in options:
        return 2, options.index(name)
    names = [rule.name for rule in RULES]
    fields = {pin.field for pin in request.pins}
    is_asked = bool(fields & set(RULES[names.index(name)].scope))
    return (0, -1) if name in (MEMORY, BUBBLE) else (not is_asked or name in AROUND, names.index(name))


def lifted(request: PlanRequest, name: str) -> PlanRequest:
    """The request without one of the limits that a user or the machine sets."""
    if name == MEMORY:
        return with_hbm_bytes(request, ENDLESS_BYTES)
    if name == HOST:
        return with_host_bytes(request, ENDLESS_BYTES)
    if name == BUBBLE:
        return request.model_copy(update={"max_bubble": None})
    if name == DOMAIN:
        return request.model_copy(update={"allow_tensor_parallel_across_nodes": True})
    pins = tuple(pin for pin in request.pins if f"{PIN}{pin.option}" != name)
    return request.model_copy(update={"pins": pins})


def _memory_conflict(request: PlanRequest, deadline: float) -> Conflict:
    """Memory and the limits that, together with it, leave no plan; found by deletion."""
    smallest, kept, unsettled = request, [], []
    for name in _limits(request):
        without = _any_plan(lifted(smallest, name), deadline)
        if without.is_impossible:
            smallest = lifted(smallest, name)
        elif without.is_settled:
            kept.append(name)
        else:
            unsettled.append(name)
    named = {rule.name: rule for rule in (*RULES, *pin_rules(request))}
    members = []
    host = least_host_plan(request, deadline) if HOST in kept else None
    for name in kept:
        # Limits that were lifted later can make a plan possible that breaks this one less.
        witness = host if name == HOST else None
        witness = witness or _any_plan(lifted(smallest, name), deadline).witness
        members.append(_member(named[name], witness, request, _asked(request, kept)))
    names = [*kept, *unsettled]
    ours = request.model_copy(
        update={"pins": tuple(pin for pin in request.pins if f"{PIN}{pin.option}" in names)}
    )
    least = asked = _leanest(request, deadline)
    if ours != request:
        least = _leanest(ours, deadline)
    if least.plan is None:  # a limit that does not matter beside memory leaves no plan to speak of
        least = _leanest(smallest, deadline)
    others = [pin.option for pin in request.pins if pin not in ours.pins]
    members.append(_memory_member(least, request, named[MEMORY], others))
    members.sort(key=lambda member: _place(member.rule, request))
    words = tuple(LIMIT_WORDS.get(name, name.removeprefix(PIN)) for name in unsettled)
    return Conflict(tuple(members), least_memory=asked.plan, least_host=host, unsettled=words)


def _limits(request: PlanRequest) -> list[str]:
    """Limits that may matter, those that help a reader least first: the first are the first to be dropped."""
    found = [] if request.max_bubble is None else [BUBBLE]
    if not request.allow_tensor_parallel_across_nodes:
        found.append(DOMAIN)
    if set(request.framework.limits.offloads) - {"none"}:
        found.append(HOST)
    return [*found, *(f"{PIN}{pin.option}" for pin in request.pins)]


def _memory_member(least: Leanest, request: PlanRequest, rule: Rule, others: Sequence[str]) -> Member:
    """What the leanest plan needs, which is free of what else (``others``) was asked for."""
    if least.plan is None:
        return Member(rule.name, "no setting that could be looked at fits into the GPU's memory", rule.source)
    total, usable = least.plan.peak_memory_bytes, request.cluster.usable_hbm_bytes
    even = f"even without {listed(others)} " if others else ""
    sentence = (
        f"{even}the leanest plan found ({plan_words(least.plan.plan)}) needs {format_bytes(total)} on its "
        f"fullest GPU, which has {format_bytes(usable)}: {format_bytes(total - usable)} are missing"
    )
    if least.bound_bytes is not None and least.bound_bytes > usable:
        sentence += f" (no plan needs less than {format_bytes(least.bound_bytes)})"
    return Member(rule.name, sentence, rule.source, least.plan.plan)


def _asked(request: PlanRequest, names: Sequence[str]) -> set[str]:
    """Fields whose pins are members of the conflict."""
    return {pin.field for pin in request.pins if f"{PIN}{pin.option}" in names}


def _member(rule: Rule, witness: Plan | None, request: PlanRequest, asked: set[str]) -> Member:
    if rule.name.startswith(PIN):
        return Member(rule.name, f"you asked for {rule.name.removeprefix(PIN)}", rule.source, witness)
    return Member(rule.name, rule_sentence(rule, witness, request, asked), rule.source, witness)


def _any_plan(request: PlanRequest, deadline: float) -> Verdict:
    from planner.explain.leanest import any_plan

    return any_plan(request, min(max(deadline - time.monotonic(), 0.0), LIFTED_S))


def _leanest(request: PlanRequest, deadline: float) -> Leanest:
    from planner.explain.leanest import leanest

    return leanest(request, max(deadline - time.monotonic(), LEAST_S))


LIFTED_S = 1.0
"""So long is looked for a plan without one of the limits. [s]"""
LEAST_S = 4.0
"""The leanest plan is looked for at least so long."""
