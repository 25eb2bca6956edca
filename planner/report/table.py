"""Answers as plain text, at most ``WIDTH`` columns wide."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from planner.cost.terms import Memory, StepTime
from planner.cost.words import LETTERS, memory_words, time_words
from planner.report.in_full import full_words, roomier_words, unseen_settings
from planner.report.proof import proof_line
from planner.rules import is_choice
from planner.spec import Plan, PlanRequest
from planner.units import GB, format_bytes, format_seconds

if TYPE_CHECKING:
    from planner.explain.answer import Answer
    from planner.explain.compare import Comparison
    from planner.explain.conflict import Conflict
    from planner.explain.loss import Difference
    from planner.explain.why_not import WhyNot
    from planner.frameworks.lint import Review
    from planner.rules import Violation
    from planner.solver.result import Estimate, PlanResult

WIDTH = 118
QUANTITY = re.compile(r"(\d) ([kMGT]?B|ns|us|ms|s|%)(?![\w/])")
"""A number followed by its unit."""
NEAR_PCT = 1.0
"""Plans this close are ordered by simplicity (``planner.solver.search``)."""
MOST_NAMED = 10
"""Possible values that a sentence lists."""
SHOWN_S = 1e-4
"""Last digit of the seconds in a table of differences. [s]"""
SMALL_SHARE = 0.001
"""Terms under this share of the total are left out of printed breakdowns."""

HEADERS = (
    "#", "t", "p", "v", "d", "c", "e", "zero", "b", "m", "schedule", "recompute",
    "step", "tok/s/GPU", "MFU", "peak", "free", "bubble",
)  # fmt: skip


LEFT = frozenset({"schedule", "recompute"})
"""Columns of words."""
MOST_LETTERS = 15
"""A cell of the ranking is cut to so many letters: names of files can be long."""


def paragraph(text: str, indent: str = "") -> str:
    """Wrap one paragraph."""
    return _wrapped(text, indent, indent)


def bullets(sentences: Iterable[str]) -> str:
    """One wrapped bullet a sentence."""
    return "\n".join(_wrapped(text, "  - ", "    ") for text in sentences)


def _wrapped(text: str, first: str, others: str) -> str:
    """Wrapped text in which a number and its unit stay on one line."""
    kept = QUANTITY.sub("\\1\u00a0\\2", text)
    lines = textwrap.fill(kept, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
    return lines.replace("\u00a0", " ")


def section(title: str, body: str) -> str:
    """A titled part of an answer; empty when the body is."""
    return f"{title}\n{body}\n" if body else ""


def headline(request: PlanRequest) -> str:
    """The question in one line."""
    cluster, workload = request.cluster, request.workload
    nodes = -(-cluster.num_gpus // cluster.gpus_per_node)
    batch = str(workload.global_batch)
    if workload.global_batch_max is not None:
        batch += f" to {workload.global_batch_max}"
    return (
        f"{request.model.name} on {cluster.num_gpus} x {cluster.accelerator.name} "
        f"({nodes} node{'s' if nodes > 1 else ''} of {cluster.gpus_per_node}), global batch {batch} x "
        f"{workload.seq_length} tokens, {'/'.join(workload.precisions)}, {request.framework.name}"
    )


def bubble_fraction(time: StepTime) -> float:
    """Bubble relative to the pipeline's ideal time (its busy terms). [1]."""
    after = (
        time.bubble_s + time.data_comm_s + time.optimizer_s + time.offload_s + time.host_s + time.straggler_s
    )
    busy = float(time.total - after)
    return float(time.bubble_s) / busy if busy > 0 else 0.0


def recompute_word(plan: Plan) -> str:
    """Recompute as the table shows it: the kind, and how many layers when not all."""
    if plan.recompute == "none":
        return "none"
    layers = sum(stage.layers for stage in plan.stages)
    recomputed = sum(stage.recompute_layers for stage in plan.stages)
    return plan.recompute if recomputed == layers else f"{plan.recompute} {recomputed}/{layers}"


def step_words(estimate: Estimate) -> str:
    """Step time with its error band: ``9.97 s ±8%``."""
    return f"{format_seconds(estimate.step_time_s)} ±{estimate.error_band_pct:g}%"


