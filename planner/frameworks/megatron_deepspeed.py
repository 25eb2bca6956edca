"""Megatron-DeepSpeed (profile only): Megatron layers in DeepSpeed's pipeline engine.

Sources: the Megatron-DeepSpeed repository's ``pretrain_gpt.py`` arguments; DeepSpeed 0.19.8 engine.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(
    attention_kernel="unfused",
    tensor_backward_overlaps=False,
    gradient_sync_overlaps=False,
    parameter_gather_overlaps=False,
    elementwise_factor=1.5,
    pipeline_sends_overlap=False,
    gradient_reduce_bytes=2.0,
)

MEMORY = MemoryHabits()

LIMITS = Limits(
    schedules=("none", "1f1b"),
    zero_stages=(0, 1, 2, 3),
    zero_stages_with_pipeline=(0, 1),
    hybrid_sharding=False,
    context_parallel_kinds=("all_to_all",),
    vocab_multiple=128,
    uneven_stages="any",
    recompute=("none", "selective", "full"),
    partial_recompute=True,
    moe_tensor_needs_sequence_parallel=False,
    offloads=("none", "optimizer"),
    precisions=("fp32", "fp16", "bf16"),
    replicates_kv_heads_over_context=True,
)

PROFILE = FrameworkProfile(
    name="megatron-deepspeed",
    version="DeepSpeed 0.19.8",
    aliases=("megatron_deepspeed",),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
