"""Primus (profile only): AMD's launcher over Megatron-LM.

Sources: AMD-AGI/Primus with Megatron backend; limits are Megatron's, with zero-bubble schedules added.
"""

from __future__ import annotations

from planner.frameworks.megatron.profile import LIMITS as MEGATRON
from planner.spec.framework import FrameworkProfile, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # attention_efficiency, elementwise_factor, expert_comm_hidden_fraction, expert_kernel_efficiency,
    # kernel_efficiency, kernels_per_moe_layer, overlap_slowdown, step_overhead_s, straggler_per_doubling,
    # tensor_comm_hidden_fraction: fitted on tests/data/measured/calibration.jsonl by
    # tests/benchmarks/fit.py, 15 rows.
    attention_kernel="ck",
    kernel_efficiency=0.7846,
    elementwise_factor=1.2629,
    tensor_comm_hidden_fraction=0.0947,
    low_precision_gathers=True,
    overlap_slowdown=0.1003,
    scatters_sends=True,
    expert_comm_hidden_fraction=0.2155,
    deduplicates_dispatch=True,
    attention_efficiency=0.5,
    expert_kernel_efficiency=0.7232,
    kernels_per_moe_layer=548.946,
    step_overhead_s=0.0545,
    straggler_per_doubling=0.0022,
)

MEMORY = MemoryHabits(
    # Fused attention leaves "core_attn", Megatron's own default, nothing to save.
    selective_modules=("layernorm", "mla_up_proj", "moe_act", "mlp"),
    # Megatron backend; unfused cross entropy unless switched on (fusing saves 4 bytes a logit).
    loss_saved_bytes=6.0,
    loss_peak_bytes=6.0,
    dummy_weight_gradients=True,
    # Its log prints the share of the device's memory in use. Ten DeepSeek-V2-Lite runs on MI355X hold 51 to
    # 62 GB beside what grows with the micro-batch, 48 of which are state and dummies: the rest is ROCm's and
    # its collectives' (fitted on tests/data/measured/calibration.jsonl).
    context_bytes=6.8e9,
    reported="device",
)

LIMITS = MEGATRON.model_copy(update={"schedules": (*MEGATRON.schedules, "zb-h1", "zb-v")})

PROFILE = FrameworkProfile(
    name="primus",
    version="Primus (Megatron backend)",
    aliases=(),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
