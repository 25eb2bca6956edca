"""The pin grammar: what a user may write after ``--tp``, ``--schedule`` and the other plan options.

One option takes one or several words, separated by commas:

| word      | meaning                                  | example                 |
|-----------|------------------------------------------|-------------------------|
| ``8``     | this value                               | ``--tp 8``              |
| ``4,8``   | one of these values                      | ``--tp 4,8``            |
| ``1:8``   | from 1 to 8, both included               | ``--pp 1:8``            |
| ``4:``    | at least 4 (``:4``: at most 4)           | ``--dp 4:``             |
| ``!8``    | any value but this (also ``not-8``)      | ``--schedule not-gpipe``|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from planner.errors import BadInput, did_you_mean
from planner.spec.plan import ContextParallelKind, Offload, RankOrder, Recompute, Schedule
from planner.spec.request import Pin

MAX_COUNT = 10**9
"""Larger degrees are typing mistakes, not requests."""

_BOOLEANS = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


@dataclass(frozen=True, slots=True)
class PinOption:
    """One plan field that a user can pin.

    ``choices`` lists the words of a categorical field; integer fields have none and start at ``lowest``.
    """

    option: str
    field: str
    help: str
    choices: tuple[str, ...] = ()
    lowest: int = 1
    highest: int = MAX_COUNT
    boolean: bool = False
    aliases: tuple[str, ...] = ()


PIN_OPTIONS: tuple[PinOption, ...] = (
    PinOption("--tp", "tensor_parallel", "Tensor parallel degree (t).", aliases=("--tensor-parallel",)),
    PinOption("--pp", "pipeline_parallel", "Pipeline parallel degree (p).", aliases=("--pipeline-parallel",)),
    PinOption("--vpp", "virtual_stages", "Model chunks per pipeline rank (v).",
              aliases=("--virtual-stages",)),
    PinOption("--dp", "data_parallel", "Data parallel degree (d).", aliases=("--data-parallel",)),
    PinOption("--cp", "context_parallel", "Context parallel degree (c).", aliases=("--context-parallel",)),
    PinOption("--cp-kind", "context_parallel_kind", "Exchange of context parallelism.",
              choices=get_args(ContextParallelKind), aliases=("--context-parallel-kind",)),
    PinOption("--ep", "expert_parallel", "Expert parallel degree (e).", aliases=("--expert-parallel",)),
    PinOption("--etp", "expert_tensor_parallel", "Tensor parallel degree inside an expert.",
              aliases=("--expert-tensor-parallel",)),
    PinOption("--zero", "zero_stage", "ZeRO stage, 0 to 3 (3 is FSDP).", lowest=0, highest=3,
              aliases=("--zero-stage",)),
    PinOption("--shard-group", "shard_group_size", "Ranks over which ZeRO shards (HSDP).",
              aliases=("--shard-group-size",)),
    PinOption("--sp", "sequence_parallel", "Sequence parallelism beside tensor parallelism.", boolean=True,
              aliases=("--sequence-parallel",)),
    PinOption("--micro-batch", "micro_batch", "Sequences per replica and micro-batch (b)."),
    PinOption("--num-microbatches", "num_microbatches", "Micro-batches per replica and step (m)."),
    PinOption("--recompute", "recompute", "Activation recomputation.", choices=get_args(Recompute)),
    PinOption("--schedule", "schedule", "Pipeline schedule.", choices=get_args(Schedule)),
    PinOption("--offload", "offload", "What moves to host memory.", choices=get_args(Offload)),
    PinOption("--rank-order", "rank_order", "Which axis numbers ranks fastest, which slowest.",
              choices=get_args(RankOrder)),
)  # fmt: skip

OPTION_OF_FIELD = {option.field: option.option for option in PIN_OPTIONS}
"""The option that pins a plan field, for sentences such as 'change it with --tp'."""


def parse_pin(option: PinOption, text: str) -> Pin:
    """Read what the user wrote after one pin option.

    Raises
    ------
    BadInput
        A word is not a value, a range or a ban of this field, or the words leave no value.
    """
    said = f"{option.option} {text}"
    words = [part.strip() for part in text.split(",")]
    bans = [ban for word in words if (ban := _banned(word)) is not None]
    ranges = [word for word in words if ":" in word and not (option.choices or option.boolean)]
    values = [word for word in words if _banned(word) is None and word not in ranges]
    if len(ranges) > 1 or (ranges and values):
        raise BadInput(f"{said}: one range, or single values, but not both (bans such as !8 may follow)")
    minimum, maximum = _range(option, ranges[0], said) if ranges else (None, None)
    allowed = [_value(option, word, said) for word in values]
    pin = Pin(
        field=option.field,
        allowed=tuple(allowed) or None,
        minimum=minimum,
        maximum=maximum,
        forbidden=tuple(_value(option, ban, said) for ban in bans),
        option=said,
    )
    _refuse_empty(option, pin)
    return pin


def _banned(word: str) -> str | None:
    for prefix in ("!", "not-"):
        if word.startswith(prefix):
            return word[len(prefix) :]
    return None


def _range(option: PinOption, word: str, said: str) -> tuple[int | None, int | None]:
    low, _, high = word.partition(":")
    if not low and not high:
        raise BadInput(f"{said}: a range needs at least one end, such as 1:8 or 4:")
    minimum = _integer(option, low, said) if low else None
    maximum = _integer(option, high, said) if high else None
    if minimum is not None and maximum is not None and minimum > maximum:
        raise BadInput(f"{said}: the range is empty because {minimum} is more than {maximum}")
    return minimum, maximum


def _value(option: PinOption, word: str, said: str) -> int | str | bool:
    if option.boolean:
        if word.lower() not in _BOOLEANS:
            raise BadInput(f"{said}: {word!r} is not one of on, off")
        return _BOOLEANS[word.lower()]
    if option.choices:
        spelled = {choice.replace("-", "_"): choice for choice in option.choices}
        folded = spelled.get(word.lower().replace("-", "_"))
        if folded is None:
            allowed = ", ".join(option.choices)
            raise BadInput(f"{said}: {word!r} is not one of {allowed}{did_you_mean(word, option.choices)}")
        return folded
    return _integer(option, word, said)


def _integer(option: PinOption, word: str, said: str) -> int:
    plain = word.strip()
    if not (plain.isascii() and plain.lstrip("+-").isdigit() and len(plain) < 20):
        raise BadInput(f"{said}: {word!r} is not a whole number, a range such as 1:8 or a ban such as !8")
    value = int(plain)
    if not option.lowest <= value <= option.highest:
        top = f"to {option.highest}" if option.highest < MAX_COUNT else "or more"
        raise BadInput(f"{said}: {value} is out of range; {option.lowest} {top} is possible")
    return value


def _refuse_empty(option: PinOption, pin: Pin) -> None:
    if pin.allowed is not None:
        left: list[int | str | bool] = [value for value in pin.allowed if pin.admits(value)]
    elif option.boolean:
        left = [value for value in (False, True) if pin.admits(value)]
    else:
        left = [value for value in option.choices if pin.admits(value)]
        if not option.choices:
            return
    if not left:
        raise BadInput(f"{pin.option}: these words together leave no value")
