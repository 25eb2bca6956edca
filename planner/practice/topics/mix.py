"""12.4.1: choosing a mix. Letters: N GPUs, P parameters, t tensor, p pipeline, d data ranks."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from random import Random

from planner.cost import textbook as book
from planner.cost.goodput import batch_efficiency, critical_batch_tokens
from planner.practice.kind import Body, Entry, Kind, Values, noted
from planner.practice.plan_text import complete, plan_words
from planner.practice.quantity import figures, show
from planner.practice.question import Choice, Design, Explanation, Option, numeric
from planner.practice.setting import SPACE, plan_request
from planner.rules import check
from planner.solver.evaluate import evaluate
from planner.solver.result import Estimate
from planner.spec import Plan, PlanRequest
from planner.units import GB, format_bytes

TOPIC = "mix"


def state_bytes(parameters_b: float, t: int, p: int, d: int, gradient_bytes: int) -> float:
    """Weights, gradients and ZeRO-1 optimizer state of one GPU. [byte]."""
    per = float(book.zero_bytes_per_parameter(1, d)) - book.BF16_BYTES + gradient_bytes
    return per * parameters_b * 1e9 / (t * p)


def mix_state(parameters_b: float, t: int, p: int, d: int, gradient_bytes: int) -> Body:
    """Model state under t, p, d and ZeRO-1."""
    local = parameters_b * 1e9 / (t * p)
    value = state_bytes(parameters_b, t, p, d, gradient_bytes)
    key = numeric(
        value,
        "GB",
        ((2 + gradient_bytes) * local + 12 / d * parameters_b * 1e9,
         "The optimizer state is divided over t and p as well as over the replicas."),
        (2 * local, "Weights alone; gradients and optimizer state count too."),
        (value - gradient_bytes * local, "The gradients are missing."),
        ((14 + gradient_bytes) * local, "ZeRO-1 divides the optimizer state over the d replicas."),
        (((2 + gradient_bytes) + 12 / d) * parameters_b * 1e9, "t and p divide all of it."),
        (value + (2 if gradient_bytes == 2 else -2) * local, "bf16 gradients have 2 bytes, fp32 ones 4."),
    )  # fmt: skip
    kind = {2: "bf16", 4: "fp32"}[gradient_bytes]
    return Body(
        text=f"{parameters_b:g}B parameters, t={t}, p={p}, d={d}, ZeRO-1, Adam, bf16 weights and {kind} "
        "gradients, equal stages. GB of model state per GPU?",
        key=key,
        hint=f"(2 + {gradient_bytes} + 12/d) P / (t p).",
        explanation=Explanation(
            formula=f"state = (2 + {gradient_bytes} + 12/d) P / (t p)",
            substitution=f"(2 + {gradient_bytes} + 12/{d}) x {parameters_b:g}e9 / ({t} x {p}) = {key.shown}",
            intuition="Many replicas make the optimizer cheap; weights and gradients are then what t and p "
            "are for.",
            book="For 70B with t=8, d=32 the chapter prints 52.5 GB, dividing the optimizer over d but not "
            "over "
            "t; it is 38.3 GB with bf16 gradients, 55.8 GB with fp32 ones.",
        ),
    )


def mix_sync(parameters_b: float, t: int, p: int, d: int, rate_gb: float) -> Body:
    """Gradient sync under t and p."""
    local = 2 * parameters_b * 1e9 / (t * p)
    time = float(book.transfer_time(book.ring_all_reduce_wire(local, d), rate_gb * GB))
    key = numeric(
        time,
        "s",
        (2 * parameters_b * 1e9 / d / (rate_gb * GB), "The whole model over d is a shard, not the traffic."),
        (time * t * p, "Each rank has only its P/(t p) parameters."),
        (2 * local / (rate_gb * GB), "Nominal: the ring moves (d-1)/d of it."),
        (time / 2, "Reduce-scatter and all-gather: two passes (or: bf16 has 2 bytes)."),
        (local / d / (rate_gb * GB), "That is the rank's own shard; all the others pass through as well."),
    )
    return Body(
        text=f"{parameters_b:g}B parameters, t={t}, p={p}, d={d}, ZeRO-1 with bf16 gradients, {rate_gb:g} "
        "GB/s a "
        "GPU between replicas. Seconds for the gradient reduce-scatter and weight all-gather of a step "
        "(bandwidth only)?",
        key=key,
        hint="2 (d-1)/d of this rank's bf16 gradients.",
        explanation=Explanation(
            formula="T = 2 (d-1)/d x 2 P / (t p) / rate",
            substitution=f"2 x {d - 1}/{d} x {show(local, 'GB')} / {rate_gb:g} GB/s = {key.shown}",
            intuition="Once a step, and most of it behind the last micro-batch's backward pass.",
            book="The chapter divides the whole gradient by d (140/32 = 4.4 GB, 175 ms); each rank sends "
            "33.9 GB "
            "in that example, 1.36 s.",
        ),
    )


def step_compute(parameters_b: float, batch: int, s: int, gpus: int, used_pct: int) -> Body:
    """Compute time of a step at an MFU."""
    flop = float(book.training_flop(parameters_b * 1e9, batch * s))
    time = float(book.compute_time(flop, gpus * 989e12, used_pct / 100))
    key = numeric(
        time,
        "s",
        (time / 3, "2 P is the forward pass; backward is twice that."),
        (time * 4 / 3, "8 P is with full recomputation, which MFU does not count."),
        (time * used_pct / 100, "At peak; the GPUs reach part of it."),
        (time / s, "Tokens, not sequences."),
        (time * gpus, "All GPUs share the work."),
    )
    return Body(
        text=f"{parameters_b:g}B dense parameters, {batch} sequences of {s} tokens a step, {gpus} H100s (989 "
        f"TFLOP/s) at {used_pct} % MFU. Seconds a step (6 P FLOP a token)?",
        key=key,
        hint="6 P tokens over N peak MFU.",
        explanation=Explanation(
            formula="T = 6 P B s / (N peak MFU)",
            substitution=f"{flop:.3g} FLOP / ({gpus} x 989e12 x {used_pct / 100:g}) = {key.shown}",
            intuition="Do this first in any design: it tells how much communication a step can hide.",
            book="The chapter gives 200 to 250 ms for 70B on 256 GPUs with 2048 x 4096 tokens; it is 31 s at "
            "45 % MFU. That the gradient sync hides behind it is all the truer.",
        ),
    )


_PROBLEMS = {
    "Llama 3 8B on 8 H100s": ("llama-3-8b", 8, 64, 8192),
    "Llama 2 13B on 32 H100s": ("llama-2-13b", 32, 128, 4096),
    "Llama 3 70B on 64 H100s": ("llama-3-70b", 64, 128, 8192),
}


def _plans(request: PlanRequest) -> list[Plan]:
    """Candidates of a request, legal or not: degrees with the rest filled in plainly."""
    gpus = request.cluster.num_gpus
    plans = []
    for t, p, zero, recompute in product((1, 2, 4, 8, 16), (1, 2, 3, 4, 8), (0, 1, 3), ("none", "full")):
        if gpus % (t * p) == 0:
            said = {"tensor_parallel": t, "pipeline_parallel": p, "zero_stage": zero, "recompute": recompute}
            plans.append(complete(said, request))
    return plans


@lru_cache(maxsize=8)
def _sort_out(problem: str) -> tuple[list[Plan], list[Plan]]:
    """Legal plans, and plans that break exactly one rule."""
    request = plan_request(*_PROBLEMS[problem])
    broken = [(plan, check(plan, request)) for plan in _plans(request)]
    return [plan for plan, found in broken if not found], [plan for plan, found in broken if len(found) == 1]


def illegal_plan(problem: str, pick: int) -> Body:
    """Which of four plans is illegal."""
    request = plan_request(*_PROBLEMS[problem])
    legal, illegal = _sort_out(problem)
    random = Random(pick)
    shown = [random.choice(illegal), *random.sample(legal, 3)]
    random.shuffle(shown)
    options = []
    for plan in shown:
        broken = check(plan, request)
        peak = format_bytes(evaluate(plan, request).peak_memory_bytes)
        why = str(broken[0]) if broken else f"Legal, and it fits: {peak} at the fullest rank."
        options.append(Option(plan_words(plan), why))
    right = next(index for index, plan in enumerate(shown) if check(plan, request))
    return Body(
        text=f"{problem}, global batch {request.workload.global_batch} sequences of "
        f"{request.workload.seq_length}, bubble at most 25 % of the ideal time. Plans may choose {SPACE}. "
        "Which "
        "of these is illegal or does not fit?",
        key=Choice(options=tuple(options), right=right),
        hint="Check products, divisibility, the bubble, then memory.",
        explanation=Explanation(
            formula="t p d = N; d b m = batch; heads, layers divide; m >= 4 (p - 1); state + activations < "
            "HBM",
            substitution=options[right].why,
            intuition="Run the cheap checks first; memory is the one that needs a calculation.",
        ),
    )


@lru_cache(maxsize=8)
def _priced(problem: str) -> list[tuple[Estimate, Plan]]:
    """Legal plans with their prices, fastest first."""
    request = plan_request(*_PROBLEMS[problem])
    legal, _ = _sort_out(problem)
    return sorted(((evaluate(plan, request), plan) for plan in legal), key=lambda pair: pair[0].step_time_s)


def fastest_plan(problem: str, pick: int) -> Body:
    """Which of three legal plans is fastest."""
    request = plan_request(*_PROBLEMS[problem])
    priced = _priced(problem)
    random = Random(pick)
    best = random.choice(priced[: len(priced) // 3 + 1])
    slower = [pair for pair in priced if pair[0].step_time_s > 1.08 * best[0].step_time_s]
    shown = [best, *random.sample(slower, 2)]
    random.shuffle(shown)
    options = []
    for estimate, plan in shown:
        terms = sorted(estimate.time.as_dict().items(), key=lambda term: -term[1])
        named = ", ".join(
            f"{name.removesuffix('_s').replace('_', ' ')} {value:.2f} s" for name, value in terms[:4]
        )
        options.append(Option(plan_words(plan), f"{estimate.step_time_s:.2f} s a step: {named}."))
    right = shown.index(best)
    return Body(
        text=f"{problem}, global batch {request.workload.global_batch} sequences of "
        f"{request.workload.seq_length}. All three plans are legal and fit. Which is the fastest?",
        key=Choice(options=tuple(options), right=right),
        hint="Recomputation costs a third; t costs collectives in every layer; p costs a bubble.",
        explanation=Explanation(
            formula="step = busy time + bubble + what communication cannot hide",
            substitution=" / ".join(option.why for option in options),
            intuition="Use as little model parallelism as memory allows, and recompute only when memory "
            "asks.",
        ),
    )


def optimum(problem: str) -> Body:
    """Design question, graded by the solver."""
    request = plan_request(*_PROBLEMS[problem])
    return Body(
        text=f"Find the best plan for {problem}: global batch {request.workload.global_batch} sequences of "
        f"{request.workload.seq_length} tokens, bubble at most 25 % of the ideal time. Choose among: "
        f"{SPACE}. "
        "Answer like: t=2 p=1 d=4 zero=1 b=1 recompute=none",
        key=Design(request=request),
        hint="State first (18 bytes a parameter, optimizer over the replicas), then activations of one "
        "micro-batch, then take the least model parallelism that fits.",
    )


def _all_differ(values: Values) -> bool:
    return bool(values["t"] * values["p"] > 1)


KINDS = (
    Kind(name="mix-state", title="model state under a mix", topic=TOPIC, level="mid", build=mix_state,
         follow="d", valid=_all_differ,
         domain={"parameters_b": (30, 70, 100, 175, 405, 530), "t": (1, 2, 4, 8), "p": (1, 2, 4, 8, 16),
                 "d": (4, 8, 16, 32, 64), "gradient_bytes": (2, 4)}),
    Kind(name="mix-sync", title="gradient sync under a mix", topic=TOPIC, level="senior", build=mix_sync,
         follow="p", valid=_all_differ,
         domain={"parameters_b": (30, 70, 100, 175, 405), "t": (2, 4, 8), "p": (1, 2, 4, 8),
                 "d": (4, 8, 16, 32, 64), "rate_gb": (12.5, 25, 50)}),
    Kind(name="step-compute", title="compute time of a step", topic=TOPIC, level="mid", build=step_compute,
         follow="gpus",
         domain={"parameters_b": (7, 13, 70, 100, 405), "batch": (512, 1024, 2048), "s": (2048, 4096, 8192),
                 "gpus": (64, 128, 256, 512, 1024), "used_pct": (35, 40, 45, 50)}),
    Kind(name="illegal-plan", title="find the illegal plan", topic=TOPIC, level="senior", build=illegal_plan,
         follow="pick", domain={"problem": tuple(_PROBLEMS), "pick": range(100)}),
    Kind(name="fastest-plan", title="find the fastest plan", topic=TOPIC, level="staff", build=fastest_plan,
         follow="pick", domain={"problem": tuple(_PROBLEMS), "pick": range(100)}),
    Kind(name="optimum", title="best plan for a model and cluster", topic=TOPIC, level="staff", build=optimum,
         follow="problem", domain={"problem": tuple(_PROBLEMS)}),
)  # fmt: skip


def _hundred_billion() -> tuple[Body, ...]:
    request = plan_request("100b", 512, 2048, 4096)
    main = Body(
        text="Design the parallelism for a 100B dense transformer on 512 H100s: global batch 2048 "
        "sequences of "
        f"4096 tokens, bubble at most 25 % of the ideal time. Choose among: {SPACE}. "
        "Answer like: t=8 p=1 d=64 zero=1 b=1 recompute=full",
        key=Design(request=request),
        hint="t=8, d=64 with ZeRO-1 holds how much state with fp32 gradients? And which activations?",
    )
    low = noted(
        mix_state(100, 8, 1, 64, 2),
        intuition="With 14.3 GB of activations (34 s b h / t, 80 layers, one sequence of 4096) it fits 80 "
        "GB, "
        "with fp32 gradients (77.3 GB) it does not: say which gradients you assume.",
        book="The chapter counts 25 GB of weights and calls it a fit without a pipeline; gradients and "
        "optimizer "
        "state are left out.",
    )
    return main, low, mix_state(100, 8, 1, 64, 4)


def _data_parallel_limit(gpus: int) -> Body:
    batch = gpus * 4096
    critical = float(critical_batch_tokens(1e12))
    key = numeric(
        batch_efficiency(batch, critical),
        "%",
        (batch / critical, "That is B over the critical batch; the efficiency is 1 / (1 + that)."),
        (1 - float(batch_efficiency(batch, critical)), "That is the share that is wasted."),
        (batch_efficiency(gpus, critical), "Tokens, not sequences: 4096 each."),
    )
    return Body(
        text=f"Pure data parallelism on {gpus} GPUs with one sequence of 4096 tokens each. The critical "
        "batch of a "
        f"1T-token run is about {critical / 1e6:.1f} M tokens. Which share (in %) of the tokens still does "
        "its "
        "work, by 1 / (1 + B / B_crit)?",
        key=key,
        hint="B is GPUs times 4096.",
        explanation=Explanation(
            formula="share = 1 / (1 + N s / B_crit)",
            substitution=f"1 / (1 + {batch / 1e6:.2f} / {critical / 1e6:.2f}) = {key.shown}",
            intuition="The batch runs out before the GPUs do. Besides: without sharding each GPU holds 16 "
            "bytes "
            "a parameter, with it three passes over the weights cross the whole network, and one straggler "
            "or failure in 10,000 stops all. Splitting the model lets several GPUs share one sequence.",
        ),
    )


def _ten_thousand() -> tuple[Body, ...]:
    lead = "Why not scale data parallelism alone to 10,000 GPUs? One of the reasons in numbers: "
    return noted(_data_parallel_limit(10000), lead=lead), _data_parallel_limit(1250)


def _handed_on(m: int) -> Body:
    one = float(book.activation_message(1, 8192, 16384)) / 8
    key = numeric(
        2 * m * one,
        "GB",
        (m * one, "Gradients of the activations travel back as well."),
        (16 * m * one, "With sequence parallelism each of the 8 tensor ranks sends its eighth."),
        (2 * one, "That is one micro-batch."),
        (m * one / 2, "bf16 has 2 bytes, and there are two directions."),
    )
    return Body(
        text=f"405B (hidden 16384), t=8 with sequence parallelism, p=16, m={m} micro-batches of one "
        "sequence of "
        "8192, one chunk a stage. GB that a GPU of a middle stage sends to its pipeline neighbours per step?",
        key=key,
        hint="2 s b h / t bytes, m times, forward and backward.",
        explanation=Explanation(
            formula="2 m x 2 s b h / t",
            substitution=f"2 x {m} x {show(one, 'MB')} = {key.shown}",
            intuition="Fewer bytes than the gradient sync, but every one of them is waited for: hand-offs "
            "lie on the pipeline's critical path (2 (p-1) of them in fill and drain), while the gradients "
            "cross once a step behind the backward pass. So keep the stages of a replica in one pod, with "
            "consecutive ones next to each other, and let the replicas be what spans the spine.",
        ),
    )


def _spine() -> tuple[Body, ...]:
    lead = "A 405B run spans several spine switches. Which groups do you keep below one? Compare traffic: "
    sync = float(book.ring_all_reduce_wire(2 * 405e9 / 128, 128))
    key = numeric(
        sync,
        "GB",
        (sync * 128, "Each rank has P/(t p) parameters."),
        (sync / 2, "Two passes: reduce-scatter and all-gather."),
        (2 * 405e9 / 128, "That is the size of the gradients, not what leaves the GPU."),
    )
    follow = Body(
        text="Same run with d=128 and ZeRO-1 (bf16 gradients): GB that leave each GPU for the gradient "
        "reduce-scatter and weight all-gather of a step?",
        key=key,
        hint="2 (d-1)/d x 2 P / (t p).",
        explanation=Explanation(
            formula="2 (d-1)/d x 2 P / (t p)",
            substitution=f"2 x 127/128 x {figures(2 * 405 / 128)} GB = {key.shown}",
            intuition="More bytes than the hand-offs, once a step, and hidden: this is what may cross the "
            "spine.",
        ),
    )
    return noted(_handed_on(16), lead=lead), follow


SYLLABUS = (
    Entry(ident="12.4.1/1", title="100B on 512 H100s", topic=TOPIC, level="staff", build=_hundred_billion),
    Entry(ident="12.4.1/2", title="10,000 GPUs of data parallelism", topic=TOPIC, level="senior",
          build=_ten_thousand),
    Entry(ident="12.4.1/3", title="pipeline placement over spines", topic=TOPIC, level="senior",
          build=_spine),
)  # fmt: skip
