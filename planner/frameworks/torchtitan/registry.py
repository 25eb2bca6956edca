"""What torchtitan's registry sets where a command only names one of its configurations."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from planner.frameworks.launch import Found

KEYS = {
    "batch": "training.local_batch_size",
    "length": "training.seq_len",
    "checkpointing": "activation_checkpoint.mode",
    "tp": "parallelism.tensor_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
    "schedule": "parallelism.pipeline_parallel_schedule",
    "converters": "model.converters",
}
"""Columns of the table and the settings that they are."""
IN_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"


@cache
def configurations() -> dict[str, dict[str, Any]]:
    """Return the table: settings by the name of the configuration."""
    return tomllib.loads(Path(__file__).with_name("registry.toml").read_text(encoding="utf-8"))


def with_registry(said: Sequence[Found], renamed: Mapping[str, str]) -> list[Found]:
    """Put the settings of a named configuration before those of the command, which win.

    Parameters
    ----------
    renamed
        Names of older releases and those that they have now.
    """
    named = next((entry for entry in said if entry.key == "config"), None)
    name = "" if named is None else _word(named.value)
    if named is None or name not in configurations():
        return list(said)
    table = configurations()[name]
    ours = {renamed.get(entry.key, entry.key) for entry in said}
    base = {KEYS[column]: value for column, value in table.items() if column in KEYS}
    base["loss.num_chunks"] = 8  # ChunkedLossWrapper, in all of them
    if "training.max_context_length" in ours:
        base[IN_TOKENS] = table["batch"] * table["length"]
        del base[KEYS["length"]]
    if {"training.max_context_length", IN_TOKENS} & ours:
        del base[KEYS["batch"]]
    entries = [Found(key, base[key], named.path, named.line) for key in base if key not in ours]
    rest = [
        Found("config", table["model"], entry.path, entry.line)
        if entry is named and "model" in table
        else entry
        for entry in said
    ]
    return entries + rest


def _word(value: Any) -> str:
    """A name without the arguments that a script passes on behind it."""
    return str(value[0] if isinstance(value, list) and value else value)
