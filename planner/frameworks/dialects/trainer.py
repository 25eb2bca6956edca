"""Read scripts, programs and YAML around Hugging Face's Trainer: replicas, FSDP, or a named DeepSpeed file.

Names and defaults: transformers ``TrainingArguments`` (``fsdp`` is ``full_shard``, ``shard_grad_op``,
``hybrid_shard``, with ``offload`` and ``auto_wrap``; 8 sequences a device where nothing is said). TRL's
configurations of supervised and preference training differ in a few defaults (trl/trainer/base_config.py).
"""

from __future__ import annotations

import re
from typing import Any

from planner.frameworks.dialects.common import (
    LAUNCHERS,
    TRAINER,
    checkpoints,
    flags,
    gathered,
    paired,
    value_of,
)
from planner.frameworks.launch import Found, Key, LaunchFile, positive, text, yes
from planner.frameworks.text_formats import python_settings, yaml_settings


def _sharding(value: Any) -> str:
    words = str(value).lower()
    if "hybrid" in words:
        return "HYBRID_SHARD_ZERO2" if "zero2" in words else "HYBRID_SHARD"
    return "SHARD_GRAD_OP" if "grad_op" in words else "FULL_SHARD"


def _offload(value: Any) -> bool:
    return "offload" in str(value).lower()


def _lora(value: Any) -> str:
    return "lora" if yes(value) else "full"


KEYS: dict[str, Key] = {
    **TRAINER,
    "model_name": Key("named_model", text),
    "block_size": Key("seq_length", positive),
    "use_peft": Key("finetune", _lora),
    "model_max_length": Key("seq_length", positive),
    "cutoff_len": Key("seq_length", positive),
    "fsdp": Key("sharding", _sharding),
    **LAUNCHERS,
}
_PROGRAM = re.compile(r"\b(TrainingArguments|(SFT|DPO|KTO|ORPO|CPO|Reward|GRPO)Config)\(")
_YAML = re.compile(r"(?m)^per_device_train_batch_size\s*:")
_TRL = re.compile(r"\b(SFT|DPO|KTO|ORPO|CPO|Reward)Config\(|\btrl\s+(sft|dpo|kto|orpo|cpo|reward)\b")
TRL_DEFAULTS = {"seq_length": 1024, "checkpointing": True, "bf16": True}
"""What TRL's own configurations take where nothing is said."""
PAIRED = {"dpo": True, "orpo": False, "cpo": False, "reward": False}
"""TRL's trainers whose samples are pairs, and whether a frozen reference is held as well."""


def read(source: str, path: str) -> LaunchFile:
    """Read a script's flags, a program's calls or a YAML of arguments; nothing is executed.

    ``fsdp`` says both how state is sharded and whether it is offloaded. A YAML leaves the engine to the file
    beside it.
    """
    found = _found(source, path)
    kind = "".join(next(iter(_TRL.findall(source)), ())).lower()
    defaults: dict[str, Any] = {"micro_batch": 8, **(TRL_DEFAULTS if kind else {})}
    fsdp = value_of(found, "fsdp")
    if value_of(found, "deepspeed"):
        launch = gathered("deepspeed", found, KEYS, path, defaults)
    else:
        if fsdp or not _YAML.search(source):
            defaults |= {"distributed_type": "FSDP" if fsdp else "MULTI_GPU", "offload": _offload(fsdp)}
        launch = gathered("accelerate", found, KEYS, path, defaults)
    return paired(launch, beside_reference=PAIRED[kind]) if kind in PAIRED else launch


def _found(source: str, path: str) -> list[Found]:
    if _PROGRAM.search(source):
        return _program(source, path)
    return yaml_settings(source, path) if _YAML.search(source) else flags(source, path)


def _program(source: str, path: str) -> list[Found]:
    """Arguments that calls give as literals, and the checkpoint that is loaded."""
    dtype = re.finditer(r"\b(?:torch_)?dtype\s*=\s*(torch\.\w+)", source)
    loaded = [Found("dtype", at.group(1), path, source.count("\n", 0, at.start()) + 1) for at in dtype]
    return [*loaded, *python_settings(source, path), *checkpoints(source, path)]
