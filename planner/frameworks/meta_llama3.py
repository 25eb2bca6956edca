"""Meta's in-house framework of the Llama 3 runs (profile only): FSDP inside 4D parallelism.

Source: The Llama 3 Herd of Models (arXiv 2407.21783) section 3.3.2. FSDP shards optimizer states and
gradients and keeps the gathered weights after the forward pass (ZeRO-2 here); gradients accumulate in fp32
over consecutive micro-batches and are reduce-scattered in fp32; context parallelism gathers keys and values;
the interleaved pipeline takes any number of micro-batches, and its first and last stages hold a layer less;
tensor groups are a node (8), as many as the KV heads. 8K tokens are trained without recomputation.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, expert_comm_hidden_fraction, expert_kernel_efficiency,
    # kernel_efficiency, kernels_per_moe_layer, overlap_slowdown, pipeline_sends_hidden_fraction,
    # step_overhead_s, straggler_per_doubling, tensor_comm_hidden_fraction: fitted on
    # tests/data/measured/calibration.jsonl by tests/benchmarks/fit.py, the values shared by all
    # frameworks (no rows of its own).
    attention_kernel="fa2",
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
