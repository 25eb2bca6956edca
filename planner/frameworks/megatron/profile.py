"""Megatron-LM and megatron-core as the planner sees them: limits and habits.

Sources: megatron-core 0.16.1 and Megatron-LM 0.19.2 (``arguments.py``, ``transformer_config.py``,
``parallel_state.py``, ``schedules.py``); memory accounting from the Megatron-LM documentation
(``6 + 12/d`` bytes per parameter with the distributed optimizer).
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # elementwise_factor, expert_comm_hidden_fraction, expert_kernel_efficiency, kernels_per_moe_layer,
    # overlap_slowdown, pipeline_sends_hidden_fraction, step_overhead_s, straggler_per_doubling,
    # tensor_comm_hidden_fraction: fitted on tests/data/measured/calibration.jsonl by
    # tests/benchmarks/fit.py, 122 rows.
    attention_kernel="cudnn",
    elementwise_factor=1.4172,
    tensor_comm_hidden_fraction=0.0601,
    low_precision_gathers=True,
    overlap_slowdown=0.0951,
    pipeline_sends_hidden_fraction=0.0,
    scatters_sends=True,
    expert_comm_hidden_fraction=0.3551,
    deduplicates_dispatch=True,
    expert_kernel_efficiency=0.7481,
    kernels_per_moe_layer=420.1936,
    step_overhead_s=0.0488,
    straggler_per_doubling=0.0007,
)

MEMORY = MemoryHabits(
    # Fused attention leaves "core_attn", Megatron's own default, nothing to save.
    selective_modules=("layernorm", "mla_up_proj", "moe_act", "mlp"),
    # bf16 weights, fp32 main gradients, fp32 master and moments: 6 + 12/d with the distributed optimizer.
    # fp16 accumulates in fp16: 4 + 16/d. [Megatron-LM docs, distributed optimizer]
    fp16_gradient_bytes=2.0,
    fp16_optimizer_bytes=16.0,
    # Transformer Engine: cross-entropy fusion writes the gradient over the bf16 logits; stand-ins for weight
    # gradients stay cached (get_dummy_wgrad in module/base.py).
    loss_saved_bytes=2.0,
    loss_peak_bytes=2.0,
    dummy_weight_gradients=True,
    # Reserved over allocated 1.03-1.07 in 19 published B200 runs; part of it is given back under pressure.
    reserved_over_allocated=1.04,
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
    partial_selective=False,
    microbatches_at_least_stages=False,
    interleaved_multiple_of_stages=True,
    moe_tensor_needs_sequence_parallel=True,
    offloads=("none", "optimizer"),
    zigzag_for_every_context_kind=True,
    # --use-tp-pp-dp-mapping; parallel_state.py refuses it where experts have other replicas than the rest.
    rank_orders=("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
    far_replicas_exclude_context=True,
)

PROFILE = FrameworkProfile(
    name="megatron",
    version="Megatron-LM 0.19.2 / megatron-core 0.16.1",
    aliases=("megatron-lm", "mcore", "megatron-core"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
