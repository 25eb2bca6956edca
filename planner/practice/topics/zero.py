"""12.1.2: ZeRO stages 1 to 3. Letters: P parameters, M ranks that share the state."""

from __future__ import annotations

import math

from planner.cost import textbook as book
from planner.practice.kind import Body, Entry, Kind, noted
from planner.practice.quantity import model_of, show
from planner.practice.question import Choice, Explanation, Option, numeric
from planner.practice.topics.data_parallel import SIZES
from planner.units import GB

TOPIC = "zero"
_FORMULA = {0: "16", 1: "4 + 12/M", 2: "2 + 14/M", 3: "16/M"}
_SHARDED = {0: "nothing", 1: "optimizer state", 2: "optimizer state and gradients", 3: "everything"}
_VALUE = {0: "16", 1: "(4 + 12/{m})", 2: "(2 + 14/{m})", 3: "16/{m}"}


def _per(stage: int, ranks: int) -> float:
    return float(book.zero_bytes_per_parameter(stage, ranks))


def zero_state(parameters_b: float, stage: int, gpus: int) -> Body:
    """Model state per GPU under one ZeRO stage."""
    count = parameters_b * 1e9
    others = [
        (_per(other, gpus) * count, f"That is ZeRO-{other}, which shards {_SHARDED[other]}.")
        for other in range(4)
        if other != stage
    ]
    forgotten = 2 * count if stage < 2 else 2 * count / gpus
    key = numeric(
        _per(stage, gpus) * count,
        "GB",
        *others,
        (_per(stage, gpus) * count - forgotten, "The gradients are missing."),
        (_per(stage, gpus) * count + forgotten, "16-bit gradients are 2 bytes; that counts 4."),
        (2 * _per(stage, gpus) * count, "Bytes counted twice: 16 per parameter is already in bytes."),
    )
    return Body(
        text=f"{model_of(parameters_b, 'A')} trains with Adam in bf16 (bf16 gradients) under ZeRO-{stage} on "
        f"{gpus} GPUs. GB of model state per GPU?",
        key=key,
        hint=f"ZeRO-{stage} shards {_SHARDED[stage]}; the rest stays whole.",
        explanation=Explanation(
            formula=f"state = ({_FORMULA[stage]}) P bytes",
            substitution=f"{_VALUE[stage].format(m=gpus)} x {parameters_b:g}e9 = {key.shown}",
            intuition="More ranks help only the sharded part: ZeRO-1 approaches 4 bytes a parameter, ZeRO-2 "
            "2 bytes, ZeRO-3 nothing. Activations do not move at all.",
        ),
    )


def zero_largest(memory_gb: int, stage: int, gpus: int) -> Body:
    """Largest model whose state fits."""
    memory = memory_gb * GB
    others = [
        (book.largest_model(memory, other, gpus), f"That is ZeRO-{other}.")
        for other in range(4)
        if other != stage
    ]
    key = numeric(
        book.largest_model(memory, stage, gpus),
        "B",
        *others,
        (memory / 2, "Weights alone at 2 bytes; training holds 16 bytes a parameter."),
        (memory * gpus / 2, "Weights alone over all GPUs; training holds 16 bytes a parameter."),
        (memory / (_per(stage, gpus) - (2 if stage < 2 else 2 / gpus)), "The gradients are missing."),
    )
    slip = (
        "The chapter says 40 to 50B for ZeRO-3 on eight 80 GB GPUs; 50B would need 16 x 50 / 8 = 100 GB."
        if stage == 3
        else ""
    )
    return Body(
        text=f"Adam in bf16 with bf16 gradients, ZeRO-{stage} on {gpus} GPUs of {memory_gb} GB. What is the "
        "largest model (in billions of parameters) whose state alone fills the memory?",
        key=key,
        hint="Memory of one GPU over bytes per parameter on one GPU.",
        explanation=Explanation(
            formula=f"P = HBM / ({_FORMULA[stage]})",
            substitution=f"{memory_gb} GB / {_per(stage, gpus):.4g} bytes = {key.shown}",
            intuition="An upper bound: activations, gathered layers, CUDA context and fragmentation usually "
            "take a third of the memory.",
            book=slip,
        ),
    )


def zero_wire(parameters_b: float, stage: int, gpus: int) -> Body:
    """Bytes leaving a GPU per step."""
    weights = 2 * parameters_b * 1e9
    passes = 3 if stage == 3 else 2
    wire = float(book.zero_wire(weights, gpus, stage))
    key = numeric(
        wire,
        "GB",
        (wire * (5 - passes) / passes, f"ZeRO-{stage} passes the parameters' bytes {passes} times."),
        (passes * weights, "Nominal: on the wire a ring moves (M-1)/M of it."),
        (wire / 2, "That counts elements; a bf16 element has 2 bytes."),
        (wire / passes, "That is one collective of the step."),
    )
    word = {2: "reduce-scatter of gradients, all-gather of weights", 3: "two gathers and one reduce-scatter"}
    return Body(
        text=f"{parameters_b:g}B parameters, bf16 weights and gradients, ZeRO-{stage} over {gpus} GPUs, one "
        "micro-batch a step. How many GB leave each GPU per step (ring collectives)?",
        key=key,
        hint="Count how often the parameters' bytes go round.",
        explanation=Explanation(
            formula=f"wire = {passes} (M-1)/M x 2 P  ({word[passes]})",
            substitution=f"{passes} x {gpus - 1}/{gpus} x {show(weights, 'GB')} = {key.shown}",
            intuition="Stages 0 to 2 cost the same, so sharding optimizer state is free in bandwidth. "
            "Stage 3 "
            "gathers weights in both directions: half as much again, and again for every micro-batch.",
        ),
    )


