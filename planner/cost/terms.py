"""The two breakdowns: named terms that add up by construction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Quantity = float | npt.NDArray[np.float64]
"""One number, or one number per candidate plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Named parts of one total. Nothing is added outside a field; fields may be arrays (one entry a plan)."""

    @property
    def total(self) -> Any:
        """Sum over all fields."""
        return sum(value for _, value in self.items())

    def items(self) -> Iterator[tuple[str, Any]]:
        """Name and value of every term, in the order of definition."""
        for name in self.__dataclass_fields__:
            yield name, getattr(self, name)

    def as_dict(self) -> dict[str, float]:
        """Terms as plain floats (one plan only)."""
        return {name: float(value) for name, value in self.items()}

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: value + getattr(other, name) for name, value in self.items()})

    def __mul__(self, factor: Quantity) -> Self:
        return type(self)(**{name: value * factor for name, value in self.items()})

    __rmul__ = __mul__


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime(Terms):
    """Seconds of one optimizer step, by cause, on the pipeline rank that sets the pace.

    The busy terms are that rank's work over all micro-batches; ``bubble_s`` is what is left of the
    pipeline's makespan; the rest follows the last backward pass.
    """

    gemm_s: Quantity = 0.0
    attention_s: Quantity = 0.0
    scan_s: Quantity = 0.0
    """What state-space and linear-attention layers have in the place of attention."""
    elementwise_s: Quantity = 0.0
    embedding_and_loss_s: Quantity = 0.0
    recompute_s: Quantity = 0.0
    tensor_comm_s: Quantity = 0.0
    context_comm_s: Quantity = 0.0
    expert_comm_s: Quantity = 0.0
    pipeline_comm_s: Quantity = 0.0
    bubble_s: Quantity = 0.0
    data_comm_s: Quantity = 0.0
    """Exposed gradient reduction and parameter gathering."""
    optimizer_s: Quantity = 0.0
    offload_s: Quantity = 0.0
    host_s: Quantity = 0.0
    """Launch-bound remainder, data loading, logging."""
    straggler_s: Quantity = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Terms):
    """Peak bytes of one pipeline rank, by owner."""

    weights_bytes: Quantity = 0.0
    gradients_bytes: Quantity = 0.0
    optimizer_bytes: Quantity = 0.0
    activations_bytes: Quantity = 0.0
    loss_bytes: Quantity = 0.0
    transient_bytes: Quantity = 0.0
    """Largest short-lived buffers of one backward pass; gathered units of ZeRO-3."""
    framework_bytes: Quantity = 0.0
    """Dummy weight gradients, buckets, pipeline buffers."""
    fragmentation_bytes: Quantity = 0.0
    """Reserved minus allocated."""
    context_bytes: Quantity = 0.0
    """CUDA context and communicators: what the driver counts beyond the allocator."""

    @property
    def allocated_bytes(self) -> Any:
        """What the allocator's peak-allocated counter shows."""
        return self.reserved_bytes - self.fragmentation_bytes

    @property
    def reserved_bytes(self) -> Any:
        """What the allocator's peak-reserved counter shows."""
        return self.total - self.context_bytes
