"""The machine: one accelerator, the node around it, and the network tiers above the node."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

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


class AttentionCurve(Sourced):
    """Rate of a fused attention kernel against sequence length (head dim 128, causal FLOPs counted half)."""

    seq_lengths: tuple[int, ...]
    forward_flop_per_s: tuple[float, ...]
    backward_flop_per_s: tuple[float, ...]


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


class Link(Sourced):
    """One tier of the network as one GPU sees it, one direction."""

    name: str
    group_gpus: int = Field(gt=0)
    """GPUs that reach each other over this tier (0-free; the outermost tier may exceed the cluster)."""
    bytes_per_s: float = Field(gt=0)
    latency_s: float = Field(ge=0)
    oversubscription: float = Field(default=1.0, ge=1)
    is_torus: bool = False
    """TPU interconnect: per-axis links, no cliff at a node's edge."""
    torus_axes: int = 0


class CollectiveCurve(Sourced):
    """Measured time of one collective inside the fastest domain, for one group size.

    ``message_bytes`` is the full buffer of all ranks together; times are interpolated on log-log axes.
    """

    collective: Collective
    num_ranks: int
    message_bytes: tuple[float, ...]
    time_s: tuple[float, ...]


class Host(Sourced):
    """The host's side of a step."""

    kernel_launch_s: float = 6e-6
    """CPU time to launch one kernel."""
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
