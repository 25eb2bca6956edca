"""Configurations of trainers that wrap another framework: read as the run that they start below.

A dialect has a name, a pattern that only its files have, and a module with ``read(source, path)``; what is
read carries the name of the framework that runs (its limits, habits and ``to_plan`` hold).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module

from planner.frameworks.launch import LaunchFile

DIALECTS: tuple[tuple[str, str, str], ...] = (
    ("ms-swift-megatron", "swift", r"\bmegatron\s+(sft|pt|rlhf)\b"),
    ("ms-swift", "swift", r"\bswift\s+(sft|pt|rlhf)\b"),
    ("slime", "slime", r"--actor-num-gpus-per-node\b"),
    ("openrlhf", "openrlhf", r"\bopenrlhf\.cli\.train_"),
    ("verl-sft", "verl_sft", r"\bverl\.trainer\.(fsdp_)?sft_trainer\b"),
    ("verl", "verl", r"\bactor_rollout_ref\.actor\.|\bverl\.trainer\."),
    (
        "nemo-rl",
        "nemo_rl",
        r"^[ \t]*(megatron_cfg|dtensor_cfg)\s*:|\bpolicy\.(megatron_cfg|dtensor_cfg)\."
        r"|^defaults\s*:[^\n]*\.ya?ml[\s\S]*^policy\s*:|\brun_\w+\.py\b[^\n]*\spolicy\.\w+[.=]",
    ),
    ("automodel", "automodel", r"\bnemo_automodel\b|\bNeMoAutoModel"),
    (
        "llama-factory",
        "llama_factory",
        r"^[ \t]*finetuning_type\s*:|--finetuning_type\b|\bllamafactory-cli\b",
    ),
    ("axolotl", "axolotl", r"^base_model\s*:"),
    (
        "gpt-neox",
        "neox",
        r"[\"']?\b(pipe|model)[-_]parallel[-_]size[\"']?\s*:|[\"']?\btrain-iters[\"']?\s*:"
        r"|\A(?:\s*#[^\n]*\n)*\s*\{[\s\S]*\"(train_iters|lr_decay_iters|lr-decay-iters)\"\s*:",
    ),
    ("primus", "primus", r"^[ \t]*pre_trainer\s*:"),
    (
        "paddlenlp",
        "paddlenlp",
        r"\"(tensor|pipeline|sharding)_parallel_degree\"\s*:|--(tensor|pipeline|sharding)_parallel_degree\b",
    ),
    ("llm-foundry", "foundry", r"^(device_train_microbatch_size|global_train_batch_size)\s*:"),
    ("torchtune", "torchtune", r"_component_\s*:\s*torchtune\."),
    (
        "lightning",
        "lightning",
        r"\bFSDPStrategy\(|\b(L|pl|lightning|fabric)\.(Trainer|Fabric)\(|\blitgpt\s+(pretrain|finetune)"
        r"|^(checkpoint_dir|model_name)\s*:[\s\S]*^train\s*:[\s\S]*^[ \t]+micro_batch_size\s*:",
    ),
    (
        "trainer",
        "trainer",
        r"\A(?![\s\S]*(--deepspeed|--use_deepspeed|accelerate launch))"
        r"[\s\S]*--per[_-]device[_-]train[_-]batch[_-]size\b"
        r"|^[^#\n]*\b(TrainingArguments|(SFT|DPO|KTO|ORPO|CPO|Reward|GRPO)Config)\("
        r"|^per_device_train_batch_size\s*:",
    ),
)
"""Name, module and pattern of each; the first that matches wins."""


def dialect_of(source: str) -> str | None:
    """Return the name of the dialect that a text is written in, None where it is none."""
    return next((name for name, _, sign in DIALECTS if re.search(sign, source, re.MULTILINE)), None)


def reader(name: str) -> Callable[[str, str], LaunchFile] | None:
    """Return the ``read`` of a dialect, None where the name is none of them."""
    module = next((module for known, module, _ in DIALECTS if known == name), None)
    if module is None:
        return None
    read: Callable[[str, str], LaunchFile] = import_module(f"{__name__}.{module}").read
    return read
