"""Hugging Face Accelerate as the planner sees it: limits and habits.

Sources: accelerate 1.15 (``ParallelismConfig``, ``FullyShardedDataParallelPlugin``): no pipeline and no
expert parallelism; FSDP2 reshards (ZeRO-3) or keeps gathered weights (ZeRO-2); context parallelism by ring
or all-gather; its DeepSpeed Ulysses is left to the DeepSpeed writer.
"""

from __future__ import annotations

from planner.frameworks.shared_time import EAGER_TIME
from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits

TIME = EAGER_TIME.model_copy(
    update={
        "attention_kernel": "fa2",
        # transformers, gradient checkpointing guide: both copies run on the compute stream.
        "activation_copies_overlap": False,
    }
)

MEMORY = MemoryHabits(
    sharded_weights_are_master=True,
    # Hugging Face modelling code, as under DeepSpeed.
    activation_style="unfused",
    eager_norm_bytes=6.0,
    # ``no_sync`` between accumulation steps unless ``sync_each_batch`` is set: whole gradients add up.
    defers_reduction="always",
    # ``mixed_precision: bf16`` sets the format of the reduction as well.
    reduced_gradient_bytes=2.0,
    loss_saved_bytes=6.0,
    loss_peak_bytes=14.0,
)

LIMITS = Limits(
    schedules=("none",),
    zero_stages=(0, 2, 3),
    zero_stages_with_pipeline=(),
    hybrid_sharding=True,
    context_parallel_kinds=("ring", "all_gather"),
    replicates_kv_heads=False,
    # transformers splits attention and MLP over tensor ranks and gathers what a linear mixer makes; its
    # context parallelism knows scaled dot-product attention only.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
    expert_parallel=False,
    expert_tensor_parallel=False,
    max_pipeline_parallel=1,
    vocab_multiple=1,
    uneven_stages="even",
    recompute=("none", "full"),
    recompute_per_stage=False,
    partial_recompute=False,
    moe_tensor_needs_sequence_parallel=False,
    # fsdp_offload_params moves the shards whole; transformers 5.16: gradient_checkpointing_kwargs.offload.
    offloads=("none", "parameters", "activations", "parameters+activations"),
    parameter_offload_zero_stages=(2, 3),
    activation_offload_recompute=("full",),
    precisions=("fp32", "fp16", "bf16", "fp8"),
    plain_replication_combines=False,
    sequence_parallel=False,
    context_is_sharded=True,
    sharding_needs_replicas=True,
    shard_groups_hold_replicas=True,
)

PROFILE = FrameworkProfile(
    name="accelerate",
    version="accelerate 1.15",
    aliases=(
        "hf",
        "transformers",
        "huggingface",
        "trl",
        "axolotl",
        "llama-factory",
        "llamafactory",
        "unsloth",
    ),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
