"""Where one plan loses time or memory against another, term by term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cost.terms import Memory, StepTime
from planner.cost.words import memory_words, time_words
from planner.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from planner.solver.result import Estimate

NOTABLE_SHARE = 0.1
"""A term is named when it makes at least this share of the sum of all changes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One term of two plans."""

    term: str
    words: str
    first: float
    second: float

    @property
    def change(self) -> float:
        """Second minus first, in the term's unit."""
        return self.second - self.first


def time_differences(first: StepTime, second: StepTime) -> list[Difference]:
    """Terms of the step time, the largest change first. [s]."""
    ours, theirs = first.as_dict(), second.as_dict()
    rows = [Difference(name, time_words(name), ours[name], theirs[name]) for name in ours]
    return sorted(rows, key=lambda row: -abs(row.change))


def memory_differences(first: Memory, second: Memory) -> list[Difference]:
    """Terms of the worst rank's memory, the largest change first. [byte]."""
    ours, theirs = first.as_dict(), second.as_dict()
    rows = [Difference(name, memory_words(name), ours[name], theirs[name]) for name in ours]
    return sorted(rows, key=lambda row: -abs(row.change))


def notable(differences: list[Difference], most: int = 3) -> list[Difference]:
    """The few terms that explain a difference."""
    total = sum(abs(row.change) for row in differences)
    return [row for row in differences[:most] if total > 0 and abs(row.change) >= NOTABLE_SHARE * total]


def percent(first: Estimate, second: Estimate) -> float:
    """Step time of the second plan relative to the first, at equal batch. [%]."""
    per_token_first = 1.0 / float(first.tokens_per_s_per_gpu) / first.plan.num_gpus
    per_token_second = 1.0 / float(second.tokens_per_s_per_gpu) / second.plan.num_gpus
    return 100.0 * (per_token_second / per_token_first - 1.0)


def loss_phrase(best: Estimate, other: Estimate, goal: str = "step-time") -> str:
    """The other plan's loss in a phrase: ``+38.0 % (tensor-parallel communication +1.7 s, ...)``.

    Under the goal of least memory the loss is memory of the fullest rank; the step time stands behind it.
    """
    if goal == "memory":
        return _memory_loss(best, other)
    terms = ", ".join(
        f"{row.words} {_signed(row.change)}" for row in notable(time_differences(best.time, other.time))
    )
    return f"{amount(best, other)} ({terms}{pace_words(best, other)})" if terms else amount(best, other)


def _memory_loss(best: Estimate, other: Estimate) -> str:
    ours, theirs = best.stages[best.worst_stage], other.stages[other.worst_stage]
    change = other.peak_memory_bytes - best.peak_memory_bytes
    terms = ", ".join(
        f"{row.words} {_signed_bytes(row.change)}" for row in notable(memory_differences(ours, theirs))
    )
    listed = f" ({terms})" if terms else ""
    memory = f"{_signed_bytes(change)} of memory{listed}" if abs(change) >= 0.5 else "as lean"
    slower = percent(best, other)
    return f"{memory}, {'step time as before' if abs(slower) < 0.05 else f'step time {slower:+.1f} %'}"


def _signed_bytes(value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{format_bytes(abs(value))}"


def amount(best: Estimate, other: Estimate, goal: str = "step-time") -> str:
    """The other plan's loss alone: ``+38.0 %``, or ``+1.2 GB`` under the goal of least memory."""
    if goal == "memory":
        return _signed_bytes(other.peak_memory_bytes - best.peak_memory_bytes)
    change = percent(best, other)
    return "equally fast" if abs(change) < 0.05 else f"{change:+.1f} %"


def pace_words(first: Estimate, second: Estimate) -> str:
    """Why the terms of layers and ends trade places: the pace is set by another kind of pipeline rank.

    Busy terms are those of one rank. Where both plans are pipelines and only one of them has an end of the
    model (embedding, loss) on that rank, a longer 'embedding and loss' means fewer layers there.
    """
    if first.plan.pipeline_parallel == 1 or second.plan.pipeline_parallel == 1:
        return ""
    ours, theirs = (float(estimate.time.embedding_and_loss_s) for estimate in (first, second))
    if abs(theirs - ours) < NOTABLE_SHARE * max(ours, theirs, 0.01 * first.step_time_s):
        return ""
    if ours == 0.0:
        return "; a rank with the embedding or the loss sets the pace"
    return "; a rank without embedding and loss sets the pace" if theirs == 0.0 else ""


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{format_seconds(abs(seconds))}"