def plan_row(rank: int | str, estimate: Estimate, request: PlanRequest) -> list[Any]:
    """One row of the ranking table."""
    plan, peak = estimate.plan, estimate.peak_memory_bytes
    free = request.cluster.usable_hbm_bytes - peak
    return [
        rank, plan.tensor_parallel, plan.pipeline_parallel, plan.virtual_stages, plan.data_parallel,
        plan.context_parallel, plan.expert_parallel, plan.zero_stage, plan.micro_batch, plan.num_microbatches,
        plan.schedule, recompute_word(plan), step_words(estimate),
        f"{float(estimate.tokens_per_s_per_gpu):.0f}", f"{100 * float(estimate.mfu):.1f}%",
        f"{peak / GB:.1f} GB", f"{free / GB:.1f} GB", f"{100 * bubble_fraction(estimate.time):.0f}%",
    ]  # fmt: skip


def ranking(estimates: Sequence[Estimate], request: PlanRequest, names: Sequence[str] = ()) -> str:
    """The table of plans, best first; every row can be read aloud."""
    rows = [
        plan_row(names[index] if names else index + 1, estimate, request)
        for index, estimate in enumerate(estimates)
    ]
    return _columns([list(HEADERS), *rows])


def _columns(rows: Sequence[Sequence[Any]]) -> str:
    """Rows in aligned columns under a ruled header: two spaces apart, or one where two would be too wide."""
    text = [[_shortened(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*text, strict=True)]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else " "
    text.insert(1, ["-" * width for width in widths])
    return "\n".join(gap.join(_aligned(row, widths)).rstrip() for row in text)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = zip(HEADERS, row, widths, strict=True)
    return [cell.ljust(width) if header in LEFT else cell.rjust(width) for header, cell, width in cells]


def _shortened(word: str) -> str:
    return word if len(word) <= MOST_LETTERS else f"{word[: MOST_LETTERS - 1]}…"


def time_breakdown(time: StepTime) -> str:
    """Seconds by cause, largest first, with their share of the step."""
    total = float(time.total)
    terms = sorted(time.as_dict().items(), key=lambda item: -item[1])
    rows = [
        (time_words(name), format_seconds(value), f"{100 * value / total:.1f}%")
        for name, value in terms
        if value > SMALL_SHARE * total
    ]
    return _indented([*rows, ("step", format_seconds(total), "100%")])


def memory_breakdown(memory: Memory, request: PlanRequest) -> str:
    """Bytes by owner, largest first, against what the GPU has."""
    total = float(memory.total)
    terms = sorted(memory.as_dict().items(), key=lambda item: -item[1])
    rows = [
        (memory_words(name), format_bytes(value), f"{100 * value / total:.1f}%")
        for name, value in terms
        if value > SMALL_SHARE * total
    ]
    usable = request.cluster.usable_hbm_bytes
    left = ("free" if usable >= total else "too much", format_bytes(abs(usable - total)), "")
    return _indented([*rows, ("peak", format_bytes(total), f"of {format_bytes(usable)}"), left])


def side_by_side(left: str, right: str, gap: int = 4) -> str:
    """Two blocks of text beside each other."""
    a, b = left.splitlines(), right.splitlines()
    width = max((len(line) for line in a), default=0) + gap
    rows = max(len(a), len(b))
    a += [""] * (rows - len(a))
    b += [""] * (rows - len(b))
    return "\n".join(f"{one:<{width}}{two}".rstrip() for one, two in zip(a, b, strict=True))


def breakdowns(estimate: Estimate, request: PlanRequest) -> str:
    """Time and memory of one plan beside each other."""
    where = f"Memory of pipeline rank {estimate.worst_stage}" if len(estimate.stages) > 1 else "Memory"
    return side_by_side(
        "Time of a step\n" + time_breakdown(estimate.time),
        f"{where}, its peak\n" + memory_breakdown(estimate.stages[estimate.worst_stage], request),
    )


def _indented(rows: list[tuple[str, ...]]) -> str:
    text = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=("left", "right", "left"))
    return textwrap.indent(text, "  ")


