"""12.1.1: plain data parallelism, its memory, and its gradient all-reduce. Letters: P parameters, M GPUs."""

from __future__ import annotations

from planner.cost import textbook as book
from planner.practice.kind import Body, Entry, Kind, noted
from planner.practice.quantity import figures, model_of, show
from planner.practice.question import Explanation, numeric
from planner.units import GB

TOPIC = "data-parallel"
SIZES = (0.5, 1, 1.5, 3, 7, 7.5, 8, 13, 30, 33, 65, 70)
"""Model sizes that questions draw from. [billion parameters]"""
NETWORK_RATES = (12.5, 25, 50, 100)
"""What one GPU's network card moves in one direction: 100 to 800 Gbit/s. [GB/s]"""


def state_plain(parameters_b: float, gradient_bytes: int, gpus: int) -> Body:
    """Model state per GPU without sharding."""
    count = parameters_b * 1e9
    per = float(book.zero_bytes_per_parameter(0, gpus)) - book.BF16_BYTES + gradient_bytes
    kind = {2: "bf16", 4: "fp32"}[gradient_bytes]
    key = numeric(
        per * count,
        "GB",
        ((per - gradient_bytes) * count, "The gradients are missing: they are as long as the model too."),
        ((per - 4) * count, "The fp32 master copy of the weights is missing."),
        ((2 + gradient_bytes) * count, "Weights and gradients only: Adam's 12 bytes are three quarters."),
        (2 * count, "That is the bf16 weights alone."),
        (per * count / gpus, "Plain data parallelism shards nothing: more GPUs are more copies."),
        (2 * per * count, "Bytes counted twice: the byte figure per parameter is already in bytes."),
    )
    return Body(
        text=f"{model_of(parameters_b, 'A')} trains with Adam in bf16 mixed precision ({kind} gradients, "
        f"fp32 master weights) under plain data parallelism on {gpus} GPUs. How many GB of model state does "
        "each GPU hold (no activations)?",
        key=key,
        hint="Count bytes per parameter: weights, gradients, master copy, two moments.",
        explanation=Explanation(
            formula=f"state = (2 weights + {gradient_bytes} gradients + 4 master + 4 + 4 moments) P",
            substitution=f"{per:g} x {parameters_b:g}e9 = {key.shown}, whatever the {gpus} GPUs",
            intuition="Optimizer state, not the weights, is what fills the GPU, and a replica more does not "
            "make any replica smaller. That is the one thing ZeRO changes.",
        ),
    )


def all_reduce_wire(parameters_b: float, gradient_bytes: int, gpus: int) -> Body:
    """Bytes leaving a GPU in the gradient all-reduce."""
    message = parameters_b * 1e9 * gradient_bytes
    key = numeric(
        book.ring_all_reduce_wire(message, gpus),
        "GB",
        (2 * message, "That is the nominal volume; on the wire a ring moves (M-1)/M of it."),
        (book.gather_wire(message, gpus), "One pass only: an all-reduce is a reduce-scatter and a gather."),
        (message, "The size of the gradients, not the traffic: the ring passes them twice."),
        (2 * parameters_b * 1e9, "2|P| counts elements; multiply by the bytes of one."),
        (book.ring_all_reduce_wire(message, gpus) * gpus, "That is all GPUs together; one was asked."),
        (message / gpus, "That is one shard of the gradients, not the traffic."),
    )
    kind = {2: "bf16", 4: "fp32"}[gradient_bytes]
    return Body(
        text=f"{gpus} GPUs all-reduce the {kind} gradients of {model_of(parameters_b)} in a ring. How many "
        "GB leave each GPU?",
        key=key,
        hint="Reduce-scatter, then all-gather; each GPU passes on all but its own piece.",
        explanation=Explanation(
            formula="wire = 2 (M-1)/M x S, S = bytes of the gradients",
            substitution=f"2 x {gpus - 1}/{gpus} x {show(message, 'GB')} = {key.shown}",
            intuition="Nearly independent of M: adding GPUs does not make the ring cheaper or dearer in "
            "bandwidth, only longer in latency.",
        ),
    )


