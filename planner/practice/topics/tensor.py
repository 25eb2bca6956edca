"""12.2.1: tensor parallelism. Letters: b micro-batch, s sequence, h hidden, f FFN width, t tensor ranks."""

from __future__ import annotations

from planner.cost import textbook as book
from planner.practice.kind import Body, Entry, Kind, noted
from planner.practice.quantity import figures, show
from planner.practice.question import Explanation, numeric
from planner.units import GB

TOPIC = "tensor"
HIDDEN = (4096, 5120, 6144, 8192, 12288, 16384)
RATES = (150, 200, 300, 450, 600)
"""Fast-tier rates of one GPU and direction. [GB/s]"""


def tp_all_reduce(b: int, s: int, h: int, t: int, rate_gb: float) -> Body:
    """Time of one tensor-parallel all-reduce."""
    message, rate = float(book.activation_message(b, s, h)), rate_gb * GB
    time = float(book.transfer_time(book.ring_all_reduce_wire(message, t), rate))
    key = numeric(
        time,
        "ms",
        (2 * message / rate, "Nominal: the ring factor (t-1)/t is missing."),
        (message / rate, "The tensor once over the wire; an all-reduce passes it about twice."),
        (time / 2, "Either one pass only, or elements instead of bytes (bf16 has 2)."),
        (2 * time, "Bytes doubled: a bf16 activation has 2 bytes, and both passes are counted already."),
        (time / b, "The micro-batch is missing: the tensor is s b h."),
    )
    return Body(
        text=f"One tensor-parallel all-reduce of a layer's output: micro-batch {b}, sequence {s}, hidden "
        f"{h}, "
        f"bf16, t={t}, {rate_gb:g} GB/s a GPU and direction. How many ms by ring, bandwidth only?",
        key=key,
        hint="The tensor is s b h elements of 2 bytes; a ring sends 2 (t-1)/t of it.",
        explanation=Explanation(
            formula="T = 2 (t-1)/t x 2 s b h / rate",
            substitution=f"2 x {t - 1}/{t} x {show(message, 'GB')} / {rate_gb:g} GB/s = {key.shown}",
            intuition="Size of the activations, not of the weights: longer sequences and larger "
            "micro-batches cost, deeper models only cost more of the same.",
        ),
    )


def tp_step(layers: int, b: int, s: int, h: int, t: int, rate_gb: float) -> Body:
    """All tensor-parallel collectives of one micro-batch."""
    message, rate = float(book.activation_message(b, s, h)), rate_gb * GB
    one = float(book.transfer_time(book.ring_all_reduce_wire(message, t), rate))
    total = float(book.tensor_collectives(layers)) * one
    key = numeric(
        total,
        "s",
        (total / 2, "Two all-reduces a layer forward and two backward: four, not two."),
        (4 * layers * message / rate, "The ring factor 2 (t-1)/t is missing."),
        (8 * layers * message / rate, "Nominal: (t-1)/t of it leaves a GPU."),
        (total / 4, "One all-reduce a layer; there are two in each direction."),
    )
    return Body(
        text=f"{layers} layers, micro-batch {b}, sequence {s}, hidden {h}, bf16, t={t}, {rate_gb:g} GB/s. "
        "How "
        "many seconds do all tensor-parallel all-reduces of one forward and backward pass take by ring, if "
        "nothing overlaps?",
        key=key,
        hint="Attention output and MLP output, forward and backward.",
        explanation=Explanation(
            formula="T = 4 L x 2 (t-1)/t x 2 s b h / rate",
            substitution=f"4 x {layers} x {figures(one * 1e3)} ms = {key.shown}",
            intuition="A cost per micro-batch, unlike the gradient sync: it never amortises over the batch, "
            "which is why this traffic belongs on the fastest links.",
            book="The chapter leaves out the ring factor 2 (t-1)/t here and prints 0.57 s for its 70B "
            "example; by ring it is 1.00 s.",
        ),
    )


def ffn_gemm(b: int, s: int, h: int, f: int, t: int, peak_tflop: int) -> Body:
    """Time of one FFN product on one of t GPUs."""
    flop = float(book.gemm_flop(b * s, f / t, h))
    time = float(book.compute_time(flop, peak_tflop * 1e12))
    key = numeric(
        time,
        "ms",
        (time * t, "That is the whole width: each GPU holds f/t columns."),
        (time / 2, "A multiply-add is two operations."),
        (2 * time, "One product was asked, or 2 FLOP per multiply-add counted twice."),
        (3 * time, "One product was asked, not the three of a gated MLP."),
        (time / b, "The micro-batch is missing."),
    )
    return Body(
        text=f"The first FFN product of a layer (hidden {h}, FFN {f}) on one of t={t} GPUs, micro-batch {b}, "
        f"sequence {s}, at {peak_tflop} TFLOP/s. How many ms?",
        key=key,
        hint="2 m n k with n = f/t.",
        explanation=Explanation(
            formula="T = 2 (b s)(f/t) h / peak",
            substitution=f"2 x {b * s} x {figures(f / t)} x {h} = {show(flop, 'TFLOP')}; / {peak_tflop} "
            f"TFLOP/s = {key.shown}",
            intuition="At the peak rate; a real product of this shape reaches 60 to 80 % of it, and less "
            "the narrower the shard gets.",
            book="The chapter writes /8 in its 70B example but prints the whole width: 30.7 TFLOP and 31 ms "
            "where one GPU has 3.85 TFLOP and 3.9 ms. In its 175B example 32 ms are one product; the MLP "
            "has two, 63 ms.",
        ),
    )


