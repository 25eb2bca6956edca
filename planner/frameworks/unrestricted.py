"""``any``: no framework in particular, everything the planner can describe."""

from __future__ import annotations

from planner.frameworks.shared_time import TIME as SHARED_TIME
from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits
from planner.spec.plan import SCHEDULES

TIME = SHARED_TIME

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
    # Without parameters: as a kind of their own they make the largest of all spaces half as large again.
    offloads=("none", "optimizer", "activations"),
    rank_orders=("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
)

PROFILE = FrameworkProfile(
    name="any",
    version="",
    aliases=("none",),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
