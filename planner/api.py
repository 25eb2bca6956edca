"""The commands as Python functions: same options, same objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from planner.cost.stage import with_stages
from planner.errors import BadInput, did_you_mean
from planner.request import Question, read_pins
from planner.spec import Pin, Plan, PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate, PlanResult

MAX_TOP = 100


def question(options: Mapping[str, Any]) -> PlanRequest:
    """Build a request from keyword options; pins may stand beside the other options (``tp=8``)."""
    fields = Question.__dataclass_fields__
    own = {name: value for name, value in options.items() if name in fields}
    pins = {name: str(value) for name, value in options.items() if name not in fields}
    own["pins"] = {**own.get("pins", {}), **pins}
    return Question(**own).request()


def plan(
    *, top: int = 5, time_limit_s: float = 60.0, workers: int | None = None, **options: Any
) -> PlanResult:
    """Find the best plans, best first.

    Parameters
    ----------
    top
        Plans to return, 1 to 100.
    time_limit_s
        Search time after which the best plans so far are returned. [s]
    workers
        Solver threads; all cores when None.
    options
        Fields of ``planner.request.Question`` (``model``, ``gpus``, ``hardware``, ``global_batch``, ...) and
        pins by their option word (``tp=8``, ``pp="1:8"``, ``schedule="!gpipe"``).

    Raises
    ------
    BadInput
        An option is unknown, out of range or contradictory.

    Examples
    --------
    >>> from planner import plan
    >>> best = plan(model="llama-3-8b", gpus=8, top=1).plans[0]  # doctest: +SKIP
    """
    from planner.solver import solve

    if not 1 <= top <= MAX_TOP:
        raise BadInput(f"top {top}: must be from 1 to {MAX_TOP}")
    if not time_limit_s > 0:
        raise BadInput(f"time_limit_s {time_limit_s}: must be more than zero")
    return solve(question(options), top=top, time_limit_s=time_limit_s, workers=workers)


def estimate(given: Plan | None = None, **options: Any) -> Estimate:
    """Price one plan: seconds and bytes by cause, broken rules, whether it fits.

    Parameters
    ----------
    given
        The plan. Without it, the pins say it (``tp=8, pp=4``); fields not pinned take the plainest value,
        and the data-parallel degree and micro-batches fill the cluster and the batch.
    options
        As for ``plan``.
    """
    from planner.solver.evaluate import evaluate

    request = question(options)
    return evaluate(given or pinned_plan(request), request)


def pinned_plan(request: PlanRequest) -> Plan:
    """Return the one plan that single-valued pins describe, the rest filled in plainly.

    Raises
    ------
    BadInput
        A pin leaves more than one value, so that there is no single plan to price.
    """
    said = {pin.field: _single(pin) for pin in request.pins}
    return complete(said, request)


def _single(pin: Pin) -> int | str | bool:
    values = [value for value in pin.allowed or () if pin.admits(value)]
    if len(values) == 1:
        return values[0]
    if pin.minimum is not None and pin.minimum == pin.maximum:
        return pin.minimum
    raise BadInput(
        f"{pin.option}: one plan needs one value here (plan-parallel plan accepts lists and ranges)"
    )


def complete(said: Mapping[str, int | str | bool], request: PlanRequest) -> Plan:
    """Fill the unsaid fields: d from the GPU count, m from the batch, the rest as plain as possible."""
    unknown = [name for name in said if name not in Plan.model_fields]
    if unknown:
        raise BadInput(f"unknown plan field {unknown[0]!r}{did_you_mean(unknown[0], Plan.model_fields)}")
    values: dict[str, Any] = dict(said)
    degree = {
        name: int(values.get(name, 1))
        for name in ("tensor_parallel", "pipeline_parallel", "context_parallel")
    }
    t, p, c = degree.values()
    d = int(values.setdefault("data_parallel", max(1, request.cluster.num_gpus // (t * p * c))))
    values.setdefault("virtual_stages", 1)
    values.setdefault("schedule", _plain_schedule(p, int(values["virtual_stages"])))
    values.setdefault("micro_batch", 1)
    replica = max(1, request.workload.global_batch // d)
    values.setdefault("num_microbatches", max(1, replica // int(values["micro_batch"])))
    values.setdefault("zero_stage", 1 if 1 in request.framework.limits.zero_stages else 0)
    values.setdefault("shard_group_size", d * c if values["zero_stage"] else 1)
    values.setdefault("sequence_parallel", t > 1)
    values.setdefault("precision", request.workload.precisions[0])
    values.setdefault("expert_tensor_parallel", 1)
    return with_stages(_valid_plan(values), request.model)


def _valid_plan(values: Mapping[str, Any]) -> Plan:
    try:
        return Plan(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{first['loc'][0]} = {first['input']!r}: {first['msg']}") from error


def _plain_schedule(pipeline_parallel: int, virtual_stages: int) -> str:
    if pipeline_parallel == 1:
        return "none"
    return "interleaved" if virtual_stages > 1 else "1f1b"


__all__ = ["complete", "estimate", "pinned_plan", "plan", "question", "read_pins"]
