"""Megatron-DeepSpeed (profile only): Megatron layers in DeepSpeed's pipeline engine.

Sources: the Megatron-DeepSpeed repository's ``pretrain_gpt.py`` arguments; DeepSpeed 0.19.8 engine.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, kernel_efficiency, microbatch_overhead_s,
    # overlap_slowdown, step_overhead_s, straggler_per_doubling, tensor_comm_hidden_fraction: fitted on
    # tests/data/measured/calibration.jsonl by tests/benchmarks/fit.py, 186 rows.
    attention_kernel="unfused",
    kernel_efficiency=0.8397,
    elementwise_factor=2.4581,
    tensor_comm_hidden_fraction=0.0,
    tensor_backward_overlaps=False,
    gradient_sync_overlaps=False,
    parameter_gather_overlaps=False,
    overlap_slowdown=0.1986,
    gradient_reduce_bytes=2.0,
    pipeline_sends_overlap=False,
    # The engine cuts activations and their gradients over the tensor ranks and gathers them in the next stage
    # (runtime/pipe/engine.py, is_pipe_partitioned).
    scatters_sends=True,
    attention_efficiency=0.867,
    microbatch_overhead_s=0.003,
    step_overhead_s=0.045,
    straggler_per_doubling=0.005,
)

MEMORY = MemoryHabits(
    # fp16: 4 + 16/d (DeepSpeed ZeRO-1 keeps an fp32 gradient of its shard). bf16: an fp32 accumulator besides
    # the bf16 gradient, 8 + 12/d. Both agree with a regression on the BigScience runs.
    gradient_bytes=6.0,
    fp16_gradient_bytes=2.0,
    fp16_optimizer_bytes=16.0,
    # 2021-22: no FlashAttention, dropout after attention and MLP, fp32 vocabulary-parallel loss.
    fused_attention=False,
    dropout_mask_bytes=2.0,
    # The last module of the pipeline casts logits to fp32 (model/gpt_model.py), and DeepSpeed frees a last
    # stage's outputs only when the buffer is needed again (runtime/pipe/engine.py: two buffers). At the worst
    # moment: the outputs of two micro-batches, the softmax that becomes their gradient (a clone,
    # mpu/cross_entropy.py) and its 16-bit copy: 4 + 4 + 4 + 2.
    loss_peak_bytes=14.0,
    # Fitted on tests/data/measured/calibration.jsonl, BigScience: 1.2 hidden states a layer.
    checkpoint_bytes=2.4,
    # Reduce and gather buckets of 5e8 elements (reduce_bucket_size, allgather_bucket_size), double-buffered.
    bucket_bytes=4e9,
    # DeepSpeed's partitioned gradients are kept where the optimizer is.
    offloads_gradients=True,
    reserved_over_allocated=1.03,
    # CUDA 11 context with the full kernel set (1.8 GiB in older stacks).
    context_bytes=1.9e9,
    # People read nvidia-smi on the first node, which holds the first stages: in the published V100 runs the
    # figure grows with the micro-batch as the first stage does, not as the last one with its logits.
    reported="device",
    reported_rank="first",
)

LIMITS = Limits(
    schedules=("none", "1f1b"),
    zero_stages=(0, 1, 2, 3),
    zero_stages_with_pipeline=(0, 1),
    hybrid_sharding=False,
    context_parallel_kinds=("all_to_all",),
    vocab_multiple=128,
    uneven_stages="any",
    recompute=("none", "selective", "full"),
    partial_recompute=True,
    moe_tensor_needs_sequence_parallel=False,
    offloads=("none", "optimizer", "parameters"),
    precisions=("fp32", "fp16", "bf16"),
    replicates_kv_heads_over_context=True,
    # Its GPT has no linear mixers.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
)

PROFILE = FrameworkProfile(
    name="megatron-deepspeed",
    version="DeepSpeed 0.19.8",
    aliases=("megatron_deepspeed",),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
