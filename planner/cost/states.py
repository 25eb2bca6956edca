"""Model state on one GPU: weights, gradients and optimizer moments, and how ZeRO spreads them.

Letters: P parameters on this GPU before sharding over replicas, D ranks that share the dense state
(data x context replicas, or an HSDP group), D_e ranks that share the state of one expert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from planner.cost import linear_mixer, parameters
from planner.cost.setting import Setting
from planner.cost.stage import ChunkLoad
from planner.cost.terms import Terms
from planner.spec.framework import MemoryHabits
from planner.spec.model import LayerKind, Model
from planner.spec.request import PlanRequest

MASTER_BYTES = 4.0
"""fp32 copy of a parameter. [byte]."""
LOW_PRECISION = frozenset({"fp8", "mxfp8", "nvfp4"})


@dataclass(frozen=True)
class LocalParameters:
    """Parameters that one GPU owns after tensor and expert parallelism, before any sharding over replicas."""

    dense: Any = 0.0
    expert: Any = 0.0

    @property
    def total(self) -> Any:
        """Dense and expert parameters together."""
        return self.dense + self.expert

    def __add__(self, other: Self) -> Self:
        return type(self)(self.dense + other.dense, self.expert + other.expert)

    def __mul__(self, factor: Any) -> Self:
        return type(self)(self.dense * factor, self.expert * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes(Terms):
    """Bytes of model state on one GPU."""

    weights_bytes: Any = 0.0
    gradients_bytes: Any = 0.0
    optimizer_bytes: Any = 0.0


def padded_vocabulary(request: PlanRequest, setting: Setting) -> Any:
    """Rows of the embedding table after the framework's padding for ``tensor_parallel``. [1]."""
    multiple = request.framework.limits.vocab_multiple * np.asarray(setting.tensor_parallel)
    if request.framework.limits.vocab_multiple == 0:
        return request.model.vocab_size
    return -(-request.model.vocab_size // multiple) * multiple


def kv_heads_per_rank(model: Model, setting: Setting) -> Any:
    """KV heads on one tensor rank: g/t, or one copied head when there are fewer heads than ranks. [1]."""
    return np.maximum(model.num_kv_heads / np.asarray(setting.tensor_parallel), 1.0)


def layer_local_parameters(kind: LayerKind, setting: Setting, request: PlanRequest) -> LocalParameters:
    """Parameters of one layer on one GPU.

    Matrices divide over the tensor ranks; norms, the router and the down-projections of multi-head latent
    attention are copied; KV projections are copied beyond one head a rank; routed experts divide over
    expert and expert-tensor ranks. Linear mixers divide over the tensor ranks that split them, but for the
    inner halves of low-rank gates.
    """
    model, t = request.model.seen_by(kind), setting.tensor_parallel
    counts = parameters.layer_parameters(model, kind)
    dense = (counts.dense_mlp + counts.shared_experts) / t + counts.router + counts.norms
    expert = counts.routed_experts / (setting.expert_parallel * np.asarray(setting.expert_tensor_parallel))
    if kind.has_attention:
        dense = dense + _attention_local(model, setting, counts.attention)
    if kind.has_linear:
        split = linear_mixer.split_parameters(model) / linear_mixer.linear_ranks(setting, request)
        dense = dense + split + linear_mixer.copied_parameters(model)
    return LocalParameters(dense, expert)


def _attention_local(model: Model, setting: Setting, attention: float) -> Any:
    t = setting.tensor_parallel
    if model.is_mla:
        copied = model.hidden_size * (model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim)
        return (attention - copied) / t + copied
    one_head = model.kv_projections * model.hidden_size * model.head_dim
    kv = model.num_kv_heads * one_head
    return (attention - kv) / t + kv_heads_per_rank(model, setting) * one_head


def embedding_local_parameters(setting: Setting, request: PlanRequest) -> LocalParameters:
    """Parameters of the (padded) token embedding on one tensor rank."""
    padding = padded_vocabulary(request, setting) - request.model.vocab_size
    rows = parameters.embedding_parameters(request.model) + padding * request.model.hidden_size
    return LocalParameters(rows / setting.tensor_parallel)


def head_local_parameters(setting: Setting, request: PlanRequest) -> LocalParameters:
    """Parameters of the final norm and the LM head on one tensor rank.

    A tied head is the embedding itself on one stage and a second copy of it when the pipeline has more.
    """
    model, t = request.model, setting.tensor_parallel
    matrix = padded_vocabulary(request, setting) * model.hidden_size / t
    if model.tied_embeddings:
        return LocalParameters(
            np.where(np.asarray(setting.pipeline_parallel) > 1, matrix, 0.0) + model.hidden_size
        )
    return LocalParameters(matrix + model.hidden_size)


def mtp_local_parameters(setting: Setting, request: PlanRequest) -> LocalParameters:
    """Parameters of one multi-token-prediction module on one GPU: a layer, a projection, norms."""
    h = request.model.hidden_size
    layer = layer_local_parameters(request.model.mtp_kind, setting, request)
    return layer + LocalParameters(2 * h * h / np.asarray(setting.tensor_parallel) + 3 * h)


def load_local_parameters(load: ChunkLoad, setting: Setting, request: PlanRequest) -> LocalParameters:
    """Parameters of a load on one GPU, linear in the load's counts."""
    total = LocalParameters()
    for kind, count in load.layers.items():
        total = total + layer_local_parameters(kind, setting, request) * count
    total = total + embedding_local_parameters(setting, request) * load.embedding
    total = total + head_local_parameters(setting, request) * load.head
    if request.model.mtp_depth:
        total = total + mtp_local_parameters(setting, request) * load.mtp
    return total


def shard_ranks(setting: Setting) -> tuple[Any, Any]:
    """Ranks that share one dense parameter's state, and one expert's. [1].

    Context ranks hold copies, so they count as replicas. Experts have ``t c d / (e etp)`` replicas, cut
    into as many groups as the dense ones (HSDP).
    """
    replicas = np.asarray(setting.data_parallel) * setting.context_parallel
    group = np.where(np.asarray(setting.shard_group_size) > 1, setting.shard_group_size, 1)
    groups = np.maximum(replicas / group, 1.0)
    experts = np.asarray(setting.expert_parallel) * setting.expert_tensor_parallel
    expert_replicas = np.maximum(replicas * setting.tensor_parallel / experts, 1.0)
    return group, np.maximum(expert_replicas / groups, 1.0)


def state_bytes(local: LocalParameters, setting: Setting, request: PlanRequest) -> StateBytes:
    """Bytes of the persistent model state of ``local`` parameters under the setting's ZeRO stage.

    Notes
    -----
    Bytes per parameter, with w, g, o of the framework's habits: ZeRO-0 ``w + g + o``, 1 ``w + g + o/D``,
    2 ``w + (g + o)/D``, 3 ``(w + g + o)/D``. Where the shard is the fp32 master itself (FSDP2), w is 4, o
    is ``o - 4``, and a stage that keeps whole 16-bit weights adds w.

    References
    ----------
    ZeRO (arXiv 1910.02054) section 5; Megatron-LM docs, distributed optimizer (6 + 12/d).
    """
    dense_ranks, expert_ranks = shard_ranks(setting)
    if setting.zero_stage == 0:
        dense_ranks, expert_ranks = 1, 1
    if request.workload.frozen_weights:
        return _frozen_state(local, setting, request, dense_ranks, expert_ranks)
    return _spread(local.dense, dense_ranks, setting, request) + _spread(
        local.expert, expert_ranks, setting, request
    )


def _frozen_state(
    local: LocalParameters, setting: Setting, request: PlanRequest, dense_ranks: Any, expert_ranks: Any
) -> StateBytes:
    """Weights without gradients and moments, sharded with ZeRO-3.

    Where the shard is the master copy they are from ZeRO-2 on, with a whole copy beside it if one is kept.
    """
    weight = request.workload.frozen_weight_bytes or weight_bytes(setting, request)
    is_sharded = request.framework.memory.sharded_weights_are_master
    shards = setting.zero_stage >= (2 if is_sharded else 3)
    total: Any = 0.0
    for count, ranks in ((local.dense, dense_ranks), (local.expert, expert_ranks)):
        held: Any = weight / ranks if shards else weight
        whole = np.where(keeps_whole_weights(setting) & (np.asarray(ranks) > 1), weight, 0.0)
        total = total + count * (held + (whole if is_sharded and shards else 0.0))
    return StateBytes(weights_bytes=total)


def owned_parameters(local: LocalParameters, setting: Setting) -> Any:
    """Parameters whose optimizer state this rank keeps. [1]."""
    if setting.zero_stage == 0:
        return local.total
    dense_ranks, expert_ranks = shard_ranks(setting)
    return local.dense / dense_ranks + local.expert / expert_ranks


def keeps_whole_weights(setting: Setting) -> Any:
    """Whether whole 16-bit weights stay on the GPU: always below ZeRO-3, and with it under a pipeline."""
    return (setting.zero_stage < 3) | (np.asarray(setting.pipeline_parallel) > 1)


def _spread(count: Any, ranks: Any, setting: Setting, request: PlanRequest) -> StateBytes:
    habits, stage = request.framework.memory, setting.zero_stage
    gradient, optimizer = _precision_bytes(setting, habits)
    weight = weight_bytes(setting, request)
    gradients = gradient + (bucket_bytes(setting, habits) if stage == 0 else 0.0)
    if habits.sharded_weights_are_master:
        return _spread_master(count, ranks, setting, request)
    return StateBytes(
        weights_bytes=count * weight / (ranks if stage >= 3 else 1),
        gradients_bytes=count * gradients / (ranks if stage >= 2 else 1),
        optimizer_bytes=count * optimizer / (ranks if stage >= 1 else 1),
    )


def bucket_bytes(setting: Setting, habits: MemoryHabits) -> Any:
    """Bytes of a parameter's second gradient for communication: resident, or with ZeRO of a backward pass."""
    synchronised = np.asarray(setting.data_parallel) * setting.context_parallel > 1
    return np.where(synchronised, habits.bucket_gradient_bytes, 0.0)


def weight_bytes(setting: Setting, request: PlanRequest) -> float:
    """Bytes of one parameter as kept for computing.

    FP8 primary weights take one byte and, where the tensor cores cannot read a transposed FP8 operand (parts
    without MXFP8, such as Hopper), a second for the transposed copy. Frozen weights are transposed anew.
    """
    habits = request.framework.memory
    if setting.precision == "fp32":
        return max(habits.weight_bytes, MASTER_BYTES)
    if setting.precision not in LOW_PRECISION or habits.fp8_weight_bytes is None:
        return habits.weight_bytes
    if request.workload.frozen_weights:
        return habits.fp8_weight_bytes
    needs_transpose = "mxfp8" not in request.cluster.accelerator.gemm
    return habits.fp8_weight_bytes + (1.0 if needs_transpose or setting.precision == "mxfp8" else 0.0)


def _precision_bytes(setting: Setting, habits: MemoryHabits) -> tuple[float, float]:
    """Bytes of a parameter's gradient and optimizer state in the setting's number format."""
    gradient, optimizer = habits.gradient_bytes, habits.optimizer_bytes
    if setting.precision == "fp16":
        gradient = gradient if habits.fp16_gradient_bytes is None else habits.fp16_gradient_bytes
        optimizer = optimizer if habits.fp16_optimizer_bytes is None else habits.fp16_optimizer_bytes
    if setting.precision == "fp32":
        gradient = max(gradient, MASTER_BYTES)
    return gradient, optimizer


def defers_reduction(setting: Setting, request: PlanRequest) -> Any:
    """Whether gradients of sharded parameters stay whole between the micro-batches of a step."""
    defers = request.framework.memory.defers_reduction
    kind = defers == "always" or (defers == "dense" and not request.model.is_moe)
    return kind & (np.asarray(setting.num_microbatches) > 1)


def _spread_master(count: Any, ranks: Any, setting: Setting, request: PlanRequest) -> StateBytes:
    """State where the shard is the fp32 master: from ZeRO-2 on, whole weights are kept besides or gathered.

    Under a pipeline (FSDP2 does not reshard between micro-batches) whole gradients accumulate as well, in
    the weights' own format, or fp32 ones of a chunk at a time (``piped_gradients``). So they do wherever the
    reduction is deferred, in the format it reduces (``FSDPParam.to_accumulated_grad_if_needed``); there the
    last backward pass reduces layer by layer, and the whole ones go as the shards come. 72 GB for Llama 70B
    over 8 stages and 4 shards, of which 17.6 each are weights and gradients (NeMo Automodel PR 2673);
    DeepSeek-V3 on 512 GPUs peaks at 57 to 60 GiB (torchtitan PR 2107).
    """
    habits, stage = request.framework.memory, setting.zero_stage
    shard = ranks if stage >= 2 else 1
    whole, whole_gradients = _whole_beside(ranks, setting, request)
    gradient = habits.gradient_bytes / shard
    piped = np.asarray(setting.pipeline_parallel) > 1
    return StateBytes(
        weights_bytes=count * (MASTER_BYTES / shard + whole),
        gradients_bytes=count
        * np.where(piped, gradient + whole_gradients, np.maximum(gradient, whole_gradients)),
        optimizer_bytes=count * (habits.optimizer_bytes - MASTER_BYTES) / (ranks if stage >= 1 else 1),
    )


def _whole_beside(ranks: Any, setting: Setting, request: PlanRequest) -> tuple[Any, Any]:
    """Bytes of a parameter's whole weights, and of its whole gradients, where the shard is the master."""
    habits = request.framework.memory
    if setting.zero_stage < 2:
        return 0.0, 0.0
    shared, piped = np.asarray(ranks) > 1, np.asarray(setting.pipeline_parallel) > 1
    weights = np.where(keeps_whole_weights(setting) & shared, habits.weight_bytes, 0.0)
    added: Any = habits.weight_bytes
    if habits.piped_gradients == "chunk":
        added = MASTER_BYTES / np.asarray(setting.virtual_stages)
    deferred = np.where(defers_reduction(setting, request), habits.reduced_gradient_bytes, 0.0)
    return weights, np.where(shared, np.where(piped, added, deferred), 0.0)


def whole_state(local: LocalParameters, setting: Setting, request: PlanRequest) -> StateBytes:
    """Bytes of weights and gradients that a GPU holds whole while all shards lie on the host.

    None where weights are gathered layer by layer and gradients leave as they come; else what FSDP keeps
    between its passes (``keeps_whole_weights``) and, where it defers or accumulates, whole gradients.
    """
    total = StateBytes(weights_bytes=0.0 * local.total, gradients_bytes=0.0 * local.total)
    if not request.framework.memory.sharded_weights_are_master:
        whole = weight_bytes(setting, request) if setting.zero_stage < 3 else 0.0
        return replace(total, weights_bytes=local.total * whole)
    dense_ranks, expert_ranks = shard_ranks(setting)
    frozen = request.workload.frozen_weights
    for count, ranks in ((local.dense, dense_ranks), (local.expert, expert_ranks)):
        weights, gradients = _whole_beside(ranks, setting, request)
        if frozen:
            weights = np.where(weights > 0, request.workload.frozen_weight_bytes or weights, 0.0)
        total = total + StateBytes(
            weights_bytes=count * weights, gradients_bytes=count * (0.0 if frozen else gradients)
        )
    return total
