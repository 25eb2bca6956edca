"""``any``: no framework in particular, everything the planner can describe."""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits
from planner.spec.plan import SCHEDULES

TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, expert_comm_hidden_fraction, expert_kernel_efficiency,
    # kernel_efficiency, kernels_per_moe_layer, overlap_slowdown, pipeline_sends_hidden_fraction,
    # step_overhead_s, straggler_per_doubling, tensor_comm_hidden_fraction: fitted on
    # tests/data/measured/calibration.jsonl by tests/benchmarks/fit.py, the values shared by all
    # frameworks (no rows of its own).
    kernel_efficiency=0.9076,
    elementwise_factor=1.3992,
    tensor_comm_hidden_fraction=0.076,
    overlap_slowdown=0.2341,
    pipeline_sends_hidden_fraction=0.1253,
    expert_comm_hidden_fraction=0.1327,
    attention_efficiency=0.8076,
    expert_kernel_efficiency=0.7522,
    kernels_per_moe_layer=272.0556,
    step_overhead_s=0.047,
    straggler_per_doubling=0.0018,
)

MEMORY = MemoryHabits(
    # Fused attention leaves "core_attn", Megatron's own default, nothing to save.
    selective_modules=("layernorm", "mla_up_proj", "moe_act", "mlp"),
)

LIMITS = Limits(
    schedules=SCHEDULES,
    zero_stages=(0, 1, 2, 3),
    zero_stages_with_pipeline=(0, 1, 2, 3),
    hybrid_sharding=True,
    context_parallel_kinds=("ring", "all_gather", "all_to_all"),
    replicates_kv_heads=True,
    vocab_multiple=128,
    uneven_stages="any",
    recompute=("none", "selective", "full"),
    recompute_per_stage=True,
    partial_recompute=True,
    microbatches_at_least_stages=False,
    interleaved_multiple_of_stages=True,
    moe_tensor_needs_sequence_parallel=False,
    offloads=("none", "optimizer", "activations"),
)

PROFILE = FrameworkProfile(
    name="any",
    version="",
    aliases=("none",),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
