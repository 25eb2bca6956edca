"""Read OpenRLHF's commands: DeepSpeed under its own flags.

Names and defaults: OpenRLHF openrlhf/cli/train_sft.py and train_ppo_ray.py (ZeRO stage 2 where none is said).
"""

from __future__ import annotations

import re

from planner.frameworks.deepspeed.read import zero_stage
from planner.frameworks.dialects.common import (
    LAUNCHERS,
    flags,
    gathered,
    given,
    padded,
    paired,
    product,
    summed,
    value_of,
)
from planner.frameworks.launch import Found, Key, LaunchFile, fixed, positive, text, yes

RING = {"context_parallel_kind": "ring", "limits": {"context_parallel_kinds": ("ring",)}}
"""Ring attention in place of DeepSpeed's all-to-all."""
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
    (Key("context_parallel", positive), ("ring_attn_size", "ds.ring_attn_size")),
    (Key("finetune", fixed("qlora")), ("load_in_4bit", "ds.load_in_4bit")),
    (Key("launcher.nodes", positive), ("actor_num_nodes", "actor.num_nodes")),
    (
        Key("launcher.processes_per_node", positive),
        ("actor_num_gpus_per_node", "actor.num_gpus_per_node"),
    ),
)
KEYS: dict[str, Key] = LAUNCHERS | {name: key for key, names in _MEANINGS for name in names}
"""Flags of both spellings: ``--max_len`` and, from version 0.9 on, ``--data.max_len``."""


LOG_PROBABILITIES = {"loss_saved_bytes": 4.0, "loss_peak_bytes": 10.0}
"""Per logit (openrlhf/models: ``Actor.forward``, ``log_probs_from_logits``): an fp32 copy stays; in the
backward pass its gradient and that of the 16-bit logits come beside it. [byte]"""
MICRO_BATCH = {"sft": 8, "dpo": 8}
"""Sequences of a micro-batch where nothing is said, by program; 1 for the others."""
MOST_TOKENS = 16_192
"""Of a dynamic batch on each GPU, where nothing is said."""


def read(source: str, path: str) -> LaunchFile:
    """Read a command; a prompt and its answer together make a sequence."""
    found = flags(source, path)
    program = re.search(r"openrlhf\.cli\.train_(sft|dpo|rm|ppo)", source)
    name = program.group(1) if program else ""
    row: Found | int | None = summed(found, "prompt_max_len", "generate_max_len")
    keys = KEYS
    if value_of(found, "use_dynamic_batch") or value_of(found, "train.dynamic_batch_enable"):
        row = _tokens(found)
        keys = {word: key for word, key in KEYS.items() if key.field not in {"seq_length", "micro_batch"}}
    own = {"zero_stage": 2, "bf16": True, "memory": LOG_PROBABILITIES, "global_batch": 128}
    defaults = {**own, **RING, "micro_batch": MICRO_BATCH.get(name, 1), **given(seq_length=row)}
    if keys is not KEYS:
        defaults["micro_batch"] = 1
    launch = padded(gathered("deepspeed", found, keys, path, defaults), pieces=2)
    return paired(launch, beside_reference=name == "dpo") if name in {"dpo", "rm"} else launch


def _tokens(found: list[Found]) -> int:
    """Tokens of a row of a dynamic batch."""
    said = (product(found, name) for name in ("train.max_tokens_per_gpu", "train_max_tokens_per_gpu"))
    return next((tokens for tokens in said if tokens is not None), MOST_TOKENS)
