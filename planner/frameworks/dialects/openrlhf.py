"""Read OpenRLHF's commands: DeepSpeed under its own flags.

Names and defaults: OpenRLHF openrlhf/cli/train_sft.py and train_ppo_ray.py (ZeRO stage 2 where none is said).
"""

from __future__ import annotations

from typing import Any

from planner.frameworks.deepspeed.read import zero_stage
from planner.frameworks.dialects.common import LAUNCHERS, checkpoint, flags, gathered, given, total
from planner.frameworks.launch import Key, LaunchFile, fixed, positive, yes


def _ring(value: Any) -> None:
    if positive(value) > 1:
        raise ValueError("ring attention beside DeepSpeed is not priced; the check is without it")


KEYS: dict[str, Key] = {
    "pretrain": Key("named_model", checkpoint),
    "train_batch_size": Key("global_batch", positive),
    "micro_train_batch_size": Key("micro_batch", positive),
    "max_len": Key("seq_length", positive),
    "zero_stage": Key("zero_stage", zero_stage),
    "adam_offload": Key("offload", fixed("cpu")),
    "gradient_checkpointing": Key("checkpointing", yes),
    "bf16": Key("bf16", yes),
    "use_liger_kernel": Key("loss", fixed("chunked")),
    "ds_tensor_parallel_size": Key("tensor_parallel", positive),
    "ring_attn_size": Key("context_parallel", _ring),
    "load_in_4bit": Key("finetune", fixed("qlora")),
    "actor_num_nodes": Key("launcher.nodes", positive),
    "actor_num_gpus_per_node": Key("launcher.processes_per_node", positive),
    **LAUNCHERS,
}


def read(source: str, path: str) -> LaunchFile:
    """Read a command; a prompt and its answer together make a sequence."""
    found = flags(source, path)
    row = total(found, "prompt_max_len", "generate_max_len")
    return gathered("deepspeed", found, KEYS, path, {"zero_stage": 2, "bf16": True, **given(seq_length=row)})