def zero_ranks(parameters_b: float, memory_gb: int, free_gb: int) -> Body:
    """Fewest ranks for ZeRO-3."""
    budget = (memory_gb - free_gb) * GB
    state = _per(3, 1) * parameters_b * 1e9
    ranks = math.ceil(state / budget)
    key = numeric(
        ranks,
        "",
        (math.ceil(state / (memory_gb * GB)), "That leaves nothing for activations."),
        (math.ceil(2 * parameters_b * 1e9 / budget), "Weights alone; gradients and Adam's state count too."),
        (math.ceil(14 / 16 * state / budget), "The gradients are missing."),
        (math.floor(state / budget), "Rounded down: that many do not suffice."),
        exact=True,
    )
    return Body(
        text=f"How many {memory_gb} GB GPUs does ZeRO-3 need at least for the state of "
        f"{model_of(parameters_b)} (Adam, bf16 gradients), if {free_gb} GB a GPU must stay free for "
        "everything else?",
        key=key,
        hint="16 P bytes spread over M.",
        explanation=Explanation(
            formula="M >= 16 P / (HBM - free)",
            substitution=f"{show(state, 'GB')} / {memory_gb - free_gb} GB, rounded up = {key.shown}",
            intuition="In practice take whole nodes; the odd GPU saves nothing.",
        ),
    )


KINDS = (
    Kind(name="zero-state", title="model state by ZeRO stage", topic=TOPIC, level="mid", build=zero_state,
         follow="gpus",
         domain={"parameters_b": SIZES, "stage": (1, 2, 3), "gpus": (8, 16, 32, 64, 128, 256)}),
    Kind(name="zero-largest", title="largest model on a node", topic=TOPIC, level="mid", build=zero_largest,
         follow="stage",
         domain={"memory_gb": (40, 64, 80, 96, 141, 192), "stage": (0, 1, 2, 3), "gpus": (4, 8, 16)}),
    Kind(name="zero-wire", title="bytes on the wire by ZeRO stage", topic=TOPIC, level="mid", build=zero_wire,
         follow="stage",
         domain={"parameters_b": SIZES, "stage": (1, 2, 3), "gpus": (4, 8, 16, 32, 64)},),
    Kind(name="zero-ranks", title="fewest GPUs for ZeRO-3", topic=TOPIC, level="senior", build=zero_ranks,
         follow="free_gb",
         domain={"parameters_b": (7, 13, 30, 65, 70, 100, 175), "memory_gb": (40, 80, 141),
                 "free_gb": (10, 20, 30)}),
)  # fmt: skip


def _stage_one_is_free() -> tuple[Body, ...]:
    main = noted(
        zero_wire(7.5, 1, 64),
        lead="Explain why ZeRO-1 needs no more bandwidth than plain data parallelism, with the number: ",
        intuition="An all-reduce is a reduce-scatter followed by an all-gather. ZeRO-1 puts the optimizer "
        "step between the two halves: each rank updates the piece it just reduced and then gathers "
        "weights instead of gradients. Same bytes, an M-th of the optimizer state.",
        book="The chapter writes |P| bytes for each half; that counts elements, in bf16 it is 2|P| bytes.",
    )
    return main, zero_wire(7.5, 3, 64)


def _lowest_stage(parameters_b: float) -> Body:
    sizes = {stage: _per(stage, 64) * parameters_b * 1e9 for stage in range(4)}
    lowest = min(stage for stage, size in sizes.items() if size < 80 * GB)
    wrong = [
        (stage, f"ZeRO-{stage} needs {show(sizes[stage], 'GB')}, more than 80 GB.")
        if stage < lowest
        else (stage, f"It fits, but ZeRO-{lowest} does already, with less traffic or fewer small messages.")
        for stage in sizes
        if stage != lowest
    ]
    return Body(
        text=f"{model_of(parameters_b, 'A')} on 64 GPUs of 80 GB, Adam in bf16 with bf16 gradients, no "
        "tensor or pipeline split. Which is the lowest ZeRO stage (0 to 3) whose model state fits?",
        key=numeric(lowest, "", *wrong, exact=True),
        hint="Compute 4 + 12/M, 2 + 14/M and 16/M bytes a parameter.",
        explanation=Explanation(
            formula="stage 0: 16 P, 1: (4 + 12/M) P, 2: (2 + 14/M) P, 3: 16 P / M",
            substitution=", ".join(f"ZeRO-{stage} {show(size, 'GB')}" for stage, size in sizes.items())
            + f": stage {lowest}",
            intuition="FSDP (stage 3) is the answer when even one copy of weights and sharded gradients does "
            "not fit. Its price is a third collective, and weights gathered layer by layer in time.",
        ),
    )


