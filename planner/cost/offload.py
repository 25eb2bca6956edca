"""What lives in host memory: its bytes there, what stays on the GPU, and the copies over the host link.

``optimizer``: moments and master weights; the update runs on the host. ``parameters``: weights, gradients and
optimizer state; each layer's shard is copied in before its gather. ``activations``: what layers save, of
recomputed layers their inputs.

Letters: P parameters of one GPU before sharding, D ranks that share them.

References
----------
ZeRO-Offload (arXiv 2101.06840) sections 3 and 4; ZeRO-Infinity (arXiv 2104.07857) sections 3 and 4; DeepSpeed
``runtime/zero/stage3.py``; PyTorch ``fsdp/_fully_shard`` (``CPUOffloadPolicy``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from planner.cost.activations import layer_activation_bytes
from planner.cost.layer_comm import ELEMENT_BYTES, gradient_reductions
from planner.cost.setting import Setting
from planner.cost.states import (
    MASTER_BYTES,
    LocalParameters,
    StateBytes,
    layer_local_parameters,
    owned_parameters,
    state_bytes,
    weight_bytes,
    whole_state,
)
from planner.cost.work import LayerTime, WorkTime
from planner.spec.model import LayerKind
from planner.spec.plan import Offload
from planner.spec.request import PlanRequest

OF_PARAMETERS: frozenset[Offload] = frozenset({"parameters", "parameters+activations"})
"""What takes weights, and with them gradients and optimizer state, to the host."""
OF_ACTIVATIONS: frozenset[Offload] = frozenset({"activations", "parameters+activations"})
OF_STATE = OF_PARAMETERS | {"optimizer"}
IN_LAYERS = OF_PARAMETERS | OF_ACTIVATIONS
"""What copies in every layer of every micro-batch."""
OFFLOADED_BYTES = 6.0
"""Per owned parameter over the host link: fp32 gradient down, 16-bit weight up. [byte]"""
HOST_ADAM_BYTES = 28.0
"""Per owned parameter that Adam on the host reads and writes (g, m, v, w in fp32). [byte]"""


def resident_state(local: LocalParameters, setting: Setting, request: PlanRequest) -> StateBytes:
    """State of ``local`` parameters that stays on the GPU. [byte].

    Notes
    -----
    Bytes per parameter with all of ``optimizer`` away: ZeRO-1 ``w + g``; ZeRO-2 and 3 keep their sharded
    gradients (``w + g/D``, ``(w + g)/D``) or, as in ZeRO-Offload, send them away (``w``, ``w/D``). With
    ``parameters`` nothing stays but what is whole (``whole_state``).
    """
    if setting.offload in OF_PARAMETERS and setting.zero_stage >= 2:
        return whole_state(local, setting, request)
    state = state_bytes(local, setting, request)
    if setting.offload not in OF_STATE:
        return state
    leaves = request.framework.memory.offloads_gradients and setting.zero_stage >= 2
    return replace(
        state,
        optimizer_bytes=0.0 * state.optimizer_bytes,
        gradients_bytes=state.gradients_bytes * (0.0 if leaves else 1.0),
    )


def host_state_bytes(local: LocalParameters, setting: Setting, request: PlanRequest) -> Any:
    """State of ``local`` parameters that one GPU keeps on the host, without buffers. [byte].

    Notes
    -----
    Per owned parameter in bf16 with Adam: ``optimizer`` 12 + 4 of gradient = 16; ``parameters`` 18 where a
    16-bit weight lies beside its master (DeepSpeed) and 16 where the shard is the master (FSDP).

    References
    ----------
    DeepSpeed runtime/zero/stage3.py, ``estimate_zero3_model_states_mem_needs`` (16 and 18).
    """
    if setting.offload not in OF_STATE:
        return 0.0 * local.total
    owned = owned_parameters(local, setting)
    weights = owned * (shard_weight_bytes(setting, request) if setting.offload in OF_PARAMETERS else 0.0)
    if request.workload.frozen_weights:
        return weights
    gradients = owned * request.framework.memory.host_gradient_bytes
    return weights + gradients + state_bytes(local, setting, request).optimizer_bytes


def shard_weight_bytes(setting: Setting, request: PlanRequest) -> float:
    """Bytes of a parameter of a shard on the host, as it is copied in: the master, or 16 bits. [byte]."""
    workload = request.workload
    if workload.frozen_weights:
        return workload.frozen_weight_bytes or weight_bytes(setting, request)
    is_master = request.framework.memory.sharded_weights_are_master
    return MASTER_BYTES if is_master else weight_bytes(setting, request)


def optimizer_offload_time(local: LocalParameters, setting: Setting, request: PlanRequest) -> Any:
    """Transfers around the optimizer step and Adam on the host, at the host link's rate. [s].

    Notes
    -----
    ``optimizer``: (6 + 28) P / D bytes. ``parameters``: 28 P / D; gradients came during the backward pass and
    weights go with the next step's layers, but for ZeRO-2, which copies and gathers them once a step.
    """
    if setting.offload not in OF_STATE:
        return 0.0 * np.asarray(local.total)
    frozen = request.workload.frozen_weights
    moved = 0.0 if frozen else HOST_ADAM_BYTES + (OFFLOADED_BYTES if setting.offload == "optimizer" else 0.0)
    if setting.offload in OF_PARAMETERS and setting.zero_stage < 3:
        moved += shard_weight_bytes(setting, request)
    return owned_parameters(local, setting) * moved / request.cluster.accelerator.host.pcie_bytes_per_s


@dataclass(frozen=True)
class Copies:
    """Seconds on the host link of one layer or end of the model and micro-batch, each way and phase."""

    forward_up: Any = 0.0
    forward_down: Any = 0.0
    backward_up: Any = 0.0
    backward_down: Any = 0.0

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, way.name) + getattr(other, way.name) for way in fields(self)))

    def beside(self, priced: LayerTime) -> LayerTime:
        """What the copies add to the phases beside which they run; the link works both ways at once.

        The backward pass of a recomputed layer hides more of them: its recompute takes that part away again.
        """
        forward = np.maximum(self.forward_up, self.forward_down) - priced.forward.total
        work = priced.backward_input.total + priced.backward_weight.total
        backward = np.maximum(np.maximum(self.backward_up, self.backward_down) - work, 0.0)
        hidden = np.minimum(backward, priced.recompute.total)
        return LayerTime(
            forward=WorkTime(offload_s=np.maximum(forward, 0.0)),
            backward_input=WorkTime(offload_s=backward),
            recompute=WorkTime(offload_s=-hidden),
        )


def layer_copies(kind: LayerKind, setting: Setting, request: PlanRequest, priced: LayerTime) -> LayerTime:
    """Exposed copies of one layer's weights, gradients and saved activations.

    Parameters
    ----------
    priced
        The layer's phases without the copies.

    Notes
    -----
    Copy engines move either direction beside the layer's own phases and take nothing from them (Transformer
    Engine's ``cpu_offload`` on streams of its own, XLA's host offload, the prefetch of FSDP and DeepSpeed);
    what does not fit behind is exposed. Activations that wait in the layers' own stream are exposed whole
    (transformers' ``gradient_checkpointing_kwargs``).
    """
    copies = _weights_and_gradients(layer_local_parameters(kind, setting, request), setting, request)
    saved = _activations(kind, setting, request)
    if request.framework.time.activation_copies_overlap:
        return (copies + saved).beside(priced)
    return copies.beside(priced) + LayerTime(
        forward=WorkTime(offload_s=saved.forward_down), backward_input=WorkTime(offload_s=saved.backward_up)
    )


def end_copies(
    local: LocalParameters, setting: Setting, request: PlanRequest, priced: LayerTime
) -> LayerTime:
    """Exposed copies of the weights and gradients of the embedding or the head, as ``layer_copies``."""
    return _weights_and_gradients(local, setting, request).beside(priced)


def _weights_and_gradients(local: LocalParameters, setting: Setting, request: PlanRequest) -> Copies:
    """Copies of ``parameters``.

    w P / D up before the forward pass and again before the backward one, which recomputes with the same copy;
    g P / D down in the backward pass, as often as gradients are reduced. Known error: sums over several
    micro-batches are added up on the host or fetched back, which is left out.
    """
    if setting.offload not in OF_PARAMETERS:
        return Copies()
    habits, rate = request.framework.memory, request.cluster.accelerator.host.pcie_bytes_per_s
    owned = owned_parameters(local, setting)
    up_s = owned * (shard_weight_bytes(setting, request) if setting.zero_stage >= 3 else 0.0) / rate
    gradient = habits.gradient_bytes if habits.sharded_weights_are_master else ELEMENT_BYTES
    gradient = 0.0 if request.workload.frozen_weights else gradient
    down_s = owned * gradient * gradient_reductions(setting, request) / rate
    return Copies(forward_up=up_s, backward_up=up_s, backward_down=down_s)


def _activations(kind: LayerKind, setting: Setting, request: PlanRequest) -> Copies:
    """What a layer saves, down in the forward pass and up for the backward one."""
    if setting.offload not in OF_ACTIVATIONS:
        return Copies()
    saved = layer_activation_bytes(kind, setting, request)
    moved = saved.plain if setting.recompute == "none" else saved.recomputed
    copy_s = moved / request.cluster.accelerator.host.pcie_bytes_per_s
    return Copies(forward_down=copy_s, backward_up=copy_s)
