"""The single changes that could make a plan possible, each kind as a ladder: the nearest change first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.catalog.defaults import default_global_batch
from planner.catalog.training import (
    MASTER_BYTES,
    MOMENTS_BYTES,
    with_fine_tuning,
    with_loss,
    with_optimizer,
)
from planner.explain.changes import with_domain, with_num_gpus
from planner.rules.batch import BATCH_RULES
from planner.rules.framework import FRAMEWORK_RULES
from planner.rules.rank_order import RANK_ORDER_RULES
from planner.rules.schedule import SCHEDULE_RULES
from planner.rules.stages import STAGE_RULES
from planner.spec import FrameworkProfile, Pin, PlanRequest

MEMORY = "every_stage_fits_in_memory"
BUBBLE = "bubble_stays_within_budget"
DOMAIN = "tensor_ranks_stay_inside_the_fast_domain"
FILLED = "ranks_fill_the_cluster"

GROWTH = (1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
"""Multiples of the cluster, the domain or the batch that are tried, smallest first."""
SHRINKING = (0.75, 0.5, 0.25, 0.125)
"""Parts of the sequence or the batch that are tried, largest first."""
BUDGETS = (5, 10, 20, 30, 50, 100, 200, 500, 1000, 10_000)
"""Bubble budgets that are tried, smallest first. [% of the ideal time]"""
PIPELINE_ROUNDS = 24
"""Batches of whole rounds of a pinned pipeline that are tried."""
ROUND_NUMBERS = tuple(odd << power for odd in (1, 3, 5, 7) for power in range(11))
"""A sequence that does not divide is rounded to multiples of these."""
SEQUENCE_STEPS = 16
"""The longest sequence that works is found to so many parts of the one asked for."""

OPTIMIZERS = ("adam-bf16", "adam-8bit")
"""Optimizers with less state than fp32 Adam that are tried, the most like it first."""

ALIKE = {
    "unsharded_state_has_no_shard_group",
    "shard_groups_divide_the_expert_replicas",
    "optimizer_offload_needs_sharding",
    "pipelines_and_only_pipelines_have_a_schedule",
    "chunks_suit_the_schedule",
    "dualpipe_ranks_are_even",
    "dualpipe_has_enough_microbatches",
    "bubble_stays_within_budget",
    "rank_order_has_two_axes_to_order",
    "far_replicas_hold_every_expert",
}
"""Rules about schedules, sharding and orders that are the same in every framework."""
SHAPES_OF_FRAMEWORKS = {
    "kv_heads_divide_over_tensor_ranks",
    "vocabulary_divides_over_tensor_ranks",
    "sequence_divides_over_context_ranks",
    "heads_divide_over_all_to_all_ranks",
    "linear_heads_divide_over_tensor_ranks",
    "linear_mixers_work_over_context_ranks",
    "linear_heads_divide_over_context_ranks",
    "low_precision_linear_widths_are_aligned",
    "sequence_divides_over_sequence_ranks",
    "tensor_ranks_need_sequence_parallelism",
    "experts_with_tensor_ranks_need_sequence_parallelism",
    "expert_tensor_ranks_suit_the_framework",
    "framework_has_expert_parallelism",
}
"""Rules about the model's shape that frameworks see differently."""
OF_FRAMEWORKS = (
    {rule.name for rule in (*FRAMEWORK_RULES, *SCHEDULE_RULES, *STAGE_RULES, *RANK_ORDER_RULES)} - ALIKE
    | SHAPES_OF_FRAMEWORKS
    | {MEMORY}
)
"""Rules of which another framework may think differently."""
OF_SEQUENCES = {
    "sequence_divides_over_context_ranks",
    "sequence_divides_over_sequence_ranks",
    "low_precision_rows_are_aligned",
}
"""Rules that another length of the sequence may satisfy."""
OF_BATCHES = {rule.name for rule in BATCH_RULES}
OF_MICROBATCHES = OF_BATCHES | {
    BUBBLE,
    "dualpipe_has_enough_microbatches",
    "microbatches_fill_interleaved_rounds",
    "microbatches_cover_the_pipeline",
}
"""Rules that another batch may satisfy."""

DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
"""Their product is the number of GPUs that a plan uses."""

Step = tuple[str, PlanRequest]
"""What to type, and the request that results."""


@dataclass(frozen=True)
class Ladder:
    """Values of one number (or choices of one kind) to try, and what to say where none of them helps.

    Between the last value that does not work and the first that does, multiples of ``unit`` are tried as
    well (0: the values are all there are).
    """

    kind: str
    values: tuple[Any, ...]
    at: Callable[[Any], Step]
    what: str
    """The kind of change in words: ``more GPUs (up to 8192)``."""
    unit: int = 0
    now: int = 0
    """The number today."""


