"""The machine: one accelerator, the node around it, and the network tiers above the node."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Origin = Literal["vendor", "measured", "fitted", "assumed"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]

MAX_GROUP_GPUS = 10**9
"""Bounds here and below are far outside any machine: they keep absurd files from giving infinite figures."""
Rate = Annotated[float, Field(ge=1.0, le=1e21)]
"""FLOP/s or byte/s."""
Bytes = Annotated[float, Field(ge=1.0, le=1e21)]
Seconds = Annotated[float, Field(ge=0.0, le=1e6)]
Share = Annotated[float, Field(ge=1e-6, le=1.0)]
Factor = Annotated[float, Field(ge=1e-6, le=1e3)]


class Sourced(BaseModel):
    """A table of constants that names where they come from."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: str
    origin: Origin


class GemmCurve(Sourced):
    """Time of one matrix product: ``t0 + 2 M N (K + K0) / (R * sustained) + q M K`` (physics: GEMM fit)."""

    rate_flop_per_s: Rate
    """R: burst rate of large products."""
    k0: float = Field(default=0.0, ge=0, le=1e6)
    launch_s: Seconds = 0.0
    """t0."""
    quantise_s_per_element: Seconds = 0.0
    """q: pass over the activation before a low-precision product."""
    sustained_fraction: Factor = 1.0
    """Clock under a long run, relative to the burst benchmark."""
    small_dimension: float = Field(default=0.0, ge=0, le=1e5)
    """D: products narrower than this lose their rate; M counts as ``sqrt(M^2 + 2 D^2)``, N likewise. [row]"""
    tile: int = Field(default=1, ge=1, le=65_536)
    """Every dimension is padded to a multiple of this (systolic arrays)."""
    waves: bool = False
    """The product is cut into tiles that the multiprocessors work off in whole waves (Ampere and before;
    later libraries split the last wave)."""


class AttentionCurve(Sourced):
    """Rate of a fused attention kernel against sequence length (head dim 128, causal FLOPs counted half)."""

    seq_lengths: tuple[int, ...]
    forward_flop_per_s: tuple[Rate, ...]
    backward_flop_per_s: tuple[Rate, ...]
    head_dims: tuple[int, ...] = (64, 128, 256)
    head_dim_factors: tuple[Factor, ...] = (0.75, 1.0, 1.0)
    """Rate at each of ``head_dims``, relative to head dim 128."""
    sustained_fraction: Factor = 1.0
    """Clock under a long run, relative to the burst benchmark."""
    forward_tiles_per_multiprocessor: float = Field(default=2.0, ge=0, le=1e6)
    """Blocks of 128 query rows per multiprocessor below which the rate falls in proportion (0 = never)."""
    backward_tiles_per_multiprocessor: float = Field(default=2.0, ge=0, le=1e6)

    @model_validator(mode="after")
    def _same_lengths(self) -> Self:
        for axis, curves in (
            ("seq_lengths", (self.forward_flop_per_s, self.backward_flop_per_s)),
            ("head_dims", (self.head_dim_factors,)),
        ):
            values: tuple[int, ...] = getattr(self, axis)
            rises = bool(values) and values[0] > 0 and all(a < b for a, b in pairwise(values))
            if not rises or any(len(curve) != len(values) for curve in curves):
                raise ValueError(f"{axis} must be positive, rise, and have as many entries as its figures")
        return self


class Compute(Sourced):
    """Dense vendor peaks by precision, the denominators of MFU."""

    peak_flop_per_s: dict[str, Rate] = Field(min_length=1)
    multiprocessors: int = Field(default=0, ge=0, le=1_000_000)
    """SMs, CUs or MXU-bearing cores; 0 = not modelled."""


class HighBandwidthMemory(Sourced):
    """HBM of one accelerator."""

    hbm_bytes: Bytes
    """What the driver reports as total."""
    vendor_hbm_bytes: Bytes
    """The figure on the data sheet."""
    hbm_bytes_per_s: Rate
    elementwise_fraction: Share = 0.8
    """Share of the bandwidth that fused elementwise kernels reach."""
    permute_fraction: Share = 0.5
    loss_fraction: Share = 0.4
    optimizer_fraction: Share = 0.8


