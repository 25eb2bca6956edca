"""12.2.2: pipeline parallelism. Letters: p stages, v chunks a stage, m micro-batches, L layers."""

from __future__ import annotations

import math

from planner.cost import textbook as book
from planner.cost.schedule import bubble, in_flight
from planner.practice.kind import Body, Entry, Kind, Values, noted
from planner.practice.quantity import figures, show
from planner.practice.question import Explanation, numeric
from planner.practice.topics.mix import mix_state
from planner.units import GB

TOPIC = "pipeline"

_ASKED = {
    "ratio": ("the bubble relative to the ideal (busy) time", "(p-1) / (m v)"),
    "share": ("the bubble as a share of the whole step", "(p-1) / (m v + p - 1)"),
    "used": ("the utilisation: busy time over the whole step", "m v / (m v + p - 1)"),
}


def bubble_size(p: int, m: int, v: int, asked: str) -> Body:
    """Bubble over ideal, bubble share or utilisation."""
    values = {
        "ratio": float(book.bubble_over_ideal(p, m, v)),
        "share": float(book.bubble_share(p, m, v)),
        "used": float(book.utilisation(p, m, v)),
    }
    slips = {name: (value, f"That is {_ASKED[name][0]}.") for name, value in values.items() if name != asked}
    flat = {
        "ratio": (p - 1) / m, "share": (p - 1) / (m + p - 1), "used": m / (m + p - 1),
    }[asked]  # fmt: skip
    whole = {"ratio": p / (m * v), "share": p / (m * v + p), "used": m * v / (m * v + p)}[asked]
    key = numeric(
        values[asked],
        "%",
        (1 - values["ratio"], "1 - (p-1)/m is not the utilisation: (p-1)/m is relative to the ideal time."),
        *slips.values(),
        (flat, "Interleaving with v chunks divides the bubble by v."),
        (whole, "p - 1 stages wait, not p."),
    )
    schedule = "1F1B" if v == 1 else f"interleaved 1F1B with v={v} chunks a stage"
    return Body(
        text=f"p={p}, m={m} micro-batches, {schedule}, equal stages. What is {_ASKED[asked][0]} (in %)?",
        key=key,
        hint="Fill and drain leave each stage idle for p - 1 slots (of 1/v size); m v slots are work.",
        explanation=Explanation(
            formula=_ASKED[asked][1],
            substitution=f"p-1 = {p - 1}, m v = {m * v}: {key.shown}",
            intuition="Three numbers with one name. Say which you mean: relative to the ideal time it may "
            "exceed 100 %, as a share of the step it cannot.",
            book="The chapter turns (p-1)/m straight into a utilisation of 1 - (p-1)/m: 78 % for p=8, m=32, "
            "where it is 82 %.",
        ),
    )


def bubble_microbatches(p: int, budget_pct: int, v: int) -> Body:
    """Fewest micro-batches for a bubble budget."""
    budget = budget_pct / 100
    m = book.microbatches_for_bubble(p, budget, v)
    share = max(1, math.ceil((p - 1) * (1 - budget) / (budget * v) - 1e-9))
    key = numeric(
        m,
        "",
        (math.ceil(p / (budget * v) - 1e-9), "p - 1 stages wait, not p."),
        (book.microbatches_for_bubble(p, budget), "Interleaving with v chunks divides the bubble by v."),
        (share, "That meets the budget as a share of the whole step; relative to the ideal time was asked."),
        (m - 1, "One too few: round up."),
        exact=True,
    )
    schedule = "1F1B" if v == 1 else f"interleaved 1F1B, v={v}"
    return Body(
        text=f"p={p}, {schedule}. How many micro-batches keep the bubble at {budget_pct} % of the ideal time "
        "or less (ignore that Megatron wants a multiple of p)?",
        key=key,
        hint="(p - 1)/(m v) <= budget.",
        explanation=Explanation(
            formula="m >= (p - 1) / (budget v)",
            substitution=f"{p - 1} / ({budget:g} x {v}), rounded up = {key.shown}",
            intuition="For 25 % that is 4 (p - 1), for 20 % it is 5 (p - 1). Micro-batches come out of the "
            "global batch, so depth and replicas compete for the same sequences.",
            book="The chapter's 4 p for 'roughly 20 %' gives under 25 % of the ideal time and under 20 % of "
            "the whole step; it uses both measures without saying which.",
        ),
    )


