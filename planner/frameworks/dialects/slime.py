"""Read slime's scripts: Megatron's flags beside those of the rollout.

Names and defaults: THUDM/slime slime/utils/arguments.py and slime/backends/megatron_utils/arguments.py (the
distributed optimizer is always on, training is in bf16 unless fp16 is asked for).
"""

from __future__ import annotations

from planner.frameworks.dialects.common import flags, gathered, given, product, value_of
from planner.frameworks.launch import Key, LaunchFile, positive, text
from planner.frameworks.megatron.read import KEYS as MEGATRON

KEYS: dict[str, Key] = {
    **MEGATRON,
    "hf_checkpoint": Key("named_model", text),
    "actor_num_nodes": Key("launcher.nodes", positive),
    "actor_num_gpus_per_node": Key("launcher.processes_per_node", positive),
}


def read(source: str, path: str) -> LaunchFile:
    """Read a script. With dynamic batches a micro-batch is one row of as many tokens as each GPU may hold."""
    found = flags(source, path)
    steps = product(found, "rollout_batch_size", "n_samples_per_prompt")
    row = None
    if value_of(found, "use_dynamic_batch_size"):
        parts = ("max_tokens_per_gpu", "context_parallel_size")
        row = product(found, *parts) or product(found, *parts[:1])
    defaults = {"distributed_optimizer": True, "bf16": True, **given(global_batch=steps, seq_length=row)}
    return gathered("megatron", found, KEYS, path, defaults)
