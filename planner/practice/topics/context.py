"""12.3.2: context parallelism. Letters: s sequence, g KV heads, a heads, c context ranks."""

from __future__ import annotations

import numpy as np

from planner.cost import textbook as book
from planner.practice.kind import Body, Entry, Kind, Values, noted
from planner.practice.quantity import show
from planner.practice.question import Choice, Explanation, Option, numeric
from planner.units import GB

TOPIC = "context"
HEAD_DIM = 128


def _kv_heads(g: int) -> str:
    return f"{g} KV head{'s' if g > 1 else ''}"


def key_values(s: int, a: int, g: int, c: int, layers: int) -> Body:
    """Keys and values that a context rank keeps."""
    layer = float(book.key_value_bytes(s, g, HEAD_DIM, c))
    whole = layers * layer
    key = numeric(
        whole,
        "GB",
        (whole * a / g, "Grouped-query attention: only the KV heads have keys and values."),
        (whole / 2, "Keys and values: two tensors."),
        (whole * c, "The context ranks split the sequence."),
        (2 * whole, "Bytes doubled: two tensors of 2 bytes are 4 bytes in all."),
        (layer, "That is one layer."),
    )
    return Body(
        text=f"One sequence of {s} tokens, {a} heads of width 128 of which {_kv_heads(g)}, bf16, c={c}. GB "
        f"of keys and values that each context rank holds for {layers} layer{'s' if layers > 1 else ''}?",
        key=key,
        hint="2 tensors x 2 bytes x s/c x KV heads x 128.",
        explanation=Explanation(
            formula="L x 2 x 2 x (s/c) g d_head",
            substitution=f"{layers} x 4 x {s // c} x {g} x 128 = {key.shown}",
            intuition="Linear in s, divided by c and by a/g: grouped-query attention is what makes passing "
            "or gathering K and V cheap.",
        ),
    )


def ring_time(s: int, a: int, g: int, c: int, rate_gb: float) -> Body:
    """Ring traffic of one layer's forward pass."""
    wire = float(book.ring_attention_wire(s, g, HEAD_DIM, c))
    time = float(book.transfer_time(wire, rate_gb * GB))
    key = numeric(
        time,
        "ms",
        (time * a / g, "Grouped-query attention: only the KV heads travel."),
        (time * c / (c - 1), "c - 1 hops: the own piece does not travel."),
        (time / 2, "Keys and values: two tensors."),
        (time / (c - 1), "That is one hop; the pieces go round c - 1 times."),
        (2 * time, "The ring passes its pieces once; it is no all-reduce."),
    )
    return Body(
        text=f"Ring attention, c={c}, a sequence of {s}, {a} heads and {_kv_heads(g)} of width 128, bf16, "
        f"{rate_gb:g} GB/s a GPU. How many ms does the ring of one layer's forward pass take?",
        key=key,
        hint="c - 1 hops of 4 x (s/c) x g x 128 bytes.",
        explanation=Explanation(
            formula="T = (c-1) x 2 x 2 (s/c) g d_head / rate",
            substitution=f"{show(wire, 'GB')} / {rate_gb:g} GB/s = {key.shown}",
            intuition="It hides behind the attention of the piece at hand, and that grows with (s/c)^2: the "
            "longer the sequence, the better it hides.",
            book="The chapter's figures take all 64 heads of the 70B model; with its 8 KV heads they are 8 "
            "times smaller. It also puts c=8 beside t=8 on NVLink: that is 64 GPUs, so the ring crosses the "
            "network.",
        ),
    )


def zigzag(c: int, rank: int) -> Body:
    """Which chunks a context rank takes."""
    first, second = book.zigzag_chunks(c)[rank]
    key = numeric(
        second,
        "",
        (2 * c - first, "One too many: chunks count from 0."),
        (first + c, "That is the same order twice: later ranks would work more."),
        (first + 1, "That is the contiguous split: the last rank would do almost all the work."),
        exact=True,
    )
    return Body(
        text=f"Causal attention with c={c}: the sequence is cut into {2 * c} chunks (0 to {2 * c - 1}) and "
        "each "
        f"rank takes two so that all do the same work. Rank {rank} has chunk {rank}; which other one?",
        key=key,
        hint="Pair the cheapest with the dearest.",
        explanation=Explanation(
            formula="rank i takes chunks i and 2c - 1 - i",
            substitution=f"2 x {c} - 1 - {rank} = {key.shown}",
            intuition="Chunk j attends to about j + 1/2 chunks; i and 2c - 1 - i always add up to 2c. "
            "Llama 3 does this, with an all-gather of K and V instead of a ring.",
            book="The chapter says the production default is striping by token; Llama 3's report (section "
            "3.3.2) describes these 2c chunks.",
        ),
    )


def _grouped(values: Values) -> bool:
    return bool(values["a"] % values["g"] == 0)