def hand_off(b: int, s: int, h: int, rate_gb: float) -> Body:
    """Time of an activation hand-off."""
    size = float(book.activation_message(b, s, h))
    time = float(book.transfer_time(size, rate_gb * GB))
    key = numeric(
        time,
        "ms",
        (time / 2, "That counts elements; bf16 has 2 bytes."),
        (2 * time, "A hand-off is one send, not an all-reduce."),
        (time / b, "The micro-batch is missing."),
        (time * 8, "Bits and bytes: the rate is in bytes already."),
    )
    return Body(
        text=f"A stage hands the activations of one micro-batch ({b} sequences of {s} tokens, hidden {h}, "
        f"bf16) to the next over {rate_gb:g} GB/s. How many ms?",
        key=key,
        hint="One tensor of s b h elements, sent once.",
        explanation=Explanation(
            formula="T = 2 s b h / rate",
            substitution=f"{show(size, 'MB')} / {rate_gb:g} GB/s = {key.shown}",
            intuition="Once per stage and micro-batch, against four all-reduces of the same tensor in every "
            "layer under tensor parallelism: this traffic can live on the network.",
        ),
    )


def memory_in_flight(schedule: str, p: int, rank: int, m: int, layers: int, h: int) -> Body:
    """Activation memory of one pipeline rank."""
    layer = float(book.layer_activations(1, 4096, h, 8, sequence_parallel=True))
    stage = layers / p * layer
    pairs = int(in_flight("gpipe" if schedule == "GPipe" else "1f1b", rank, p, 1, m))
    key = numeric(
        pairs * stage,
        "GB",
        (m * stage, "That keeps all m micro-batches, as GPipe does."),
        (p * stage, "p in flight is the first rank; rank r of 1F1B holds p - r."),
        (stage, "One micro-batch; the pipeline holds several at its peak."),
        (pairs * layers * layer, "Each stage holds L/p layers."),
        ((pairs + 1) * stage, "One too many: ranks count from 0, and rank r holds p - r."),
        (2 * pairs * stage, "Bytes doubled: 34 s b h is already in bytes."),
    )
    return Body(
        text=f"{layers} layers, hidden {h}, sequence 4096, micro-batch 1, t=8 with sequence parallelism and "
        f"FlashAttention (34 s b h / t bytes a layer). {schedule}, p={p}, m={m}. GB of activations that "
        f"pipeline rank {rank} (of 0 to {p - 1}) holds at its peak?",
        key=key,
        hint="How many micro-batches has this rank begun and not yet differentiated?",
        explanation=Explanation(
            formula="in flight x L/p x 34 s b h / t; in flight = m (GPipe) or min(m, p - r) (1F1B)",
            substitution=f"{pairs} x {layers // p} x {show(layer, 'MB')} = {key.shown}",
            intuition="With 1F1B the first rank is the full one: p micro-batches of L/p layers are one "
            "micro-batch of the whole model, so more stages do not shrink its activations.",
        ),
    )


def _fits(values: Values) -> bool:
    return bool(
        values["rank"] < values["p"] and values["layers"] % values["p"] == 0 and values["m"] >= values["p"]
    )


KINDS = (
    Kind(name="bubble", title="bubble, share of the step, utilisation", topic=TOPIC, level="mid",
         build=bubble_size, follow="m",
         domain={"p": (2, 4, 8, 12, 16, 32), "m": (4, 8, 16, 24, 32, 64, 128), "v": (1, 1, 2, 4),
                 "asked": ("ratio", "share", "used")},
         valid=lambda values: values["m"] % values["p"] == 0 or values["v"] == 1),
    Kind(name="bubble-microbatches", title="micro-batches for a bubble budget", topic=TOPIC, level="mid",
         build=bubble_microbatches, follow="v",
         domain={"p": (4, 6, 8, 12, 16, 32), "budget_pct": (5, 10, 15, 20, 25), "v": (1, 2, 3, 4)}),
    Kind(name="hand-off", title="time of an activation hand-off", topic=TOPIC, level="mid", build=hand_off,
         follow="s",
         domain={"b": (1, 2, 4, 8), "s": (2048, 4096, 8192), "h": (4096, 8192, 12288, 16384),
                 "rate_gb": (12.5, 25, 50, 100)}),
    Kind(name="in-flight", title="pipeline memory in flight", topic=TOPIC, level="senior",
         build=memory_in_flight, follow="rank", valid=_fits,
         domain={"schedule": ("1F1B", "1F1B", "GPipe"), "p": (4, 8, 16), "rank": (0, 1, 2, 3, 5, 7),
                 "m": (16, 32, 64), "layers": (32, 48, 64, 80, 96), "h": (4096, 8192, 12288)}),
)  # fmt: skip


def _reduce_the_bubble() -> tuple[Body, ...]:
    lead = "Where does the pipeline bubble come from and how would you shrink it? With numbers: "
    return noted(bubble_size(8, 32, 1, "used"), lead=lead), bubble_size(8, 32, 4, "used")


