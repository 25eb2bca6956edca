"""torchtitan as the planner sees it: limits and habits.

Sources: torchtitan 0.2.2 and 0.3.0 (``parallel_dims.py``, ``decoder.py``, ``pipeline_parallel.py``) over the
schedules of ``torch.distributed.pipelining`` 2.13. FSDP keeps fp32 shards: resharding after the forward pass
is ZeRO-3, keeping the gathered weights is ZeRO-2.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, expert_kernel_efficiency, kernel_efficiency,
    # overlap_slowdown, step_overhead_s, straggler_per_doubling, tensor_comm_hidden_fraction: fitted on
    # tests/data/measured/calibration.jsonl by tests/benchmarks/fit.py, 26 rows.
    attention_kernel="fa2",
    kernel_efficiency=0.8938,
    elementwise_factor=1.4781,
    compiled_elementwise_factor=1.1,
    tensor_comm_hidden_fraction=0.022,
    low_precision_gathers=True,
    overlap_slowdown=0.3603,
    attention_efficiency=0.8552,
    expert_kernel_efficiency=0.9191,
    step_overhead_s=0.0857,
    straggler_per_doubling=0.0023,
)

MEMORY = MemoryHabits(
    # FSDP2: fp32 shards (16/d), two gathered bf16 units, fp32 gradients of the unit under reduction.
    sharded_weights_are_master=True,
    selective_modules=("op",),
    unsaid_modules=("op",),
    loss_saved_bytes=6.0,
    # fp32 loss: bf16 logits and gradient, fp32 copy and its softmax: 14 when not compiled, 16-bit logits and
    # their fp32 gradient when it is; over tensor ranks 16 and 18 (Qwen3-32B grid of torchtitan PR 1690 at
    # t = 1, 4, 8; Llama 3 70B at t = 8). A plan does not say which: between the two.
    loss_peak_bytes=10.0,
    parallel_loss_bytes=7.0,
    eager_loss_bytes=(14.0, 4.0),
    compiled_loss_bytes=(6.0, 10.0),
    # ``score_before_experts``: routed tokens are kept before and after the scores are applied.
    keeps_unweighted_tokens=True,
    # Scaled products keep their bf16 inputs (equal peaks with and without float8 in the published runs).
    low_precision_activations=False,
    reserved_over_allocated=1.03,
    reported="reserved",
)

LIMITS = Limits(
    schedules=("none", "gpipe", "1f1b", "interleaved", "zb-v", "dualpipe-v"),
    zero_stages=(0, 2, 3),
    zero_stages_with_pipeline=(0, 2, 3),
    hybrid_sharding=True,
    context_parallel_kinds=("ring", "all_gather"),
    replicates_kv_heads=False,
    # The emitted models have no linear mixers.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
    expert_parallel=True,
    expert_tensor_parallel=False,
    vocab_multiple=1,
    uneven_stages="any",
    recompute=("none", "selective", "full"),
    recompute_per_stage=False,
    partial_recompute=False,
    microbatches_at_least_stages=True,
    interleaved_multiple_of_stages=False,
    moe_tensor_needs_sequence_parallel=False,
    # CPUOffloadPolicy of FSDP2.
    offloads=("none", "parameters"),
    parameter_offload_zero_stages=(2, 3),
    precisions=("fp32", "bf16", "fp8", "mxfp8"),
    plain_replication_combines=False,
    context_is_sharded=True,
    sequence_divides_by_tensor_and_context=True,
    tied_embeddings_with_pipeline=False,
    sharding_needs_replicas=True,
)

PROFILE = FrameworkProfile(
    name="torchtitan",
    version="torchtitan 0.3.0 (TOML: 0.2.2)",
    aliases=("titan",),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