def all_reduce_time(parameters_b: float, gpus: int, rate_gb: float) -> Body:
    """Bandwidth-only time of the gradient all-reduce."""
    message = parameters_b * 1e9 * book.BF16_BYTES
    rate = rate_gb * GB
    time = book.transfer_time(book.ring_all_reduce_wire(message, gpus), rate)
    key = numeric(
        time,
        "ms",
        (2 * message / rate, "The ring factor (M-1)/M is missing: nominal, not wire."),
        (time / 2, "One pass only: an all-reduce is two passes over the buffer."),
        (message / rate, "The buffer once over the wire; an all-reduce passes it about twice."),
        (time / 8, "That is the rate of a whole node of 8 cards; one GPU has its own card."),
        (time * 8, "Bits and bytes: the rate is already in bytes."),
        (2 * time, "Bytes doubled: a bf16 gradient is 2 bytes, once."),
    )
    return Body(
        text=f"The bf16 gradients of {model_of(parameters_b)} are all-reduced over {gpus} GPUs by a ring; "
        f"each GPU sends {rate_gb:g} GB/s. Bandwidth alone: how many ms?",
        key=key,
        hint="Wire bytes of one GPU over its own rate.",
        explanation=Explanation(
            formula="T = 2 (M-1)/M x 2 P / rate",
            substitution=f"2 x {gpus - 1}/{gpus} x {show(message, 'GB')} / {rate_gb:g} GB/s = {key.shown}",
            intuition="Compare it with the backward pass before worrying: one all-reduce a step, and most of "
            "it can run while earlier layers still differentiate.",
            book="The chapter takes 200 GB/s for InfiniBand; that is a whole node of eight cards. One GPU "
            "has 25 to 50 GB/s, which is the rate that counts in a ring.",
        ),
    )


def sync_share(
    parameters_b: float, gpus: int, tokens: int, rate_gb: float, peak_tflop: int, used_pct: int
) -> Body:
    """Gradient sync over the backward pass."""
    count = parameters_b * 1e9
    sync = book.transfer_time(book.ring_all_reduce_wire(2 * count, gpus), rate_gb * GB)
    whole = book.compute_time(book.training_flop(count, tokens), peak_tflop * 1e12, used_pct / 100)
    backward = whole * 2 / 3
    key = numeric(
        sync / backward,
        "%",
        (sync / whole, "That is against forward and backward; only the backward pass can hide it."),
        (2 * sync / backward, "The backward pass is twice the forward: 4 P FLOP a token, not 2 P."),
        (sync / 2 / backward, "One pass of the ring only."),
        (sync * gpus / (gpus - 1) / backward, "The ring factor (M-1)/M is missing."),
        (sync / (backward * used_pct / 100), "Peak rate taken: the GPUs reach only part of it."),
    )
    return Body(
        text=f"{gpus} replicas (one GPU each) of {model_of(parameters_b)} process {tokens} tokens a GPU and "
        f"step at {used_pct} % of {peak_tflop} TFLOP/s. The bf16 gradients are all-reduced at {rate_gb:g} "
        "GB/s a GPU. How long does the ring take as a share of the backward pass (in %)?",
        key=key,
        hint="Backward costs 4 FLOP per parameter and token.",
        explanation=Explanation(
            formula="share = [2 (M-1)/M x 2 P / rate] / [4 P tokens / (u peak)]",
            substitution=f"{figures(float(sync))} s / {figures(float(backward))} s = {key.shown}",
            intuition="P cancels: what decides is tokens per GPU, FLOP/s and the rate. Over 100 % the "
            "network "
            "sets the pace; the cures are more tokens per GPU (accumulation) or a faster tier.",
        ),
    )


