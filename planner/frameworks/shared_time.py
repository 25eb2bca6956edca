"""Time habits of frameworks without runs of their own: those that all measured frameworks share, or a family.

``tests/benchmarks/write_fit.py`` writes them here, and once a framework has runs, into its own profile.
"""

from __future__ import annotations

from planner.spec.framework import TimeHabits

TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, expert_comm_hidden_fraction, expert_kernel_efficiency,
    # kernel_efficiency, kernels_per_moe_layer, overlap_slowdown, pipeline_sends_hidden_fraction,
    # step_overhead_s, straggler_per_doubling, tensor_comm_hidden_fraction: fitted on
    # tests/data/measured/calibration.jsonl by tests/benchmarks/fit.py, the values shared by all
    # frameworks (no rows of its own).
    kernel_efficiency=0.8846,
    elementwise_factor=1.4496,
    tensor_comm_hidden_fraction=0.0819,
    overlap_slowdown=0.1922,
    pipeline_sends_hidden_fraction=0.1627,
    expert_comm_hidden_fraction=0.1557,
    attention_efficiency=0.8483,
    expert_kernel_efficiency=0.809,
    kernels_per_moe_layer=409.879,
    step_overhead_s=0.0474,
    straggler_per_doubling=0.0027,
)

EAGER_TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, expert_comm_hidden_fraction, expert_kernel_efficiency,
    # kernel_efficiency, kernels_per_moe_layer, overlap_slowdown, pipeline_sends_hidden_fraction,
    # step_overhead_s, straggler_per_doubling, tensor_comm_hidden_fraction: fitted on
    # tests/data/measured/calibration.jsonl by tests/benchmarks/fit.py, the values shared by PyTorch
    # frameworks (no rows of its own).
    kernel_efficiency=0.8988,
    elementwise_factor=1.4325,
    tensor_comm_hidden_fraction=0.0573,
    overlap_slowdown=0.3215,
    pipeline_sends_hidden_fraction=0.1627,
    expert_comm_hidden_fraction=0.1557,
    attention_efficiency=0.8504,
    expert_kernel_efficiency=0.864,
    kernels_per_moe_layer=409.879,
    step_overhead_s=0.0594,
    straggler_per_doubling=0.0025,
)
"""Of PyTorch code that runs plain modules (llm-foundry, torchtitan): FSDP, DDP, DeepSpeed's ZeRO."""
