"""NeMo 2.0 (profile only; ``megatron_bridge`` writes its successor's files).

Sources: nemo-toolkit 2.x ``MegatronStrategy`` over megatron-core; nemo-toolkit 3.0 dropped its LLM part.
Tokens reach their experts by all-to-all: ``moe_token_dispatcher_type`` of the Mixtral, DeepSeek, Llama 4 and
Qwen 3 configurations of nemo-toolkit 2.2 to 2.4.
"""

from __future__ import annotations

from planner.frameworks.megatron.profile import LIMITS
from planner.spec.framework import FrameworkProfile, MemoryHabits, TimeHabits

TIME = TimeHabits(
    # elementwise_factor, expert_comm_hidden_fraction, expert_kernel_efficiency, kernels_per_moe_layer,
    # overlap_slowdown, pipeline_sends_hidden_fraction, step_overhead_s, straggler_per_doubling,
    # tensor_comm_hidden_fraction: fitted on tests/data/measured/calibration.jsonl by
    # tests/benchmarks/fit.py, 288 rows.
    attention_kernel="cudnn",
    elementwise_factor=1.5989,
    tensor_comm_hidden_fraction=0.1622,
    low_precision_gathers=True,
    overlap_slowdown=0.0424,
    adds_into_gradients=True,
    gradient_reduce_bytes=2.0,
    pipeline_sends_hidden_fraction=0.1584,
    scatters_sends=True,
    expert_comm_hidden_fraction=0.0,
    expert_kernel_efficiency=0.7686,
    kernels_per_moe_layer=409.879,
    step_overhead_s=0.0368,
    straggler_per_doubling=0.0014,
)

MEMORY = MemoryHabits(
    # Fused attention leaves "core_attn", Megatron's own default, nothing to save.
    selective_modules=("layernorm", "mla_up_proj", "moe_act", "mlp"),
    # MLPerf and performance recipes: bf16 gradients, FP8 primary weights (fp8_param_gather).
    gradient_bytes=2.0,
    fp8_weight_bytes=1.0,
    loss_saved_bytes=2.0,
    loss_peak_bytes=2.0,
    dummy_weight_gradients=True,
    # MLPerf logs print rank 0's figure.
    reported_rank="first",
)

PROFILE = FrameworkProfile(
    name="nemo",
    version="nemo-toolkit 2.7",
    aliases=("nemo2", "nemo-2.0"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