KINDS = (
    Kind(name="state-plain", title="model state under plain data parallelism", topic=TOPIC, level="mid",
         build=state_plain, follow="parameters_b",
         domain={"parameters_b": SIZES, "gradient_bytes": (2, 4), "gpus": (4, 8, 16, 64)}),
    Kind(name="all-reduce-wire", title="bytes of a ring all-reduce", topic=TOPIC, level="mid",
         build=all_reduce_wire, follow="gpus",
         domain={"parameters_b": SIZES, "gradient_bytes": (2, 4), "gpus": (2, 4, 8, 16, 32, 64)}),
    Kind(name="all-reduce-time", title="time of a ring all-reduce", topic=TOPIC, level="mid",
         build=all_reduce_time, follow="rate_gb",
         domain={"parameters_b": SIZES, "gpus": (4, 8, 16, 32, 64), "rate_gb": (*NETWORK_RATES, 450)}),
    Kind(name="sync-share", title="gradient sync against the backward pass", topic=TOPIC, level="senior",
         build=sync_share, follow="tokens",
         domain={"parameters_b": (1, 3, 7, 13), "gpus": (8, 16, 32), "tokens": (4096, 8192, 16384, 65536),
                 "rate_gb": NETWORK_RATES, "peak_tflop": (312, 989), "used_pct": (35, 40, 45, 50)}),
)  # fmt: skip


def _replicas() -> tuple[Body, ...]:
    main = noted(
        state_plain(7.5, 2, 64),
        lead="Explain what plain data parallelism replicates, splits and exchanges, and where it stops "
        "scaling; then put a number on the limit. ",
    )
    wire = noted(
        all_reduce_wire(7.5, 2, 64),
        intuition="One all-reduce a step, however many GPUs: that is why data parallelism scales in time. "
        "The 120 GB a GPU are why it does not in memory.",
        book="The chapter puts the all-reduce at 2|P| bytes; that counts elements. In bytes it is 4|P| "
        "nominal.",
    )
    return main, wire


def _fits_13b() -> tuple[Body, ...]:
    state = float(book.zero_bytes_per_parameter(0, 8)) * 13e9
    key = numeric(
        state / (80 * GB),
        "x",
        (state / 8 / (80 * GB), "Plain data parallelism keeps the whole state on every GPU."),
        (14 * 13e9 / (80 * GB), "The gradients are missing."),
        (2 * 13e9 / (80 * GB), "Weights alone; training also holds gradients and Adam's state."),
    )
    main = Body(
        text="A 13B model, eight 80 GB A100s, plain data parallelism, Adam in bf16: does the model state "
        "fit? Answer with the ratio of what one GPU needs to what it has.",
        key=key,
        hint="16 bytes a parameter against 80 GB.",
        explanation=Explanation(
            formula="ratio = 16 P / HBM",
            substitution=f"16 x 13e9 / 80 GB = 208 / 80 = {key.shown}: it does not fit",
            intuition="No batch size helps, because no activation is counted yet. Say what you would do: "
            "shard the state (ZeRO-3 over the 8 GPUs), or split the model.",
        ),
    )
    return main, _sharded_13b()


def _sharded_13b() -> Body:
    stages = [float(book.zero_bytes_per_parameter(stage, 8)) * 13e9 for stage in range(4)]
    key = numeric(
        stages[3],
        "GB",
        (stages[0], "That is without sharding."),
        (stages[1], "That is ZeRO-1: only Adam's state is sharded."),
        (stages[2], "That is ZeRO-2: the weights are still whole."),
    )
    return Body(
        text="Same model and node, ZeRO-3 over the eight GPUs: GB of model state per GPU?",
        key=key,
        hint="Everything is divided by the ranks.",
        explanation=Explanation(
            formula="state = 16 P / M",
            substitution=f"16 x 13e9 / 8 = {key.shown}",
            intuition="54 GB are left for activations and gathered layers, so this is comfortable.",
        ),
    )


