"""The machine: one accelerator, the node around it, and the network tiers above the node."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Origin = Literal["vendor", "measured", "fitted", "assumed"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


class Sourced(BaseModel):
    """A table of constants that names where they come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    origin: Origin


class GemmCurve(Sourced):
    """Time of one matrix product: ``t0 + 2 M N (K + K0) / (R * sustained) + q M K`` (physics: GEMM fit)."""

    rate_flop_per_s: float = Field(gt=0)
    """R: burst rate of large products."""
    k0: float = 0.0
    launch_s: float = 0.0
    """t0."""
    quantise_s_per_element: float = 0.0
    """q: pass over the activation before a low-precision product."""
    sustained_fraction: float = Field(default=1.0, gt=0)
    """Clock under a long run, relative to the burst benchmark."""
    small_dimension: float = Field(default=0.0, ge=0)
    """D: products narrower than this lose their rate; the product term is multiplied by
    ``1 + (D/M)^2 + (D/N)^2``. [row]"""
    tile: int = Field(default=1, ge=1)
    """Every dimension is padded to a multiple of this (systolic arrays)."""
    waves: bool = False
    """The product is cut into tiles that the multiprocessors work off in whole waves (Ampere and before;
    later libraries split the last wave)."""


class AttentionCurve(Sourced):
    """Rate of a fused attention kernel against sequence length (head dim 128, causal FLOPs counted half)."""

    seq_lengths: tuple[int, ...]
    forward_flop_per_s: tuple[float, ...]
    backward_flop_per_s: tuple[float, ...]
    head_dims: tuple[int, ...] = (64, 128, 256)
    head_dim_factors: tuple[float, ...] = (0.75, 1.0, 1.0)
    """Rate at each of ``head_dims``, relative to head dim 128."""
    sustained_fraction: float = Field(default=1.0, gt=0)
    """Clock under a long run, relative to the burst benchmark."""
    forward_tiles_per_multiprocessor: float = Field(default=2.0, ge=0)
    """Blocks of 128 query rows per multiprocessor below which the rate falls in proportion (0 = never)."""
    backward_tiles_per_multiprocessor: float = Field(default=2.0, ge=0)


class Compute(Sourced):
    """Dense vendor peaks by precision, the denominators of MFU."""

    peak_flop_per_s: dict[str, float]
    multiprocessors: int = 0
    """SMs, CUs or MXU-bearing cores; 0 = not modelled."""


class HighBandwidthMemory(Sourced):
    """HBM of one accelerator."""

    hbm_bytes: float = Field(gt=0)
    """What the driver reports as total."""
    vendor_hbm_bytes: float = Field(gt=0)
    """The figure on the data sheet."""
    hbm_bytes_per_s: float = Field(gt=0)
    elementwise_fraction: float = Field(default=0.8, gt=0, le=1)
    """Share of the bandwidth that fused elementwise kernels reach."""
    permute_fraction: float = Field(default=0.5, gt=0, le=1)
    loss_fraction: float = Field(default=0.4, gt=0, le=1)
    optimizer_fraction: float = Field(default=0.8, gt=0, le=1)


class Link(Sourced):
    """One tier of the network as one GPU sees it, one direction."""

    name: str
    group_gpus: int = Field(gt=0)
    """GPUs that reach each other over this tier (0-free; the outermost tier may exceed the cluster)."""
    bytes_per_s: float = Field(gt=0)
    """Line rate of all the GPU's links of this tier together."""
    latency_s: float = Field(ge=0)
    """One hop of a bandwidth-optimised (NCCL "Simple") ring."""
    base_s: float = Field(default=0.0, ge=0)
    """Start-up time of one collective."""
    efficiency: float = Field(default=1.0, gt=0, le=1)
    """Share of the line rate that large messages reach."""
    all_to_all_efficiency: float = Field(default=0.87, gt=0, le=1)
    """The same for all-to-all between the groups of the tier below (many peers, incast)."""
    ring_waits: bool = False
    """Every step of a ring takes as long as a hop of this tier, not only the steps that cross it."""
    oversubscription: float = Field(default=1.0, ge=1)
    is_mesh: bool = False
    """One link to each peer (xGMI): a group of n ranks drives n - 1 of the ``group_gpus - 1`` links."""
    is_torus: bool = False
    """TPU interconnect: per-axis links, no cliff at a node's edge."""
    torus_axes: int = 0
    torus_wrap_side: int = 4
    """Axes shorter than this have no wrap-around link and take twice the time."""


class Fabric(Sourced):
    """What kind of network joins the nodes: all but the line rate. One file in ``hardware/networks/``."""

    name: str
    aliases: tuple[str, ...] = ()
    latency_s: float = Field(ge=0)
    base_s: float = Field(ge=0)
    efficiency: float = Field(gt=0, le=1)
    all_to_all_efficiency: float = Field(gt=0, le=1)
    ring_waits: bool = False


class CollectiveCurve(Sourced):
    """Measured time of one collective inside the fastest domain, for one group size.

    ``message_bytes`` is the full buffer of all ranks together; times are interpolated on log-log axes.
    """

    collective: Collective
    num_ranks: int = Field(ge=2)
    message_bytes: tuple[float, ...]
    time_s: tuple[float, ...]
    link_bytes_per_s: float = Field(gt=0)
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

    kernel_launch_s: float = 6e-6
    """CPU time to launch one kernel."""
    kernel_gap_s: float = 2e-6
    """Idle time of the GPU between two queued kernels."""
    pcie_bytes_per_s: float = 25e9
    """Host-to-device bandwidth per GPU, for offload (C2C on Grace)."""
    node_memory_bytes: float = 1e12


class Price(Sourced):
    """What an hour costs."""

    usd_per_gpu_hour: float = Field(ge=0)


class Accelerator(BaseModel):
    """One accelerator in the system it usually comes in: one file in ``hardware/``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    aliases: tuple[str, ...] = ()
    vendor: str
    notes: str = ""
    gpus_per_node: int = Field(gt=0)
    compute: Compute
    memory: HighBandwidthMemory
    gemm: dict[str, GemmCurve]
    """By precision: bf16 always; fp8, mxfp8, fp16, nvfp4 where the part has them."""
    attention: dict[str, AttentionCurve]
    """By kernel generation: fa2, fa3, cudnn, ..."""
    links: tuple[Link, ...]
    """Innermost first: the NVLink/xGMI/ICI domain, then the network."""
    collectives: tuple[CollectiveCurve, ...] = ()
    host: Host
    price: Price | None = None


class Cluster(BaseModel):
    """``num_gpus`` accelerators and the tiers between them (taken from the accelerator unless overridden)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accelerator: Accelerator
    num_gpus: int = Field(gt=0)
    gpus_per_node: int = Field(gt=0)
    links: tuple[Link, ...]
    reserved_hbm_bytes: float = 0.0
    """HBM that the user keeps free."""

    @property
    def nvlink_domain(self) -> int:
        """GPUs inside the fastest tier."""
        return min(self.links[0].group_gpus, self.num_gpus)

    @property
    def usable_hbm_bytes(self) -> float:
        """HBM that a plan may fill."""
        return self.accelerator.memory.hbm_bytes - self.reserved_hbm_bytes