def answer_text(answer: Answer, *, only_why: bool = False) -> str:
    """The whole answer of the main job, as text; with ``only_why`` the plans and reasons alone."""
    request, result = answer.request, answer.result
    parts = [paragraph(headline(request)), ""]
    if result.best is None:
        parts.append(_nothing_text(answer))
    else:
        full = f"Plan 1 in full: {full_words(result.plans[0].plan, request)}."
        parts += [ranking(result.plans, request), "", paragraph(full), "", *_plan_parts(answer, only_why)]
    parts.append(section("Assumed", bullets(request.assumptions)))
    parts.append(paragraph(proof_line(result, request)))
    return "\n".join(parts)


def _plan_parts(answer: Answer, only_why: bool) -> list[str]:
    best, request = answer.result.plans[0], answer.request
    parts = [
        section("Why plan 1", bullets(reason.sentence for reason in answer.reasons)),
        *([] if only_why else [breakdowns(best, request), ""]),
        section("What binds", bullets(answer.binds)),
        section("Notes", bullets(notes_of(answer.result, request))),
    ]
    if answer.sensitivity is not None:
        parts.append(section("What would change it", answer.sensitivity.text()))
    return parts


def notes_of(result: PlanResult, request: PlanRequest) -> list[str]:
    """What has to be known beside the table: risks, settings without a column, ties, the error band."""
    best, unseen = result.plans[0], unseen_settings([estimate.plan for estimate in result.plans])
    roomier = roomier_words(result.plans, request.cluster.usable_hbm_bytes)
    return [*best.notes, *roomier, *result.notes, *unseen, *_tie(result), _band(best)]


def _tie(result: PlanResult) -> list[str]:
    """Say why a plan that is a little slower stands first."""
    first = result.plans[0]
    fastest = min(result.plans, key=lambda plan: plan.step_time_s)
    loss = 100 * (first.step_time_s / fastest.step_time_s - 1)
    if not 0 < loss <= NEAR_PCT:
        return []
    rank = result.plans.index(fastest) + 1
    return [
        f"Plan 1 is the simplest within {NEAR_PCT:g} % of the fastest, plan {rank} ({loss:.1f} % faster)."
    ]


def _band(estimate: Estimate) -> str:
    seconds = estimate.step_time_s * estimate.error_band_pct / 100
    return (
        f"Expect the measured step within {estimate.error_band_pct:g} % of the estimate "
        f"({format_seconds(estimate.step_time_s)} ± {format_seconds(seconds)})."
    )


def _nothing_text(answer: Answer) -> str:
    if answer.conflict is not None:
        return conflict_text(answer.conflict)
    if answer.result.status == "infeasible":
        return paragraph("Nothing fits; the search for the reason did not end.") + "\n"
    return paragraph("No plan was found within the time limit; give more time with --time-limit.") + "\n"


def conflict_text(conflict: Conflict, title: str = "Nothing fits") -> str:
    """Why nothing fits, and the nearest changes that work."""
    changes = bullets(relaxation.sentence for relaxation in conflict.relaxations)
    parts = [
        section(title, paragraph(conflict.paragraph, "  ")),
        section("Any one of these changes makes a plan possible", changes),
        section("Not enough alone", bullets(conflict.hopeless)),
    ]
    return "\n".join(part for part in parts if part)


def estimate_text(estimate: Estimate, request: PlanRequest) -> str:
    """One priced plan, as text."""
    verdict = "is legal and fits" if estimate.is_legal and estimate.fits else "cannot run"
    if estimate.violations and all(is_choice(violation.rule) for violation in estimate.violations):
        verdict = "runs, but not within the limits that the request sets"
    parts = [
        paragraph(headline(request)) + "\n",
        ranking([estimate], request, names=["-"]) + "\n",
        f"This plan {verdict}.\n",
        section("Broken rules", bullets(violation_sentence(violation) for violation in estimate.violations)),
        breakdowns(estimate, request) + "\n",
        section("Stages", stage_table(estimate) if len(estimate.stages) > 1 else ""),
        section("Notes", bullets((*estimate.notes, _band(estimate)))),
        section("Assumed", bullets(request.assumptions)),
    ]
    return "\n".join(part for part in parts if part).rstrip()


def why_not_text(found: WhyNot) -> str:
    """The verdict on a choice, as text."""
    parts = [paragraph(headline(found.request)) + "\n", bullets(found.sentences) + "\n"]
    if found.best is not None and found.completion is not None:
        names = ["best", "choice"]
        parts.append(ranking([found.best, found.completion], found.request, names=names) + "\n")
        broken = (violation_sentence(violation) for violation in found.completion.violations)
        parts.append(section("Broken rules", bullets(broken)))
        parts.append(section("Where the time differs", _difference_table(found.terms, ("best", "choice"))))
    if found.conflict is not None:
        parts.append(conflict_text(found.conflict, "Why none does"))
    parts.append(section("Assumed", bullets(found.request.assumptions)))
    return "\n".join(part for part in parts if part).rstrip()