def ladders(
    request: PlanRequest, conflict: Sequence[str], frameworks: Sequence[FrameworkProfile] = ()
) -> Iterator[Ladder]:
    """Every kind of change that touches the conflict.

    Parameters
    ----------
    conflict
        Names of the conflicting rules.
    frameworks
        Frameworks that could be used instead.
    """
    touches, memory = set(conflict), MEMORY in conflict
    yield from _pins(request, conflict)
    if BUBBLE in conflict:
        yield _bubbles(request)
    if DOMAIN in conflict:
        yield _across_nodes(request)
        yield _domains(request)
    if memory or touches & (OF_BATCHES | {FILLED}):
        yield more_gpus(request)
    if memory:
        yield _sequences(request)
    if touches & OF_SEQUENCES:
        yield _near_sequences(request)
    if touches & OF_MICROBATCHES:
        yield _batches(request)
    if FILLED in touches:
        yield from _idle(request)
    if memory:
        yield from _leaner_training(request)
    if frameworks and touches & OF_FRAMEWORKS:
        yield _frameworks(request, frameworks)  # last: there are many, each a space of its own


def _pins(request: PlanRequest, conflict: Sequence[str]) -> Iterator[Ladder]:
    for pin in request.pins:
        if f"pin:{pin.option}" in conflict:
            yield Ladder("pin", (pin,), lambda pin: without_pin(request, pin), f"dropping {pin.option}")


def _idle(request: PlanRequest) -> Iterator[Ladder]:
    if not request.allow_idle and _fits_the_cluster(request):
        step = ("--allow-idle", request.model_copy(update={"allow_idle": True}))
        yield Ladder("idle", (step,), lambda step: step, "leaving GPUs idle")


def _fits_the_cluster(request: PlanRequest) -> bool:
    """Whether the degrees that were asked for are no more than the GPUs: only then idle ones can help."""
    least = [
        min(pin.allowed) if pin.allowed else pin.minimum or 1 for pin in request.pins if pin.field in DEGREES
    ]
    return math.prod(int(value) for value in least) <= request.cluster.num_gpus


def without_pin(request: PlanRequest, pin: Pin) -> Step:
    """The request without one word of the user's."""
    pins = tuple(other for other in request.pins if other != pin)
    return f"without {pin.option}", request.model_copy(update={"pins": pins})


def more_gpus(request: PlanRequest) -> Ladder:
    """Larger clusters of the same nodes."""
    now, node = request.cluster.num_gpus, with_num_gpus(request, 1_000_000).cluster.gpus_per_node
    whole = {math.ceil(now * factor / node) * node for factor in GROWTH}
    part = {count for count in range(now + 1, node) if node % count == 0}
    counts = tuple(sorted(count for count in whole | part if count > now))

    def at(count: int) -> Step:
        return _typed(f"--gpus {count}", with_num_gpus(request, count), request)

    return Ladder("gpus", counts, at, f"more GPUs (up to {counts[-1]:,})", unit=node, now=now)


def _bubbles(request: PlanRequest) -> Ladder:
    now = math.floor(100 * (request.max_bubble or 0.0))

    def at(budget: int) -> Step:
        return f"--max-bubble {budget / 100:g}", request.model_copy(update={"max_bubble": budget / 100})

    budgets = tuple(budget for budget in BUDGETS if budget > now)
    return Ladder("bubble", budgets, at, "a larger bubble budget", unit=1, now=now)


def _across_nodes(request: PlanRequest) -> Ladder:
    lifted = request.model_copy(update={"allow_tensor_parallel_across_nodes": True})
    step = ("--allow-tp-across-nodes", lifted)
    return Ladder("domain", (step,), lambda step: step, "tensor parallelism across nodes")


def _domains(request: PlanRequest) -> Ladder:
    now, most = request.cluster.nvlink_domain, request.cluster.num_gpus
    sizes = sorted({math.ceil(now * factor) for factor in GROWTH if now * factor <= most})

    def at(size: int) -> Step:
        return f"--domain-gpus {size}", with_domain(request, size)

    return Ladder("domain-size", tuple(sizes), at, f"a larger fast domain (up to {most:,} GPUs)")


