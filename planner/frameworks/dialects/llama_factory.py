"""Read LLaMA-Factory: YAML, JSON or flags around Hugging Face's Trainer.

Names and defaults: hiyouga/LLaMA-Factory src/llamafactory/hparams (``cutoff_len``, ``finetuning_type``;
activations are checkpointed unless ``disable_gradient_checkpointing``; the default is LoRA, ``cutoff_len``
2048).
"""

from __future__ import annotations

from typing import Any

from planner.frameworks.dialects.common import (
    LAUNCHERS,
    TRAINER,
    adapter,
    chunked,
    flags,
    fused,
    gathered,
    half,
    paired,
    summed,
    value_of,
)
from planner.frameworks.launch import Found, Key, LaunchFile, positive, text, yes
from planner.frameworks.text_formats import json_settings, yaml_settings


def _kept(value: Any) -> bool:
    return not yes(value)


PAIRED = frozenset({"dpo", "rm"})
"""Stages whose samples are pairs of a chosen and a rejected answer."""
WITHOUT_REFERENCE = frozenset({"orpo", "simpo"})
"""Values of ``pref_loss`` that compare with no other model."""

KEYS: dict[str, Key] = {
    **TRAINER,
    "cutoff_len": Key("seq_length", positive),
    "finetuning_type": Key("finetune", adapter),
    "disable_gradient_checkpointing": Key("checkpointing", _kept),
    "flash_attn": Key("fused_attention", fused),
    "enable_liger_kernel": Key("loss", chunked),
    "pure_bf16": Key("bf16", half),
    "fsdp": Key("fsdp", text),
    "use_unsloth_gc": Key("activation_offload", yes),
    **LAUNCHERS,
}


def read(source: str, path: str) -> LaunchFile:
    """Read a configuration; DeepSpeed runs where one is named, else FSDP or plain replicas."""
    found = _settings(source, path)
    length = summed(found, "max_source_length", "max_target_length")
    defaults = {"checkpointing": True, "finetune": "lora", "seq_length": length or 2048}
    if value_of(found, "quantization_bit") == 4:
        keys = {name: key for name, key in KEYS.items() if key.field != "finetune"}
        defaults["finetune"] = "qlora"
    else:
        keys = KEYS
    if value_of(found, "pure_bf16"):
        defaults["optimizer"] = "pure-adam"
    if value_of(found, "fsdp"):
        defaults |= {"distributed_type": "FSDP", "offload": "offload" in str(value_of(found, "fsdp"))}
    framework = "deepspeed" if value_of(found, "deepspeed") else "accelerate"
    launch = gathered(framework, found, keys, path, defaults)
    if value_of(found, "stage") not in PAIRED:
        return launch
    alone = value_of(found, "stage") == "rm" or str(value_of(found, "pref_loss")) in WITHOUT_REFERENCE
    return paired(launch, beside_reference=not alone)


def _settings(source: str, path: str) -> list[Found]:
    if source.lstrip().startswith("{"):
        return json_settings(source, path)
    return flags(source, path) if "--finetuning_type" in source else yaml_settings(source, path)
