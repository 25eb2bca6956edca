"""NeMo AutoModel (profile only): NVIDIA's PyTorch-native trainer of Hugging Face models.

Sources: NVIDIA-NeMo/Automodel (FSDP2, DTensor tensor parallelism, torch pipelining, DeepEP experts) and the
layouts and peaks that its pull requests report (2394, 2673); limits and timing are torchtitan's.
"""

from __future__ import annotations

from planner.frameworks.torchtitan.profile import LIMITS as TORCHTITAN
from planner.frameworks.torchtitan.profile import TIME
from planner.spec.framework import FrameworkProfile, MemoryHabits

MEMORY = MemoryHabits(
    sharded_weights_are_master=True,
    # Synchronisation is off between accumulation steps (defer_fsdp_grad_sync): gradients of all weights add
    # up on each GPU, in fp32 as they are reduced. The peaks of gpt-oss-120b leave no room for them.
    defers_reduction="dense",
    # 16-bit logits, their fp32 copy and its gradient. 24 GB of each further sequence of gpt-oss-120b
    # (PR 2394) are 19 of activations and 8 bytes a logit.
    loss_saved_bytes=6.0,
    loss_peak_bytes=10.0,
    low_precision_activations=False,
    # Its log prints torch's peak of allocated memory in GiB.
    reported_unit_bytes=2.0**30,
)

LIMITS = TORCHTITAN.model_copy(
    update={
        "recompute": ("none", "full"),
        # Its tensor-parallel plans leave Mamba-2 and gated delta nets whole (optimized_tp_plans.py); it has
        # context parallelism for both (distributed/context_parallel/mamba.py, models/qwen3_5_moe).
        "linear_tensor_parallel": False,
        "linear_context_parallel": True,
    }
)

PROFILE = FrameworkProfile(
    name="automodel",
    version="NeMo AutoModel",
    aliases=("nemo-automodel", "nemo-auto-model"),
    limits=LIMITS,
    memory=MEMORY,
    time=TIME,
)
