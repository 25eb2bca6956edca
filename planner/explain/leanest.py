"""The leanest plan of a request, and whether any plan fits: memory of whole tables of settings at once.

A time-optimal search prices candidates one by one; whether anything fits is decided sooner by the lower bound
of every setting's peak memory, and by the exact price of the few settings with the smallest bound.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from planner.cost.memory import memory
from planner.cost.stage import with_stages
from planner.cost.step import balanced_step_time
from planner.explain.changes import with_hbm_bytes
from planner.explain.lean_layout import lean_layouts
from planner.explain.lean_space import EQUAL, LeanSpace, Table, plan_at
from planner.rules import broken_rules
from planner.solver.capacity import fits_somehow
from planner.solver.evaluate import evaluate
from planner.solver.space import Codes, Rows
from planner.solver.tables import rows_of_memory, settings_by_category
from planner.spec import Pin, Plan, PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate

Floats = npt.NDArray[np.float64]

MEMORY = "every_stage_fits_in_memory"
MOST_TRIED = 12
"""Settings of one table that are priced exactly, those with the smallest bound."""
CORNER_SHARE = 0.5
"""Most of the time that the corner may take."""
CORNER_TRIES = 3
"""Settings of one table of a corner that are priced exactly."""
LEAN_ENOUGH = 0.98
"""A plan is lean enough when no other needs less than this part of its peak."""
SIFTED_EVERY = 16
"""Settings that are priced exactly before those left are sifted, if a leaner plan was among them."""
PRICED_SHARE = 0.7
"""Most of the time of a quick plan that goes into estimates."""
SAMPLED_STATES, SAMPLED_SETTINGS = 256, 1000
"""States, and settings of them, whose step time is estimated to find a fast one."""


@dataclass(frozen=True)
class Leanest:
    """The plan that needs the least memory among those priced, and a proven lower bound over all plans.

    ``bound_bytes`` is None where the time did not suffice to look at every setting.
    """

    plan: Estimate | None
    bound_bytes: float | None


@dataclass(frozen=True)
class Verdict:
    """Whether a request has a plan: a witness, a proof that there is none, or neither in the time given."""

    witness: Plan | None = None
    is_settled: bool = True
    num_settings: int = 0
    """Settings whose memory was bounded; where the model state alone is too much, it counts once."""

    @property
    def is_impossible(self) -> bool:
        """Whether it is proven that no plan exists."""
        return self.witness is None and self.is_settled


def leanest(request: PlanRequest, seconds: float) -> Leanest:
    """Find the plan with the smallest peak memory, whatever the HBM.

    Tables are read until what is left can hardly need less than the best plan so far (2 %).

    Parameters
    ----------
    seconds
        Time limit. [s]
    """
    deadline = time.monotonic() + seconds
    best, least, rest = _Best(), np.inf, np.inf
    space = LeanSpace(request, deadline)
    for table in space.tables():
        least, rest = min(least, float(np.min(table.bound_bytes))), table.rest_bytes
        _try_leanest(table, request, best, deadline)
        if rest >= LEAN_ENOUGH * best.peak_bytes or time.monotonic() > deadline:
            break
    proven = min(least, rest) if space.is_whole else np.inf
    return Leanest(
        None if best.plan is None else evaluate(best.plan, request), proven if np.isfinite(proven) else None
    )


@dataclass
class _Best:
    """The plan with the smallest peak so far."""

    plan: Plan | None = None
    peak_bytes: float = np.inf


def _try_leanest(table: Table, request: PlanRequest, best: _Best, deadline: float) -> None:
    """Price the settings of a table, smallest bound first, while they may need less than the best.

    Now and then those that do not fit into what the best needs are sifted out, all at once. Of settings that
    need the same the first one is priced, unless rules refuse its plan.
    """
    left, known_bytes = np.argsort(table.bound_bytes, kind="stable"), np.inf
    alike = rows_of_memory(table.rows).key(table.rows.codes)
    priced: set[int] = set()
    while len(left):
        if best.peak_bytes < known_bytes:
            known_bytes = best.peak_bytes
            left = left[table.bound_bytes[left] < LEAN_ENOUGH * known_bytes]
            enough = with_hbm_bytes(request, LEAN_ENOUGH * known_bytes + request.cluster.reserved_hbm_bytes)
            left = left[fits_somehow(table.rows.take(left), enough)] if len(left) else left
        for index in left[:SIFTED_EVERY]:
            late = best.plan is not None and time.monotonic() > deadline
            if late or table.bound_bytes[index] >= LEAN_ENOUGH * best.peak_bytes:
                return
            if alike[index] in priced:
                continue
            if not _is_refused(plan_at(table.rows, int(index)), request, best):
                priced.add(int(alike[index]))
        left = left[SIFTED_EVERY:]


def _is_refused(setting: Plan, request: PlanRequest, best: _Best) -> bool:
    """Price the layouts of a setting, and say whether rules refuse one that needs less than the best."""
    is_refused = False
    for plan in lean_layouts(setting, request):
        needed = peak_bytes(plan, request)
        if needed >= best.peak_bytes:
            continue
        if set(broken_rules(plan, request)) <= {MEMORY}:
            best.plan, best.peak_bytes = plan, needed
        else:
            is_refused = True
    return is_refused


def corner_plan(request: PlanRequest, deadline: float = np.inf) -> Plan | None:
    """A plan that fits among the settings of one small corner of the space, or None: most problems have one.

    The corner holds the settings that save memory without slow links or host memory: one sequence a
    micro-batch, the most recompute, the highest ZeRO stage that goes with a pipeline.

    Parameters
    ----------
    deadline
        When to stop, on the monotonic clock; the settings with the smallest bound are looked at anyway. [s]
    """
    usable = request.cluster.usable_hbm_bytes
    space = LeanSpace(_corner(request), deadline)
    for table in space.tables() if space.may_hold(usable) else ():
        small = np.flatnonzero(table.bound_bytes <= usable)
        ranks = table.rows.values("pipeline_parallel")[small]
        for index in small[np.lexsort((table.bound_bytes[small], ranks))][:CORNER_TRIES]:
            for plan in lean_layouts(plan_at(table.rows, int(index)), request):
                if not broken_rules(plan, request):
                    return plan
        if table.rest_bytes > usable or time.monotonic() > deadline:
            return None
    return None


def _corner(request: PlanRequest) -> PlanRequest:
    """The request with every field pinned that tells memory-saving settings apart and nobody pinned yet."""
    limits = request.framework.limits
    stages = limits.zero_stages_with_pipeline or limits.zero_stages
    values = {
        "recompute": limits.recompute[-1:],
        "zero_stage": (max(stages),),
        "micro_batch": (1,),
        "offload": limits.offloads[:1],
        "precision": request.workload.precisions[:1],
        "context_parallel_kind": limits.context_parallel_kinds[:1],
    }
    said = {pin.field for pin in request.pins}
    pins = [
        Pin(field=field, allowed=allowed, option=f"corner {field}")
        for field, allowed in values.items()
        if allowed and field not in said
    ]
    return request.model_copy(update={"pins": (*request.pins, *pins)})


def has_settings(request: PlanRequest, seconds: float) -> bool:
    """Whether a setting was seen that the rules over fields admit; False is no proof that there is none.

    Parameters
    ----------
    seconds
        Time limit. [s]
    """
    return next(LeanSpace(request, time.monotonic() + seconds).tables(), None) is not None


def any_plan(request: PlanRequest, seconds: float, *, search: bool = True) -> Verdict:
    """Decide whether some plan is legal and fits.

    A small corner of the space is looked at first, then the settings whose lower bound of memory is small.
    Where none of them works and some setting may still fit, the solver searches for the rest of the time.

    Parameters
    ----------
    seconds
        Time limit. [s]
    search
        Whether the solver may decide what the bounds leave open.
    """
    deadline = time.monotonic() + seconds
    plan = corner_plan(request, time.monotonic() + CORNER_SHARE * seconds)
    if plan is not None:
        return Verdict(plan)
    space = LeanSpace(request, deadline)
    usable, may_fit = request.cluster.usable_hbm_bytes, _Values()
    number = int(np.sum(space.state_bytes > usable))
    for table in space.tables() if space.may_hold(usable) else ():
        number += len(table.rows)
        small = _may_fit(table, request)
        may_fit.add(table.rows.take(small))
        for index in small[np.argsort(table.bound_bytes[small], kind="stable")][:MOST_TRIED]:
            for plan in lean_layouts(plan_at(table.rows, int(index)), request):
                if not broken_rules(plan, request):
                    return Verdict(plan, num_settings=number)
        if table.rest_bytes > usable * (1 + EQUAL):
            break
        if time.monotonic() > deadline:
            return Verdict(is_settled=False, num_settings=number)
    if not may_fit.fields and space.is_whole:
        return Verdict(num_settings=number)
    if not search:
        return Verdict(is_settled=False)
    return _searched(may_fit.pinned(request) if space.is_whole else request, deadline - time.monotonic())


TELLING = (
    "tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel", "expert_parallel",
    "expert_tensor_parallel", "schedule", "virtual_stages", "zero_stage", "shard_group_size", "offload",
    "precision",
)  # fmt: skip
"""Fields of which ``LeanSpace`` looks at every value, none for others. Recompute is not among them: a pin on
it forces layers to be recomputed."""


@dataclass
class _Values:
    """Values of the fields of settings that may fit."""

    fields: dict[str, set[Any]] = field(default_factory=dict)

    def add(self, rows: Rows) -> None:
        """Enter some settings."""
        for name in TELLING if len(rows) else ():
            known = self.fields.setdefault(name, set())
            known.update(rows.domains[name][np.unique(rows.codes[name])].tolist())

    def pinned(self, request: PlanRequest) -> PlanRequest:
        """The request without other values of these fields: it has the same plans that fit."""
        pins = [
            Pin(field=name, allowed=tuple(sorted(values)), option=f"{name} that may fit")
            for name, values in self.fields.items()
        ]
        return request.model_copy(update={"pins": (*request.pins, *pins)})


def narrowed(request: PlanRequest, seconds: float) -> PlanRequest | None:
    """Return a request with the same plans that fit and fewer settings, or None where none fits.

    Parameters
    ----------
    seconds
        Time limit, after which the request itself is returned. [s]
    """
    space, may_fit = LeanSpace(request, time.monotonic() + seconds), _Values()
    usable = request.cluster.usable_hbm_bytes
    for table in space.tables() if space.may_hold(usable) else ():
        may_fit.add(table.rows.take(_may_fit(table, request)))
        if table.rest_bytes > usable * (1 + EQUAL):
            break
        if time.monotonic() > space.deadline:
            return request
    if not space.is_whole:
        return request
    return may_fit.pinned(request) if may_fit.fields else None


def _may_fit(table: Table, request: PlanRequest) -> Codes:
    """Settings of a table of which bounds do not exclude that they fit."""
    small = np.flatnonzero(table.bound_bytes <= request.cluster.usable_hbm_bytes * (1 + EQUAL))
    return small[fits_somehow(table.rows.take(small), request)] if len(small) else small


def quick_plan(request: PlanRequest, seconds: float) -> Estimate | None:
    """A plan that fits and is fast among those looked at: a sample of settings, priced with equal stages.

    Parameters
    ----------
    seconds
        Time limit. [s]
    """
    start = time.monotonic()
    priced_until, deadline = start + PRICED_SHARE * seconds, start + seconds
    usable, best = request.cluster.usable_hbm_bytes, None
    space = LeanSpace(request, priced_until)
    lean = np.flatnonzero(space.state_bytes <= usable)
    rows, bound = space.completed(lean[:: len(lean) // SAMPLED_STATES + 1])
    small = np.flatnonzero(bound <= usable)
    rows = rows.take(small[:: len(small) // SAMPLED_SETTINGS + 1])
    step_s = _equal_stage_seconds(rows, request, priced_until)
    for index in np.argsort(step_s, kind="stable")[: np.count_nonzero(np.isfinite(step_s))]:
        plan = with_stages(plan_at(rows, int(index)), request.model)
        if not broken_rules(plan, request):
            found = evaluate(plan, request)
            if best is None or found.step_time_s < best.step_time_s:
                best = found
            else:
                break
        if time.monotonic() > deadline:
            break
    return best


def _equal_stage_seconds(rows: Rows, request: PlanRequest, deadline: float) -> Floats:
    """Step time with equal stages, of the most frequent kinds first; infinite where the time ended. [s]."""
    seconds = np.full(len(rows), np.inf)
    for chosen, setting in sorted(settings_by_category(rows), key=lambda group: -len(group[0])):
        seconds[chosen] = balanced_step_time(setting, request).total
        if time.monotonic() > deadline:
            break
    return seconds


def _searched(request: PlanRequest, seconds: float) -> Verdict:
    from planner.solver import solve, uninterrupted

    result = uninterrupted(solve(request, top=1, time_limit_s=max(seconds, 0.1)))
    return Verdict(result.best.plan if result.best else None, result.status != "time-limit")


def peak_bytes(plan: Plan, request: PlanRequest) -> float:
    """Peak memory of the fullest pipeline rank. [byte]."""
    return max(float(stage.total) for stage in memory(plan, request))
