"""The model's shape: heads, widths, vocabulary, sequence and experts have to split evenly."""

from __future__ import annotations

from math import gcd, lcm
from typing import Any

import numpy as np

from planner.rules.rule import Column, divides, implies, rule
from planner.rules.words import over_ranks, ranks_words
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

FP8_ROWS = {"fp8": 8, "mxfp8": 32, "nvfp4": 16}
"""Rows of an activation matrix that a low-precision product needs a multiple of (Transformer Engine)."""
FP8_COLUMNS = {"fp8": 16, "mxfp8": 32, "nvfp4": 16}
"""The same for widths."""
AMD_COLUMNS = {"fp8": 16, "mxfp8": 128, "nvfp4": 16}
"""Widths on AMD accelerators: hipBLASLt has no MXFP8 product for other multiples (ROCm/Megatron-LM #130)."""


def _dense_mlp(request: PlanRequest) -> bool:
    return any(kind.mlp and not kind.moe for kind in request.model.layer_kinds)


@rule(source="Megatron-LM transformer_config.py: attention heads % tensor ranks; torchtitan decoder.py")
def attention_heads_divide_over_tensor_ranks(request: PlanRequest, tensor_parallel: Column) -> Column:
    """{request.model.num_heads} attention heads do not split evenly over {tensor_parallel} tensor ranks."""
    return divides(tensor_parallel, request.model.num_heads)


def _kv_copies(_plan: Plan, request: PlanRequest) -> dict[str, Any]:
    copies = request.framework.limits.replicates_kv_heads and not request.model.is_mla
    return {"copies": "copies them only over a multiple of as many ranks" if copies else "copies none"}


@rule(
    source="Megatron-LM transformer_config.py (copies KV heads); torchtitan 0.3 decoder.py (refuses)",
    numbers=_kv_copies,
)
def kv_heads_divide_over_tensor_ranks(request: PlanRequest, tensor_parallel: Column) -> Column:
    """{request.model.fewest_kv_heads} KV heads do not split evenly over {tensor_parallel} tensor ranks, and
    {request.framework.name} {copies}.
    """
    if request.model.is_mla:
        return divides(tensor_parallel, request.model.num_heads)
    heads = request.model.fewest_kv_heads
    splits = divides(tensor_parallel, heads)
    if not request.framework.limits.replicates_kv_heads:
        return splits
    return np.logical_or(splits, divides(heads, tensor_parallel))


@rule(source="Megatron-LM tensor_parallel/layers.py: divide(); chapter 12.2.1")
def hidden_size_divides_over_tensor_ranks(request: PlanRequest, tensor_parallel: Column) -> Column:
    """The hidden size {request.model.hidden_size} does not split evenly over {tensor_parallel} tensor
    ranks.
    """
    return divides(tensor_parallel, request.model.hidden_size)


