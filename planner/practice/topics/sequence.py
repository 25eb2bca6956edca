"""12.3.1: activations and sequence parallelism. Letters: s sequence, b micro-batch, h hidden, t ranks."""

from __future__ import annotations

from planner.cost import textbook as book
from planner.practice.kind import Body, Entry, Kind, noted
from planner.practice.quantity import show
from planner.practice.question import Explanation, numeric

TOPIC = "sequence"

_SPLITS = {
    "none": ("on one GPU (no split)", "34 s b h"),
    "tp": ("with t={t} tensor ranks, no sequence parallelism", "s b h (10 + 24/t)"),
    "tp+sp": ("with t={t} tensor ranks and sequence parallelism", "34 s b h / t"),
}


def activations(s: int, b: int, h: int, t: int, layers: int, split: str) -> Body:
    """Activations of some layers under TP, TP and SP, or neither."""
    unit = float(s * b * h)
    layer = float(book.layer_activations(b, s, h, 1 if split == "none" else t, split == "tp+sp"))
    whole = layers * layer
    key = numeric(
        whole,
        "GB",
        (2 * whole, "Bytes doubled: 34 s b h is already in bytes."),
        (layers * unit * (34 / t + 10), "34 already contains the 10 s b h of the pointwise part."),
        (layers * unit * 34, "That is without any split."),
        (layers * unit * 34 / t, "That needs sequence parallelism: tensor ranks alone copy 10 s b h."),
        (layers * unit * (10 + 24 / t), "That is without sequence parallelism."),
        (whole / b, "The micro-batch is missing."),
        (layer, "That is one layer."),
    )
    words, formula = _SPLITS[split]
    return Body(
        text=f"A GPT layer with FlashAttention saves 34 s b h bytes. {layers} layers, s={s}, b={b}, h={h}, "
        f"{words.format(t=t)}: GB of activations per GPU for one micro-batch?",
        key=key,
        hint="10 of the 34 belong to norms, dropouts and residuals, 24 to the split matrices.",
        explanation=Explanation(
            formula=f"L x {formula}",
            substitution=f"{layers} x {show(layer, 'MB')} = {key.shown}",
            intuition="Tensor parallelism alone stops at 10/34 of the unsplit figure however large t is; "
            "sequence parallelism splits the rest for the same bytes on the wire.",
            book="The chapter writes 34 s b h / t + 10 s b h for tensor parallelism alone, which counts the "
            "10 twice.",
        ),
    )


def stranded(s: int, b: int, h: int, layers: int, t: int) -> Body:
    """Pointwise activations that tensor parallelism copies."""
    layer = float(book.pointwise_activations(b, s, h))
    saved = layers * layer * (1 - 1 / t)
    key = numeric(
        saved,
        "GB",
        (2 * saved, "Bytes doubled: the 10 in 10 s b h counts bytes."),
        (layers * layer, "That is all of it; with sequence parallelism each rank keeps 1/t."),
        (layers * layer / t, "That is what is left, not what is saved."),
        (3.4 * saved, "Only the 10 s b h of the pointwise part are copied; 24 s b h are split already."),
    )
    return Body(
        text=f"{layers} layers, s={s}, b={b}, h={h}, t={t}, bf16. How many GB per GPU does switching on "
        "sequence parallelism save (norms, dropouts and residuals: 10 s b h bytes a layer)?",
        key=key,
        hint="From 10 s b h to 10 s b h / t.",
        explanation=Explanation(
            formula="saved = L x 10 s b h x (1 - 1/t)",
            substitution=f"{layers} x {show(layer, 'MB')} x {t - 1}/{t} = {key.shown}",
            intuition="Memory for nothing: the all-reduce becomes a reduce-scatter and an all-gather of the "
            "same bytes.",
            book="The chapter multiplies 10 s b h by 2 bytes again: 62.4 GB and 54.6 GB saved for its 13B "
            "example, where it is 33.6 GB and 29.4 GB.",
        ),
    )


