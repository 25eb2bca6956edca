"""Read NeMo AutoModel's YAML.

Names and defaults: NVIDIA-NeMo/Automodel components/distributed (``tp_size``, ``pp_size``, ``cp_size``,
``ep_size``, ``pipeline``) and its recipes' ``step_scheduler``.
"""

from __future__ import annotations

import re
from typing import Any

from planner.frameworks.dialects.common import gathered
from planner.frameworks.launch import Key, LaunchFile, one_of, positive, text, yes
from planner.frameworks.text_formats import yaml_settings
from planner.frameworks.torchtitan.read import SCHEDULE_NAMES, mapped

_D = "distributed."


def _size(value: Any) -> int | None:
    """A degree or length; ``none`` (or 0) leaves it to the trainer."""
    return None if str(value).lower() in {"none", "-1", "0"} else positive(value)


def _recompute(value: Any) -> str:
    return "full" if yes(value) else "none"


def _deferred(value: Any) -> dict[str, str] | None:
    return None if yes(value) else {"defers_reduction": "never"}


def _loss(value: Any) -> str | None:
    return "chunked" if any(word in str(value) for word in ("Linear", "Chunked")) else None


def _layer_counts(value: Any) -> list[int]:
    """Layers of every stage, by the names of their modules (``model.layers.0``)."""
    if not isinstance(value, list) or not all(isinstance(stage, list) for stage in value):
        raise ValueError("must be a list of lists of module names")
    return [sum(bool(re.search(r"\blayers\.\d", str(name))) for name in stage) for stage in value]


KEYS: dict[str, Key] = {
    "model.pretrained_model_name_or_path": Key("named_model", text),
    "model.config.pretrained_model_name_or_path": Key("named_model", text),
    "slurm.nodes": Key("launcher.nodes", positive),
    "slurm.ntasks_per_node": Key("launcher.processes_per_node", positive),
    "step_scheduler.global_batch_size": Key("global_batch", positive),
    "step_scheduler.local_batch_size": Key("local_batch", positive),
    "packed_sequence.packed_sequence_size": Key("seq_length", _size),
    "dataset.seq_length": Key("seq_length", _size),
    "dataset.seq_len": Key("seq_length", _size),
    "loss_fn._target_": Key("loss", _loss),
    "peft._target_": Key("finetune", lambda value: "lora"),
    _D + "tp_size": Key("tensor_parallel", _size),
    _D + "cp_size": Key("context_parallel", _size),
    _D + "pp_size": Key("pipeline_parallel", _size),
    _D + "ep_size": Key("expert_parallel", _size),
    _D + "dp_replicate_size": Key("replicate_degree", _size),
    _D + "sequence_parallel": Key("sequence_parallel", yes),
    _D + "defer_fsdp_grad_sync": Key("memory", _deferred),
    _D + "activation_checkpointing": Key("recompute", _recompute),
    _D + "pipeline.pp_schedule": Key("schedule", mapped(SCHEDULE_NAMES)),
    _D + "pipeline.pp_microbatch_size": Key("pipeline_microbatch", positive),
    _D + "pipeline.layers_per_stage": Key("layers_per_stage", _size),
    _D + "pipeline.module_fqns_per_model_part": Key("layout", _layer_counts),
    _D + "pipeline.round_virtual_stages_to_pp_multiple": Key("round_stages", one_of("up", "down")),
}


def read(source: str, path: str) -> LaunchFile:
    """Read a recipe's YAML."""
    even = {"first_less": 0, "last_less": 0}  # stages differ by a layer at most (pipelining/functional.py)
    defaults = {"recompute": "none", "sequence_parallel": False, "local_batch": 1, **even}
    return gathered("automodel", yaml_settings(source, path), KEYS, path, defaults)
