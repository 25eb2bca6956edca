"""Recognise whose launch file a text is, from its name and what stands in it."""

from __future__ import annotations

import re

from planner.errors import BadInput
from planner.frameworks.dialects import DIALECTS, dialect_of

_SIGNS: tuple[tuple[str, str], ...] = (
    ("megatron", r"\b(tensor|pipeline)_model_parallel_size \.{3,} "),
    ("megatron-bridge", r"megatron\.bridge|\.(tensor|pipeline|context)(_model)?_parallel_size\s*=(?!=)"),
    ("pytorch", r"^SETTINGS = \{|init_device_mesh\("),
    (
        "torchtitan",
        r"--(parallelism|training)\.|^\[(parallelism|training)\]|torchtitan|\bMODULE=.*\brun_train\.sh",
    ),
    ("maxtext", r"\b(ici|dcn)_\w+_parallelism\b|\bper_device_batch_size\s*[=:]"),
    ("deepspeed", r"--(use_)?deepspeed\b|--deepspeed_config_file\b|\"deepspeed\"\s*:"),
    ("megatron", r"--(tensor|pipeline)-model-parallel-size|--num-layers\b|--micro-batch-size|MEGATRON_ARGS"),
    ("deepspeed", r"\"(train_batch_size|train_micro_batch_size_per_gpu|zero_optimization)\"\s*:"),
    ("accelerate", r"\baccelerate launch\b"),
    ("accelerate", r"\"per_device_train_batch_size\"\s*:"),
    ("accelerate", r"^(compute_environment|distributed_type|parallelism_config|fsdp_config)\s*:"),
    ("nanotron", r"^(parallelism|tokens)\s*:"),
    ("megatron-bridge", r"^[ \t]*(tensor|pipeline)_model_parallel_size\s*[:=]|^from nemo\b|^import nemo"),
)
"""Framework and a pattern that only its files have; the first that matches wins."""


def detect(source: str, path: str, strict: bool = True) -> str | None:
    """Return the framework whose file this is, or the trainer around one (a dialect).

    Parameters
    ----------
    strict
        Raise when nothing matches; otherwise return None.

    Raises
    ------
    BadInput
        Nothing matches (``strict`` only).
    """
    if not path.endswith((".md", ".csv")):
        dialect = dialect_of(source)
        if dialect is not None:
            return dialect
        for framework, pattern in _SIGNS:
            if re.search(pattern, source, re.MULTILINE):
                return framework
    if strict:
        names = ", ".join(dict.fromkeys([name for name, *_ in (*_SIGNS, *DIALECTS)]))
        raise BadInput(f"{path}: not recognised as a launch file of {names}; name it with --framework")
    return None