def _sequences(request: PlanRequest) -> Ladder:
    now = request.workload.seq_length
    lengths = tuple(round(now * factor) for factor in SHRINKING if now * factor >= 1)

    def at(length: int) -> Step:
        workload = request.workload.model_copy(update={"seq_length": length})
        return _typed(f"--seq-length {length}", request.model_copy(update={"workload": workload}), request)

    what = f"shorter sequences (down to {lengths[-1] if lengths else now:,} tokens)"
    return Ladder("sequence", lengths, at, what, unit=max(now // SEQUENCE_STEPS, 1), now=now)


def _near_sequences(request: PlanRequest) -> Ladder:
    """Lengths that divide among more ranks, the nearest first."""
    now = request.workload.seq_length
    below = {now // unit * unit for unit in ROUND_NUMBERS}
    lengths = below | {-(-now // unit) * unit for unit in ROUND_NUMBERS if unit < now}
    nearest = sorted(lengths - {0, now}, key=lambda length: (abs(length - now), length))
    what = f"another sequence length ({min(nearest):,} to {max(nearest):,} tokens)" if nearest else ""
    return replace(_sequences(request), values=tuple(nearest), what=what, unit=0)


def _batches(request: PlanRequest) -> Ladder:
    """Batches that divide among more degrees or fill a pinned pipeline, the nearest first."""
    now, gpus = request.workload.global_batch, request.cluster.num_gpus
    odd = gpus // (gpus & -gpus)
    whole = {math.ceil(now / (odd * 2**power)) * odd * 2**power for power in range(11)}
    scaled = {round(now * factor) for factor in (*GROWTH, *SHRINKING)}
    rounds = {
        math.ceil(now / pipeline) * pipeline + more * pipeline
        for pipeline in _pinned(request, "pipeline_parallel")
        for more in range(PIPELINE_ROUNDS)
    }
    pins = {
        edge * unit
        for power in range(11)
        for unit in (unit_of_pins(request) << power,)
        for edge in (now // unit, -(-now // unit))
    }
    batches = sorted(
        (whole | scaled | rounds | pins) - {0, now}, key=lambda batch: abs(math.log(batch / now))
    )

    def at(batch: int) -> Step:
        update = {"global_batch": batch, "global_batch_max": None}
        workload = request.workload.model_copy(update=update)
        return f"--global-batch {batch}", request.model_copy(update={"workload": workload})

    what = f"another global batch ({min(batches):,} to {max(batches):,} sequences)"
    return Ladder("batch", tuple(batches), at, what)


def _pinned(request: PlanRequest, field: str) -> list[int]:
    """The values that pins allow a count to have, but for 1."""
    allowed = [value for pin in request.pins if pin.field == field for value in pin.allowed or ()]
    return [value for value in allowed if isinstance(value, int) and value > 1]


def unit_of_pins(request: PlanRequest) -> int:
    """The least batch that the pinned data degree, micro-batch and number of micro-batches make up."""
    fields = ("data_parallel", "micro_batch", "num_microbatches")
    return math.prod(min(_pinned(request, field), default=1) for field in fields)


def batch_of_pins(request: PlanRequest) -> int | None:
    """The batch nearest to the request's that the pinned data degree and micro-batches divide."""
    unit, batch = unit_of_pins(request), request.workload.global_batch
    return None if batch % unit == 0 else max(round(batch / unit), 1) * unit


def _frameworks(request: PlanRequest, frameworks: Sequence[FrameworkProfile]) -> Ladder:
    others = tuple(profile for profile in frameworks if profile.name != request.framework.name)

    def at(profile: FrameworkProfile) -> Step:
        return f"--framework {profile.name}", request.model_copy(update={"framework": profile})

    return Ladder("framework", others, at, "another framework")


def _leaner_training(request: PlanRequest) -> Iterator[Ladder]:
    """Another loss, optimizer, or adapters beside frozen weights: what people change when memory is short."""
    habits = request.framework.memory

    def with_framework(option: str, profile: FrameworkProfile) -> Step:
        return option, request.model_copy(update={"framework": profile})

    def adapters(name: str) -> Step:
        workload = with_fine_tuning(request.workload, name)
        return f"--finetune {name}", request.model_copy(update={"workload": workload})

    chunked = with_loss(request.framework, "chunked")
    if chunked != request.framework:
        yield Ladder(
            "loss", ("--loss chunked",), lambda said: with_framework(said, chunked), "a loss in chunks"
        )
    leaner = tuple(name for name in OPTIMIZERS if MASTER_BYTES + MOMENTS_BYTES[name] < habits.optimizer_bytes)
    yield Ladder(
        "optimizer",
        leaner,
        lambda name: with_framework(f"--optimizer {name}", with_optimizer(request.framework, name)),
        f"a leaner optimizer ({', '.join(leaner)})",
    )
    if not request.workload.frozen_weights:
        yield Ladder("finetune", ("lora", "qlora"), adapters, "training adapters (LoRA, QLoRA)")


def _typed(words: str, changed: PlanRequest, request: PlanRequest) -> Step:
    """What to type, with the batch where the default would follow the change."""
    batch = request.workload.global_batch
    defaults = [
        default_global_batch(asked.cluster.num_gpus, asked.workload.seq_length)
        for asked in (request, changed)
    ]
    if request.workload.global_batch_max is None and defaults[0] == batch != defaults[1]:
        words += f" --global-batch {batch}"
    return words, changed
