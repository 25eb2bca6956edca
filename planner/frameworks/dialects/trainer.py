"""Read scripts around Hugging Face's Trainer without DeepSpeed: plain replicas, or FSDP with ``--fsdp``.

Names and defaults: transformers ``TrainingArguments`` (``fsdp`` is ``full_shard``, ``shard_grad_op``,
``hybrid_shard``, with ``offload`` and ``auto_wrap``; 8 sequences a device where nothing is said).
"""

from __future__ import annotations

from typing import Any

from planner.frameworks.dialects.common import LAUNCHERS, TRAINER, flags, gathered, value_of
from planner.frameworks.launch import Key, LaunchFile, positive


def _sharding(value: Any) -> str:
    words = str(value).lower()
    return "SHARD_GRAD_OP" if "grad_op" in words else "FULL_SHARD"


def _offload(value: Any) -> bool:
    return "offload" in str(value).lower()


KEYS: dict[str, Key] = {
    **TRAINER,
    "model_max_length": Key("seq_length", positive),
    "cutoff_len": Key("seq_length", positive),
    "fsdp": Key("sharding", _sharding),
    **LAUNCHERS,
}


def read(source: str, path: str) -> LaunchFile:
    """Read a script; its ``--fsdp`` says both how state is sharded and whether it is offloaded."""
    found = flags(source, path)
    fsdp = value_of(found, "fsdp")
    engine = {"distributed_type": "FSDP" if fsdp else "MULTI_GPU"}
    return gathered("accelerate", found, KEYS, path, {**engine, "micro_batch": 8, "offload": _offload(fsdp)})
