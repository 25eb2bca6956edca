"""Read axolotl's YAML.

Names: axolotl src/axolotl/utils/schemas (``micro_batch_size``, ``sequence_len``, ``dp_shard_size``,
``tensor_parallel_size``, ``context_parallel_size``). Its ring attention splits sequences over replicas of
any kind (docs/sequence_parallelism.qmd), where Accelerate's own needs FSDP.
"""

from __future__ import annotations

from typing import Any

from planner.frameworks.accelerate.read import REST
from planner.frameworks.dialects.common import (
    adapter,
    chunked,
    fused,
    gathered,
    half,
    optimizer,
    padded,
    paired,
    value_of,
)
from planner.frameworks.launch import Key, LaunchFile, positive, text, yes
from planner.frameworks.text_formats import yaml_settings


def _remat(value: Any) -> bool:
    return str(value).lower() not in {"false", "none", ""}


def _offloading(value: Any) -> bool:
    """Read where checkpoints go: ``true``, ``legacy`` and ``disk`` are away from the GPU."""
    return str(value).lower() not in {"false", "none", ""}


def _split(value: Any) -> int | None:
    """Ranks of a shard group; one is no group of its own."""
    ranks = positive(value)
    return ranks if ranks > 1 else None


def _fused_unless(value: Any) -> bool:
    return not yes(value)


OFFLOADING = frozenset({"offload", "offload_disk", "unsloth"})
"""Values of ``gradient_checkpointing`` with which the layers' inputs leave the GPU."""
KEYS: dict[str, Key] = {
    "base_model": Key("named_model", text),
    "sequence_len": Key("seq_length", positive),
    "micro_batch_size": Key("micro_batch", positive),
    "gradient_accumulation_steps": Key("num_microbatches", positive),
    "gradient_checkpointing": Key("checkpointing", _remat),
    "adapter": Key("finetune", adapter),
    "optimizer": Key("optimizer", optimizer),
    "liger_fused_linear_cross_entropy": Key("loss", chunked),
    "attn_implementation": Key("fused_attention", fused),
    "eager_attention": Key("fused_attention", _fused_unless),
    "cut_cross_entropy": Key("loss", chunked),
    "bf16": Key("bf16", half),
    "fp16": Key("fp16", half),
    "deepspeed": Key("config_path", text),
    "dp_shard_size": Key("shard_degree", _split),
    "dp_replicate_size": Key("replicate_degree", positive),
    "tensor_parallel_size": Key("tensor_parallel", positive),
    "context_parallel_size": Key("context_parallel", positive),
    "sequence_parallel_degree": Key("context_parallel", positive),
    "fsdp_config.reshard_after_forward": Key("reshard", yes),
    "fsdp_config.fsdp_sharding_strategy": Key("sharding", text),
    "fsdp_config.activation_checkpointing": Key("checkpointing_by_trainer", yes),
    "fsdp_config.offload_params": Key("offload", yes),
    "fsdp_config.fsdp_offload_params": Key("offload", yes),
    "activation_offloading": Key("activation_offload", _offloading),
}


RING_BESIDE_REPLICAS = {"plain_replication_combines": True, "context_is_sharded": False}
"""Limits of Accelerate that do not hold for ring attention without FSDP."""


PAIRED = {"dpo": True, "ipo": True, "orpo": False, "simpo": False}
"""Values of ``rl`` whose samples are pairs, and whether a frozen reference is held as well."""


def read(source: str, path: str) -> LaunchFile:
    """Read a configuration; DeepSpeed runs where one is named, else FSDP or plain replicas."""
    launch = padded(_read(source, path), pieces=2)
    loss = str(value_of(launch.found, "rl", ""))
    return paired(launch, beside_reference=PAIRED[loss]) if loss in PAIRED else launch


def _read(source: str, path: str) -> LaunchFile:
    found = yaml_settings(source, path)
    defaults: dict[str, Any] = {"bf16": True} if str(value_of(found, "bf16", "auto")) == "auto" else {}
    if "CutCrossEntropyPlugin" in str(value_of(found, "plugins", "")):
        defaults["loss"] = "chunked"  # unless it is switched off
    defaults["activation_offload"] = str(value_of(found, "gradient_checkpointing")) in OFFLOADING
    if value_of(found, "deepspeed"):
        return gathered("deepspeed", found, KEYS, path, defaults)
    is_split = any(entry.key == "dp_shard_size" and str(entry.value) not in {"None", "1"} for entry in found)
    if is_split or any(entry.key.startswith("fsdp") and entry.value for entry in found):
        defaults["distributed_type"] = "FSDP"
    else:
        defaults["limits"] = RING_BESIDE_REPLICAS
    defaults["half_weights"] = True  # of ``bf16`` and ``fp16`` (utils/config)
    if is_split:  # what is left are replicas (loaders/model.py)
        defaults["replicate_degree"] = REST
    return gathered("accelerate", found, KEYS, path, defaults)
