"""nanotron as the planner sees it: limits and habits.

Sources: nanotron main (``config``, ``parallel/context.py``, ``nn``): 1F1B or all-forward-all-backward, no
virtual stages, ZeRO-1 at most, heads and KV heads divide over tensor ranks. nanotron places layers on stages
by their cost itself, so uneven counts are legal.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(attention_kernel="fa2")

MEMORY = MemoryHabits()

LIMITS = Limits(
    schedules=("none", "gpipe", "1f1b"),
    zero_stages=(0, 1),
    zero_stages_with_pipeline=(0, 1),
    hybrid_sharding=False,
    context_parallel_kinds=("ring",),
    replicates_kv_heads=False,
    expert_parallel=False,
    expert_tensor_parallel=False,
    vocab_multiple=1,
    uneven_stages="any",
    recompute=("none", "full"),
    recompute_per_stage=False,
    partial_recompute=False,
    moe_tensor_needs_sequence_parallel=False,
    offloads=("none",),
    precisions=("bf16",),
    microbatches_at_least_stages_less_one=True,
)

PROFILE = FrameworkProfile(
    name="nanotron",
    version="nanotron 0.4 (main)",
    aliases=(),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
