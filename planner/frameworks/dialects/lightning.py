"""Read Lightning programs and LitGPT's YAML or commands: FSDP over all GPUs, or plain replicas.

Names and defaults: lightning ``Trainer`` and ``Fabric`` (``devices``, ``num_nodes``, ``strategy``,
``precision``, ``accumulate_grad_batches``), Lightning-AI/litgpt litgpt/pretrain.py, finetune/full.py and
finetune/lora.py (activations are checkpointed when fine-tuning over several GPUs; weights of ``bf16-true``
have no master copy; pre-training shards inside a node).
"""

from __future__ import annotations

import re
from typing import Any

from planner.frameworks.dialects.common import (
    LAUNCHERS,
    checkpoints,
    flags,
    gathered,
    given,
    product,
    value_of,
)
from planner.frameworks.launch import Found, Key, LaunchFile, positive, text
from planner.frameworks.text_formats import python_settings, yaml_settings

CROSS_ENTROPY = {"loss_saved_bytes": 4.0, "loss_peak_bytes": 6.0}
"""Per logit of LitGPT's fine-tuning (utils.py ``chunked_cross_entropy``): 16-bit logits, their log-softmax by
chunks, and one gradient. [byte]"""
_LITGPT = re.compile(r"(?m)\blitgpt\s+(pretrain|finetune\w*)\b|^train\s*:")


def _count(value: Any) -> int | None:
    return None if str(value) in {"auto", "-1"} else positive(value)


KEYS: dict[str, Key] = {
    "devices": Key("launcher.processes_per_node", _count),
    "num_nodes": Key("launcher.nodes", positive),
    "accumulate_grad_batches": Key("num_microbatches", positive),
    "batch_size": Key("micro_batch", positive),
    "model_name_or_path": Key("named_model", text),
    "checkpoint_dir": Key("named_model", text),
    "model_name": Key("named_model", text),
    "train.micro_batch_size": Key("micro_batch", positive),
    "train.max_seq_length": Key("seq_length", positive),
    **LAUNCHERS,
}


def read(source: str, path: str) -> LaunchFile:
    """Read a program's calls, a YAML of settings or a command; nothing is executed."""
    if _LITGPT.search(source):
        return _litgpt(source, path)
    found = [*python_settings(source, path), *checkpoints(source, path)]
    strategy = str(value_of(found, "strategy", "")).lower()
    sharded = "fsdp" in strategy or bool(re.search(r"\bFSDPStrategy\(", source))
    own = {"checkpointing": True} if "activation_checkpointing" in source else {}
    return gathered("accelerate", found, KEYS, path, {**_engine(found, sharded), **own})


def _litgpt(source: str, path: str) -> LaunchFile:
    """A step is ``global_batch_size`` samples over all GPUs."""
    is_command = "litgpt" in source and "--" in source
    found = flags(source, path) if is_command else yaml_settings(source, path)
    devices = value_of(found, "devices", 1)
    several = str(devices) != "1" or str(value_of(found, "num_nodes", 1)) != "1"
    is_tuned = value_of(found, "checkpoint_dir") is not None or "finetune" in source
    pretrained = {} if is_tuned else {"train.global_batch_size": 512, "train.micro_batch_size": 4}
    own: dict[str, Any] = {
        **_engine(found, sharded=several),
        "checkpointing": is_tuned and several,
        "finetune": _trained(found) if is_tuned else "full",
        **({"memory": CROSS_ENTROPY} if is_tuned else {"sharding": "HYBRID_SHARD"}),
        **_batch(found, devices, pretrained),
        "micro_batch": pretrained.get("train.micro_batch_size", 1),
    }
    return gathered("accelerate", found, KEYS, path, own)


def _batch(found: list[Found], devices: Any, defaults: dict[str, int]) -> dict[str, int]:
    """Steps of accumulation where the GPUs are known: what does not divide is left out of a step."""
    batch = _whole(found, "train.global_batch_size", defaults)
    gpus = product(found, "devices", "num_nodes") or _whole(found, "devices", {"devices": 1})
    if batch is None or not gpus or str(devices) == "auto":
        return given(global_batch=batch)
    each = _whole(found, "train.micro_batch_size", {"train.micro_batch_size": 1, **defaults})
    return given(num_microbatches=max(batch // gpus // (each or 1), 1))


def _engine(found: list[Found], sharded: bool) -> dict[str, Any]:
    """Sharding and formats; ``16-mixed`` and ``bf16-mixed`` keep fp32 weights, ``true`` ones do not."""
    precision = str(value_of(found, "precision", "32-true")).lower()
    own: dict[str, Any] = {
        "distributed_type": "FSDP" if sharded else "MULTI_GPU",
        "bf16": precision.startswith("bf16"),
        "fp16": precision.startswith("16"),
    }
    if precision in {"bf16-true", "16-true"}:
        own["optimizer"] = "pure-adam"
    if value_of(found, "sharding_strategy") is not None:
        own["sharding"] = str(value_of(found, "sharding_strategy"))
    return own


def _trained(found: list[Found]) -> str:
    if value_of(found, "lora_r") is None:
        return "full"
    return "qlora" if "nf4" in str(value_of(found, "quantize", "")) else "lora"


def _whole(found: list[Found], key: str, defaults: dict[str, int]) -> int | None:
    word = str(value_of(found, key, defaults.get(key, "")))
    return int(word) if word.isdecimal() else None