def _fsdp_or_ddp() -> tuple[Body, ...]:
    main = noted(_lowest_stage(70), lead="What does FSDP shard, and when do you need it instead of DDP? ")
    return main, _lowest_stage(30)


def _activations_stay() -> tuple[Body, ...]:
    layer = float(book.layer_activations(1, 4096, 5120))
    whole, ranks = 40 * layer, 8
    state = {stage: _per(stage, ranks) * 13e9 for stage in (0, 3)}
    options = (
        Option(f"{show(whole / ranks, 'GB')}: divided by the 8 ranks", "ZeRO shards model state only."),
        Option(f"{show(whole, 'GB')}: unchanged", "Each rank still keeps what its own samples saved."),
        Option(
            f"{show(whole * state[3] / state[0] * 4, 'GB')}: divided by 2", "No stage touches activations."
        ),
        Option(f"{show(whole * 3 / 2, 'GB')}: half as much again", "The third pass is traffic, not storage."),
    )
    main = Body(
        text="A 13B GPT (40 layers, hidden 5120) with one sequence of 4096 a GPU and FlashAttention saves "
        f"{show(whole, 'GB')} of activations. You go from plain data parallelism to ZeRO-3 on 8 GPUs, same "
        "sequence per GPU. How much activation memory does each GPU need now?",
        key=Choice(options=options, right=1),
        hint="Which tensors does ZeRO divide?",
        explanation=Explanation(
            formula="activations = 34 s b h L: no M in it",
            substitution=f"34 x 4096 x 1 x 5120 x 40 = {show(whole, 'GB')} before and after",
            intuition=f"The state shrinks from {show(state[0], 'GB')} to {show(state[3], 'GB')}, the "
            "activations stay. Those need tensor, sequence, context or pipeline splits, or recomputation.",
        ),
    )
    return main, zero_state(13, 3, 8)


def _flat_fsdp(tensor_parallel: int) -> Body:
    ranks = 1024 // tensor_parallel
    weights = 140 * GB / tensor_parallel
    wire = float(book.zero_wire(weights, ranks, 3))
    key = numeric(
        wire,
        "GB",
        (wire * 2 / 3, "ZeRO-3 gathers the weights twice and reduces once: three passes."),
        (wire / 2, "That counts elements; bf16 has 2 bytes."),
        (float(book.zero_wire(140 * GB, 1024, 3)) / (8 if tensor_parallel == 1 else 1),
         "The tensor split divides what FSDP gathers, and only that does."),
        (wire / ranks, "That is the shard, not the traffic."),
    )  # fmt: skip
    layout = "FSDP alone" if tensor_parallel == 1 else f"t={tensor_parallel} in the node and FSDP across"
    return Body(
        text=f"A 70B model (bf16 weights and gradients) on 1024 GPUs, {layout}. How many GB of weights and "
        "gradients leave each GPU per step, one micro-batch a step?",
        key=key,
        hint="3 passes over the weights that one rank works with.",
        explanation=Explanation(
            formula="wire = 3 (M-1)/M x 2 P / t, M = 1024 / t",
            substitution=f"3 x {ranks - 1}/{ranks} x {show(weights, 'GB')} = {key.shown}",
            intuition="Combine: t=8 on NVLink divides what each rank gathers by 8, shortens the rings from "
            "1024 to 128 ranks and needs 128 instead of 1024 sequences a step. In fairness: a ring over "
            "nodes with a card for each GPU crosses each card with an eighth of the weights in both "
            "layouts, so latency, NVLink time and batch are what flat FSDP really pays.",
        ),
    )


def _thousand_gpus() -> tuple[Body, ...]:
    lead = "1024 GPUs: FSDP alone, or combined with tensor parallelism? Argue with the traffic. "
    return noted(_flat_fsdp(1), lead=lead), _flat_fsdp(8)


SYLLABUS = (
    Entry(ident="12.1.2/1", title="why ZeRO-1 costs no bandwidth", topic=TOPIC, level="mid",
          build=_stage_one_is_free),
    Entry(ident="12.1.2/2", title="FSDP or DDP", topic=TOPIC, level="mid", build=_fsdp_or_ddp),
    Entry(ident="12.1.2/3", title="ZeRO and activations", topic=TOPIC, level="mid", build=_activations_stay),
    Entry(ident="12.1.2/4", title="FSDP alone on 1024 GPUs", topic=TOPIC, level="senior",
          build=_thousand_gpus),
)  # fmt: skip