class Link(Sourced):
    """One tier of the network as one GPU sees it, one direction."""

    name: str
    group_gpus: int = Field(gt=0, le=MAX_GROUP_GPUS)
    """GPUs that reach each other over this tier (0-free; the outermost tier may exceed the cluster)."""
    bytes_per_s: Rate
    """Line rate of all the GPU's links of this tier together."""
    latency_s: Seconds
    """One hop of a bandwidth-optimised (NCCL "Simple") ring."""
    base_s: Seconds = 0.0
    """Start-up time of one collective."""
    efficiency: Share = 1.0
    """Share of the line rate that large messages reach."""
    all_to_all_efficiency: Share = 0.87
    """The same for all-to-all between the groups of the tier below (many peers, incast)."""
    ring_waits: bool = False
    """Every step of a ring takes as long as a hop of this tier, not only the steps that cross it."""
    oversubscription: float = Field(default=1.0, ge=1, le=1e6)
    is_mesh: bool = False
    """One link to each peer (xGMI): a group of n ranks drives n - 1 of the ``group_gpus - 1`` links."""
    is_torus: bool = False
    """TPU interconnect: per-axis links, no cliff at a node's edge."""
    torus_axes: int = Field(default=0, ge=0, le=16)
    torus_wrap_side: int = Field(default=4, ge=0)
    """Axes shorter than this have no wrap-around link and take twice the time."""

    @model_validator(mode="after")
    def _has_axes(self) -> Self:
        if self.is_torus and self.torus_axes < 1:
            raise ValueError("torus_axes must be at least 1 where is_torus is true")
        return self


class Fabric(Sourced):
    """What kind of network joins the nodes: all but the line rate. One file in ``hardware/networks/``."""

    name: str
    aliases: tuple[str, ...] = ()
    latency_s: Seconds
    base_s: Seconds
    efficiency: Share
    all_to_all_efficiency: Share
    ring_waits: bool = False


class CollectiveCurve(Sourced):
    """Measured time of one collective inside the fastest domain, for one group size.

    ``message_bytes`` is the full buffer of all ranks together; times are interpolated on log-log axes.
    """

    collective: Collective
    num_ranks: int = Field(ge=2)
    message_bytes: tuple[float, ...]
    time_s: tuple[Seconds, ...]
    link_bytes_per_s: Rate
    """Line rate of the links it was measured on; elsewhere the size-dependent part scales with theirs."""

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        rising = all(a < b for a, b in pairwise(self.message_bytes))
        if len(self.message_bytes) != len(self.time_s) or not rising or not self.time_s:
            raise ValueError("message_bytes must rise and have as many entries as time_s")
        if min(self.time_s) <= 0 or self.message_bytes[0] <= 0:
            raise ValueError("message_bytes and time_s must be positive")
        return self


class Host(Sourced):
    """The host's side of a step."""

    kernel_launch_s: Seconds = 6e-6
    """CPU time to launch one kernel."""
    kernel_gap_s: Seconds = 2e-6
    """Idle time of the GPU between two queued kernels."""
    pcie_bytes_per_s: Rate = 25e9
    """Host-to-device bandwidth per GPU, for offload (C2C on Grace)."""
    node_memory_bytes: Bytes = 1e12


class Price(Sourced):
    """What an hour costs."""

    usd_per_gpu_hour: float = Field(ge=0, le=1e6)


class Accelerator(BaseModel):
    """One accelerator in the system it usually comes in: one file in ``hardware/``."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    aliases: tuple[str, ...] = ()
    vendor: str
    notes: str = ""
    gpus_per_node: int = Field(gt=0, le=MAX_GROUP_GPUS)
    compute: Compute
    memory: HighBandwidthMemory
    gemm: dict[str, GemmCurve] = Field(min_length=1)
    """By precision: bf16 always; fp8, mxfp8, fp16, nvfp4 where the part has them."""
    attention: dict[str, AttentionCurve] = Field(min_length=1)
    """By kernel generation: fa2, fa3, cudnn, ..."""
    links: tuple[Link, ...] = Field(min_length=1)
    """Innermost first: the NVLink/xGMI/ICI domain, then the network."""
    collectives: tuple[CollectiveCurve, ...] = ()
    host: Host
    price: Price | None = None


class Cluster(BaseModel):
    """``num_gpus`` accelerators and the tiers between them (taken from the accelerator unless overridden)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    accelerator: Accelerator
    num_gpus: int = Field(gt=0, le=MAX_GROUP_GPUS)
    gpus_per_node: int = Field(gt=0, le=MAX_GROUP_GPUS)
    links: tuple[Link, ...] = Field(min_length=1)
    reserved_hbm_bytes: float = Field(default=0.0, ge=0)
    """HBM that the user keeps free."""

    @model_validator(mode="after")
    def _leaves_memory(self) -> Self:
        if self.usable_hbm_bytes <= 0:
            raise ValueError("reserved_hbm_bytes must leave some of the GPU's HBM free for the plan")
        return self

    @property
    def nvlink_domain(self) -> int:
        """GPUs inside the fastest tier."""
        return min(self.links[0].group_gpus, self.num_gpus)

    @property
    def usable_hbm_bytes(self) -> float:
        """HBM that a plan may fill."""
        return self.accelerator.memory.hbm_bytes - self.reserved_hbm_bytes
