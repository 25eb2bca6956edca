"""PaddleNLP / PaddlePaddle Fleet (profile only).

Sources: PaddleNLP pre-training documentation: tensor, pipeline and sharding stages 1 to 3.
"""

from __future__ import annotations

from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, kernel_efficiency, overlap_slowdown, step_overhead_s,
    # straggler_per_doubling, tensor_comm_hidden_fraction: fitted on tests/data/measured/calibration.jsonl
    # by tests/benchmarks/fit.py, 16 rows.
    attention_kernel="fa2",
    kernel_efficiency=0.8149,
    elementwise_factor=2.2065,
    tensor_comm_hidden_fraction=0.0,
    overlap_slowdown=0.2151,
    attention_efficiency=0.8502,
    step_overhead_s=0.0465,
    straggler_per_doubling=0.0039,
)

MEMORY = MemoryHabits(
    # fp16 (O2): 4 + 16/d with sharding stage 1, 2 + 18/d with stage 2.
    fp16_gradient_bytes=2.0,
    fp16_optimizer_bytes=16.0,
    activation_style="unfused",
    # ``sequence_parallel`` is off unless asked for (PaddleNLP's model and training arguments).
    unsaid_sequence_parallel=False,
    loss_saved_bytes=6.0,
    loss_peak_bytes=12.0,
    # Paddle's auto-growth allocator (fitted on tests/data/measured/calibration.jsonl); its log prints what it
    # holds.
    reserved_over_allocated=1.12,
    reported="reserved",
)

LIMITS = Limits(
    schedules=("none", "1f1b", "interleaved"),
    zero_stages=(0, 1, 2, 3),
    # "pipeline parallel is not compatible" with stages 2 and 3 (paddlenlp/trainer/training_args.py)
    zero_stages_with_pipeline=(0, 1),
    hybrid_sharding=True,
    vocab_multiple=128,
    # "number of layers should be divided by part number" (fleet meta_parallel pp_layers.py)
    uneven_stages="even",
    recompute=("none", "selective", "full"),
    moe_tensor_needs_sequence_parallel=False,
    # Its models have no linear mixers.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
)

PROFILE = FrameworkProfile(
    name="paddle",
    version="PaddlePaddle 3",
    aliases=("paddlenlp", "paddlepaddle"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
