"""nanotron as the planner sees it: limits and habits.

Sources: nanotron main (``config``, ``parallel/context.py``, ``nn``): 1F1B or all-forward-all-backward, no
virtual stages, ZeRO-1 at most, heads and KV heads divide over tensor ranks. nanotron places layers on stages
by their cost itself, so uneven counts are legal.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # attention_efficiency, cross_node_launch_growth, elementwise_factor, kernel_efficiency,
    # kernels_per_layer, overlap_slowdown, send_stall_s, step_overhead_s, straggler_per_doubling,
    # tensor_comm_hidden_fraction: fitted on tests/data/measured/calibration.jsonl by
    # tests/benchmarks/fit.py, 550 rows.
    attention_kernel="fa2",
    kernel_efficiency=0.784,
    elementwise_factor=1.7128,
    tensor_comm_hidden_fraction=0.0509,
    # With ZeRO-1 gradients are reduced after the backward pass, one message a weight matrix (up to 470 MB in
    # the sweep); without, PyTorch's DDP reduces them beside it (trainer.py, make_ddp).
    gradient_sync_overlaps=True,
    gradient_bucket_bytes=470e6,
    # DDP's buckets hold 25 MiB of 16-bit gradients (ddp_bucket_cap_mb), which the hook reduces in fp32.
    replica_bucket_bytes=50 * 2.0**20,
    sharded_sync_overlaps=False,
    parameter_gather_overlaps=False,
    # CUDA_DEVICE_MAX_CONNECTIONS=1, which nanotron demands, queues a reduction behind the kernels issued
    # before it, and the embedding's gradient comes last.
    overlap_fraction=0.7,
    overlap_slowdown=0.0951,
    pipeline_sends_overlap=False,
    attention_efficiency=0.7981,
    kernels_per_layer=243.6268,
    kernels_per_moe_layer=250.0,
    cross_node_launch_growth=0.3225,
    # Of 13 published runs with a pipeline over 64 nodes 11 wait half a second in every send, of 340 smaller
    # ones 55: the smaller ones count as failed runs.
    send_stall_nodes=64,
    send_stall_s=0.4528,
    tight_memory_share=0.925,
    tight_memory_slowdown=4.0,
    step_overhead_s=0.0486,
    straggler_per_doubling=0.0041,
)

MEMORY = MemoryHabits(
    # 2 + 4 + 12 and a bf16 gradient bucket with data parallelism: the regression on the published sweep gives
    # 18.05 and 2.09 bytes a parameter. With ZeRO-1 it does not stay: 6.5 over 24 ranks (nanotron issue 261).
    bucket_gradient_bytes=2.0,
    activation_style="unfused",
    # Fitted on tests/data/measured/sweep_calibration.jsonl (t = 1 first, then t > 1).
    loss_peak_bytes=10.0,
    gathered_window_bytes=80.0,
    # cuBLAS keeps 32 MiB a stream on Hopper; compute, tensor and pipeline streams multiply (of 0 to 0.3 GB,
    # the value that suits the sweep best).
    workspace_bytes=0.1e9,
    reserved_over_allocated=1.03,
    # Published runs reached 77.1 GiB reserved of 79.6: context and three groups stay below 2.5.
    communicator_bytes=0.5e9,
    # The log prints the first rank's peak reserved memory in GiB.
    reported="reserved",
    reported_rank="first",
    reported_unit_bytes=2.0**30,
)

LIMITS = Limits(
    schedules=("none", "gpipe", "1f1b"),
    zero_stages=(0, 1),
    zero_stages_with_pipeline=(0, 1),
    hybrid_sharding=False,
    context_parallel_kinds=("ring",),
    replicates_kv_heads=False,
    # Llama has no linear mixers.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
    expert_parallel=False,
    expert_tensor_parallel=False,
    vocab_multiple=1,
    uneven_stages="any",
    default_split="cost",
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
