"""Plans as people write them in an answer: ``t=8 p=2 d=4 zero=1 b=1 recompute=full``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from planner.catalog.pins import PIN_OPTIONS, PinOption, parse_pin
from planner.cost.stage import with_stages
from planner.cost.words import LETTERS
from planner.errors import BadInput, did_you_mean
from planner.spec import Plan, PlanRequest


def _known() -> dict[str, PinOption]:
    known = {}
    for option in PIN_OPTIONS:
        words = (option.option, *option.aliases, option.field, LETTERS.get(option.field, option.field))
        known.update({word.removeprefix("--").replace("-", "_"): option for word in words})
    return known


def read_plan(text: str, request: PlanRequest) -> Plan:
    """Read ``t=8 p=2 ...`` (or ``tp=8``, ``tensor_parallel=8``); what is not said is filled in plainly.

    Raises
    ------
    BadInput
        A word is no setting, or its value is none.
    """
    said: dict[str, Any] = {}
    known = _known()
    for word in re.sub(r"\s*=\s*", "=", text.replace(",", " ")).split():
        name, equals, value = word.partition("=")
        key = name.lstrip("-").lower().replace("-", "_")
        if not equals or key not in known:
            raise BadInput(f"{word!r} is no setting{did_you_mean(key, known)}; write t=8 p=1 d=8 zero=1 b=1")
        pin = parse_pin(known[key], value)
        if pin.allowed is None or len(pin.allowed) != 1:
            raise BadInput(f"{word!r}: a plan needs one value here")
        if known[key].field in said:
            raise BadInput(f"{name} is given twice")
        said[known[key].field] = pin.allowed[0]
    if not said:
        raise BadInput("an empty plan; write t=8 p=1 d=8 zero=1 b=1")
    return complete(said, request)


def complete(said: Mapping[str, Any], request: PlanRequest) -> Plan:
    """Fill in the unsaid: d from the GPUs, m from the batch, ZeRO over all replicas, 1F1B with a pipeline."""
    values: dict[str, Any] = dict(said)
    t, p = values.get("tensor_parallel", 1), values.get("pipeline_parallel", 1)
    d = values.setdefault("data_parallel", max(1, request.cluster.num_gpus // (t * p)))
    values.setdefault("schedule", "none" if p == 1 else "1f1b")
    b = values.setdefault("micro_batch", 1)
    values.setdefault("num_microbatches", max(1, request.workload.global_batch // (d * b)))
    zero = values.setdefault("zero_stage", 1)
    values.setdefault("shard_group_size", d if zero else 1)
    values.setdefault("sequence_parallel", t > 1)
    values.setdefault("precision", request.workload.precisions[0])
    try:
        return with_stages(Plan(**values), request.model)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{first['loc'][0]} = {first['input']!r}: {first['msg']}") from error


def plan_words(plan: Plan) -> str:
    """Settings of a plan in the words that ``read_plan`` reads."""
    fields = (
        "tensor_parallel", "pipeline_parallel", "data_parallel", "zero_stage", "micro_batch",
        "num_microbatches",
    )  # fmt: skip
    words = [f"{LETTERS[field]}={getattr(plan, field)}" for field in fields]
    if plan.tensor_parallel > 1:
        words.append(f"sp={'on' if plan.sequence_parallel else 'off'}")
    return " ".join([*words, f"recompute={plan.recompute}"])
