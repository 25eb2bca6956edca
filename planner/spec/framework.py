"""A training framework as the planner sees it: limits for the rules, habits for the cost module.

The values live with each framework in ``planner/frameworks/``; nothing below that folder knows a
framework's name. Every figure's source stands in the profile's own module.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.spec.plan import (
    DEFAULT_ORDER,
    ContextParallelKind,
    Offload,
    Precision,
    RankOrder,
    Recompute,
    Schedule,
)


class Limits(BaseModel):
    """What the framework can express and refuses."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schedules: tuple[Schedule, ...] = ("none", "gpipe", "1f1b", "interleaved")
    zero_stages: tuple[int, ...] = (0, 1)
    zero_stages_with_pipeline: tuple[int, ...] = (0, 1)
    hybrid_sharding: bool = False
    context_parallel_kinds: tuple[ContextParallelKind, ...] = ("ring", "all_gather", "all_to_all")
    replicates_kv_heads: bool = True
    """KV heads fewer than the tensor ranks are copied (Megatron) instead of refused."""
    linear_tensor_parallel: bool = True
    """Tensor ranks split linear mixers (state space, linear attention) by heads; else each has them whole."""
    linear_context_parallel: bool = True
    """Linear mixers work over context ranks, which trade tokens for heads (all-to-all)."""
    expert_parallel: bool = True
    expert_tensor_parallel: bool = True
    max_tensor_parallel: int | None = None
    max_pipeline_parallel: int | None = None
    max_context_parallel: int | None = None
    vocab_multiple: int = 128
    """The vocabulary is padded to a multiple of this times tensor_parallel (0: not padded, must divide)."""
    uneven_stages: Literal["even", "ends", "any"] = "any"
    """``even``: layers divide over stages; ``ends``: first and last may differ; ``any``: free layout."""
    default_split: Literal["even", "cost"] = "even"
    """How layers are spread when nobody says (``cost.split``)."""
    recompute: tuple[Recompute, ...] = ("none", "selective", "full")
    recompute_per_stage: bool = False
    """Stages may recompute different numbers of layers."""
    partial_recompute: bool = True
    """A stage may recompute some of its layers (else all or none)."""
    partial_selective: bool = True
    """It may do so selectively as well (Megatron's named modules hold for every layer)."""
    microbatches_at_least_stages: bool = False
    """1F1B and GPipe refuse fewer micro-batches than stages (PyTorch)."""
    interleaved_multiple_of_stages: bool = True
    """Interleaving needs m to be a multiple of p (Megatron)."""
    sequence_parallel_required_with_tensor: bool = False
    sequence_parallel: bool = True
    """Activations between tensor-parallel products may be split over the tensor ranks."""
    context_excludes_pipeline: bool = False
    """Context ranks refuse a pipeline (Ulysses in DeepSpeed)."""
    context_is_sharded: bool = False
    """State is always sharded over the context ranks as well (FSDP over dp_shard x cp)."""
    context_and_experts_need_zero3: bool = False
    """Context and expert ranks shard all weights among them (MaxText's axes)."""
    moe_tensor_needs_sequence_parallel: bool = True
    offloads: tuple[Offload, ...] = ("none", "optimizer")
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4")
    zigzag_for_every_context_kind: bool = False
    """Every context-parallel kind cuts the sequence into 2c pieces (Megatron), not the ring alone."""
    sequence_divides_by_tensor_and_context: bool = False
    """The sequence is a multiple of tensor ranks times 2c (torchtitan), not of each by itself."""
    replicates_kv_heads_over_context: bool = False
    """All-to-all context parallelism copies KV heads when it has more ranks than heads (Ulysses)."""
    expert_tensor_is_one_or_tensor: bool = False
    """Experts are split over all tensor ranks or over none (torchtitan 0.2)."""
    experts_with_tensor_exclude_pipeline: bool = False
    """Expert and tensor parallelism together refuse a pipeline (DeepSpeed AutoEP folding)."""
    zero3_with_experts: bool = True
    """ZeRO-3 accepts expert parallelism."""
    plain_replication_combines: bool = True
    """ZeRO-0 replicas may be combined with other degrees (torchtitan and accelerate: no)."""
    shard_groups_hold_replicas: bool = False
    """A shard group is more than one replica's context ranks where there are more replicas (accelerate)."""
    sharding_needs_replicas: bool = False
    """ZeRO over a single rank is refused (accelerate: FSDP with dp_shard x cp = 1)."""
    tied_embeddings_with_pipeline: bool = True
    microbatches_at_least_stages_less_one: bool = False
    """1F1B refuses fewer than p - 1 micro-batches (nanotron)."""
    microbatches_multiple_of_stages: bool = False
    """Every schedule needs m to be a multiple of p (MaxText)."""
    activation_offload_excludes_pipeline: bool = True
    """Activations are offloaded by layer: no pipeline (Megatron)."""
    activation_offload_recompute: tuple[Recompute, ...] = ("none",)
    """Kinds of recompute beside which activations go to the host. With ``full`` only the layers' inputs do: a
    framework that has it recomputes every layer or none."""
    parameter_offload_zero_stages: tuple[int, ...] = (3,)
    """ZeRO stages whose shards of the weights may lie on the host."""
    rank_orders: tuple[RankOrder, ...] = (DEFAULT_ORDER,)
    """How it numbers ranks."""
    far_replicas_exclude_context: bool = False
    """With replicas outermost a dense model has no context ranks: the grid of experts, which is made all the
    same, would put other ranks into a pipeline (Megatron)."""

    def recomputes_partially(self, recompute: Recompute) -> bool:
        """Whether a stage may recompute some of its layers in this way."""
        return self.partial_recompute and (recompute != "selective" or self.partial_selective)


