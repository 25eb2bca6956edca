"""Many plans at once: the same attribute names as a ``Plan``, integer fields as numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from planner.spec.plan import (
    DEFAULT_ORDER,
    ContextParallelKind,
    Offload,
    Precision,
    RankOrder,
    Recompute,
    Schedule,
)


class Setting(Protocol):
    """What cost functions read: a ``Plan`` or a ``Settings``. Integer fields may be arrays that broadcast."""

    @property
    def tensor_parallel(self) -> Any: ...  # noqa: D102
    @property
    def pipeline_parallel(self) -> Any: ...  # noqa: D102
    @property
    def virtual_stages(self) -> Any: ...  # noqa: D102
    @property
    def schedule(self) -> Schedule: ...  # noqa: D102
    @property
    def data_parallel(self) -> Any: ...  # noqa: D102
    @property
    def context_parallel(self) -> Any: ...  # noqa: D102
    @property
    def context_parallel_kind(self) -> ContextParallelKind: ...  # noqa: D102
    @property
    def expert_parallel(self) -> Any: ...  # noqa: D102
    @property
    def expert_tensor_parallel(self) -> Any: ...  # noqa: D102
    @property
    def zero_stage(self) -> int: ...  # noqa: D102
    @property
    def shard_group_size(self) -> Any: ...  # noqa: D102
    @property
    def sequence_parallel(self) -> Any: ...  # noqa: D102
    @property
    def micro_batch(self) -> Any: ...  # noqa: D102
    @property
    def num_microbatches(self) -> Any: ...  # noqa: D102
    @property
    def recompute(self) -> Recompute: ...  # noqa: D102
    @property
    def recompute_modules(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def offload(self) -> Offload: ...  # noqa: D102
    @property
    def precision(self) -> Precision: ...  # noqa: D102
    @property
    def rank_order(self) -> RankOrder: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Candidate plans with equal stages. See ``Plan`` for the meaning of the fields."""

    tensor_parallel: Any = 1
    pipeline_parallel: Any = 1
    virtual_stages: Any = 1
    schedule: Schedule = "none"
    data_parallel: Any = 1
    context_parallel: Any = 1
    context_parallel_kind: ContextParallelKind = "ring"
    expert_parallel: Any = 1
    expert_tensor_parallel: Any = 1
    zero_stage: int = 0
    shard_group_size: Any = 1
    sequence_parallel: Any = False
    micro_batch: Any = 1
    num_microbatches: Any = 1
    recompute: Recompute = "none"
    recompute_modules: tuple[str, ...] = ()
    offload: Offload = "none"
    precision: Precision = "bf16"
    rank_order: RankOrder = DEFAULT_ORDER