def _wrong_width(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    model = request.model
    if _dense_mlp(request) and model.ffn_hidden_size % plan.tensor_parallel:
        return {"mlp_or_shared_width": f"MLP width {model.ffn_hidden_size}"}
    return {"mlp_or_shared_width": f"width {model.shared_expert_ffn_hidden_size} of the shared experts"}


@rule(
    source="Megatron-LM tensor_parallel/layers.py: divide(); chapter 12.2.1",
    numbers=_wrong_width,
)
def mlp_width_divides_over_tensor_ranks(request: PlanRequest, tensor_parallel: Column) -> Column:
    """The {mlp_or_shared_width} does not split evenly over {tensor_parallel} tensor ranks."""
    dense = request.model.ffn_hidden_size if _dense_mlp(request) else 0
    shared = request.model.shared_expert_ffn_hidden_size
    return np.logical_and(divides(tensor_parallel, dense), divides(tensor_parallel, shared))


@rule(source="Megatron-LM tensor_parallel/layers.py: divide()")
def expert_width_divides_over_expert_tensor_ranks(
    request: PlanRequest, expert_tensor_parallel: Column
) -> Column:
    """The expert width {request.model.expert_ffn_hidden_size} does not split evenly over
    {expert_tensor_parallel} expert-tensor ranks.
    """
    return divides(expert_tensor_parallel, request.model.expert_ffn_hidden_size)


@rule(source="Megatron-LM vocab_utils.py pads to make_vocab_size_divisible_by * t; others divide")
def vocabulary_divides_over_tensor_ranks(request: PlanRequest, tensor_parallel: Column) -> Column:
    """The vocabulary of {request.model.vocab_size} does not split evenly over {tensor_parallel} tensor
    ranks, and {request.framework.name} does not pad it.
    """
    if request.framework.limits.vocab_multiple > 0:
        return np.ones(np.shape(tensor_parallel), dtype=bool)
    return divides(tensor_parallel, request.model.vocab_size)


def _nearest_sequences(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """The lengths next to the sequence's that suit context, sequence-parallel and low-precision ranks."""
    limits, c, t = request.framework.limits, plan.context_parallel, plan.tensor_parallel
    zigzag = plan.context_parallel_kind == "ring" or limits.zigzag_for_every_context_kind
    rows, pieces = FP8_ROWS.get(plan.precision, 1), 2 * c if zigzag and c > 1 else c
    unit = pieces
    if plan.sequence_parallel:
        unit = lcm(unit, t * (2 * c if limits.sequence_divides_by_tensor_and_context and c > 1 else c))
    aligned = rows * c * (t if plan.sequence_parallel else 1)
    unit = lcm(unit, aligned // gcd(aligned, plan.micro_batch))
    below = request.workload.seq_length // unit * unit
    return {
        "rows": rows,
        "nearest": " and ".join(str(n) for n in (below, below + unit) if n),
        "pieces": "two pieces a rank" if pieces > c else "one piece a rank",
        "over_context_ranks": over_ranks(context=c),
        "over_ranks": over_ranks(context=c, tensor=t if plan.sequence_parallel else 1),
    }


@rule(
    source="Megatron-LM arguments.py: seq % (2 cp); ring attention: two zig-zag pieces a rank",
    numbers=_nearest_sequences,
)
def sequence_divides_over_context_ranks(
    request: PlanRequest, context_parallel: Column, context_parallel_kind: Column
) -> Column:
    """The sequence of {request.workload.seq_length} tokens does not split evenly over {context_parallel}
    context ranks ({context_parallel_kind}: {pieces}; nearest sequence: {nearest}).
    """
    zigzag = request.framework.limits.zigzag_for_every_context_kind
    pieces = np.where(np.logical_or(context_parallel_kind == "ring", zigzag), 2, 1) * context_parallel
    return implies(np.asarray(context_parallel) > 1, divides(pieces, request.workload.seq_length))


def _over_tensor(plan: Plan, _request: PlanRequest) -> dict[str, Any]:
    return {"over_tensor_ranks": over_ranks(tensor=plan.tensor_parallel)}


@rule(
    source="Transformer Engine context_parallel.py: heads, KV heads % cp for all-to-all; DeepSpeed Ulysses",
    numbers=_over_tensor,
)
def heads_divide_over_all_to_all_ranks(
    request: PlanRequest, context_parallel: Column, context_parallel_kind: Column, tensor_parallel: Column
) -> Column:
    """{request.model.num_heads} attention and {request.model.fewest_kv_heads} KV heads{over_tensor_ranks} do
    not split evenly over {context_parallel} all-to-all context ranks.
    """
    model, c, t = request.model, np.asarray(context_parallel), tensor_parallel
    kv_total = model.num_heads if model.is_mla else model.fewest_kv_heads
    heads, kv_heads = model.num_heads // t, np.maximum(kv_total // t, 1)
    kv_fits = divides(c, kv_heads)
    if request.framework.limits.replicates_kv_heads_over_context:
        kv_fits = np.logical_or(kv_fits, divides(kv_heads, c))
    exchanges_heads = np.logical_and(context_parallel_kind == "all_to_all", c > 1)
    return implies(exchanges_heads, np.logical_and(divides(c, heads), kv_fits))


@rule(
    source="Megatron-LM tensor_parallel/mappings.py; chapter 12.3.1; torchtitan: seq % (t 2c)",
    numbers=_nearest_sequences,
)
def sequence_divides_over_sequence_ranks(
    request: PlanRequest, tensor_parallel: Column, context_parallel: Column, sequence_parallel: Column
) -> Column:
    """The sequence of {request.workload.seq_length} tokens{over_context_ranks} does not split evenly over
    {tensor_parallel} sequence-parallel ranks (nearest sequence: {nearest}).
    """
    pieces = np.asarray(tensor_parallel) * context_parallel
    if request.framework.limits.sequence_divides_by_tensor_and_context:
        pieces = pieces * np.where(np.asarray(context_parallel) > 1, 2, 1)
    return implies(sequence_parallel, divides(pieces, request.workload.seq_length))


@rule(source="definition of sequence parallelism; Megatron-LM model_parallel_config.py")
def sequence_parallelism_needs_tensor_ranks(
    request: PlanRequest, sequence_parallel: Column, tensor_parallel: Column
) -> Column:
    """Sequence parallelism splits over the tensor ranks, and there is only {tensor_parallel} of them."""
    return implies(sequence_parallel, np.asarray(tensor_parallel) > 1)


@rule(source="framework limit")
def tensor_ranks_need_sequence_parallelism(
    request: PlanRequest, sequence_parallel: Column, tensor_parallel: Column
) -> Column:
    """{request.framework.name} always runs {tensor_parallel} tensor ranks with sequence parallelism."""
    required = request.framework.limits.sequence_parallel_required_with_tensor
    return implies(np.logical_and(required, np.asarray(tensor_parallel) > 1), sequence_parallel)


@rule(source="Megatron-LM moe_layer.py: training with experts and tensor ranks needs sequence parallelism")
def experts_with_tensor_ranks_need_sequence_parallelism(
    request: PlanRequest, sequence_parallel: Column, tensor_parallel: Column
) -> Column:
    """A mixture of experts over {tensor_parallel} tensor ranks trains only with sequence parallelism in
    {request.framework.name}.
    """
    required = request.model.is_moe and request.framework.limits.moe_tensor_needs_sequence_parallel
    return implies(np.logical_and(required, np.asarray(tensor_parallel) > 1), sequence_parallel)


def _expert_ranks(plan: Plan, _request: PlanRequest) -> dict[str, Any]:
    return {
        "expert_ranks": ranks_words(expert=plan.expert_parallel, expert_tensor=plan.expert_tensor_parallel),
        "tensor_context_data_ranks": ranks_words(
            tensor=plan.tensor_parallel, context=plan.context_parallel, data=plan.data_parallel
        ),
    }


@rule(source="definition of expert parallelism; Megatron-LM arguments.py", numbers=_expert_ranks)
def expert_parallelism_needs_experts(
    request: PlanRequest, expert_parallel: Column, expert_tensor_parallel: Column
) -> Column:
    """{request.model.name} has no experts to spread over {expert_ranks}."""
    single = np.logical_and(np.asarray(expert_parallel) == 1, np.asarray(expert_tensor_parallel) == 1)
    return np.logical_or(request.model.is_moe, single)


@rule(source="Megatron-LM moe_layer.py: experts % ep; DeepSpeed auto_ep_config.py")
def experts_divide_over_expert_ranks(request: PlanRequest, expert_parallel: Column) -> Column:
    """{request.model.num_experts} experts do not split evenly over {expert_parallel} expert ranks."""
    return divides(expert_parallel, request.model.num_experts)


@rule(source="Megatron-LM parallel_state.py: world % (etp ep pp)", numbers=_expert_ranks)
def expert_ranks_divide_the_replicas(
    request: PlanRequest,
    expert_parallel: Column,
    expert_tensor_parallel: Column,
    tensor_parallel: Column,
    context_parallel: Column,
    data_parallel: Column,
) -> Column:
    """{expert_ranks} are carved out of a pipeline rank's {tensor_context_data_ranks} and do not divide
    them.
    """
    ranks = np.asarray(tensor_parallel) * context_parallel * data_parallel
    return divides(np.asarray(expert_parallel) * expert_tensor_parallel, ranks)


def width_multiples(request: PlanRequest) -> dict[str, int]:
    """What widths of low-precision products are a multiple of on this accelerator, by format."""
    return AMD_COLUMNS if request.cluster.accelerator.vendor.lower() == "amd" else FP8_COLUMNS


def _width_alignment(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    columns, model = width_multiples(request).get(plan.precision, 1), request.model
    t, etp = plan.tensor_parallel, plan.expert_tensor_parallel
    widths = [(f"{model.num_heads} heads of {model.head_dim}", model.num_heads * model.head_dim, t, "tensor")]
    if _dense_mlp(request):
        widths.append((f"an MLP of {model.ffn_hidden_size}", model.ffn_hidden_size, t, "tensor"))
    if model.is_moe:
        width = model.expert_ffn_hidden_size
        widths.append((f"experts of {width}", width, etp, "expert-tensor"))
    wrong = [f"{name} over {ranks} {kind} ranks" for name, n, ranks, kind in widths if n % (ranks * columns)]
    return {"columns": columns, "widths": ", ".join(wrong)}


@rule(
    source="Transformer Engine: rows of a low-precision product are a multiple of 8 (MXFP8: 32)",
    field="tensor_parallel",
    numbers=_nearest_sequences,
)
def low_precision_rows_are_aligned(
    request: PlanRequest,
    precision: Column,
    micro_batch: Column,
    context_parallel: Column,
    tensor_parallel: Column,
    sequence_parallel: Column,
) -> Column:
    """{micro_batch} x {request.workload.seq_length} tokens{over_ranks} do not leave each rank a multiple of
    {rows} rows, which {precision} products need (nearest sequence: {nearest}).
    """
    ranks = np.asarray(context_parallel) * np.where(sequence_parallel, tensor_parallel, 1)
    tokens = np.asarray(micro_batch) * request.workload.seq_length
    aligned: Column = True
    for name, rows in FP8_ROWS.items():
        aligned = np.logical_and(aligned, implies(precision == name, divides(ranks * rows, tokens)))
    return aligned


@rule(
    source="Transformer Engine: widths of a low-precision product are a multiple of 16 (MXFP8: 32; AMD: 128)",
    field="tensor_parallel",
    numbers=_width_alignment,
)
def low_precision_widths_are_aligned(
    request: PlanRequest, precision: Column, tensor_parallel: Column, expert_tensor_parallel: Column
) -> Column:
    """{precision} products need multiples of {columns} columns on each rank, which do not come of
    {widths}.
    """
    model, t = request.model, np.asarray(tensor_parallel)
    dense = model.ffn_hidden_size if _dense_mlp(request) else 0
    aligned: Column = True
    for name, columns in width_multiples(request).items():
        fits = divides(t * columns, model.num_heads * model.head_dim)
        fits = np.logical_and(fits, divides(t * columns, dense))
        fits = np.logical_and(
            fits, divides(np.asarray(expert_tensor_parallel) * columns, model.expert_ffn_hidden_size)
        )
        aligned = np.logical_and(aligned, implies(precision == name, fits))
    return aligned


def _expert_tensor(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    name, t, e = request.framework.name, plan.tensor_parallel, plan.expert_parallel
    if request.framework.limits.expert_tensor_parallel:
        return {"what_it_does": f"{name} splits each expert over 1 or all {t} tensor ranks"}
    if request.model.is_moe and e == 1:
        return {"what_it_does": f"without expert ranks {name} splits experts over the {t} tensor ranks"}
    return {
        "what_it_does": f"{name} keeps each expert whole" + (f" beside {e} expert ranks" if e > 1 else "")
    }


@rule(
    source="framework limit: torchtitan 0.2 allows 1 or all tensor ranks; DeepSpeed AutoEP 1",
    field="expert_tensor_parallel",
    numbers=_expert_tensor,
)
def expert_tensor_ranks_suit_the_framework(
    request: PlanRequest, expert_tensor_parallel: Column, expert_parallel: Column, tensor_parallel: Column
) -> Column:
    """Experts are not split over {expert_tensor_parallel} expert-tensor ranks: {what_it_does}."""
    limits, etp = request.framework.limits, np.asarray(expert_tensor_parallel)
    if not limits.expert_tensor_parallel:
        like_dense = np.logical_and(request.model.is_moe, np.asarray(expert_parallel) == 1)
        return etp == np.where(like_dense, tensor_parallel, 1)
    if limits.expert_tensor_is_one_or_tensor:
        return np.logical_or(etp == 1, etp == tensor_parallel)
    return np.ones(np.shape(etp), dtype=bool)


@rule(source="framework limit: has expert parallelism or not")
def framework_has_expert_parallelism(request: PlanRequest, expert_parallel: Column) -> Column:
    """{request.framework.name} has no expert parallelism, and the plan asks for {expert_parallel} ranks."""
    return np.logical_or(request.framework.limits.expert_parallel, np.asarray(expert_parallel) == 1)


ARCHITECTURE_RULES = (
    attention_heads_divide_over_tensor_ranks,
    kv_heads_divide_over_tensor_ranks,
    hidden_size_divides_over_tensor_ranks,
    mlp_width_divides_over_tensor_ranks,
    expert_width_divides_over_expert_tensor_ranks,
    vocabulary_divides_over_tensor_ranks,
    sequence_divides_over_context_ranks,
    heads_divide_over_all_to_all_ranks,
    sequence_divides_over_sequence_ranks,
    sequence_parallelism_needs_tensor_ranks,
    tensor_ranks_need_sequence_parallelism,
    experts_with_tensor_ranks_need_sequence_parallelism,
    expert_parallelism_needs_experts,
    experts_divide_over_expert_ranks,
    expert_ranks_divide_the_replicas,
    low_precision_rows_are_aligned,
    low_precision_widths_are_aligned,
    expert_tensor_ranks_suit_the_framework,
    framework_has_expert_parallelism,
)