def _pipeline_or_fsdp() -> tuple[Body, ...]:
    weights, m = 350 * GB, 32
    gathered = float(book.zero_wire(weights, 64, 3))
    handed = 2 * m * float(book.activation_message(4, 2048, 12288))
    key = numeric(
        gathered / handed,
        "x",
        (2 * gathered / handed, "Gradients of the activations travel back: two sends a micro-batch."),
        (m * gathered / handed, "Every one of the 32 micro-batches is handed on."),
        (gathered / handed * 2 / 3, "ZeRO-3 passes the weights three times: gather, gather, reduce."),
        (gathered / handed / 8, "FSDP over all 64 GPUs gathers the whole model on each."),
    )
    main = Body(
        text="When does a pipeline beat FSDP? Compare what leaves a GPU per step for 175B parameters in "
        "bf16 on "
        "64 GPUs: FSDP over all 64 (one micro-batch) against a middle stage of p=8 that hands on 32 "
        "micro-batches of 4 sequences of 2048 tokens, hidden 12288, forward and backward. By what factor "
        "does FSDP send more?",
        key=key,
        hint="3 (M-1)/M x 2 P against 2 m x 2 s b h.",
        explanation=Explanation(
            formula="ratio = [3 (M-1)/M x 2 P] / [2 m x 2 s b h]",
            substitution=f"{show(gathered, 'GB')} / {show(handed, 'GB')} = {key.shown}",
            intuition="The pipeline wins where the network is slow and the batch large enough for m >= "
            "4 (p - 1); FSDP wins where it is fast, the batch is short, or the layers do not split evenly.",
        ),
    )
    follow = noted(
        mix_state(175, 1, 8, 8, 2),
        intuition="It does not fit in 80 GB: with p=8 alone, gradients are as long as the weights. Add t, or "
        "go deeper.",
        book="The chapter counts 43.75 GB of weights and leaves about 36 GB; the gradients (43.75 GB) and "
        "the "
        "sharded optimizer (32.8 GB) are forgotten.",
    )
    return main, follow


def _zero_bubble_time(p: int) -> Body:
    pass_ms = 10.0
    values = {
        name: float(bubble(name, pass_ms, pass_ms, pass_ms, p, 1, 64)) for name in ("1f1b", "zb-h1", "zb-h2")
    }
    key = numeric(
        values["zb-h1"] / 1e3,
        "ms",
        (values["1f1b"] / 1e3, "That is plain 1F1B, with the weight gradients in the critical path."),
        (0.0, "That is ZB-H2, which pays with about twice the activations in flight."),
        (2 * values["zb-h1"] / 1e3, "Only one pass per stage is left: F + D - W."),
        (p * pass_ms / 1e3, "p - 1 stages wait, not p."),
    )
    return Body(
        text="Forward (F), input-gradient (D) and weight-gradient (W) pass of one micro-batch take 10 ms "
        "each "
        f"on every stage, p={p}, m large. How many ms of bubble does ZB-H1 leave, which keeps 1F1B's memory?",
        key=key,
        hint="The weight gradients fill the drain: what is left per stage is F + D - W.",
        explanation=Explanation(
            formula="1F1B: (p-1)(F + D + W); ZB-H1: (p-1)(F + D - W); ZB-H2: (p-1)(F + D - 2W)",
            substitution=f"{p - 1} x (10 + 10 - 10) ms = {key.shown} (1F1B: {figures(values['1f1b'])} ms)",
            intuition="Only D is on the path to the stage before, so W can wait. What it costs: autograd "
            "split in two, inputs and output gradients kept until W runs, and for ZB-H2 an optimizer step "
            "that is validated afterwards and 2p - 1 micro-batches in flight instead of p. DualPipe "
            "(DeepSeek-V3) runs both directions at once and keeps two copies of the weights.",
        ),
    )


def _zero_bubble() -> tuple[Body, ...]:
    lead = "Describe zero-bubble scheduling and its price. With numbers: "
    return noted(_zero_bubble_time(8), lead=lead), _zero_bubble_time(16)


SYLLABUS = (
    Entry(ident="12.2.2/1", title="the bubble and how to shrink it", topic=TOPIC, level="mid",
          build=_reduce_the_bubble),
    Entry(ident="12.2.2/2", title="pipeline or FSDP", topic=TOPIC, level="senior", build=_pipeline_or_fsdp),
    Entry(ident="12.2.2/3", title="zero-bubble scheduling", topic=TOPIC, level="staff", build=_zero_bubble),
)  # fmt: skip
