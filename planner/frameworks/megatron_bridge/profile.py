"""Megatron-Bridge as the planner sees it: megatron-core's limits, the recipes' habits.

Sources: Megatron-Bridge 0.3.1 (``training/config.py``, ``gpt_provider.py``) over megatron-core 0.16.1.
"""

from __future__ import annotations

from planner.frameworks.megatron.profile import LIMITS
from planner.spec.framework import EarlierReleases, FrameworkProfile, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # block_scaled_expert_efficiency, elementwise_factor, expert_comm_hidden_fraction,
    # expert_kernel_efficiency, kernels_per_moe_layer, overlap_slowdown, pipeline_sends_hidden_fraction,
    # step_overhead_s, straggler_per_doubling, tensor_comm_hidden_fraction: fitted on
    # tests/data/measured/calibration.jsonl by tests/benchmarks/fit.py, 122 rows.
    attention_kernel="cudnn",
    elementwise_factor=0.9088,
    tensor_comm_hidden_fraction=0.0801,
    low_precision_gathers=True,
    overlap_slowdown=0.0574,
    adds_into_gradients=True,
    gradient_reduce_bytes=2.0,
    pipeline_sends_hidden_fraction=0.1137,
    scatters_sends=True,
    expert_comm_hidden_fraction=0.058,
    deduplicates_dispatch=True,
    expert_kernel_efficiency=0.6464,
    block_scaled_expert_efficiency=0.7081,
    kernels_per_moe_layer=520.3764,
    step_overhead_s=0.0586,
    straggler_per_doubling=0.0012,
)

EARLIER = EarlierReleases(
    before="26.06", time=TIME.model_copy(update={"block_scaled_expert_efficiency": None})
)
"""The fused grouped MLP for block-scaled experts came with the 26.06 containers: their published MoE steps on
Blackwell take two thirds of the time of the same layouts in 26.04."""

MEMORY = MemoryHabits(
    # Fused attention leaves "core_attn", Megatron's own default, nothing to save.
    selective_modules=("layernorm", "mla_up_proj", "moe_act", "mlp"),
    # The performance recipes reduce gradients in bf16 (grad_reduce_in_fp32 off): 4 + 12/d.
    gradient_bytes=2.0,
    loss_saved_bytes=2.0,
    loss_peak_bytes=2.0,
    dummy_weight_gradients=True,
)

PROFILE = FrameworkProfile(
    name="megatron-bridge",
    version="Megatron-Bridge 0.3.1 / megatron-core 0.16.1",
    aliases=("bridge", "mbridge"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
    earlier=EARLIER,
)
