"""One change of the problem at a time: parameters that a reader may turn, and the request that results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.spec import Cluster, PlanRequest
from planner.units import format_bytes


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number of the problem that can be scaled.

    ``scaled`` returns the request with the number multiplied (None where that makes no sense), ``value`` says
    the number in words. ``admits_more``: with more of it many more plans fit.
    """

    name: str
    scaled: Callable[[PlanRequest, float], PlanRequest | None]
    value: Callable[[PlanRequest], str]
    admits_more: bool = False

    @property
    def article(self) -> str:
        """The name with its article."""
        return f"an {self.name}" if self.name.startswith("H") else f"a {self.name}"


def with_hbm_bytes(request: PlanRequest, hbm_bytes: float) -> PlanRequest:
    """The request on GPUs with so much HBM in all. [byte]."""
    accelerator = request.cluster.accelerator
    memory = accelerator.memory.model_copy(update={"hbm_bytes": hbm_bytes})
    return _with_cluster(request, accelerator=accelerator.model_copy(update={"memory": memory}))


def with_host_bytes(request: PlanRequest, node_memory_bytes: float) -> PlanRequest:
    """The request on nodes with so much host memory. [byte]."""
    accelerator = request.cluster.accelerator
    host = accelerator.host.model_copy(update={"node_memory_bytes": node_memory_bytes})
    return _with_cluster(request, accelerator=accelerator.model_copy(update={"host": host}))


def with_hbm(request: PlanRequest, factor: float) -> PlanRequest:
    """The request on GPUs with so many times the HBM."""
    return with_hbm_bytes(request, request.cluster.accelerator.memory.hbm_bytes * factor)


def with_domain_rate(request: PlanRequest, factor: float) -> PlanRequest | None:
    """The request with a faster or slower innermost tier (measured curves scale with it)."""
    return _with_link_rate(request, factor, inner=True)


def with_network_rate(request: PlanRequest, factor: float) -> PlanRequest | None:
    """The request with a faster or slower network; None on one node."""
    if len(request.cluster.links) == 1 or request.cluster.num_gpus <= request.cluster.nvlink_domain:
        return None
    return _with_link_rate(request, factor, inner=False)


def _in_sixteenths(number: int, factor: float) -> int:
    """About ``factor`` times the number, a whole count of its sixteenths: what divided it still can."""
    return (
        round(16 * factor) * (number // 16)
        if number % 16 == 0 and 16 * factor >= 1
        else round(number * factor)
    )


def with_batch(request: PlanRequest, factor: float) -> PlanRequest | None:
    """The request with a larger or smaller global batch."""
    workload = request.workload
    batch = _in_sixteenths(workload.global_batch, factor)
    if batch < 1 or workload.global_batch_max is not None:
        return None
    return request.model_copy(update={"workload": workload.model_copy(update={"global_batch": batch})})


def with_seq_length(request: PlanRequest, factor: float) -> PlanRequest | None:
    """The request with longer or shorter sequences, the same number of them."""
    length = _in_sixteenths(request.workload.seq_length, factor)
    if length < 1:
        return None
    return request.model_copy(update={"workload": request.workload.model_copy(update={"seq_length": length})})


def with_num_gpus(request: PlanRequest, num_gpus: int) -> PlanRequest:
    """The request on so many GPUs of the same kind; a part of one node may grow to the usual node."""
    cluster = request.cluster
    node = cluster.gpus_per_node
    if cluster.num_gpus <= node:
        node = max(node, min(cluster.accelerator.gpus_per_node, cluster.links[0].group_gpus))
    return _with_cluster(request, num_gpus=num_gpus, gpus_per_node=min(node, num_gpus))


def with_domain(request: PlanRequest, domain_gpus: int) -> PlanRequest:
    """The request with so many GPUs inside the fastest tier."""
    inner, *others = request.cluster.links
    others = [link for link in others if link.group_gpus > domain_gpus]
    return _with_cluster(request, links=(inner.model_copy(update={"group_gpus": domain_gpus}), *others))


def with_gpus(request: PlanRequest, factor: float) -> PlanRequest | None:
    """The request with more or fewer whole nodes, or an even part of one; None where there are none such."""
    count = request.cluster.num_gpus * factor
    if count < 1 or count != round(count):
        return None
    changed = with_num_gpus(request, round(count))
    node = with_num_gpus(request, request.cluster.num_gpus).cluster.gpus_per_node
    return changed if count % node == 0 or node % count == 0 else None


def with_domain_size(request: PlanRequest, factor: float) -> PlanRequest | None:
    """The request with a larger or smaller fastest tier; None unless it holds a whole number of GPUs."""
    size = request.cluster.nvlink_domain * factor
    if size != round(size) or not 1 <= size <= request.cluster.num_gpus:
        return None
    return with_domain(request, round(size))


def with_compute_rate(request: PlanRequest, factor: float) -> PlanRequest:
    """The request with faster or slower matrix products than the fit says."""
    accelerator = request.cluster.accelerator
    gemm = {
        name: curve.model_copy(update={"rate_flop_per_s": curve.rate_flop_per_s * factor})
        for name, curve in accelerator.gemm.items()
    }
    return _with_cluster(request, accelerator=accelerator.model_copy(update={"gemm": gemm}))


def _with_cluster(request: PlanRequest, **update: object) -> PlanRequest:
    cluster: Cluster = request.cluster.model_copy(update=update)
    return request.model_copy(update={"cluster": cluster})


def _with_link_rate(request: PlanRequest, factor: float, *, inner: bool) -> PlanRequest:
    links = tuple(
        link.model_copy(update={"bytes_per_s": link.bytes_per_s * factor}) if (index == 0) is inner else link
        for index, link in enumerate(request.cluster.links)
    )
    return _with_cluster(request, links=links)


def _domain_words(request: PlanRequest) -> str:
    return f"{request.cluster.links[0].bytes_per_s / 1e9:.0f} GB/s"


def _network_words(request: PlanRequest) -> str:
    return f"{request.cluster.links[-1].bytes_per_s / 1e9:.0f} GB/s"


PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        "HBM", with_hbm, lambda request: format_bytes(request.cluster.usable_hbm_bytes), admits_more=True
    ),
    Parameter("fast-domain bandwidth", with_domain_rate, _domain_words),
    Parameter("network bandwidth", with_network_rate, _network_words),
    Parameter("global batch", with_batch, lambda request: f"{request.workload.global_batch} sequences"),
    Parameter("sequence length", with_seq_length, lambda request: f"{request.workload.seq_length} tokens"),
    Parameter("GPUs", with_gpus, lambda request: str(request.cluster.num_gpus)),
)
"""What is turned, in the order of the printed table."""

DOMAIN_SIZE = Parameter(
    "fast domain", with_domain_size, lambda request: f"{request.cluster.nvlink_domain} GPUs"
)