def _adam() -> tuple[Body, ...]:
    adam = float(book.zero_bytes_per_parameter(0, 1))
    plain = 2 * book.BF16_BYTES
    key = numeric(
        adam / plain,
        "x",
        ((adam - 4) / plain, "Adam in mixed precision also keeps an fp32 master copy."),
        (adam / 2, "SGD holds gradients as well as weights."),
        ((adam - 2) / plain, "The gradients belong to both sides."),
    )
    main = Body(
        text="Adam in bf16 mixed precision against SGD without momentum kept wholly in bf16: by what factor "
        "does the model state per parameter grow?",
        key=key,
        hint="Count bytes: SGD has weights and gradients; Adam adds three fp32 numbers.",
        explanation=Explanation(
            formula="(2 + 2 + 4 + 4 + 4) / (2 + 2)",
            substitution=f"{adam:g} / {plain:g} = {key.shown}",
            intuition="The moments are 8 of the 12 extra bytes; the other 4, the fp32 master copy, is the "
            "price of low precision and not of Adam: SGD with a master copy is at 8, and the factor 2.",
        ),
    )
    return main, _adam_fp32(adam, plain)


def _adam_fp32(adam: float, plain: float) -> Body:
    key = numeric(
        (adam + 2) / (plain + 2),
        "x",
        (adam / plain, "Both sides grow by 2 bytes a parameter."),
        ((adam + 2) / plain, "SGD's gradients grow as well."),
    )
    return Body(
        text="Now both accumulate gradients in fp32 (4 bytes). The factor?",
        key=key,
        hint="Two bytes more above and below.",
        explanation=Explanation(
            formula="(2 + 4 + 12) / (2 + 4)",
            substitution=f"{adam + 2:g} / {plain + 2:g} = {key.shown}",
            intuition="Megatron accumulates in fp32 by default: 18 bytes a parameter, not 16.",
        ),
    )


def _bottleneck() -> tuple[Body, ...]:
    share = sync_share(7.5, 64, 8192, 25, 312, 45)
    sync = float(book.transfer_time(book.ring_all_reduce_wire(15 * GB, 64), 25 * GB))
    per_token = float(book.compute_time(book.training_flop(7.5e9, 1), 312e12, 0.45)) * 2 / 3
    key = numeric(
        sync / per_token,
        "",
        (sync / per_token / 1.5, "That compares with the whole step; the forward pass comes too early."),
        (2 * sync / per_token, "The backward pass has 4 P FLOP a token, not 2 P."),
        (sync / per_token / 0.45, "At peak rate; the GPUs reach 45 % of it."),
        (sync / per_token / 2, "Half the ring: reduce-scatter and all-gather both count."),
        (sync / per_token / 8, "That takes 200 GB/s, the rate of a whole node of eight cards."),
    )
    main = Body(
        text="When does the gradient all-reduce become the bottleneck of data parallelism, and how would you "
        "hide it? Give the break-even: 7.5B parameters, bf16 gradients, 64 GPUs with 25 GB/s each, 312 "
        "TFLOP/s used at 45 %. How many tokens per GPU and step make the backward pass as long as the ring?",
        key=key,
        hint="Ring time over the backward time of one token (4 P FLOP).",
        explanation=Explanation(
            formula="tokens = [2 (M-1)/M x 2 P / rate] x u peak / (4 P)",
            substitution=f"{figures(sync)} s / {figures(per_token * 1e6)} us a token = {key.shown} tokens",
            intuition="Below it the network sets the pace. Reduce bucket by bucket during the backward pass, "
            "accumulate micro-batches so that the ring runs once per more tokens, and keep the ring inside "
            "the fast tier. Sharding (ZeRO-2) changes when bytes move, not how many.",
            book="The chapter compares with a 200 GB/s exchange, the rate of a whole node; per GPU it is an "
            "eighth, and the break-even eight times higher.",
        ),
    )
    return main, share


SYLLABUS = (
    Entry(ident="12.1.1/1", title="what plain data parallelism does and its limit", topic=TOPIC, level="mid",
          build=_replicas),
    Entry(ident="12.1.1/2", title="13B on eight 80 GB GPUs", topic=TOPIC, level="mid", build=_fits_13b),
    Entry(ident="12.1.1/3", title="Adam against SGD in memory", topic=TOPIC, level="mid", build=_adam),
    Entry(ident="12.1.1/4", title="when the all-reduce is the bottleneck", topic=TOPIC, level="senior",
          build=_bottleneck),
)  # fmt: skip
