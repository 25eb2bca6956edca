"""What DeepSpeed's settings need of each other: its ``config.py``, ``engine.py``, ``zero/mics.py`` (0.19)."""

from __future__ import annotations

from planner.frameworks.needs import Need

DEEPSPEED: tuple[Need, ...] = (
    Need("bf16.enabled", excludes=("fp16.enabled",)),
    Need("zero_optimization.zero_hpz_partition_size>1", ("zero_optimization.stage=3",), passed_on=False),
    Need("zero_optimization.zero_quantized_weights", ("zero_optimization.stage=3",), passed_on=False),
    Need("zero_optimization.zero_quantized_gradients", ("zero_optimization.stage=3",), passed_on=False),
    Need("zero_optimization.mics_shard_size>0", ("zero_optimization.stage=3",), passed_on=False),
    Need(
        "zero_optimization.mics_shard_size>0",
        excludes=(
            "zero_optimization.offload_optimizer.device=cpu",
            "zero_optimization.offload_param.device=cpu",
            "expert_parallel.autoep_size>1",
        ),
    ),
    Need(
        "expert_parallel.autoep_size>1",
        excludes=(
            "zero_optimization.zero_quantized_gradients",
            "zero_optimization.zero_hpz_partition_size>1",
        ),
        when=("zero_optimization.stage=3",),
    ),
    Need("zero_optimization.offload_param.device=cpu", ("zero_optimization.stage=3",), passed_on=False),
    Need("zero_optimization.offload_param.device=nvme", ("zero_optimization.stage=3",), passed_on=False),
)
"""Keys of ``ds_config.json``."""

MEGATRON_DEEPSPEED: tuple[Need, ...] = tuple(
    Need(f"{key}={stage}", ("no_pipeline_parallel",), when=("num_layers", "deepspeed"))
    for key in ("zero_stage", "zero_optimization.stage")
    for stage in (2, 3)
)
"""Megatron-DeepSpeed trains in the pipeline engine, even over one rank, unless it is told not to, and that
engine refuses to shard gradients (``pretrain_gpt.py``, ``pipe/engine.py``)."""
