"""What a framework accepts at start and fails on later: said beside our own refusal.

Seen by running the frameworks' own checks (megatron-core 0.16.1 and 0.19.2, torchtitan 0.2.2, DeepSpeed
0.19.8, MaxText 0.2.5) on such settings.
"""

from __future__ import annotations

_MEGATRON = {
    "sequence_divides_over_sequence_ranks": "Megatron's arguments accept this; the first forward pass fails",
    "mlp_width_divides_over_tensor_ranks": "accepted by Megatron's arguments; building the model fails",
    "expert_width_divides_over_expert_tensor_ranks": "accepted by Megatron; building the model fails",
    "experts_with_tensor_ranks_need_sequence_parallelism": "Megatron only warns; the first step fails",
    "microbatches_fill_interleaved_rounds": "accepted by Megatron's arguments; the schedule fails",
    "expert_ranks_divide_the_replicas": "accepted by Megatron's arguments; making the groups fails",
    "heads_divide_over_all_to_all_ranks": "Megatron accepts this; Transformer Engine fails at run time",
    "layers_divide_over_stages": "some of Megatron's flags accept this; building the model fails",
}

SILENT: dict[str, dict[str, str]] = {
    "megatron": _MEGATRON,
    "megatron-bridge": _MEGATRON
    | {
        "micro_batch_divides_the_replica_batch": "accepted by Bridge's validate(); the first step fails",
        "replicas_divide_the_global_batch": "accepted by Bridge's validate(); the first step fails",
    },
    "torchtitan": {
        "attention_heads_divide_over_tensor_ranks": "torchtitan 0.2.2 accepts this; the first step fails",
    },
    "deepspeed": {
        "kv_heads_divide_over_tensor_ranks": "DeepSpeed only warns and leaves ranks without attention heads",
    },
    "maxtext": {
        "experts_divide_over_expert_ranks": "MaxText's configuration accepts this",
        "kv_heads_divide_over_tensor_ranks": "MaxText's configuration accepts this",
    },
}
"""Framework to rule to what happens instead of a refusal."""


def not_told(framework: str, rule: str) -> str:
    """Return ``; <what the framework would do>`` or an empty string."""
    word = SILENT.get(framework, {}).get(rule)
    return f" ({word})" if word else ""
