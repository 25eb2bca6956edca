"""Samples packed into rows: what Megatron and the trainers on it ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import prod

from planner.frameworks.launch import Found, LaunchFile
from planner.frameworks.lint.findings import Finding, finding
from planner.frameworks.needs import OFF, Said

PACKED = ("packing", "packed_sequence_size", "sequence_packing.enabled", "packing_samples", "neat_packing")
"""Settings that put several samples into a row, by the ends of their names."""
RULE = "settings-need-others"


def packing_findings(launch: LaunchFile, said: Said) -> Iterator[Finding]:
    """Yield what packed rows lack beside context parallelism and micro-batches."""
    packed = _on(launch, *PACKED)
    parts = (_of_nemo_rl(launch), _micro_batch(launch, packed), _multiples(launch, said, packed))
    return chain.from_iterable(parts)


def _of_nemo_rl(launch: LaunchFile) -> Iterator[Finding]:
    """What NeMo-RL refuses of its samples' lengths.

    References
    ----------
    NeMo-RL models/megatron/setup.py ``_apply_parallelism_config``.
    """
    said = {entry.key: entry for entry in launch.found if entry.key.startswith("policy.")}
    packing = said.get("policy.sequence_packing.enabled")
    context = launch.fields.get("context_parallel")
    ranks = launch.get("context_parallel", 1)
    if launch.framework == "megatron" and packing is not None:
        if _is_on(packing):
            yield from _padded(launch, said.get("policy.make_sequence_length_divisible_by"))
        elif context is not None and ranks > 1:
            message = f"{context.key} {ranks} needs sequence_packing.enabled: true (NeMo-RL on Megatron)"
            yield finding(context, "error", RULE, message)


def _padded(launch: LaunchFile, at: Found | None) -> Iterator[Finding]:
    """What NeMo-RL pads a sample to.

    References
    ----------
    NeMo-RL models/megatron/data.py ``_get_pack_sequence_parameters_for_megatron``.
    """
    ranks, tensor = launch.get("context_parallel", 1), launch.get("tensor_parallel", 1)
    parts = {f"2 x {ranks} context ranks": 2 * ranks} if ranks > 1 else {}
    if tensor > 1 and launch.get("sequence_parallel", False):
        parts[f"{tensor} tensor ranks"] = tensor
    unit = prod(parts.values())
    if at is None or not str(at.value).isdigit() or int(at.value) % unit == 0:
        return
    best = -(-int(at.value) // unit) * unit
    message = f"{at.key} {at.value} is not a multiple of {' x '.join(parts)} = {unit} (nearest: {best})"
    yield finding(at, "error", RULE, message)


def _micro_batch(launch: LaunchFile, packed: Found | None) -> Iterator[Finding]:
    """Rows that were packed before are a micro-batch each.

    References
    ----------
    Megatron-Bridge training/config.py ``ConfigContainer.validate``; ms-swift's ``padding_free`` joins rows.
    """
    rows = launch.get("micro_batch", 1)
    if packed is None or not packed.key.endswith("packed_sequence_size") or rows == 1:
        return
    at = launch.fields["micro_batch"]
    message = (
        f"{at.key} {rows} does not go with packed samples: a row of {packed.value} tokens is a micro-batch; "
        f"the same in one is {at.key} 1, rows of {rows} x {packed.value}, the global batch over {rows}"
    )
    yield finding(at, "error", RULE, message)


def _multiples(launch: LaunchFile, said: Said, packed: Found | None) -> Iterator[Finding]:
    """Each sample of a row is cut into two pieces a context rank.

    References
    ----------
    Transformer Engine context_parallel.py (``thd``): every length of a row is a multiple of 2c.
    """
    ranks = launch.get("context_parallel", 1)
    if packed is None or ranks == 1 or launch.get("context_parallel_kind", "ring") == "all_to_all":
        return
    unit = 2 * ranks
    asked = f"a multiple of {unit} tokens (2 x {ranks} context ranks)"
    entry = said.get("pad_seq_to_mult")
    if entry is not None and str(entry.value).isdigit():
        size = int(str(entry.value))
        if not size or size % unit:
            best = max(unit, -(-size // unit) * unit)
            message = f"{entry.key} {size}: every packed sample has to be {asked}; nearest: {best}"
            yield finding(entry, "warning", "packed-samples-are-padded", message)
        return
    if said.get("make_sequence_length_divisible_by") is not None:
        return  # NeMo-RL's own check
    message = (
        f"every packed sample, not only the row, has to be padded to {asked}; padding is computed as well"
    )
    yield finding(packed, "note", "packed-samples-are-padded", message)


def _on(launch: LaunchFile, *names: str) -> Found | None:
    """The setting of these that is on, by how its name ends."""
    for entry in launch.found:
        key = entry.key.lstrip("-").replace("-", "_")
        if any(key == name or key.endswith("." + name) for name in names) and _is_on(entry):
            return entry
    return None


def _is_on(entry: Found) -> bool:
    return str(entry.value).lower() not in OFF | {"0", "-1"}
