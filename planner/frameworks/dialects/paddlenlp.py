"""Read PaddleNLP's training arguments: JSON, YAML or flags.

Names: PaddleNLP paddlenlp/trainer/training_args.py.
"""

from __future__ import annotations

import re
from typing import Any

from planner.frameworks.dialects.common import LAUNCHERS, TRAINER, flags, gathered
from planner.frameworks.launch import Found, Key, LaunchFile, degree, positive, yes
from planner.frameworks.text_formats import json_settings, yaml_settings


def _degree(value: Any) -> int | None:
    """A degree; -1 is none for tensor and pipeline ranks, and all replicas for sharding."""
    number = degree(value)
    return None if number == -1 else number


def _stage(value: Any) -> int:
    match = re.search(r"stage\s*_?([123])", str(value))
    if match is None:
        raise ValueError("must be stage1, stage2 or stage3")
    return int(match.group(1))


def _recompute(value: Any) -> str | None:
    return "full" if yes(value) else None


def _is_on(value: Any) -> bool:
    return str(value).lower() in {"true", "1"}


def _granularity(value: Any) -> str:
    return "full" if str(value) == "full" else "selective"


KEYS: dict[str, Key] = {
    **TRAINER,
    "tensor_parallel_degree": Key("tensor_parallel", _degree),
    "pipeline_parallel_degree": Key("pipeline_parallel", _degree),
    "virtual_pp_degree": Key("virtual_stages", positive),
    "context_parallel_degree": Key("context_parallel", _degree),
    "expert_parallel_degree": Key("expert_parallel", _degree),
    "sharding": Key("zero_stage", _stage),
    "sharding_parallel_degree": Key("shard_degree", _degree),
    "sequence_parallel": Key("sequence_parallel", yes),
    "recompute": Key("recompute_granularity", _recompute),
    **LAUNCHERS,
}


def read(source: str, path: str) -> LaunchFile:
    """Read training arguments; recomputation is of whole layers unless its granularity says less."""
    found = _settings(source, path)
    said = {entry.key: entry for entry in found}
    keys = dict(KEYS)
    if "recompute_granularity" in said and "recompute" in said and _is_on(said["recompute"].value):
        del keys["recompute"]
        keys["recompute_granularity"] = Key("recompute_granularity", _granularity)
    return gathered("paddle", found, keys, path, {"micro_batch": 8})


def _settings(source: str, path: str) -> list[Found]:
    if source.lstrip().startswith("{"):
        return json_settings(source, path)
    return flags(source, path) if "--" in source else yaml_settings(source, path)
