"""What is known before the fit: the constants, what documents say of them, and which are alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Habit:
    """One kind of constant: what documents say, how far nature may differ, and where it may lie."""

    prior: float
    pooled: float
    """Tolerance of the value that all frameworks (parts of one generation) share, around ``prior``."""
    own: float
    """Tolerance of one framework's (part's) value around the shared one."""
    low: float
    high: float
    probe: float
    """Step of the numerical derivative."""


CLOCK = Habit(0.92, 0.10, 0.12, 0.5, 1.0, 0.03)
"""Sustained over burst rate of a part at its power limit (physics 3.2)."""
CLOCKS: dict[str, Habit] = {
    "ampere": Habit(0.97, 0.02, 0.03, 0.5, 1.0, 0.03),
    "hopper": Habit(0.95, 0.02, 0.03, 0.5, 1.0, 0.03),
    "blackwell": Habit(0.90, 0.08, 0.10, 0.5, 1.0, 0.03),
}
"""Of matrix products, by generation. A100 reaches 271 TFLOP/s over hours where the burst curve has 263
(stas00/ml-engineering); H100 at 700 W 0.93 to 0.97; Blackwell 0.65 (one air-cooled node) to 0.95 (GB200)."""
ATTENTION_CLOCK = Habit(0.92, 0.05, 0.08, 0.5, 1.0, 0.03)
POWER = {"h100-sxm-96gb-hbm2e": 0.88}
"""Clock over that of the generation's other parts: 500 W for 700 W (0.80 to 0.85 over 0.93 to 0.97)."""
PARTS: dict[str, tuple[str, ...]] = {
    "a100-sxm-80gb": ("bf16",), "v100-sxm2-32gb": ("fp16",),
    "h100-sxm-80gb": ("bf16", "fp8"), "h100-sxm-96gb-hbm2e": ("bf16", "fp8"),
    "h200-sxm-141gb": ("fp8",), "b200-sxm-180gb": ("bf16", "fp8", "mxfp8", "nvfp4"),
    "b300-sxm": ("bf16", "mxfp8"), "gb200-nvl72": ("bf16", "fp8", "mxfp8", "nvfp4"),
    "gb300-nvl72": ("bf16", "fp8", "mxfp8", "nvfp4"), "mi300x-192gb": ("fp8",), "mi325x-256gb": ("fp8",),
    "mi355x-288gb": ("bf16",), "tpu-v5e": ("bf16",), "tpu-v5p": ("bf16",), "tpu-v6e": ("bf16",),
}  # fmt: skip
"""Accelerators with at least three rows, and their number formats."""
SHARED = {
    "a100-sxm-40gb": "a100-sxm-80gb",
    "a800-sxm-80gb": "a100-sxm-80gb",
    "h800-sxm-80gb": "h100-sxm-80gb",
}
"""Parts that take another one's curves as they are."""
UNMEASURED_PARTS: dict[str, tuple[str, ...]] = {
    "h200-sxm-141gb": ("gemm.bf16",), "b300-sxm": ("gemm.fp8", "gemm.nvfp4"),
    "tpu-v4": ("gemm.bf16", "attention"),
}  # fmt: skip
"""Curves at a burst clock without rows, on parts whose generation has some: they get its shared clock."""
BORROWED = {"gb300-nvl72": 1.3, "b300-sxm": 1.0}
"""Curves of a part with a lower power limit: the fraction may pass one, within the vendor's peak."""

