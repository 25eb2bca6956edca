"""A plan: every setting that a training run needs, and nothing computed."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Schedule = Literal["none", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v"]
Recompute = Literal["none", "selective", "full"]
ContextParallelKind = Literal["ring", "all_gather", "all_to_all"]
Offload = Literal["none", "optimizer", "activations", "parameters", "parameters+activations"]
"""What lives on the host: optimizer state; saved activations; weights with their gradients and optimizer."""
Precision = Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
"""Megatron's words for which axis numbers ranks fastest (first) and slowest (last)."""

SCHEDULES: tuple[Schedule, ...] = (
    "none", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v",
)  # fmt: skip
DEFAULT_ORDER: RankOrder = "tp-cp-ep-dp-pp"
"""Replicas near each other, pipeline stages far apart."""
FAR_REPLICAS: RankOrder = "tp-cp-ep-pp-dp"
"""Pipeline stages near each other, data-parallel replicas far apart."""


MAX_DEGREE = 10_000_000
MAX_SEQUENCES = 1_000_000_000
MAX_STAGES = 20_000
"""Bounds far above any run: they keep absurd settings from becoming absurd work."""
Layers = Annotated[int, Field(ge=0, le=MAX_STAGES)]
Degree = Annotated[int, Field(ge=1, le=MAX_DEGREE)]
Sequences = Annotated[int, Field(ge=1, le=MAX_SEQUENCES)]


class StagePlan(BaseModel):
    """What one pipeline rank holds. ``chunk_layers`` has one entry per virtual stage, first chunk first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    chunk_layers: tuple[Layers, ...]
    recompute_layers: Layers = 0
    """Layers of this rank whose activations are recomputed (fully, or selectively, as ``recompute`` says)."""

    @property
    def layers(self) -> int:
        """Layers on this rank, all chunks together."""
        return sum(self.chunk_layers)


class Plan(BaseModel):
    """One complete parallelisation recipe.

    The world has ``tensor_parallel * context_parallel * data_parallel * pipeline_parallel`` GPUs;
    ``expert_parallel * expert_tensor_parallel`` is carved out of the first three. ``micro_batch`` is
    sequences per replica and micro-step; the global batch is
    ``data_parallel * micro_batch * num_microbatches``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensor_parallel: Degree = 1
    pipeline_parallel: Degree = 1
    virtual_stages: Degree = 1
    """Model chunks per pipeline rank (2 for the V-shaped schedules)."""
    schedule: Schedule = "none"
    """``none`` exactly when pipeline_parallel is 1."""
    data_parallel: Degree = 1
    context_parallel: Degree = 1
    context_parallel_kind: ContextParallelKind = "ring"
    expert_parallel: Degree = 1
    expert_tensor_parallel: Degree = 1
    zero_stage: int = Field(default=0, ge=0, le=3)
    shard_group_size: Degree = 1
    """Ranks over which ZeRO shards state: data_parallel * context_parallel, or a divisor of it (HSDP);
    1 with ZeRO 0."""
    sequence_parallel: bool = False
    micro_batch: Sequences = 1
    num_microbatches: Sequences = 1
    recompute: Recompute = "none"
    recompute_modules: tuple[str, ...] = ()
    """What selective recompute covers; empty means the framework's default."""
    offload: Offload = "none"
    precision: Precision = "bf16"
    rank_order: RankOrder = DEFAULT_ORDER
    """How global ranks are numbered, and so which groups share nodes and racks."""
    stages: tuple[StagePlan, ...] = ()
    """One entry per pipeline rank."""

    @model_validator(mode="after")
    def _has_bearable_stages(self) -> Self:
        if self.pipeline_parallel * self.virtual_stages > MAX_STAGES:
            raise ValueError(
                f"{self.pipeline_parallel} pipeline ranks with {self.virtual_stages} chunks each are more "
                f"than {MAX_STAGES} stages"
            )
        return self

    @property
    def num_gpus(self) -> int:
        """GPUs that the plan occupies."""
        return self.tensor_parallel * self.context_parallel * self.data_parallel * self.pipeline_parallel

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.data_parallel * self.micro_batch * self.num_microbatches

    @property
    def expert_data_parallel(self) -> int:
        """Replicas of each expert inside one pipeline rank (rounded down when the degrees do not divide)."""
        ranks = self.tensor_parallel * self.context_parallel * self.data_parallel
        return max(1, ranks // (self.expert_parallel * self.expert_tensor_parallel))
