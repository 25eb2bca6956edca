"""HAI-LLM, DeepSeek's in-house framework of the V3 run (profile only).

Source: DeepSeek-V3 Technical Report (arXiv 2412.19437) sections 3.2 and 3.3: DualPipe over 16 ranks, ZeRO-1,
experts over 64 ranks, no tensor parallelism; RMSNorm, the up-projections of latent attention and SwiGLU are
recomputed; fp32 master weights and gradients, 16-bit Adam moments; inputs of products in FP8, those of SwiGLU
too, the attention output in 12 bits (E5M6) once for both its readers.
"""

from __future__ import annotations

from planner.frameworks.shared_time import TIME as SHARED_TIME
from planner.spec.framework import FrameworkProfile, Limits, MemoryHabits
from planner.spec.plan import SCHEDULES

TIME = SHARED_TIME.model_copy(
    update={
        "default_recompute": "selective",
        # Deduplicated dispatch to at most four nodes, in FP8; combine in 16 bits.
        "deduplicates_dispatch": True,
        "dispatch_bytes": 1.0,
    }
)

MEMORY = MemoryHabits(
    optimizer_bytes=8.0,
    selective_modules=("layernorm", "mla_up_proj", "moe_act"),
    unsaid_modules=("layernorm", "mla_up_proj", "moe_act"),
    low_precision_gate=True,
    low_precision_attention_bytes=1.5,
    loss_saved_bytes=2.0,
    loss_peak_bytes=6.0,
    communicator_bytes=0.5e9,
)

LIMITS = Limits(
    schedules=SCHEDULES,
    context_parallel_kinds=("ring", "all_gather", "all_to_all"),
    uneven_stages="any",
    recompute=("none", "selective", "full"),
    offloads=("none",),
    precisions=("fp32", "bf16", "fp8"),
    # DeepSeek-V3 has no linear mixers.
    linear_tensor_parallel=False,
    linear_context_parallel=False,
)

PROFILE = FrameworkProfile(
    name="deepseek",
    version="DeepSeek-V3 (2024)",
    aliases=("hai-llm", "deepseek-v3"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
