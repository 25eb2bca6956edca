"""FlagPerf (profile only): benchmark collection over Megatron-LM.

Sources: FlagOpen/FlagPerf training benchmarks; limits are Megatron's.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, kernel_efficiency, overlap_slowdown, step_overhead_s,
    # straggler_per_doubling, tensor_comm_hidden_fraction: fitted on tests/data/measured/calibration.jsonl
    # by tests/benchmarks/fit.py, 10 rows.
    attention_kernel="fa2",
    kernel_efficiency=0.8778,
    elementwise_factor=1.1117,
    tensor_comm_hidden_fraction=0.0808,
    overlap_slowdown=0.2307,
    scatters_sends=True,
    attention_efficiency=0.9471,
    step_overhead_s=0.0471,
    straggler_per_doubling=0.0021,
)

MEMORY = MemoryHabits(
    # FlagScale runs: Megatron code without fused cross entropy, rotary embedding or SwiGLU.
    activation_style="unfused",
    loss_saved_bytes=6.0,
    loss_peak_bytes=8.0,
    reported="device",
)

LIMITS = Limits(
    schedules=("none", "1f1b", "interleaved"),
    zero_stages=(0, 1, 2, 3),
    zero_stages_with_pipeline=(0, 1),
    hybrid_sharding=True,
    context_parallel_kinds=("ring", "all_gather", "all_to_all"),
    replicates_kv_heads=True,
    expert_parallel=True,
    expert_tensor_parallel=True,
    vocab_multiple=128,
    uneven_stages="any",
    recompute=("none", "selective", "full"),
    recompute_per_stage=False,
    partial_recompute=True,
    microbatches_at_least_stages=False,
    interleaved_multiple_of_stages=True,
    moe_tensor_needs_sequence_parallel=True,
    offloads=("none", "optimizer"),
    zigzag_for_every_context_kind=True,
)

PROFILE = FrameworkProfile(
    name="flagperf",
    version="FlagPerf (Megatron-LM)",
    aliases=(),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
