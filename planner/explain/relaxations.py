"""The nearest changes that make a plan possible: each alone and shown to work, the smallest of its kind."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.catalog.files import entries
from planner.catalog.hardware import load_accelerator
from planner.cost.words import plan_words
from planner.explain.changes import with_hbm_bytes, with_host_bytes
from planner.explain.ladders import MEMORY, Ladder, Step, batch_of_pins, ladders, more_gpus, without_pin
from planner.explain.sentences import listed, upper_first
from planner.rules import pin_rules
from planner.rules.memory import host_bytes_per_node
from planner.spec import FrameworkProfile, Plan, PlanRequest
from planner.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from planner.explain.leanest import Verdict
    from planner.solver.result import Estimate

HOST = "offloaded_state_fits_in_host_memory"
MOST_NAMED = 4
"""Accelerators or frameworks that a sentence names."""
HOST_PROBES, CLOSE = 6, 1.05
"""Sizes of host memory that are tried, until two of them are so close."""
ENDLESS_BYTES = 1e18
"""More memory than any plan needs."""
QUICK_SHARE, MOST_QUICK_S = 0.15, 0.5
"""Part of the time limit of the first look for a fast plan under all changes, and the most for one. [s]"""
FASTER_SHARE = 0.1
"""Part of the time limit in which the fastest plan is searched under the first changes."""
FASTER_CHANGES = 2
"""Changes that get so much time."""
PROBE_SHARE = 0.1
"""Most of the time limit that one value of a change takes, and again all limits beside those that fail."""


@dataclass(frozen=True)
class Relaxation:
    """One change (or a pair of them) that makes a plan possible, and a plan with it."""

    kind: str
    change: str
    """What to type."""
    plan: Estimate
    remark: str = ""
    is_best: bool = False
    """Whether the plan is proven to be the fastest under the change."""

    @property
    def sentence(self) -> str:
        """The change and what it buys."""
        price = format_seconds(self.plan.step_time_s)
        reached = f"{price} a step" if self.is_best else f"{price} a step or less"
        return f"{self.change}{self.remark}: {plan_words(self.plan.plan)}, {reached}."

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "kind": self.kind,
            "change": self.change,
            "sentence": self.sentence,
            "step_time_s": self.plan.step_time_s,
            "plan": self.plan.plan.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class Relaxed:
    """What helps, the smallest change of each kind, and sentences about the kinds that do not."""

    found: tuple[Relaxation, ...] = ()
    hopeless: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Working:
    """A change that works: its kind, what to type, the request that it leads to, and a plan there."""

    kind: str
    change: str
    changed: PlanRequest
    plan: Plan
    remark: str = ""


def relaxations(
    request: PlanRequest,
    conflict: tuple[str, ...],
    seconds: float,
    leanest: Plan | None = None,
    frameworks: Sequence[FrameworkProfile] = (),
    without_pins: Estimate | None = None,
    host: Plan | None = None,
) -> Relaxed:
    """Try every kind of change that touches the conflict; keep the smallest of each that works.

    Where no single change works, pairs of changes are tried (kind ``pair``).

    Parameters
    ----------
    conflict
        Names of the conflicting rules.
    seconds
        Time limit of all of them together. [s]
    leanest
        The plan with the smallest peak memory, where memory is part of the conflict.
    frameworks
        Frameworks that could be used instead.
    without_pins
        The best plan of the request without its pins, where it is known.
    host
        The plan that needs the least host memory, where that is part of the conflict.
    """
    deadline = time.monotonic() + seconds
    found = [*_more_memory(request, conflict, leanest), *_more_host_memory(request, host)]
    failed: list[tuple[Ladder, bool]] = []
    if MEMORY in conflict and leanest is None:
        failed.append((_endless_memory(request), True))
    for ladder in ladders(request, conflict, frameworks):
        working, is_settled = _nearest(ladder, deadline, PROBE_SHARE * seconds)
        if working is not None:
            found.append(working)
        elif ladder.values:
            failed.append((ladder, is_settled))
    beside_until = min(deadline, time.monotonic() + PROBE_SHARE * seconds)
    enough = {entry.kind for entry in found} | {entry.change for entry in found}
    hopeless = _hopeless(failed, enough, beside_until)
    found = found or _pairs(request, conflict, deadline)
    quick_s = min(MOST_QUICK_S, QUICK_SHARE * seconds / max(len(found), 1))
    each_s = FASTER_SHARE * seconds / FASTER_CHANGES
    described = [
        _known(entry, request, without_pins)
        or _described(entry, quick_s, each_s if index < FASTER_CHANGES else 0.0)
        for index, entry in enumerate(found)
    ]
    return Relaxed(tuple(described), tuple(hopeless))


def _nearest(ladder: Ladder, deadline: float, probe_s: float = math.inf) -> tuple[_Working | None, bool]:
    """The nearest change of a kind that works, or whether it is proven that none on the ladder does."""
    is_settled, before = True, ladder.now
    for index, value in enumerate(ladder.values):
        if time.monotonic() > deadline:
            return None, False
        change, changed = ladder.at(value)
        verdict = _any_plan(changed, min(deadline, time.monotonic() + probe_s))
        if verdict.witness is not None:
            working = _Working(ladder.kind, change, changed, verdict.witness)
            if ladder.unit:
                working = _between(ladder, before, value, working, deadline)
            if ladder.kind == "framework":
                working = replace(working, remark=_others_too(ladder, index, deadline))
            return working, True
        is_settled &= verdict.is_settled
        before = value
    return None, is_settled


def _between(ladder: Ladder, fails: int, works: int, working: _Working, deadline: float) -> _Working:
    """The nearest of the values between one that fails and one that works, by bisection."""
    low, high = sorted((fails // ladder.unit, works // ladder.unit))
    inside = list(range(low + 1, high))
    if works < fails:
        inside.reverse()
    first, last = 0, len(inside)
    while first < last and time.monotonic() < deadline:
        middle = (first + last) // 2
        change, changed = ladder.at(inside[middle] * ladder.unit)
        witness = _any_plan(changed, deadline).witness
        if witness is None:
            first = middle + 1
        else:
            working, last = replace(working, change=change, changed=changed, plan=witness), middle
    return working


def _hopeless(failed: Sequence[tuple[Ladder, bool]], enough: set[str], deadline: float) -> list[str]:
    """Say which changes are not enough, and which limit would have to go as well where that is known.

    Parameters
    ----------
    enough
        Kinds and words of the changes that are enough alone: naming them here would say nothing.
    """
    said: list[str] = []
    alone: list[str] = []
    late: list[str] = []
    for ladder, is_settled in failed:
        also = _limit_beside(ladder, enough, deadline) if is_settled else None
        if also is not None:
            said.append(f"{upper_first(ladder.what)} would be enough only together with {also}.")
        else:
            (alone if is_settled else late).append(ladder.what)
    if alone:
        said.append(_none_of(alone))
    if late:
        said.append(f"In the time given no plan was found with {listed(late)} alone.")
    return said


def _none_of(changes: Sequence[str]) -> str:
    if len(changes) == 1:
        return f"{upper_first(changes[0])} would not be enough alone."
    return f"None of these would be enough alone: {'; '.join(changes)}."


def _limit_beside(ladder: Ladder, enough: set[str], deadline: float) -> str | None:
    """The limit that would have to go as well for a change to be enough, or None where none is known."""
    _, farthest = ladder.at(ladder.values[-1])
    for option, lifted in _without_limits(farthest, enough):
        if time.monotonic() < deadline and _any_plan(lifted, deadline).witness is not None:
            return option
    return None


def _without_limits(request: PlanRequest, enough: set[str]) -> Iterator[Step]:
    """The request without one more word of the user's, or one of the limits that come with every problem."""
    for pin in request.pins:
        words, changed = without_pin(request, pin)
        if words not in enough:
            yield f"dropping {pin.option}", changed
    batch = batch_of_pins(request)
    if "batch" not in enough and batch is not None:
        update = {"global_batch": batch, "global_batch_max": None}
        workload = request.workload.model_copy(update=update)
        yield f"--global-batch {batch}", request.model_copy(update={"workload": workload})
    if "bubble" not in enough and request.max_bubble is not None:
        yield "--max-bubble none", request.model_copy(update={"max_bubble": None})
    if "domain" not in enough and not request.allow_tensor_parallel_across_nodes:
        wide = request.model_copy(update={"allow_tensor_parallel_across_nodes": True})
        yield "--allow-tp-across-nodes", wide
    if "host" not in enough:
        yield "more host memory", with_host_bytes(request, ENDLESS_BYTES)


