"""12.4.2: published configurations, experts, failures. Letters: e expert ranks, k experts a token."""

from __future__ import annotations

from planner.catalog import load_model
from planner.cost import textbook as book
from planner.cost.goodput import (
    FAILURES_PER_GPU_HOUR,
    LLAMA3_UNEXPECTED,
    mean_time_between_failures,
    young_interval,
)
from planner.cost.parameters import layer_parameters, total_parameters
from planner.cost.routing import dispatch_bytes
from planner.practice.kind import Body, Entry, Kind, noted
from planner.practice.quantity import show
from planner.practice.question import Explanation, numeric
from planner.practice.topics.mix import state_bytes
from planner.units import GB

TOPIC = "cases"
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)

PUBLISHED = {
    "Llama 3 405B": (405, 8, 16, 128, 80),
    "Megatron GPT 145B": (145.6, 8, 8, 24, 80),
    "Megatron GPT 310B": (310.1, 8, 16, 15, 80),
    "Megatron GPT 1T": (1008, 8, 64, 6, 80),
}
"""Parameters [billion], t, p, d, HBM [GB]. Sources: arXiv 2407.21783 table 4, arXiv 2104.04473 table 1."""


def least_pipeline(parameters_b: float, d: int, gradient_bytes: int, budget_gb: int) -> Body:
    """Shallowest pipeline whose state fits."""

    def depth(needed: float) -> int:
        return next((p for p in DEPTHS if needed / p <= budget_gb * GB), DEPTHS[-1])

    whole = state_bytes(parameters_b, 8, 1, d, gradient_bytes)
    local = parameters_b * 1e9 / 8
    key = numeric(
        depth(whole),
        "",
        (depth(2 * local), "Weights alone; gradients and optimizer state count too."),
        (depth(whole - gradient_bytes * local), "The gradients are missing."),
        (depth(16 * local), "ZeRO-1 divides the optimizer state over the replicas."),
        (depth(8 * whole), "The tensor ranks divide all of it by 8."),
        exact=True,
    )
    kind = {2: "bf16", 4: "fp32"}[gradient_bytes]
    return Body(
        text=f"{parameters_b:g}B dense parameters, t=8, d={d} with ZeRO-1, Adam, {kind} gradients; "
        f"{budget_gb} "
        "GB a GPU may go to model state. Which is the smallest p (a power of two) that fits?",
        key=key,
        hint="(2 + gradients + 12/d) P / (t p).",
        explanation=Explanation(
            formula="smallest p with (2 + g + 12/d) P / (t p) <= budget",
            substitution=f"{show(whole, 'GB')} at p=1, so p={key.shown}: {show(whole / key.value, 'GB')}",
            intuition="This is how to read a published table backward: t is the node, p is what memory "
            "forces, d is what is left. A deeper p than this has another reason: activations, uneven layers, "
            "or a batch too small for more replicas.",
        ),
    )


_BOOK_405B = (
    "The chapter prints 12.6 GB of weights for both p=8 and p=16, with 80 layers; it is 12.66 and 6.33 GB, "
    "and the "
    "model has 126. It gives d near 125 and 2 M tokens a step; the report has d=128 and 16 sequences of "
    "8,192 a "
    "replica: 16.8 M tokens. m=16 at p=16 breaks m >= 4 (p - 1) and works because the schedule is "
    "interleaved."
)


