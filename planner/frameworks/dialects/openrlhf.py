"""Read OpenRLHF's commands: DeepSpeed under its own flags.

Names and defaults: OpenRLHF openrlhf/cli/train_sft.py and train_ppo_ray.py (ZeRO stage 2 where none is said).
"""

from __future__ import annotations

import re
from typing import Any

from planner.frameworks.deepspeed.read import zero_stage
from planner.frameworks.dialects.common import LAUNCHERS, flags, gathered, given, paired, summed
from planner.frameworks.launch import Key, LaunchFile, fixed, positive, text, yes


def _ring(value: Any) -> None:
    if positive(value) > 1:
        raise ValueError("ring attention beside DeepSpeed is not priced; the check is without it")


_MEANINGS: tuple[tuple[Key, tuple[str, ...]], ...] = (
    (
        Key("named_model", text),
        ("pretrain", "model.model_name_or_path", "actor.model_name_or_path"),
    ),
    (Key("global_batch", positive), ("train_batch_size", "train.batch_size")),
    (Key("micro_batch", positive), ("micro_train_batch_size", "train.micro_batch_size")),
    (Key("seq_length", positive), ("max_len", "data.max_len")),
    (Key("zero_stage", zero_stage), ("zero_stage", "ds.zero_stage")),
    (Key("offload", fixed("cpu")), ("adam_offload", "ds.adam_offload")),
    (
        Key("checkpointing", yes),
        (
            "gradient_checkpointing",
            "model.gradient_checkpointing_enable",
            "actor.gradient_checkpointing_enable",
        ),
    ),
    (Key("bf16", yes), ("bf16",)),
    (Key("loss", fixed("chunked")), ("use_liger_kernel", "ds.use_liger_kernel")),
    (Key("tensor_parallel", positive), ("ds_tensor_parallel_size", "ds.tensor_parallel_size")),
    (Key("context_parallel", _ring), ("ring_attn_size", "ds.ring_attn_size")),
    (Key("finetune", fixed("qlora")), ("load_in_4bit", "ds.load_in_4bit")),
    (Key("launcher.nodes", positive), ("actor_num_nodes", "actor.num_nodes")),
    (
        Key("launcher.processes_per_node", positive),
        ("actor_num_gpus_per_node", "actor.num_gpus_per_node"),
    ),
)
KEYS: dict[str, Key] = LAUNCHERS | {name: key for key, names in _MEANINGS for name in names}
"""Flags of both spellings: ``--max_len`` and, from version 0.9 on, ``--data.max_len``."""


def read(source: str, path: str) -> LaunchFile:
    """Read a command; a prompt and its answer together make a sequence."""
    found = flags(source, path)
    row = summed(found, "prompt_max_len", "generate_max_len")
    defaults = {"zero_stage": 2, "bf16": True, **given(seq_length=row)}
    launch = gathered("deepspeed", found, KEYS, path, defaults)
    program = re.search(r"openrlhf\.cli\.train_(dpo|rm)\b", source)
    return launch if program is None else paired(launch, beside_reference=program.group(1) == "dpo")