def _others_too(ladder: Ladder, index: int, deadline: float) -> str:
    """Further frameworks in which a plan exists, for a remark."""
    able: list[str] = []
    for profile in ladder.values[index + 1 :]:
        if time.monotonic() > deadline or len(able) > MOST_NAMED:
            break
        if _any_plan(ladder.at(profile)[1], deadline).witness is not None:
            able.append(profile.name)
    more = ", ..." if len(able) > MOST_NAMED else ""
    return f" (or {', '.join(able[:MOST_NAMED])}{more})" if able else ""


def _more_memory(request: PlanRequest, conflict: Sequence[str], leanest: Plan | None) -> Iterator[_Working]:
    """The smallest HBM with which the leanest plan fits, and who has it."""
    if MEMORY not in conflict or leanest is None:
        return
    from planner.explain.leanest import peak_bytes

    peak, reserved = peak_bytes(leanest, request), request.cluster.reserved_hbm_bytes
    gigabytes = math.ceil((peak + reserved) / 1e8) / 10
    changed, remark = with_hbm_bytes(request, gigabytes * 1e9), _who_has(gigabytes * 1e9, request)
    yield _Working("hbm", f"--hbm {gigabytes:g}GB", changed, leanest, remark)
    left = math.floor((request.cluster.accelerator.memory.hbm_bytes - peak) / 1e8) / 10
    if 0 <= left < reserved / 1e9:
        cluster = request.cluster.model_copy(update={"reserved_hbm_bytes": left * 1e9})
        changed = request.model_copy(update={"cluster": cluster})
        yield _Working("reserve", f"--hbm-reserve {left:g}GB", changed, leanest)


