"""Read torchtune's YAML: FSDP2 over 16-bit weights.

Names and defaults: pytorch/torchtune recipes/configs (``batch_size``, ``enable_activation_checkpointing``,
``dtype``; weights, gradients and moments are all of that type).
"""

from __future__ import annotations

import re
from typing import Any

from planner.frameworks.dialects.common import gathered, value_of
from planner.frameworks.launch import Key, LaunchFile, degree, positive, yes
from planner.frameworks.text_formats import yaml_settings


def _builder(value: Any) -> str:
    """``torchtune.models.llama3_1.lora_llama3_1_70b`` as a model's name."""
    name = re.sub(r"^q?lora_", "", str(value).rpartition(".")[2]).replace("phi4_14b", "phi_4")
    parts = re.match(r"(llama3_[123]|qwen2_5|[a-z]+\d?)_(\d+(?:_\d+)?b)", name)
    return name.replace("_", "-") if parts is None else "-".join(parts.groups()).replace("_", ".")


def _trained(value: Any) -> str:
    name = str(value).rpartition(".")[2]
    return "qlora" if name.startswith("qlora") else "lora" if name.startswith("lora") else "full"


def _optimizer(value: Any) -> str:
    module, _, name = str(value).lower().rpartition(".")
    adam = "pure-adam-fp32" if module.startswith("bitsandbytes") else "pure-adam"
    return "pure-adam-8bit" if "8bit" in name else "pure-sgd" if name.startswith("sgd") else adam


def _shard(value: Any) -> int | None:
    """Ranks of a shard group; -1 is what the other degrees leave."""
    ranks = degree(value)
    return None if ranks == -1 else ranks


CHUNKS = {"loss_saved_bytes": 4.0, "loss_peak_bytes": 6.0}
"""Per logit (modules/loss/cross_entropy_loss.py): the fp32 log-softmax of each chunk stays for the backward
pass, 16-bit logits come and go with it. [byte]"""
NO_GRADIENTS = {"gradient_bytes": 0.0, "reduced_gradient_bytes": 0.0}
"""The optimizer steps in the backward pass: each gradient goes as it is used (``optimizer_in_bwd``)."""


KEYS: dict[str, Key] = {
    "batch_size": Key("micro_batch", positive),
    "gradient_accumulation_steps": Key("num_microbatches", positive),
    "tokenizer.max_seq_len": Key("seq_length", positive),
    "dataset.max_seq_len": Key("seq_length", positive),
    "enable_activation_checkpointing": Key("checkpointing", yes),
    "fsdp_cpu_offload": Key("offload", yes),
    "enable_activation_offloading": Key("activation_offload", yes),
    "fsdp_reshard_after_forward": Key("reshard", yes),
    "tensor_parallel_dim": Key("tensor_parallel", positive),
    "data_parallel_shard_dim": Key("shard_degree", _shard),
    "data_parallel_replicate_dim": Key("replicate_degree", positive),
    "context_parallel_dim": Key("context_parallel", positive),
    "model._component_": Key("named_model", _builder),
}


def read(source: str, path: str) -> LaunchFile:
    """Read a recipe's configuration."""
    found = yaml_settings(source, path)
    model = str(value_of(found, "model._component_", ""))
    defaults: dict[str, Any] = {
        "distributed_type": "FSDP",
        "bf16": True,
        "finetune": _trained(model),
        "limits": {"sharding_needs_replicas": False},  # recipes shard only where there is something to shard
    }
    memory = NO_GRADIENTS if yes(value_of(found, "optimizer_in_bwd", False)) else {}
    if str(value_of(found, "dtype", "bf16")) == "bf16":
        defaults["optimizer"] = _optimizer(value_of(found, "optimizer._component_", "adam"))
    if any(word in str(value_of(found, "loss._component_", "")) for word in ("Chunked", "Linear")):
        memory |= CHUNKS
    if memory:
        defaults["memory"] = memory
    return gathered("accelerate", found, KEYS, path, defaults)