KINDS = (
    Kind(name="key-values", title="keys and values of a context rank", topic=TOPIC, level="mid",
         build=key_values, follow="g", valid=_grouped,
         domain={"s": (32768, 65536, 131072, 262144), "a": (32, 64, 128), "g": (4, 8, 32), "c": (2, 4, 8, 16),
                 "layers": (1, 16, 32, 80)}),
    Kind(name="ring-time", title="ring attention traffic", topic=TOPIC, level="senior", build=ring_time,
         follow="c", valid=_grouped,
         domain={"s": (32768, 65536, 131072, 262144), "a": (32, 64, 128), "g": (4, 8, 32), "c": (2, 4, 8, 16),
                 "rate_gb": (25, 50, 450)}),
    Kind(name="zigzag", title="balanced chunks of causal attention", topic=TOPIC, level="senior",
         build=zigzag, follow="rank", domain={"c": (4, 8, 16, 32), "rank": (0, 1, 2, 3)}),
)  # fmt: skip


def _long_context() -> tuple[Body, ...]:
    held = 80 * float(book.key_value_bytes(131072, 1, HEAD_DIM, 8))
    key = numeric(
        held,
        "GB",
        (8 * held, "Full heads: with grouped-query attention only 8 KV heads exist, one a tensor rank."),
        (64 * held, "Neither the tensor ranks nor grouped-query attention are counted."),
        (held / 2, "Keys and values: two tensors."),
        (held / 80, "That is one layer."),
    )
    main = Body(
        text="Design training at 128K context for a 70B model (80 layers, 64 heads of width 128, 8 KV "
        "heads): "
        "t=8 in the node, c=8 across nodes, pipeline for depth. GB of bf16 keys and values of all 80 layers "
        "for one 131072-token sequence per GPU (before the pipeline divides the layers)?",
        key=key,
        hint="One KV head a tensor rank, s/8 tokens a context rank.",
        explanation=Explanation(
            formula="L x 2 x 2 (s/c) (g/t) d_head",
            substitution=f"80 x 4 x 16384 x 1 x 128 = {key.shown}",
            intuition="Keys and values are no longer the problem; the 34 s b h / t of each layer over c are, "
            "so recompute or a pipeline follows. t x c = 64 GPUs are eight nodes: plan the context group on "
            "the network and let attention hide it.",
            book="The chapter takes all 64 heads (5.2 GB, by our count 5.37) and runs the ring on NVLink, "
            "which holds 8 GPUs and not 64.",
        ),
    )
    return main, noted(ring_time(131072, 8, 1, 8, 50), lead="Per tensor rank (8 heads, 1 KV head): ")


def _sequence_is_not_enough() -> tuple[Body, ...]:
    lead = (
        "Why does sequence parallelism not solve 128K context? Say what every rank still needs inside "
        "attention, for 70B with full heads: "
    )
    why = (
        "Sequence parallelism splits norms and dropouts, then gathers the whole sequence before attention, "
        "so "
        "each rank holds keys and values of all s tokens for its heads. Only context parallelism keeps the "
        "sequence split inside attention."
    )
    full = noted(key_values(131072, 64, 64, 1, 1), lead=lead, intuition=why)
    return full, key_values(131072, 64, 8, 1, 1)


def _ring_in_float32() -> tuple[bool, bool, float]:
    """Attention in one pass and in eight blocks: identical, close, and how far apart."""
    draw = np.random.default_rng(0)
    queries, keys, values = (draw.standard_normal((64, 32)).astype(np.float32) for _ in range(3))
    once = book.blockwise_attention(queries, keys, values, 1)
    ring = book.blockwise_attention(queries, keys, values, 8)
    apart = float(np.abs(once - ring).max())
    return bool(np.array_equal(once, ring)), bool(np.allclose(once, ring, atol=1e-5)), apart


def _exact() -> tuple[Body, ...]:
    identical, close, apart = _ring_in_float32()
    options = (
        Option(
            "bit for bit the same", "The sums run in another order, and floating point is not associative."
        ),
        Option(
            "exact in real arithmetic, so equal up to rounding", "The merge of partial softmaxes is exact."
        ),
        Option("an approximation that worsens with more ranks", "Nothing is dropped or approximated."),
        Option(
            "exact only without a causal mask", "The mask is applied block by block; nothing else changes."
        ),
    )
    main = Body(
        text="Is ring attention the same as attention on one GPU? Its result is ...",
        key=Choice(options=options, right=0 if identical else 1 if close else 2),
        hint="What does the running maximum and sum do to the order of summation?",
        explanation=Explanation(
            formula="merge: m = max(m1, m2); l = e^(m1-m) l1 + e^(m2-m) l2; o = the same weights on o1, o2",
            substitution=f"64 queries over 64 keys in float32, one pass against 8 blocks: largest difference "
            f"{apart:.1e}",
            intuition="Each block contributes a maximum, a sum and a weighted output, and merging them is "
            "associative on paper. Expect differences of the order of the number format's rounding; a test "
            "that compares bits will fail.",
            book="The chapter says bit-identical.",
        ),
    )
    return main, zigzag(8, 2)


SYLLABUS = (
    Entry(ident="12.3.2/1", title="training at 128K context", topic=TOPIC, level="senior",
          build=_long_context),
    Entry(ident="12.3.2/2", title="why sequence parallelism is not enough", topic=TOPIC, level="mid",
          build=_sequence_is_not_enough),
    Entry(ident="12.3.2/3", title="is ring attention exact", topic=TOPIC, level="senior", build=_exact),
)  # fmt: skip
