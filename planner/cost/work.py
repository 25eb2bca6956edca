"""Seconds of one micro-batch on one GPU, by cause and by phase of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from planner.cost.terms import Quantity, Terms
from planner.spec.framework import TimeHabits


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTime(Terms):
    """Busy terms of ``StepTime`` for one micro-batch."""

    gemm_s: Quantity = 0.0
    attention_s: Quantity = 0.0
    scan_s: Quantity = 0.0
    elementwise_s: Quantity = 0.0
    embedding_and_loss_s: Quantity = 0.0
    recompute_s: Quantity = 0.0
    """The repeated forward work, its communication included."""
    tensor_comm_s: Quantity = 0.0
    context_comm_s: Quantity = 0.0
    expert_comm_s: Quantity = 0.0
    data_comm_s: Quantity = 0.0
    """Exposed part of sharding's collectives that every micro-batch repeats."""
    offload_s: Quantity = 0.0
    host_s: Quantity = 0.0


@dataclass(frozen=True)
class LayerTime:
    """Phases of one layer, chunk or end of the model; linear, so sums and multiples are phases too.

    ``recompute`` comes on top of ``backward_input`` where the layer is recomputed.
    """

    forward: WorkTime = field(default_factory=WorkTime)
    backward_input: WorkTime = field(default_factory=WorkTime)
    backward_weight: WorkTime = field(default_factory=WorkTime)
    recompute: WorkTime = field(default_factory=WorkTime)

    @property
    def total(self) -> WorkTime:
        """All phases without recompute."""
        return self.forward + self.backward_input + self.backward_weight

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.forward + other.forward,
            self.backward_input + other.backward_input,
            self.backward_weight + other.backward_weight,
            self.recompute + other.recompute,
        )

    def __mul__(self, factor: Any) -> Self:
        return type(self)(
            self.forward * factor,
            self.backward_input * factor,
            self.backward_weight * factor,
            self.recompute * factor,
        )

    __rmul__ = __mul__


def exposed_time(comm_s: Any, compute_s: Any, habits: TimeHabits, overlaps: bool = True) -> Any:
    """Time that a collective adds when it runs beside ``compute_s`` of work. [s].

    Notes
    -----
    What does not fit behind the usable share of the computation, plus the share of the hidden part that the
    computation loses to it.
    """
    if not overlaps:
        return comm_s
    hidden = np.minimum(comm_s, habits.overlap_fraction * np.asarray(compute_s))
    return comm_s - hidden * (1.0 - habits.overlap_slowdown)