def read_table(row: str) -> Body:
    """Why a published p is not half of what it is."""
    parameters_b, t, p, d, hbm = PUBLISHED[row]
    here, half = (state_bytes(parameters_b, t, depth, d * p // depth, 4) for depth in (p, p // 2))
    weights = 2 * parameters_b * 1e9 / (t * p // 2)
    key = numeric(
        half,
        "GB",
        (here, "That is the published p; half of it was asked."),
        (weights, "Weights alone; gradients and optimizer state count too."),
        (half * t, "The tensor ranks divide it by t."),
        (state_bytes(parameters_b, t, p // 2, d * 2, 2), "Gradients in fp32 are 4 bytes a parameter."),
        (18 / (t * p // 2) * parameters_b * 1e9, "ZeRO-1 divides the 12 optimizer bytes over the replicas."),
    )
    return Body(
        text=f"{row} was trained with t={t}, p={p}, d={d} on {hbm} GB GPUs. Read the table backward: with "
        "half "
        f"the pipeline (p={p // 2}) and twice the replicas, how many GB of model state would each GPU hold "
        "(bf16 weights, fp32 gradients, 12 bytes of optimizer over the replicas)?",
        key=key,
        hint="(2 + 4 + 12/d) P / (t p).",
        explanation=Explanation(
            formula="state = (2 + 4 + 12/d) P / (t p)",
            substitution=f"p={p // 2}, d={2 * d}: {key.shown}; as published: {show(here, 'GB')}",
            intuition=f"Of {hbm} GB. t={t} is the NVLink domain and may not grow; what state and "
            "activations of "
            "up to p micro-batches need beyond it has to come from depth, and the rest is replicas. A "
            "pipeline deeper than state alone asks for leaves room to skip recomputation.",
            book=_BOOK_405B if row == "Llama 3 405B" else "",
        ),
    )


def expert_all_to_all(tokens: int, k: int, h: int, e: int, width: int, rate_gb: float) -> Body:
    """Time of one plain expert all-to-all."""
    sent = float(book.gather_wire(tokens * k * h * width, e))
    time = float(book.transfer_time(sent, rate_gb * GB))
    key = numeric(
        time,
        "ms",
        (time / k, "Each token goes to k experts: k copies."),
        (2 * time, "One direction was asked; the combine is the second all-to-all."),
        (time * e / (e - 1), "1/e of the tokens stay on the rank."),
        (time * (2 if width == 1 else 0.5), "fp8 has one byte an element, bf16 has two."),
        (time / e, "All of a rank's tokens leave, each to its experts, not an e-th of them."),
    )
    kind = {1: "fp8", 2: "bf16"}[width]
    return Body(
        text=f"A rank dispatches {tokens} tokens (hidden {h}, {kind}) to their top-{k} experts over e={e} "
        "ranks "
        f"by a plain all-to-all at {rate_gb:g} GB/s. How many ms for this one direction?",
        key=key,
        hint="k copies of each token, (e-1)/e of them leave.",
        explanation=Explanation(
            formula="T = tokens k h bytes (e-1)/e / rate",
            substitution=f"{show(sent, 'MB')} / {rate_gb:g} GB/s = {key.shown}",
            intuition="Four of these a layer (dispatch and combine, forward and backward), and they do not "
            "shrink with e. Hence kernels that send a token once per node, fp8 dispatch, and schedules that "
            "overlap them.",
        ),
    )


def deduplicated(tokens: int, k: int, h: int, nodes: int, limit: int) -> Body:
    """Bytes between nodes when a token goes once to each node."""
    sent = float(dispatch_bytes(tokens, h, k, nodes, 1.0, limit))
    one = tokens * h * 1.0
    expected = nodes * (1 - (1 - 1 / nodes) ** k)
    key = numeric(
        sent,
        "MB",
        (k * one * (nodes - 1) / nodes, "A copy for each expert; one for each node suffices."),
        (min(expected, limit) * one, "One of the nodes is the own one: (n-1)/n of the copies leave."),
        (expected * one * (nodes - 1) / nodes, f"Routing is limited to {limit} nodes."),
        (2 * sent, "fp8 has one byte an element."),
    )
    return Body(
        text=f"A rank dispatches {tokens} tokens (hidden {h}, fp8) to top-{k} experts spread evenly over "
        f"{nodes} "
        f"nodes. Each token goes once to each node that needs it, at most {limit} nodes. MB that cross nodes "
        "(on average; n (1 - (1 - 1/n)^k) distinct nodes are hit)?",
        key=key,
        hint="min(expected nodes, limit) copies, (n-1)/n of them remote.",
        explanation=Explanation(
            formula="min(n (1 - (1 - 1/n)^k), limit) x (n-1)/n x tokens h",
            substitution=f"min({expected:.3f}, {limit}) x {nodes - 1}/{nodes} x {show(one, 'MB')} = "
            f"{key.shown}",
            intuition="Distinct destinations, not experts, load the network: why DeepSeek-V3 limits a token "
            "to 4 nodes and copies inside the node over NVLink.",
        ),
    )


def failures(gpus: int) -> Body:
    """Mean time between failures of a job."""
    mean = float(mean_time_between_failures(gpus))
    key = numeric(
        mean,
        "h",
        (mean * LLAMA3_UNEXPECTED / 466, "466 includes planned interruptions; 419 were unexpected."),
        (mean * LLAMA3_UNEXPECTED / 148, "148 were faulty GPUs; all unexpected interruptions stop the job."),
        (float(mean_time_between_failures(16384)), "That is for 16,384 GPUs."),
        (mean * (gpus / 16384) ** 2, "More GPUs fail more often: it goes with 1/N."),
    )
    return Body(
        text="Llama 3 405B saw 419 unexpected interruptions in 54 days on 16,384 GPUs (466 with planned "
        "ones, "
        f"148 of them faulty GPUs). Same failure rate per GPU: hours between interruptions on {gpus} GPUs?",
        key=key,
        hint="Interruptions per GPU-hour times GPUs.",
        explanation=Explanation(
            formula="M = 54 x 24 h x 16384 / (419 N)",
            substitution=f"1 / ({FAILURES_PER_GPU_HOUR:.3g} per GPU-hour x {gpus}) = {key.shown}",
            intuition="Any one of N stops all: the mean time between failures falls with 1/N, so restart "
            "time "
            "and checkpoint interval become design parameters.",
            book="The chapter names 148 only, which are the faulty GPUs.",
        ),
    )


def checkpoint_interval(gpus: int, blocking_s: int) -> Body:
    """Young's checkpoint interval."""
    mean = float(mean_time_between_failures(gpus))
    best = float(young_interval(blocking_s, mean))
    key = numeric(
        best,
        "min",
        ((blocking_s * mean) ** 0.5, "The 2 is missing: on average half an interval is lost."),
        (mean, "That is the time between failures: half a run would be lost each time."),
        (2 * best, "sqrt(2 delta M), not 2 sqrt(2 delta M)."),
    )
    return Body(
        text=f"{gpus} GPUs fail like Llama 3's (one unexpected interruption every "
        f"{show(mean, 'h')}). A checkpoint stops training for {blocking_s} s. Minutes between checkpoints "
        "that "
        "waste least (Young)?",
        key=key,
        hint="Balance delta/tau against tau/2M.",
        explanation=Explanation(
            formula="tau = sqrt(2 delta M)",
            substitution=f"sqrt(2 x {blocking_s} s x {show(mean, 's')}) = {key.shown}",
            intuition="Asynchronous checkpoints shrink delta and pay with the root: a quarter of the pause "
            "halves both the interval and the waste.",
        ),
    )


KINDS = (
    Kind(name="least-pipeline", title="shallowest pipeline that fits", topic=TOPIC, level="senior",
         build=least_pipeline, follow="gradient_bytes",
         domain={"parameters_b": (100, 175, 310, 405, 530, 671, 1000), "d": (8, 16, 64, 128),
                 "gradient_bytes": (2, 4), "budget_gb": (20, 30, 40, 50)}),
    Kind(name="read-table", title="a published table read backward", topic=TOPIC, level="staff",
         build=read_table, follow="row", domain={"row": tuple(PUBLISHED)}),
    Kind(name="expert-all-to-all", title="expert all-to-all", topic=TOPIC, level="senior",
         build=expert_all_to_all, follow="width",
         domain={"tokens": (2048, 4096, 8192), "k": (2, 4, 6, 8), "h": (2048, 4096, 7168),
                 "e": (8, 16, 32, 64), "width": (1, 2), "rate_gb": (25, 50, 450)}),
    Kind(name="expert-nodes", title="deduplicated expert dispatch", topic=TOPIC, level="staff",
         build=deduplicated, follow="limit",
         domain={"tokens": (2048, 4096, 8192), "k": (4, 6, 8), "h": (4096, 7168), "nodes": (4, 8, 16),
                 "limit": (2, 3, 4, 8)}),
    Kind(name="failures", title="time between failures", topic=TOPIC, level="mid", build=failures,
         follow="gpus", domain={"gpus": (512, 1024, 2048, 4096, 8192, 24576, 32768, 65536, 100000)}),
    Kind(name="checkpoint", title="checkpoint interval", topic=TOPIC, level="staff",
         build=checkpoint_interval, follow="blocking_s",
         domain={"gpus": (1024, 4096, 8192, 16384, 32768), "blocking_s": (5, 10, 30, 60, 120, 300)}),
)  # fmt: skip


def _no_tensor_parallelism() -> tuple[Body, ...]:
    model = load_model("deepseek-v3")
    experts = sum(float(layer_parameters(model, kind).routed_experts) for kind in model.layer_kinds)
    total = float(total_parameters(model))
    key = numeric(
        experts / total,
        "%",
        (1 - experts / total, "That is what is left for tensor parallelism to divide."),
        (37 / 671, "That is the active share of a token, not of the weights."),
    )
    text = (
        "DeepSeek-V3 uses no tensor parallelism. Why not? Back it with a number: which share (in %) of its "
        "671B "
        "parameters are routed experts (58 layers of 256, each three matrices of 7168 x 2048)?"
    )
    main = Body(
        text=text,
        key=key,
        hint="58 x 256 x 3 x 7168 x 2048.",
        explanation=Explanation(
            formula="share = L_moe E 3 h f_e / P",
            substitution=f"58 x 256 x 3 x 7168 x 2048 / {total / 1e9:.1f}e9 = {key.shown}",
            intuition="Expert parallelism (e=64 over 8 nodes, 4 experts a rank) divides almost everything "
            "there "
            "is to divide. t would cut the thin rest, at the price of four collectives in every layer and "
            "narrower products.",
        ),
    )
    return main, expert_all_to_all(4096, 8, 7168, 64, 1, 50)


def _stage_activations(c: int) -> Body:
    size = 8 * float(book.layer_activations(1, 131072, 16384, 8, sequence_parallel=True)) / c
    key = numeric(
        size,
        "GB",
        (size * 8, "Sequence parallelism splits it over t=8."),
        (size / 8, "The stage has 8 layers."),
        (size / 16 * c if c == 1 else size * c, "Check the sequence and the context ranks: s/c tokens."),
        (2 * size, "Bytes doubled: 34 s b h is in bytes."),
    )
    return Body(
        text="Llama 3 405B (hidden 16384) at 131072 tokens, t=8 with sequence parallelism, 8 layers a "
        "stage, "
        f"c={c}. GB of activations of one micro-batch of one sequence (34 s b h / t a layer)?",
        key=key,
        hint="34 x s/c x h / 8 x 8 layers.",
        explanation=Explanation(
            formula="8 layers x 34 (s/c) b h / t",
            substitution=f"8 x 34 x {131072 // c} x 16384 / 8 = {key.shown}",
            intuition="Linear in s, times the micro-batches in flight. At 8,192 tokens it is a sixteenth and "
            "fits without splitting the sequence, so c=1 saves the exchange of K and V.",
            book="The chapter blames quadratic activation memory and 4,096 tokens with c=8; with a fused "
            "kernel "
            "only compute is quadratic, and the report trained at 8,192 tokens and used c=16 for 131,072.",
        ),
    )


def _only_long_context() -> tuple[Body, ...]:
    lead = "Why does Llama 3 use context parallelism only in its long-context phase? "
    return noted(_stage_activations(1), lead=lead), _stage_activations(16)


def _trillion(v: int) -> Body:
    m = book.microbatches_for_bubble(32, 0.25, v)
    key = numeric(
        m,
        "",
        (-(-128 // v), "4 p is more than needed: p - 1 stages wait."),
        (book.microbatches_for_bubble(32, 0.2, v), "That is for 20 % of the ideal time."),
        (book.microbatches_for_bubble(32, 0.25, 1), "Interleaving divides the bubble by v."),
        exact=True,
    )
    schedule = "1F1B" if v == 1 else f"interleaved with v={v}"
    return Body(
        text=f"A 1T dense model with t=8, p=32, {schedule}: how many micro-batches does each replica need "
        "for a "
        "bubble of at most 25 % of the ideal time?",
        key=key,
        hint="(p-1)/(m v) <= 0.25.",
        explanation=Explanation(
            formula="m >= (p - 1) / (0.25 v)",
            substitution=f"31 / (0.25 x {v}), rounded up = {key.shown}",
            intuition="Worry about batch first: times d replicas this is the global batch. Then about "
            "failures: tens of thousands of GPUs stop every hour or so, so restart and checkpoints are part "
            "of the design. Interleaving or zero-bubble schedules buy the batch back.",
            book="The chapter says 128 for under 20 % idle time; relative to the ideal time that is 24 %, "
            "as a "
            "share of the step 19.5 %.",
        ),
    )


def _one_trillion() -> tuple[Body, ...]:
    lead = (
        "Propose a configuration for a 1T dense model and say what worries you most. The number behind it: "
    )
    return noted(_trillion(1), lead=lead), _trillion(4), failures(32768)


SYLLABUS = (
    Entry(ident="12.4.2/1", title="DeepSeek-V3 without tensor parallelism", topic=TOPIC, level="senior",
          build=_no_tensor_parallelism),
    Entry(ident="12.4.2/2", title="context parallelism in Llama 3", topic=TOPIC, level="senior",
          build=_only_long_context),
    Entry(ident="12.4.2/3", title="a 1T dense model", topic=TOPIC, level="staff", build=_one_trillion),
)  # fmt: skip