class MemoryHabits(BaseModel):
    """How the framework fills memory. Bytes are per parameter or element unless the name says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight_bytes: float = 2.0
    fp8_weight_bytes: float | None = None
    """With FP8 primary weights (None: 16 bits); a transposed copy is added where it is needed."""
    gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0
    """fp32 master, momentum, variance."""
    fp16_gradient_bytes: float | None = None
    """In fp16 training, where it differs: no fp32 accumulation."""
    fp16_optimizer_bytes: float | None = None
    """In fp16 training, where it differs: 16 with an fp32 copy of the shard's gradient."""
    sharded_weights_are_master: bool = False
    """FSDP2: the sharded copy is the fp32 master and a unit's 16-bit weights are gathered (16/d in all)."""
    piped_gradients: Literal["whole", "chunk"] = "whole"
    """Sharded gradients under a pipeline, where the shard is the master. ``whole``: 16-bit gradients of the
    whole stage add up on the GPU and are reduced once a step (FSDP2); ``chunk``: fp32 gradients of one model
    chunk add up over p consecutive micro-batches and are reduced then."""
    defers_reduction: Literal["never", "dense", "always"] = "never"
    """Sharded gradients stay whole until the last micro-batch of a step (FSDP with synchronisation off):
    those of dense models only, or of all."""
    reduced_gradient_bytes: float = 4.0
    """Of a gradient that FSDP reduces, or that waits for it: whole ones add up in the same format."""
    loss_saved_bytes: float = 6.0
    """Per logit, kept until the backward pass."""
    loss_peak_bytes: float = 8.0
    """Per logit, at the worst moment."""
    parallel_loss_bytes: float = 0.0
    """More of them where the logits are split over tensor ranks and the loss copies its part (DTensor)."""
    eager_loss_bytes: tuple[float, float] | None = None
    """``loss_peak_bytes`` and ``parallel_loss_bytes`` of a run with an uncompiled loss (None: the same)."""
    compiled_loss_bytes: tuple[float, float] | None = None
    """The same of a run with a compiled loss."""
    compiled_blocks: bool = False
    """Layers are compiled: a per-operator recompute keeps only what some backward kernel reads."""
    gathered_window_bytes: float = 0.0
    """Per token and hidden element: gathered inputs of tensor-parallel products that wait for their stream
    while the host runs ahead of the device. Not divided over the tensor ranks; see ``cost.memory``."""
    dummy_weight_gradients: bool = False
    """Transformer Engine keeps one 16-bit tensor per distinct weight shape."""
    activation_style: Literal["fused", "unfused"] = "fused"
    """Unfused: rotary embedding copies queries, keys and values, and the gate's activation is kept apart."""
    eager_norm_bytes: float = 0.0
    """Per element of a norm's input, kept besides where RMS norms are written out in fp32."""
    low_precision_activations: bool = True
    """In FP8 training the inputs of products are kept in one byte (Transformer Engine)."""
    low_precision_gate: bool = False
    """In FP8 training the inputs of the gated activation are kept in one byte as well."""
    low_precision_attention_bytes: float = 3.0
    """Per element of the attention output in FP8 training: 16 bits for its backward pass and a byte for the
    product that follows, or one shared copy."""
    fused_attention: bool = True
    """False: the s x s scores are kept (before FlashAttention)."""
    dropout_mask_bytes: float = 0.0
    """Per token and hidden element of one layer: 2 with the two dropouts of GPT-2-era training."""
    drops_scores: bool = True
    """Without a fused kernel, a dropout follows the softmax of the scores: its result and mask are kept."""
    selective_modules: tuple[str, ...] = ("core_attn",)
    """What a plan's selective recompute covers when the plan does not say (of these, what the model has)."""
    unsaid_modules: tuple[str, ...] = ("core_attn",)
    """What the framework itself covers when its configuration says selective and names nothing."""
    unsaid_sequence_parallel: bool = True
    """Whether tensor ranks split the sequence between their products when its configuration says nothing."""
    checkpoint_bytes: float = 2.0
    """Per token and hidden element that a fully recomputed layer keeps."""
    recomputed_together: int = Field(default=1, ge=1)
    """Layers of which only the first one's input is kept, and that are recomputed, and live, together."""
    keeps_expert_output: bool = False
    """The experts' output is kept until the router's probabilities are applied after them."""
    keeps_unweighted_tokens: bool = False
    """The router's probabilities are applied before the experts, and both sides of that product are kept."""
    gathered_units: float = 2.0
    """Layers whose whole weights are on the GPU at once under ZeRO-3 (the current one and the prefetched)."""
    reduced_units: float = 2.0
    """Layers whose whole fp32 gradients are being reduced at once under ZeRO-3."""
    workspace_bytes: float = 0.0
    """Library workspaces and tables that the allocator counts. [byte]"""
    bucket_bytes: float = 0.0
    """Communication buckets of a fixed size, with replicas and without a pipeline. [byte]"""
    offloads_gradients: bool = False
    """Sharded gradients (ZeRO-2 and 3) leave the GPU together with the optimizer state (ZeRO-Offload)."""
    host_gradient_bytes: float = 4.0
    """Of a gradient that lies beside the optimizer state on the host."""
    bucket_gradient_bytes: float = 0.0
    """A second, 16-bit gradient for communication whenever gradients are synchronised; with ZeRO it lives
    only during a backward pass."""
    reserved_over_allocated: float = Field(default=1.04, ge=1)
    context_bytes: float = 0.8e9
    """CUDA context and loaded kernels. [byte]"""
    communicator_bytes: float = 1.2e9
    """Per live communicator group. [byte]"""
    reported: Literal["allocated", "reserved", "device"] = "allocated"
    """Which figure the framework's own log prints."""
    reported_rank: Literal["worst", "first"] = "worst"
    """Whose figure it prints: the fullest pipeline rank's, or the first one's."""
    reported_unit_bytes: float = 1e9
    """What it calls a GB; many logs divide by 2^30. [byte]"""


