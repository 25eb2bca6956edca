"""Read LLM Foundry's YAML.

Names: mosaicml/llm-foundry scripts/train/yamls (``device_train_microbatch_size``, ``fsdp_config``).
"""

from __future__ import annotations

from typing import Any

from planner.frameworks.dialects.common import gathered, value_of
from planner.frameworks.launch import Key, LaunchFile, positive, text, yes
from planner.frameworks.text_formats import yaml_settings


def _micro_batch(value: Any) -> int | None:
    return None if value == "auto" else positive(value)


def _precision(value: Any) -> str:
    return "bf16" if "bf16" in str(value) else "fp16" if "fp16" in str(value) else "no"


KEYS: dict[str, Key] = {
    "global_train_batch_size": Key("global_batch", positive),
    "device_train_microbatch_size": Key("micro_batch", _micro_batch),
    "max_seq_len": Key("seq_length", positive),
    "variables.max_seq_len": Key("seq_length", positive),
    "precision": Key("mixed_precision", _precision),
    "fsdp_config.sharding_strategy": Key("sharding", text),
    "fsdp_config.activation_checkpointing": Key("checkpointing", yes),
    "fsdp_config.cpu_offload": Key("offload", yes),
    "model.pretrained_model_name_or_path": Key("named_model", text),
    "model.n_layers": Key("model.num_layers", positive),
    "model.d_model": Key("model.hidden_size", positive),
    "model.n_heads": Key("model.num_heads", positive),
    "model.vocab_size": Key("model.vocab_size", positive),
}


def read(source: str, path: str) -> LaunchFile:
    """Read a configuration."""
    found = yaml_settings(source, path)
    sharded = any(entry.key.startswith("fsdp_config") for entry in found)
    defaults: dict[str, Any] = {"distributed_type": "FSDP" if sharded else "MULTI_GPU"}
    if value_of(found, "precision") is None:
        defaults["mixed_precision"] = "bf16"
    return gathered("llm-foundry", found, KEYS, path, defaults)