def comparison_text(found: Comparison) -> str:
    """Two plans side by side, what differs most first."""
    first, second = found.names
    settings = tabulate(found.settings, ("setting", first, second), disable_numparse=True)
    whole = [
        f"{name}: {full_words(estimate.plan, found.request)}."
        for name, estimate in zip(found.names, (found.first, found.second), strict=True)
    ]
    parts = [
        paragraph(headline(found.request)) + "\n",
        ranking([found.first, found.second], found.request, names=found.names) + "\n",
        bullets(whole) + "\n",
        paragraph(found.sentence) + "\n",
        section("Settings that differ", settings if found.settings else "  none"),
        section("Time, largest difference first", _difference_table(found.time, found.names)),
        section("Memory, largest difference first", _difference_table(found.memory, found.names, GB)),
        section("Notes", bullets(found.notes)),
    ]
    return "\n".join(part for part in parts if part).rstrip()


def _difference_table(rows: Sequence[Difference], names: Sequence[str], gigabyte: float = 0.0) -> str:
    """Terms of two plans that differ; seconds, or gigabytes where ``gigabyte`` is the divisor."""

    def shown(value: float, sign: str = "") -> str:
        return f"{value / gigabyte:{sign}.2f} GB" if gigabyte else f"{value:{sign}.4f} s"

    least = 0.005 * gigabyte or 0.5 * SHOWN_S
    lines = [
        (row.words, shown(row.first), shown(row.second), shown(row.change, "+"))
        for row in rows
        if abs(row.change) >= least
    ]
    if not lines:
        return ""
    align = ("left", "right", "right", "right")
    return tabulate(lines, ("term", *names, "difference"), disable_numparse=True, colalign=align)


def violation_sentence(violation: Violation) -> str:
    """A broken rule in words, with the values that would do."""
    text = violation.sentence.strip().removesuffix(".")
    if violation.allowed and violation.field in LETTERS:
        some = ", ".join(map(str, violation.allowed[:MOST_NAMED]))
        more = ", ..." if len(violation.allowed) > MOST_NAMED else ""
        text += f"; possible {LETTERS[violation.field]}: {some}{more}"
    return f"{text} ({violation.rule})."


def stage_table(estimate: Estimate) -> str:
    """Layers and peak memory of every pipeline rank; equal neighbours are one line."""
    plan = estimate.plan
    rows: list[list[Any]] = []
    for rank, memory in enumerate(estimate.stages):
        stage = plan.stages[rank] if plan.stages else None
        what = [stage.layers, stage.recompute_layers] if stage else ["even", recompute_word(plan)]
        row = [*what, format_bytes(float(memory.total)), format_bytes(float(memory.activations_bytes))]
        if rows and rows[-1][2:] == row:
            rows[-1][1] = rank
        else:
            rows.append([rank, rank, *row])
    shown = [[first if first == last else f"{first}-{last}", *rest] for first, last, *rest in rows]
    return tabulate(shown, ("rank", "layers", "recomputed", "peak", "activations"), disable_numparse=True)


def review_text(found: Review) -> str:
    """Price of a checked run and of the better plan, as text."""
    count = len(found.findings)
    summary = f"{count} finding{'' if count == 1 else 's'}." if count else "No findings."
    now, better = found.estimate, found.better
    is_beaten = better is None or now is None or not _holds_against(now, better)
    rows = {"yours": now, "better": better if is_beaten else None}
    shown = {name: estimate for name, estimate in rows.items() if estimate is not None}
    if not shown:
        return summary
    table = ranking(list(shown.values()), found.request, list(shown))
    parts = [summary, paragraph(headline(found.request)), table]
    return "\n\n".join(parts if is_beaten else [*parts, "The planner found no faster plan."])


def _holds_against(now: Estimate, other: Estimate) -> bool:
    """Whether a run works as written and no other plan is known to be faster."""
    return now.is_legal and now.fits and now.step_time_s <= other.step_time_s
