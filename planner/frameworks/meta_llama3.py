"""Meta's in-house framework of the Llama 3 runs (profile only): FSDP inside 4D parallelism.

Source: The Llama 3 Herd of Models (arXiv 2407.21783) section 3.3.2. FSDP shards optimizer states and
gradients and keeps the gathered weights after the forward pass (ZeRO-2 here); gradients accumulate in fp32
over consecutive micro-batches and are reduce-scattered in fp32; context parallelism gathers keys and values;
the interleaved pipeline takes any number of micro-batches, and its first and last stages hold a layer less;
tensor groups are a node (8), as many as the KV heads. 8K tokens are trained without recomputation.
"""

from __future__ import annotations

from planner.frameworks.shared_time import TIME as SHARED_TIME
from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits

TIME = SHARED_TIME.model_copy(update={"attention_kernel": "fa2"})

MEMORY = MemoryHabits(
    sharded_weights_are_master=True,
    piped_gradients="chunk",
    selective_modules=("op",),
    unsaid_modules=("op",),
    # Tensors are "proactively deallocated", so that the allocator's cache stays near what is live; loss over
    # 16-bit logits as in torchtitan's compiled code.
    loss_peak_bytes=8.0,
    reserved_over_allocated=1.03,
    reported="reserved",
)

LIMITS = Limits(
    schedules=("none", "gpipe", "1f1b", "interleaved"),
    zero_stages=(0, 1, 2, 3),
    zero_stages_with_pipeline=(0, 1, 2, 3),
    hybrid_sharding=True,
    context_parallel_kinds=("all_gather",),
    replicates_kv_heads=False,
    # Llama has no linear mixers.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
    expert_parallel=False,
    expert_tensor_parallel=False,
    vocab_multiple=1,
    uneven_stages="any",
    interleaved_multiple_of_stages=False,
    offloads=("none",),
    precisions=("fp32", "bf16"),
)

PROFILE = FrameworkProfile(
    name="meta-llama3",
    version="Llama 3 (2024)",
    aliases=("llama3", "meta"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
