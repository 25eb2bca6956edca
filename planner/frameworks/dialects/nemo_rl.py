"""Read NeMo-RL's YAML: the policy's Megatron settings, or its DTensor ones where Megatron is off.

Names: NVIDIA-NeMo/RL examples/configs (``policy.megatron_cfg``, ``policy.dtensor_cfg``, ``cluster``).
"""

from __future__ import annotations

from typing import Any

from planner.frameworks.dialects.common import gathered, value_of
from planner.frameworks.launch import Key, LaunchFile, positive, text, yes
from planner.frameworks.megatron.read import KEYS as MEGATRON
from planner.frameworks.text_formats import yaml_settings

_M, _D = "policy.megatron_cfg.", "policy.dtensor_cfg."


def _all_layers(value: Any) -> str | None:
    return "full" if yes(value) else None


SHARED: dict[str, Key] = {
    "policy.model_name": Key("named_model", text),
    "policy.train_global_batch_size": Key("global_batch", positive),
    "policy.max_total_sequence_length": Key("seq_length", positive),
    "cluster.num_nodes": Key("launcher.nodes", positive),
    "cluster.gpus_per_node": Key("launcher.processes_per_node", positive),
}
MEGATRON_KEYS: dict[str, Key] = {
    **SHARED,
    **{_M + name: key for name, key in MEGATRON.items()},
    "policy.train_micro_batch_size": Key("micro_batch", positive),
    _M + "activation_checkpointing": Key("recompute_granularity", _all_layers),
    _M + "num_layers_in_first_pipeline_stage": MEGATRON["decoder_first_pipeline_num_layers"],
    _M + "num_layers_in_last_pipeline_stage": MEGATRON["decoder_last_pipeline_num_layers"],
}
DTENSOR_KEYS: dict[str, Key] = {
    **SHARED,
    "policy.train_micro_batch_size": Key("local_batch", positive),
    _D + "tensor_parallel_size": Key("tensor_parallel", positive),
    _D + "context_parallel_size": Key("context_parallel", positive),
    _D + "expert_parallel_size": Key("expert_parallel", positive),
    _D + "sequence_parallel": Key("sequence_parallel", yes),
    _D + "activation_checkpointing": Key("recompute", _all_layers),
}


def read(source: str, path: str) -> LaunchFile:
    """Read the YAML of an algorithm."""
    found = yaml_settings(source, path)
    on = {name: value_of(found, name + "enabled") for name in (_M, _D)}
    if on[_M] or (on[_M] is None and not on[_D]):
        return gathered("megatron", found, MEGATRON_KEYS, path, {"distributed_optimizer": True, "bf16": True})
    return gathered("automodel", found, DTENSOR_KEYS, path, {"recompute": "none", "sequence_parallel": False})
