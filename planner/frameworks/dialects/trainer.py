"""Read scripts and programs around Hugging Face's Trainer: plain replicas, FSDP, or a named DeepSpeed file.

Names and defaults: transformers ``TrainingArguments`` (``fsdp`` is ``full_shard``, ``shard_grad_op``,
``hybrid_shard``, with ``offload`` and ``auto_wrap``; 8 sequences a device where nothing is said).
"""

from __future__ import annotations

import re
from typing import Any

from planner.frameworks.dialects.common import LAUNCHERS, TRAINER, flags, gathered, value_of
from planner.frameworks.launch import Found, Key, LaunchFile, positive
from planner.frameworks.text_formats import python_settings


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
_PROGRAM = re.compile(r"\b(TrainingArguments|(SFT|DPO|KTO|ORPO|Reward|GRPO)Config)\(")
_CHECKPOINT = re.compile(r"\bAutoModel\w*\.from_pretrained\(\s*[\"']([^\"']+)[\"']")


def read(source: str, path: str) -> LaunchFile:
    """Read a script's flags, or a program's calls; nothing is executed.

    ``fsdp`` says both how state is sharded and whether it is offloaded.
    """
    found = _program(source, path) if _PROGRAM.search(source) else flags(source, path)
    if value_of(found, "deepspeed"):
        return gathered("deepspeed", found, KEYS, path, {"micro_batch": 8})
    fsdp = value_of(found, "fsdp")
    defaults = {"distributed_type": "FSDP" if fsdp else "MULTI_GPU", "offload": _offload(fsdp)}
    return gathered("accelerate", found, KEYS, path, {**defaults, "micro_batch": 8})


def _program(source: str, path: str) -> list[Found]:
    """Arguments that calls give as literals, and the checkpoint that is loaded."""
    found = python_settings(source, path)
    for match in _CHECKPOINT.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        found.append(Found("model_name_or_path", match.group(1), path, line))
    return found
