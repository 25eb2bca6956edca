"""LLM Foundry (profile only): Composer with PyTorch FSDP.

Sources: mosaicml/llm-foundry training benchmarks: FULL_SHARD or SHARD_GRAD_OP, full activation checkpointing.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, kernel_efficiency, overlap_slowdown, step_overhead_s,
    # straggler_per_doubling, tensor_comm_hidden_fraction: fitted on tests/data/measured/calibration.jsonl
    # by tests/benchmarks/fit.py, 88 rows.
    attention_kernel="fa2",
    kernel_efficiency=0.9399,
    elementwise_factor=1.3602,
    tensor_comm_hidden_fraction=0.0573,
    overlap_slowdown=0.4121,
    attention_efficiency=0.6098,
    step_overhead_s=0.0601,
    straggler_per_doubling=0.0025,
)

MEMORY = MemoryHabits(
    sharded_weights_are_master=True,
    # flash-attn's fused cross entropy: bf16 logits and their gradient.
    loss_saved_bytes=2.0,
    loss_peak_bytes=4.0,
    reported="reserved",
)

LIMITS = Limits(
    schedules=("none",),
    zero_stages=(0, 2, 3),
    zero_stages_with_pipeline=(),
    hybrid_sharding=True,
    replicates_kv_heads=False,
    # It shards whole layers alone (FSDP); its models have no linear mixers.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
    expert_parallel=True,
    expert_tensor_parallel=False,
    max_tensor_parallel=1,
    max_pipeline_parallel=1,
    max_context_parallel=1,
    vocab_multiple=1,
    uneven_stages="even",
    recompute=("none", "full"),
    partial_recompute=False,
    moe_tensor_needs_sequence_parallel=False,
    # fsdp_config.cpu_offload: FSDP's CPUOffload.
    offloads=("none", "parameters"),
    parameter_offload_zero_stages=(2, 3),
    precisions=("fp32", "fp16", "bf16", "fp8"),
    plain_replication_combines=False,
)

PROFILE = FrameworkProfile(
    name="llm-foundry",
    version="llm-foundry 0.x",
    aliases=("llmfoundry", "composer"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
