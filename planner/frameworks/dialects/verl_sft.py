"""Read verl's supervised trainer with its FSDP engine, read as ZeRO-3 like the actor's.

Names and defaults: verl trainer/config/sft_trainer_engine.yaml (dynamic batches: rows of
``max_token_len_per_gpu`` tokens); older releases say ``model.partial_pretrain`` and pad to ``max_length``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.frameworks.dialects.common import LAUNCHERS, flags, gathered, product, value_of
from planner.frameworks.launch import Found, Key, LaunchFile, positive, text, whole, yes
from planner.frameworks.shell import read_pairs


def _adapters(value: object) -> str:
    return "full" if whole(value) == 0 else "lora"


KEYS: dict[str, Key] = {
    "model.path": Key("named_model", text),
    "model.partial_pretrain": Key("named_model", text),
    "model.enable_gradient_checkpointing": Key("checkpointing", yes),
    "model.lora_rank": Key("finetune", _adapters),
    "data.train_batch_size": Key("global_batch", positive),
    "data.micro_batch_size_per_gpu": Key("micro_batch", positive),
    "data.max_length": Key("seq_length", positive),
    "engine.ulysses_sequence_parallel_size": Key("context_parallel", positive),
    "ulysses_sequence_parallel_size": Key("context_parallel", positive),
    "trainer.nnodes": Key("launcher.nodes", positive),
    "trainer.n_gpus_per_node": Key("launcher.processes_per_node", positive),
    **LAUNCHERS,
}


def read(source: str, path: str) -> LaunchFile:
    """Read a command."""
    names = r"(?:(?:model|data|engine|trainer)\.[\w.]+|ulysses_sequence_parallel_size)"
    pairs = [replace(entry, value=str(entry.value).strip("\"'")) for entry in read_pairs(source, path, names)]
    found = [*flags(source, path), *pairs]
    defaults: dict[str, Any] = {"zero_stage": 3, "bf16": True, "checkpointing": True, "global_batch": 256}
    if (
        "fsdp_sft_trainer" in source
        or str(value_of(found, "data.use_dynamic_bsz", "true")).lower() == "false"
    ):
        return gathered("deepspeed", found, KEYS, path, {"seq_length": 1024, "micro_batch": 4, **defaults})
    rows = {name: key for name, key in KEYS.items() if key.field not in {"seq_length", "micro_batch"}}
    return gathered("deepspeed", found, rows, path, {"seq_length": _row(found), "micro_batch": 1, **defaults})


def _row(found: list[Found]) -> int:
    """Tokens of one row of a dynamic batch, over all its context ranks."""
    most = product(found, "data.max_token_len_per_gpu") or 8192
    for name in ("engine.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size"):
        ranks = product(found, name)
        if ranks is not None:
            return most * ranks
    return most