def recompute(s: int, b: int, h: int, t: int, layers: int) -> Body:
    """Activations with full recomputation."""
    kept = layers * float(book.activation_message(b, s, h)) / t
    live = float(book.layer_activations(b, s, h, t, sequence_parallel=True))
    key = numeric(
        kept + live,
        "GB",
        (kept, "The layer being recomputed is live in full."),
        (live, "Every layer keeps its input."),
        (layers * live, "That is without recomputation."),
        (kept * t + live, "With sequence parallelism the inputs are split over t as well."),
        (kept / 2 + live, "The input has 2 bytes an element."),
    )
    return Body(
        text=f"{layers} layers, s={s}, b={b}, h={h}, t={t} with sequence parallelism, full recomputation: "
        "each layer keeps its bf16 input, and the layer being differentiated has its 34 s b h / t bytes "
        "back. "
        "GB per GPU for one micro-batch at the peak?",
        key=key,
        hint="L inputs of 2 s b h / t, and one whole layer.",
        explanation=Explanation(
            formula="L x 2 s b h / t + 34 s b h / t",
            substitution=f"{show(kept, 'MB')} + {show(live, 'MB')} = {key.shown}",
            intuition="Seventeen times less per layer for one more forward pass: a third of the forward and "
            "backward FLOPs. Recompute only as many layers as memory asks for.",
        ),
    )


def scores(s: int, b: int, a: int, t: int, layers: int) -> Body:
    """What FlashAttention does not keep."""
    h = 128 * a
    layer = float(book.layer_activations(b, s, h, t, sequence_parallel=True, unfused_heads=a))
    fused = float(book.layer_activations(b, s, h, t, sequence_parallel=True))
    key = numeric(
        layers * (layer - fused),
        "GB",
        (
            layers * (layer - fused) * 2 / 5,
            "Scores are not all: softmax output, dropout mask and result too.",
        ),
        (layers * layer, "That is the whole layer; the scores' part was asked."),
        (layers * (layer - fused) * t, "The heads are split over the tensor ranks."),
        (2 * layers * (layer - fused), "Bytes doubled: 5 a s^2 b is in bytes."),
        (layers * (layer - fused) / 2, "Causal attention without a fused kernel keeps the whole square."),
    )
    return Body(
        text=f"{layers} layers, {a} heads, s={s}, b={b}, t={t}. How many GB per GPU does FlashAttention "
        "avoid "
        "keeping (scores, softmax and dropout: 5 bytes for each of the a s^2 b elements)?",
        key=key,
        hint="The heads divide over t.",
        explanation=Explanation(
            formula="L x 5 a s^2 b / t",
            substitution=f"{layers} x {show(layer - fused, 'GB')} = {key.shown}",
            intuition="Quadratic in s and gone with a fused kernel. What stays quadratic is the compute.",
        ),
    )


KINDS = (
    Kind(name="activations", title="activations under TP and SP", topic=TOPIC, level="mid", build=activations,
         follow="split",
         domain={"s": (2048, 4096, 8192), "b": (1, 2, 4), "h": (4096, 5120, 8192, 12288), "t": (2, 4, 8),
                 "layers": (8, 16, 32, 40), "split": ("none", "tp", "tp+sp")}),
    Kind(name="sequence-saving", title="what sequence parallelism saves", topic=TOPIC, level="mid",
         build=stranded, follow="t",
         domain={"s": (2048, 4096, 8192), "b": (1, 2, 4), "h": (4096, 5120, 8192), "layers": (16, 32, 40, 80),
                 "t": (2, 4, 8)}),
    Kind(name="recompute", title="activations with full recomputation", topic=TOPIC, level="senior",
         build=recompute, follow="layers",
         domain={"s": (2048, 4096, 8192), "b": (1, 2, 4, 8), "h": (4096, 5120, 8192, 12288), "t": (2, 4, 8),
                 "layers": (16, 24, 32, 40, 80)}),
    Kind(name="attention-scores", title="attention scores that FlashAttention avoids", topic=TOPIC,
         level="mid", build=scores, follow="s",
         domain={"s": (2048, 4096, 8192, 16384), "b": (1, 2, 4), "a": (32, 40, 64, 96), "t": (1, 2, 4, 8),
                 "layers": (4, 8, 16)}),
)  # fmt: skip


