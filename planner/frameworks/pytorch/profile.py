"""Plain PyTorch as the planner sees it: what the emitted script can do.

Sources: PyTorch 2.13 (``init_device_mesh``, ``fully_shard``, ``parallelize_module``,
``torch.distributed.pipelining``). The script trains a dense decoder: no expert or context parallelism.
"""

from __future__ import annotations

from planner.frameworks.shared_time import EAGER_TIME
from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits

TIME = EAGER_TIME.model_copy(update={"attention_kernel": "fa2"})

MEMORY = MemoryHabits(
    # FSDP2 as in torchtitan: fp32 shards, gathered bf16 units, bf16 inputs of products whatever the format.
    sharded_weights_are_master=True,
    selective_modules=("op",),
    unsaid_modules=("op",),
    loss_saved_bytes=6.0,
    loss_peak_bytes=12.0,
    low_precision_activations=False,
    reported="reserved",
)

LIMITS = Limits(
    schedules=("none", "gpipe", "1f1b", "interleaved", "zb-v", "dualpipe-v"),
    zero_stages=(0, 2, 3),
    zero_stages_with_pipeline=(0, 2, 3),
    hybrid_sharding=True,
    context_parallel_kinds=("ring",),
    replicates_kv_heads=False,
    # The script's decoder has no linear mixers.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
    expert_parallel=False,
    expert_tensor_parallel=False,
    max_context_parallel=1,
    vocab_multiple=0,
    uneven_stages="any",
    recompute=("none", "full"),
    recompute_per_stage=True,
    partial_recompute=True,
    microbatches_at_least_stages=True,
    interleaved_multiple_of_stages=False,
    moe_tensor_needs_sequence_parallel=False,
    # CPUOffloadPolicy of FSDP2.
    offloads=("none", "parameters"),
    parameter_offload_zero_stages=(2, 3),
    precisions=("fp32", "bf16"),
    tied_embeddings_with_pipeline=False,
    # The script makes its own mesh.
    rank_orders=("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
)

PROFILE = FrameworkProfile(
    name="pytorch",
    version="PyTorch 2.13",
    aliases=("torch", "fsdp", "fsdp2", "native", "torchtune", "lightning"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
