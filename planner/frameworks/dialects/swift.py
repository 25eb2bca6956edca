"""Read ms-swift: ``megatron sft`` runs megatron-core, ``swift sft`` Hugging Face's Trainer.

Names and defaults: modelscope/ms-swift swift/megatron/arguments/megatron_args.py and swift/arguments.
"""

from __future__ import annotations

import re
from typing import Any

from planner.frameworks.deepspeed.read import group_size
from planner.frameworks.dialects.common import (
    LAUNCHERS,
    TRAINER,
    adapter,
    flags,
    gathered,
    paired,
    value_of,
)
from planner.frameworks.launch import Found, Key, LaunchFile, one_of, positive, text
from planner.frameworks.megatron.read import KEYS as MEGATRON

_SHARED: dict[str, Key] = {
    "model": Key("named_model", text),
    "max_length": Key("seq_length", positive),
    "train_type": Key("finetune", adapter),
    "tuner_type": Key("finetune", adapter),
}


def _granularity(value: Any) -> str | None:
    word = one_of("full", "selective", "none")(value)
    return None if word == "none" else word


_MEGATRON: dict[str, Key] = {
    **MEGATRON,
    **_SHARED,
    "load": Key("named_model", text),
    "virtual_pipeline_model_parallel_size": Key("virtual_stages", positive),
    "recompute_granularity": Key("recompute_granularity", _granularity),
    **LAUNCHERS,
}
_MEGATRON_DEFAULTS = {
    "global_batch": 16,
    "distributed_optimizer": True,
    "expert_tensor_parallel": 1,
    "bf16": True,
}
_TRAINER: dict[str, Key] = {
    **TRAINER,
    **_SHARED,
    "sequence_parallel_size": Key("context_parallel", positive),
    "deepspeed_autotp_size": Key("tensor_parallel", positive),
    "zero_hpz_partition_size": Key("second_copy_ranks", group_size),
    **LAUNCHERS,
}


PAIRED = {"dpo": True, "cpo": False, "orpo": False, "simpo": False, "rm": False}
"""Values of ``rlhf_type`` whose samples are pairs, and whether a frozen reference is held as well."""


def read(source: str, path: str) -> LaunchFile:
    """Read a script that starts ``megatron sft`` or ``swift sft`` (or ``pt``, ``rlhf``)."""
    found = flags(source, path)
    launch = _read(found, source, path)
    loss = str(value_of(found, "rlhf_type", ""))
    return paired(launch, beside_reference=PAIRED[loss]) if loss in PAIRED else launch


def _read(found: list[Found], source: str, path: str) -> LaunchFile:
    if re.search(r"\bmegatron\s+(sft|pt|rlhf)\b", source):
        named = "model" if any(entry.key == "model" for entry in found) else "load"
        keys = {name: key for name, key in _MEGATRON.items() if name == named or key.field != "named_model"}
        plain = value_of(found, "recompute_granularity") is None
        granularity = {"recompute_granularity": "selective"} if plain else {}
        return gathered("megatron", found, keys, path, _MEGATRON_DEFAULTS | granularity)
    defaults = {"finetune": "lora", "bf16": True, "checkpointing": True}
    if value_of(found, "deepspeed") or value_of(found, "sequence_parallel_size"):  # which is Ulysses
        return gathered("deepspeed", found, _TRAINER, path, defaults)
    fsdp = {"distributed_type": "FSDP"} if value_of(found, "fsdp") else {}
    return gathered("accelerate", found, _TRAINER, path, defaults | fsdp)