def tp_share(b: int, s: int, h: int, f: int, t: int, rate_gb: float) -> Body:
    """One all-reduce over the gated MLP's forward products."""
    peak = 989e12
    reduce = float(
        book.transfer_time(book.ring_all_reduce_wire(book.activation_message(b, s, h), t), rate_gb * GB)
    )
    product = float(book.compute_time(book.gemm_flop(b * s, f / t, h), peak))
    key = numeric(
        reduce / (3 * product),
        "%",
        (reduce / product, "A gated MLP has three products."),
        (reduce / (2 * product), "A gated MLP has three products, not two."),
        (reduce / (3 * product * t), "The whole FFN width: each GPU computes only f/t of it."),
        (reduce / (product * t), "One product, and of the whole width."),
        (reduce / (3 * product + reduce), "That is the share of both together; compute alone was asked."),
        (reduce / 2 / (3 * product), "One pass of the ring only."),
    )
    return Body(
        text=f"A SwiGLU MLP (three products; hidden {h}, FFN {f}) on t={t} H100s at 989 TFLOP/s, micro-batch "
        f"{b}, sequence {s}. Its forward all-reduce runs at {rate_gb:g} GB/s a GPU. How long is the "
        "all-reduce relative to the MLP's forward products (in %)?",
        key=key,
        hint="b and s cancel: 2 (t-1)/t x 2 h / rate against 3 x 2 (f/t) h / peak.",
        explanation=Explanation(
            formula="share = [2 (t-1)/t x 2 s b h / rate] / [3 x 2 s b h (f/t) / peak]",
            substitution=f"{figures(reduce * 1e3)} ms / {figures(3e3 * product)} ms = {key.shown}",
            intuition="Grows with t - 1 and falls with the FFN width, whatever the batch. Measured losses of "
            "10 % at t=8 come from overlapping collectives with products, not from this ratio being 10 %.",
            book="The chapter gets 10 % for its 70B layer because its compute is eight times too long.",
        ),
    )


KINDS = (
    Kind(name="tp-all-reduce", title="time of one tensor-parallel all-reduce", topic=TOPIC, level="mid",
         build=tp_all_reduce, follow="t",
         domain={"b": (1, 2, 4, 8, 16, 32), "s": (2048, 4096, 8192), "h": HIDDEN, "t": (2, 4, 8),
                 "rate_gb": (*RATES, 25, 50)}),
    Kind(name="tp-step", title="all tensor-parallel collectives of a pass", topic=TOPIC, level="senior",
         build=tp_step, follow="s",
         domain={"layers": (32, 40, 48, 60, 80, 96), "b": (1, 2, 4, 8), "s": (2048, 4096, 8192), "h": HIDDEN,
                 "t": (2, 4, 8), "rate_gb": RATES}),
    Kind(name="ffn-gemm", title="time of one sharded matrix product", topic=TOPIC, level="mid",
         build=ffn_gemm, follow="t",
         domain={"b": (1, 2, 4, 8, 32), "s": (2048, 4096, 8192), "h": (4096, 5120, 8192, 16384),
                 "f": (11264, 14336, 28672, 53248), "t": (2, 4, 8), "peak_tflop": (312, 989)}),
    Kind(name="tp-share", title="tensor-parallel time share", topic=TOPIC, level="senior", build=tp_share,
         follow="rate_gb",
         domain={"b": (1, 2, 4), "s": (2048, 4096, 8192), "h": (4096, 5120, 8192, 16384),
                 "f": (11264, 14336, 28672, 53248), "t": (2, 4, 8), "rate_gb": (*RATES, 25, 50)}),
)  # fmt: skip


def _seventy_on_a_node() -> tuple[Body, ...]:
    local = 70e9 / 8
    state = float(book.zero_bytes_per_parameter(0, 1)) * local
    key = numeric(
        state,
        "GB",
        (2 * local, "Weights alone: training also holds gradients and Adam's state."),
        (14 * local, "The gradients are missing."),
        (state * 8, "The tensor split divides all of it by 8."),
        ((2 + 2 + 12 / 8) * local, "ZeRO-1 needs replicas to shard over; eight GPUs at t=8 are one replica."),
    )
    main = Body(
        text="How would you put a 70B model on one node of eight 80 GB GPUs? Split every matrix with t=8 and "
        "check whether it trains: GB of Adam model state per GPU (bf16 gradients, no other split)?",
        key=key,
        hint="t divides weights, gradients and optimizer state alike; there is one replica.",
        explanation=Explanation(
            formula="state = 16 P / t",
            substitution=f"16 x 70e9 / 8 = {key.shown} against 80 GB: the weights fit, training does not",
            intuition="Column split, then row split, two all-reduces a layer forward and two backward. For "
            "training take two nodes or more (replicas or stages to shard the state over), offload the "
            "optimizer, or train adapters.",
            book="The chapter stops at 17.5 GB of weights and leaves 62.5 GB for ZeRO-1 optimizer state, but "
            "with one replica nothing is sharded; it also counts one all-reduce a layer and direction, "
            "where there are two.",
        ),
    )
    return main, _weights_alone(local)