HABITS: dict[str, Habit] = {
    "elementwise_factor": Habit(1.3, 0.4, 0.5, 0.7, 4.0, 0.2),
    "tensor_comm_hidden_fraction": Habit(0.1, 0.1, 0.12, 0.0, 0.8, 0.1),
    "overlap_slowdown": Habit(0.15, 0.1, 0.1, 0.0, 0.8, 0.1),
    "step_overhead_s": Habit(0.03, 0.02, 0.03, 0.0, 0.3, 0.02),
    "straggler_per_doubling": Habit(0.003, 0.002, 0.002, 0.0, 0.02, 0.004),
}
"""Of every framework."""
OWN_KERNELS: dict[str, Habit] = {
    "kernel_efficiency": Habit(0.95, 0.05, 0.08, 0.6, 1.05, 0.03),
    "attention_efficiency": Habit(0.95, 0.10, 0.15, 0.5, 1.15, 0.05),
}
"""Of frameworks without NVIDIA's Transformer Engine, on whose kernels the accelerators' curves rest."""
GROUPED = {"expert_kernel_efficiency": Habit(0.85, 0.1, 0.1, 0.4, 1.0, 0.1)}
"""Of frameworks with too few such rows to tell more."""
EXPERTS: dict[str, Habit] = {
    "kernels_per_moe_layer": Habit(150.0, 100.0, 100.0, 40.0, 600.0, 80.0),
    "expert_comm_hidden_fraction": Habit(0.15, 0.15, 0.15, 0.0, 0.8, 0.1),
} | GROUPED
"""Of frameworks with rows of mixture-of-experts models."""
SENDS = {"pipeline_sends_hidden_fraction": Habit(0.5, 0.25, 0.2, 0.0, 1.0, 0.2)}
"""Of frameworks that interleave chunks and overlap their sends."""
FUSED_EXPERTS = {"block_scaled_expert_efficiency": Habit(0.9, 0.1, 0.1, 0.4, 1.2, 0.1)}
"""Of frameworks whose current release has one kernel for block-scaled experts."""
ENGINE = {"microbatch_overhead_s": Habit(0.002, 0.002, 0.003, 0.0, 0.02, 0.003)}
"""Of a pipeline engine that works through an instruction list on the host (DeepSpeed)."""
EAGER_HOST = {
    "kernels_per_layer": Habit(150.0, 100.0, 100.0, 40.0, 600.0, 20.0),
    "cross_node_launch_growth": Habit(0.3, 0.2, 0.2, 0.0, 2.0, 0.04),
    "send_stall_s": Habit(0.4, 0.3, 0.3, 0.0, 2.0, 0.05),
}
"""Of nanotron, whose host launches every kernel and blocks on every send."""
SWEPT = "nanotron"
FAILED = np.log(2.0)
"""A sweep's row further off than this is a failed run (stalled sends, an allocator out of room): left out."""
TRANSFORMER_ENGINE = ("nemo", "megatron-bridge", "megatron")
XLA = ("maxtext",)
"""Calls cuBLAS and cuDNN for products and attention on GPUs; TPUs have a clock of their own for both."""
OTHERS = ("llm-foundry", "torchtitan", "megatron-deepspeed", "paddle", "primus", "flagperf", SWEPT)
FAMILIES: dict[str, tuple[str, ...]] = {
    "fused": (*TRANSFORMER_ENGINE, "primus"),
    "engine": ("megatron-deepspeed", "paddle", "flagperf"),
    "eager": ("llm-foundry", "torchtitan"),
    "xla": XLA,
    "host": (SWEPT,),
}
"""Frameworks built alike: Megatron-Core with a fused kernel library; Megatron-era layers without one; PyTorch
FSDP over plain modules; a compiler; a host that launches and sends everything itself."""
STATED: dict[tuple[str, str], Habit] = {
    # MPT is benchmarked with FlashAttention 1 in Triton (submit_benchmarks.py: attn_impl "triton"); the curve
    # is that of version 2, 1.3 to 2.5 times as fast (arXiv 2307.08691, section 4).
    ("llm-foundry", "attention_efficiency"): Habit(0.6, 0.05, 0.08, 0.4, 0.77, 0.05),
}
"""What documents say of one framework, where it differs from all others: not drawn to their value."""
UNMEASURED = {
    "deepspeed": "fw:eager", "accelerate": "fw:eager", "pytorch": "fw:eager",
    "meta-llama3": "fw", "deepseek": "fw", "any": "fw",
}  # fmt: skip
"""Frameworks without rows, and the group whose values they get: their family's, or those of all."""
