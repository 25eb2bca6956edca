"""MaxText as the planner sees it: limits and habits.

Sources: MaxText 0.2.5 (``base.yml``, ``types.py``): ``fsdp`` axes shard all state (ZeRO-3), ``data`` axes
replicate it (ZeRO-1 with ``shard_optimizer_over_data``); the pipeline is circular: all forward, all backward.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # elementwise_factor, expert_kernel_efficiency, overlap_slowdown, step_overhead_s,
    # straggler_per_doubling, tensor_comm_hidden_fraction: fitted on tests/data/measured/calibration.jsonl
    # by tests/benchmarks/fit.py, 47 rows.
    attention_kernel="cudnn",
    elementwise_factor=0.8361,
    tensor_comm_hidden_fraction=0.1818,
    overlap_slowdown=0.2917,
    expert_kernel_efficiency=0.7566,
    step_overhead_s=0.0627,
    straggler_per_doubling=0.0005,
)

MEMORY = MemoryHabits(
    # fp32 parameters and moments (4 + 8), sharded; bf16 gradients; XLA scans over layers, so that one
    # gathered layer is live, and fuses the loss, so that only the bf16 logits and part of their gradient are.
    sharded_weights_are_master=True,
    gradient_bytes=2.0,
    loss_saved_bytes=2.0,
    loss_peak_bytes=3.0,
    gathered_units=1.0,
    reduced_units=0.5,
    reserved_over_allocated=1.0,
    context_bytes=0.3e9,
    communicator_bytes=0.0,
)

LIMITS = Limits(
    schedules=("none", "gpipe", "interleaved"),
    zero_stages=(0, 1, 3),
    zero_stages_with_pipeline=(0, 1, 3),
    hybrid_sharding=True,
    context_parallel_kinds=("ring", "all_gather", "all_to_all"),
    replicates_kv_heads=False,
    # The emitted decoder blocks have no linear mixers.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
    expert_parallel=True,
    expert_tensor_parallel=False,
    vocab_multiple=1,
    uneven_stages="even",
    recompute=("none", "selective", "full"),
    recompute_per_stage=False,
    partial_recompute=False,
    microbatches_at_least_stages=True,
    interleaved_multiple_of_stages=True,
    moe_tensor_needs_sequence_parallel=False,
    # remat_policy: custom with decoder_layer_input: offload; nothing else of a layer is kept.
    offloads=("none", "optimizer", "activations"),
    activation_offload_recompute=("full",),
    precisions=("fp32", "bf16", "fp8"),
    microbatches_multiple_of_stages=True,
    # activations between layers are split over the tensor axis (base.yml: activation_embed)
    sequence_parallel_required_with_tensor=True,
    context_and_experts_need_zero3=True,
    sharding_needs_replicas=True,
)

PROFILE = FrameworkProfile(
    name="maxtext",
    version="MaxText 0.2.5",
    aliases=("max-text",),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