def _weights_alone(local: float) -> Body:
    key = numeric(
        2 * local, "GB", (4 * local, "Bytes doubled: bf16 has 2."), (16 * local, "That is all state.")
    )
    return Body(
        text="And the bf16 weights alone, per GPU?",
        key=key,
        hint="2 P / t.",
        explanation=Explanation(
            formula="weights = 2 P / t",
            substitution=f"2 x 70e9 / 8 = {key.shown}",
            intuition="Enough for inference on the node, an eighth of what training needs.",
        ),
    )


def _why_eight() -> tuple[Body, ...]:
    lead = (
        "Why does tensor parallelism stay within eight GPUs of a node? Take a 70B layer and let its "
        "all-reduce leave the node at 25 GB/s a GPU. "
    )
    slow = noted(
        tp_share(32, 2048, 8192, 28672, 8, 25),
        lead=lead,
        intuition="Six times longer than the products it waits for, four times in every layer. Inside "
        "NVLink the same all-reduce is a quarter of the products, and much of that overlaps.",
        book="The chapter compares 75 ms with 31 ms of compute; the right compute on one of 8 GPUs is 3.9 ms "
        "a product, 11.7 ms for the MLP: the case is stronger than printed.",
    )
    return slow, tp_share(32, 2048, 8192, 28672, 8, 600)


def _message(s: int) -> Body:
    size = float(book.activation_message(32, s, 8192))
    key = numeric(
        size,
        "GB",
        (size / 2, "That counts elements; bf16 has 2 bytes."),
        (2 * 8192 * 28672, "That is a weight matrix; tensor parallelism moves activations."),
        (2 * 7 / 8 * size, "That is the wire volume of the ring; the tensor was asked."),
        (2 * size, "Bytes doubled: 2 bytes an element."),
    )
    return Body(
        text=f"Micro-batch 32, sequence {s}, hidden 8192, FFN 28672, 80 layers, bf16, t=8. How large (GB) is "
        "the tensor of one all-reduce?",
        key=key,
        hint="What leaves a row-split product?",
        explanation=Explanation(
            formula="S = 2 s b h",
            substitution=f"2 x {s} x 32 x 8192 = {key.shown}",
            intuition="Neither the FFN width, nor t, nor the depth is in it: sequence and micro-batch are "
            "the handles.",
        ),
    )


def _what_sets_the_size() -> tuple[Body, ...]:
    return noted(_message(2048), lead="What determines the size of a tensor-parallel all-reduce? "), _message(
        4096
    )


def _thousand(p: int) -> Body:
    replicas = 1024 // (8 * p)
    m = book.microbatches_for_bubble(p, 0.25)
    key = numeric(
        replicas * m,
        "",
        (replicas * 4 * p, "4 p is more than needed: the budget asks for 4 (p - 1)."),
        (m, "That is one replica; all of them need their micro-batches."),
        (replicas * (p - 1), "That is m = p - 1, a bubble as long as the work."),
        (128 * m, "Pipeline ranks share a replica's batch: d is GPUs over t p."),
        exact=True,
    )
    return Body(
        text=f"One model on 1024 GPUs in nodes of 8: t=8, p={p}, the rest data parallel. With micro-batches "
        "of one sequence and 1F1B, how many sequences must the global batch have at least for a bubble of at "
        "most 25 % of the ideal time?",
        key=key,
        hint="d = 1024 / (t p); every replica needs m >= 4 (p - 1).",
        explanation=Explanation(
            formula="batch = d m, d = N / (t p), m >= (p - 1) / 0.25",
            substitution=f"d = {replicas}, m = {m}: {replicas} x {m} = {key.shown}",
            intuition="Each tier gets the traffic that it can carry: activations all-reduced on NVLink, "
            "hand-offs between neighbours over the network, gradients once a step wherever. What is spent "
            "is batch.",
        ),
    )


def _combine() -> tuple[Body, ...]:
    lead = "Scale one model to 1024 GPUs: how does tensor parallelism combine with the rest? "
    return noted(_thousand(8), lead=lead), _thousand(16)


SYLLABUS = (
    Entry(ident="12.2.1/1", title="70B on one node", topic=TOPIC, level="mid", build=_seventy_on_a_node),
    Entry(ident="12.2.1/2", title="why t stops at 8", topic=TOPIC, level="mid", build=_why_eight),
    Entry(ident="12.2.1/3", title="what sets the all-reduce size", topic=TOPIC, level="mid",
          build=_what_sets_the_size),
    Entry(ident="12.2.1/4", title="tensor parallelism on 1024 GPUs", topic=TOPIC, level="senior",
          build=_combine),
)  # fmt: skip