def _does_it_divide() -> tuple[Body, ...]:
    lead = "Tensor parallelism divides parameter memory by t. Activation memory as well? Decide by number. "
    return (
        noted(activations(4096, 4, 5120, 8, 40, "tp"), lead=lead),
        activations(4096, 4, 5120, 8, 40, "tp+sp"),
        stranded(4096, 4, 5120, 40, 8),
    )


def _pair_wire(t: int) -> Body:
    message = float(book.activation_message(4, 4096, 5120))
    wire = 2 * float(book.gather_wire(message, t))
    key = numeric(
        wire,
        "MB",
        (2 * wire, "That doubles it: each of the two moves half of an all-reduce."),
        (wire / 2, "That is one of the two."),
        (2 * message, "Nominal: a ring moves (t-1)/t of the tensor in each."),
        (wire / t, "The gathered tensor is whole: s b h elements."),
    )
    same = float(book.ring_all_reduce_wire(message, t))
    return Body(
        text=f"Micro-batch 4, sequence 4096, hidden 5120, bf16, t={t}. How many MB leave each GPU for the "
        "reduce-scatter and all-gather together that replace one all-reduce?",
        key=key,
        hint="Each moves (t-1)/t of the tensor.",
        explanation=Explanation(
            formula="2 x (t-1)/t x 2 s b h",
            substitution=f"2 x {t - 1}/{t} x {show(message, 'MB')} = {key.shown}; the all-reduce: "
            f"{show(same, 'MB')}",
            intuition="The same bytes: an all-reduce is those two back to back, and sequence parallelism "
            "works on the split tensor in between. Free in bandwidth, not quite in launches; Megatron also "
            "gathers the input once more in the backward pass rather than keep it whole.",
        ),
    )


def _free() -> tuple[Body, ...]:
    return noted(_pair_wire(8), lead="Why is sequence parallelism called free? "), _pair_wire(2)


def _collectives(both: bool) -> Body:
    pairs = int(book.tensor_collectives(1)) // (1 if both else 2)
    direction = "the forward and the backward pass" if both else "the forward pass"
    key = numeric(
        2 * pairs,
        "",
        (pairs, "Each all-reduce became two collectives."),
        (pairs // 2, "Attention and MLP both communicate."),
        (4 * pairs, "Two blocks a layer, a gather and a scatter in each."),
        exact=True,
    )
    return Body(
        text=f"Count the all-gathers and reduce-scatters of one layer in {direction} under tensor and "
        "sequence "
        "parallelism (without gathering any input a second time).",
        key=key,
        hint="One gather before and one scatter after each of the two blocks.",
        explanation=Explanation(
            formula="2 blocks x (1 all-gather + 1 reduce-scatter) x directions",
            substitution=f"2 x 2 x {2 if both else 1} = {key.shown}",
            intuition="Norm on s/t rows; gather to s rows; column-split product, attention or activation; "
            "row-split product; scatter back to s/t rows; dropout and residual on those rows; the same for "
            "the MLP. Backward mirrors it. Megatron keeps only the split input and gathers it once more for "
            "the weight gradient: two more gathers a layer, which overlap.",
        ),
    )


def _walk() -> tuple[Body, ...]:
    lead = "Walk through one transformer layer under TP and SP, collective by collective. "
    return noted(_collectives(False), lead=lead), _collectives(True)


SYLLABUS = (
    Entry(ident="12.3.1/1", title="does t divide activations", topic=TOPIC, level="mid",
          build=_does_it_divide),
    Entry(ident="12.3.1/2", title="why sequence parallelism is free", topic=TOPIC, level="mid", build=_free),
    Entry(ident="12.3.1/3", title="one layer, collective by collective", topic=TOPIC, level="senior",
          build=_walk),
)  # fmt: skip
