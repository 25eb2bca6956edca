"""Read GPT-NeoX's YAML: its own engine over DeepSpeed and Megatron's tensor parallelism.

Names: EleutherAI/gpt-neox megatron/neox_arguments (dashes or underscores; ``pipe-parallel-size`` 0 or 1 is no
pipeline).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.frameworks.deepspeed.read import KEYS as DEEPSPEED
from planner.frameworks.deepspeed.read import batch_number, switch
from planner.frameworks.dialects.common import gathered
from planner.frameworks.launch import Key, LaunchFile, positive, whole, yes
from planner.frameworks.text_formats import yaml_settings


def _stages(value: Any) -> int:
    return max(whole(value), 1)


def _untied(value: Any) -> bool:
    return not yes(value)


def _is_bf16(value: Any) -> bool:
    return str(value).lower() in {"bfloat16", "bf16"}


KEYS: dict[str, Key] = {
    "pipe_parallel_size": Key("pipeline_parallel", _stages),
    "model_parallel_size": Key("tensor_parallel", _stages),
    "global_num_gpus": Key("num_gpus", positive),
    "train_batch_size": Key("global_batch", batch_number),
    "train_micro_batch_size_per_gpu": Key("micro_batch", batch_number),
    "gradient_accumulation_steps": Key("num_microbatches", batch_number),
    **{name: key for name, key in DEEPSPEED.items() if name.startswith("zero_optimization.")},
    "checkpoint_activations": Key("checkpointing", yes),
    "checkpoint_num_layers": Key("recompute_num_layers", whole),
    "seq_length": Key("seq_length", positive),
    "precision": Key("bf16", _is_bf16),
    "bf16.enabled": Key("bf16", switch),
    "fp16.enabled": Key("fp16", switch),
    "num_layers": Key("model.num_layers", positive),
    "hidden_size": Key("model.hidden_size", positive),
    "num_attention_heads": Key("model.num_heads", positive),
    "num_kv_heads": Key("model.num_kv_heads", positive),
    "intermediate_size": Key("model.ffn_hidden_size", positive),
    "no_weight_tying": Key("model.tied_embeddings", _untied),
}


def read(source: str, path: str) -> LaunchFile:
    """Read a configuration, in braces or without."""
    found = [
        replace(entry, key=entry.key.replace("-", "_"))
        for entry in yaml_settings(source.replace("\t", "  "), path)
    ]
    fp16 = any(entry.key == "fp16.fp16" and entry.value for entry in found)
    return gathered("megatron-deepspeed", found, KEYS, path, {"fp16": True} if fp16 else {})
