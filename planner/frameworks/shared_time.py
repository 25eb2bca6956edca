"""Time habits of frameworks without runs of their own: the values that all measured frameworks share.

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
    kernel_efficiency=0.9055,
    elementwise_factor=1.4029,
    tensor_comm_hidden_fraction=0.0675,
    overlap_slowdown=0.217,
    pipeline_sends_hidden_fraction=0.0879,
    expert_comm_hidden_fraction=0.1211,
    attention_efficiency=0.8217,
    expert_kernel_efficiency=0.7435,
    kernels_per_moe_layer=333.3056,
    step_overhead_s=0.0467,
    straggler_per_doubling=0.0018,
)