class TimeHabits(BaseModel):
    """How the framework spends time and what it hides. Fractions are of the collective's own time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attention_kernel: str = "fa3"
    """Preferred kernel generation; the newest one the accelerator has is used when it lacks this one."""
    kernel_efficiency: float = Field(default=1.0, gt=0)
    """Rate of this framework's matrix products over the accelerator's fitted curve."""
    elementwise_factor: float = Field(default=1.0, gt=0)
    """Bytes that elementwise kernels move over the fully fused minimum (eager code moves more)."""
    compiled_elementwise_factor: float = Field(default=1.0, gt=0)
    """The same for compiled code."""
    default_recompute: Literal["none", "selective", "full"] = "none"
    """What the framework recomputes when nothing is said."""
    weight_gradient_slowdown: float = Field(default=1.05, ge=1)
    """Weight-gradient products over forward ones where their result is only written; a sum is priced by its
    bytes (``kernels.gemm_time``)."""
    adds_into_gradients: bool = False
    """Weight-gradient products add to the 16-bit gradients as they do to fp32 ones (Megatron-Core's
    ``gradient_accumulation_fusion``)."""
    loss_bytes_per_logit: float = 16.0
    """Moved by loss and its gradient, per logit. [byte]"""

    tensor_comm_hidden_fraction: float = Field(default=0.0, ge=0, le=1)
    low_precision_gathers: bool = False
    """Inputs of tensor-parallel products are cast before they are gathered (Transformer Engine, torchao)."""
    casts_per_product: float = Field(default=1.0, ge=0)
    """Casts of a dense layer's input per scaled product; others are fused into norm and activation."""
    tensor_backward_overlaps: bool = True
    """Backward tensor-parallel collectives run beside the gradient products of the same matrix."""
    gradient_sync_overlaps: bool = True
    sharded_sync_overlaps: bool = True
    """The same for the reduce-scatter of ZeRO-1."""
    parameter_gather_overlaps: bool = True
    overlap_fraction: float = Field(default=0.9, ge=0, le=1)
    """Share of the computation behind which a collective can hide."""
    overlap_slowdown: float = Field(default=0.1, ge=0, le=1)
    """Share of a hidden collective's time that computation loses to it (multiprocessors, HBM, power)."""
    gradient_reduce_bytes: float = 4.0
    """Per parameter, in the gradient reduction."""
    gradient_bucket_bytes: float | None = Field(default=None, gt=0)
    """Largest message of gradient reduction and parameter gathering outside the layers; None: all at once."""
    replica_bucket_bytes: float | None = Field(default=None, gt=0)
    """The same where whole replicas reduce (ZeRO-0, by DDP); None: no other."""
    pipeline_sends_overlap: bool = True
    """In the steady state of interleaved schedules."""
    pipeline_sends_hidden_fraction: float = Field(default=1.0, ge=0, le=1)
    """Share of those sends that is hidden."""
    scatters_sends: bool = False
    """A pipeline message is cut over the tensor ranks and gathered again in the next stage (Megatron)."""
    expert_comm_hidden_fraction: float = Field(default=0.0, ge=0, le=1)
    deduplicates_dispatch: bool = False
    """A token travels once to a rank with several of its experts (DeepEP, HybridEP)."""
    dispatch_bytes: float = 2.0
    """Per element sent to the experts."""
    expert_imbalance: float = Field(default=1.0, ge=1)
    """Load of the busiest expert rank over the mean."""

    attention_efficiency: float = Field(default=1.0, gt=0)
    """Rate of this framework's attention over the accelerator's curve of that kernel."""
    gradient_accumulation_bytes: float = Field(default=0.0, ge=0)
    """Per parameter and micro-batch, where gradients are added up by kernels of their own. [byte]"""
    microbatch_overhead_s: float = Field(default=0.0, ge=0)
    """Host time of the engine per micro-batch on a pipeline rank that nothing hides. [s]"""

    expert_kernel_efficiency: float = Field(default=1.0, gt=0)
    """Rate of the experts' grouped products over plain ones (padding, many small problems)."""
    block_scaled_expert_efficiency: float | None = Field(default=None, gt=0)
    """The same in MXFP8 and NVFP4 where one kernel permutes, multiplies, activates, casts; counts of tokens
    stay on the GPU, so that the host launches no more than for a dense layer (None: like other formats)."""
    kernels_per_layer: float = 60.0
    """Launches of one layer's forward pass; the backward pass has twice as many. The host-bound floor."""
    kernels_per_moe_layer: float = 150.0
    launch_factor: float = Field(default=1.0, ge=0)
    """Host time of one launch over the accelerator's figure (CUDA graphs: near 0)."""
    cross_node_launch_growth: float = Field(default=0.0, ge=0)
    """Growth of the launch time, times t^1.25, when the pipeline spans nodes: NCCL's network threads take the
    host's cores from the launching threads (t tensor ranks)."""
    send_stall_nodes: float | None = Field(default=None, gt=1)
    """Nodes from which on every blocking pipeline send stalls (None: never)."""
    send_stall_s: float = Field(default=0.0, ge=0)
    """What such a send waits, whatever its size. [s]"""
    tight_memory_share: float = Field(default=1.0, gt=0)
    """Share of the HBM beyond which the allocator keeps freeing and asking the driver again (1: never; with
    expandable segments there is no such point)."""
    tight_memory_slowdown: float = Field(default=1.0, ge=1)
    """Step time beyond that share over the time below it."""
    activation_copies_overlap: bool = True
    """Offloaded activations are copied beside the layers' work, on streams of their own."""
    optimizer_bytes_per_owned: float = 45.0
    """Adam, norm and clipping, per parameter whose optimizer state this rank owns. [byte]"""
    optimizer_bytes_per_resident: float = 8.0
    """Zeroing and scaling of gradients, per parameter held. [byte]"""
    step_overhead_s: float = 0.02
    straggler_per_doubling: float = 0.005
    """Step-time growth per doubling of the GPUs beyond one node."""


class EarlierReleases(BaseModel):
    """How the releases before one spent time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    before: str
    """Year and month of the release that changed it, as in ``26.06``."""
    time: TimeHabits


class FrameworkProfile(BaseModel):
    """One framework: its limits and habits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: str = ""
    aliases: tuple[str, ...] = ()
    limits: Limits = Limits()
    memory: MemoryHabits = MemoryHabits()
    time: TimeHabits = TimeHabits()
    """Of the current release."""
    earlier: EarlierReleases | None = None
