"""DeepSpeed as the planner sees it: limits and habits.

Sources: DeepSpeed 0.19.8 (``runtime/config.py``, ``runtime/engine.py``, ``runtime/pipe``); the pipeline
engine runs 1F1B and refuses ZeRO-2 and 3, Ulysses is its sequence parallelism, AutoEP needs one
expert-tensor rank.
"""

from __future__ import annotations

from planner.frameworks.shared_time import EAGER_TIME
from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits

TIME = EAGER_TIME

MEMORY = MemoryHabits(
    # ZeRO paper and DeepSpeed's estimator: 2 + 2 + 12.
    gradient_bytes=2.0,
    # Hugging Face modelling code: eager rotary embedding and SwiGLU, fp32 loss.
    activation_style="unfused",
    # Its RMS norm keeps the input in fp32 and the normalised copy: 4 + 2 bytes. With both of a layer's norms,
    # Llama 3 8B keeps 28 hidden states of 16 bits a token, and Qwen3 4B with those of queries and keys 38.
    eager_norm_bytes=6.0,
    loss_saved_bytes=6.0,
    loss_peak_bytes=14.0,
    # Reduce and gather buckets of 5e8 elements (reduce_bucket_size, allgather_bucket_size), double-buffered.
    bucket_bytes=4e9,
    # runtime/zero/stage_1_and_2.py and stage3.py: partitioned gradients are kept where the optimizer is.
    offloads_gradients=True,
    reserved_over_allocated=1.1,
    reported="device",
)

LIMITS = Limits(
    schedules=("none", "1f1b"),
    zero_stages=(0, 1, 2, 3),
    zero_stages_with_pipeline=(0, 1),
    hybrid_sharding=False,
    context_parallel_kinds=("all_to_all",),
    replicates_kv_heads=False,
    # AutoTP splits attention and MLP, Ulysses trades heads in attention alone.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
    expert_parallel=True,
    expert_tensor_parallel=False,
    vocab_multiple=1,
    uneven_stages="even",
    recompute=("none", "full"),
    recompute_per_stage=False,
    partial_recompute=False,
    microbatches_at_least_stages=False,
    moe_tensor_needs_sequence_parallel=False,
    offloads=("none", "optimizer", "parameters"),
    precisions=("fp32", "fp16", "bf16"),
    zero3_with_experts=False,
    sequence_parallel=False,
    context_excludes_pipeline=True,
    experts_with_tensor_exclude_pipeline=True,
    replicates_kv_heads_over_context=True,
)

PROFILE = FrameworkProfile(
    name="deepspeed",
    version="DeepSpeed 0.19.8",
    aliases=("ds", "openrlhf"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
