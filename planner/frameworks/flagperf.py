"""FlagPerf (profile only): benchmark collection over Megatron-LM.

Sources: FlagOpen/FlagPerf training benchmarks; limits are Megatron's.
"""

from __future__ import annotations

from planner.frameworks.megatron.profile import LIMITS
from planner.spec.framework import FrameworkProfile, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, kernel_efficiency, overlap_slowdown, step_overhead_s,
    # straggler_per_doubling, tensor_comm_hidden_fraction: fitted on tests/data/measured/calibration.jsonl
    # by tests/benchmarks/fit.py, 10 rows.
    attention_kernel="fa2",
    kernel_efficiency=0.8705,
    elementwise_factor=1.5691,
    tensor_comm_hidden_fraction=0.0919,
    overlap_slowdown=0.1884,
    scatters_sends=True,
    attention_efficiency=0.9258,
    step_overhead_s=0.0457,
    straggler_per_doubling=0.0041,
)

MEMORY = MemoryHabits(
    # FlagScale runs: Megatron code without fused cross entropy, rotary embedding or SwiGLU.
    activation_style="unfused",
    loss_saved_bytes=6.0,
    loss_peak_bytes=8.0,
    reported="device",
)

PROFILE = FrameworkProfile(
    name="flagperf",
    version="FlagPerf (Megatron-LM)",
    aliases=(),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