def _endless_memory(request: PlanRequest) -> Ladder:
    """All the HBM in the world, which is not enough where host memory is what lacks."""
    step = ("", with_hbm_bytes(request, ENDLESS_BYTES))
    return Ladder("hbm", (step,), lambda step: step, "more HBM")


def _more_host_memory(request: PlanRequest, witness: Plan | None) -> Iterator[_Working]:
    """The host memory that a plan with an offloaded optimizer needs."""
    if witness is None:
        return
    needed = math.ceil(host_bytes_per_node(witness, request) / 1e9) * 1e9
    change = f"{format_bytes(needed)} of host memory a node (node_memory_bytes of a hardware file)"
    yield _Working("host", change, with_host_bytes(request, needed), witness)


def least_host_plan(request: PlanRequest, deadline: float) -> Plan | None:
    """A plan that fits with about the least host memory on a node, or None where none helps."""
    low, best = request.cluster.accelerator.host.node_memory_bytes, None
    middle = ENDLESS_BYTES
    for _ in range(HOST_PROBES):
        plan = _any_plan(with_host_bytes(request, middle), deadline).witness
        if plan is not None:
            best, high = plan, host_bytes_per_node(plan, request)
        elif best is None:
            return None
        else:
            low = middle
        if high <= low * CLOSE or time.monotonic() > deadline:
            break
        middle = math.sqrt(low * high)
    return best


def _pairs(request: PlanRequest, conflict: tuple[str, ...], deadline: float) -> list[_Working]:
    """The first pair of changes that works: one pin dropped, and another, or more GPUs, or all pins."""
    pinned = [pin for pin in request.pins if f"pin:{pin.option}" in conflict] or list(request.pins)
    found = []
    for pin in pinned:
        first, half = without_pin(request, pin)
        gpus = more_gpus(half)
        steps = [*(without_pin(half, other) for other in half.pins), *map(gpus.at, gpus.values)]
        both = [(f"{first} and {second}", changed) for second, changed in steps]
        found += _first_pair(both, deadline)
    if not found and len(request.pins) > 1:
        words = " and ".join(f"without {pin.option}" for pin in request.pins)
        found = _first_pair([(words, request.model_copy(update={"pins": ()}))], deadline)
    return found


def _first_pair(steps: Sequence[Step], deadline: float) -> list[_Working]:
    working, _ = _nearest(Ladder("pair", tuple(steps), lambda step: step, "two changes"), deadline)
    return [] if working is None else [working]


def _known(found: _Working, request: PlanRequest, without_pins: Estimate | None) -> Relaxation | None:
    """The relaxation with the best plan without pins, where only pins are dropped and it keeps the others."""
    if without_pins is None or _unpinned(found.changed) != _unpinned(request):
        return None
    if not all(rule.admits(without_pins.plan, request) for rule in pin_rules(found.changed)):
        return None
    return Relaxation(found.kind, found.change, without_pins, found.remark, is_best=True)


def _unpinned(request: PlanRequest) -> PlanRequest:
    return request.model_copy(update={"pins": ()})


def _described(found: _Working, quick_s: float, seconds: float) -> Relaxation:
    """The relaxation in its final words, with a faster plan than the witness where one is found in time."""
    from planner.solver.evaluate import evaluate

    best, is_best = _faster(evaluate(found.plan, found.changed), found.changed, quick_s, seconds)
    return Relaxation(found.kind, found.change, best, found.remark, is_best)


def _faster(witness: Estimate, request: PlanRequest, quick_s: float, seconds: float) -> tuple[Estimate, bool]:
    from planner.explain.leanest import quick_plan
    from planner.solver import solve, uninterrupted

    quick = quick_plan(request, quick_s)
    best = witness if quick is None or quick.step_time_s > witness.step_time_s else quick
    if seconds <= 0:
        return best, False
    result = uninterrupted(solve(request, top=1, time_limit_s=seconds))
    if result.best is None or result.best.step_time_s > best.step_time_s:
        return best, False
    return result.best, result.status == "optimal"


def _who_has(needed_bytes: float, request: PlanRequest) -> str:
    """Accelerators of the catalog with that much memory: of the same vendor first, then the smallest."""
    able = [load_accelerator(name) for name in entries("hardware")]
    vendor = request.cluster.accelerator.vendor
    able = sorted(
        (part for part in able if part.memory.hbm_bytes >= needed_bytes),
        key=lambda part: (part.vendor != vendor, part.memory.hbm_bytes, part.name),
    )
    if not able:
        return f" (no accelerator of the catalog has {format_bytes(needed_bytes)})"
    named = ", ".join(part.name for part in able[:MOST_NAMED])
    return f" (as {named}{', ...' if len(able) > MOST_NAMED else ''} have)"


def _any_plan(request: PlanRequest, deadline: float) -> Verdict:
    """Whether the bounds find a plan: a ladder has many values, too many to search for each."""
    from planner.explain.leanest import any_plan

    return any_plan(request, max(deadline - time.monotonic(), 0.0), search=False)
