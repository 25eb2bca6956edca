"""Grading: numbers by tolerance and known mistakes, choices by letter, plans by rules and the solver."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import BadInput
from planner.practice.plan_text import plan_words, read_plan
from planner.practice.quantity import ASKED, read, show
from planner.practice.question import LETTERS, Choice, Design, Explanation, Numeric, Question
from planner.solver import solve, uninterrupted
from planner.solver.evaluate import evaluate
from planner.solver.result import Estimate
from planner.spec import PlanRequest
from planner.units import GIB, format_bytes, format_seconds

SOLVE_S = 20.0
"""Most seconds that the proof of a design question's optimum may take."""
MEBI, GIBI = 2**20 / 1e6, GIB / 1e9
TERMS_NAMED = 3
_PROVEN: dict[str, Estimate] = {}
"""Optima of this process by the request's text."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """What an answer is worth. ``score`` is 1 for a right number or the optimal plan, 0 for a wrong one."""

    right: bool
    score: float
    message: str


def grade(question: Question, text: str) -> Grade:
    """Grade an answer.

    Raises
    ------
    BadInput
        The answer cannot be read; it counts as not given.
    """
    key = question.key
    if isinstance(key, Numeric):
        return _grade_number(key, text)
    if isinstance(key, Choice):
        return _grade_choice(key, text)
    return _grade_plan(key, text)


def _grade_number(key: Numeric, text: str) -> Grade:
    readings = read(text, key.unit)
    if any(key.admits(value) for value in readings):
        return Grade(right=True, score=1.0, message=f"Right: {key.shown}.")
    value = min(readings, key=lambda reading: (not _mistake(key, reading), abs(reading - key.value)))
    return Grade(
        right=False, score=0.0, message=f"Not {show(value, key.unit)}. {diagnose(key, value)}".strip()
    )


def _mistake(key: Numeric, value: float) -> str:
    width = max(key.tolerance, 1e-9)
    for mistake in key.mistakes:
        if abs(value - mistake.value) <= width * abs(mistake.value) + 1e-12 * abs(key.value):
            return mistake.diagnosis
    return ""


def diagnose(key: Numeric, value: float) -> str:
    """Name the mistake that leads to a wrong value, or at least its direction."""
    if known := _mistake(key, value):
        return known
    if ASKED[key.unit][0] == "bytes":
        binary = GIBI if key.unit == "GB" else MEBI
        if any(abs(value / (key.value * factor) - 1) <= 0.01 for factor in (binary, 1 / binary)):
            return (
                f"GiB against GB: {key.unit} is a power of ten here; write GiB or MiB if you mean 2^30, 2^20."
            )
    return _size_slip(key, value)


def _size_slip(key: Numeric, value: float) -> str:
    """A factor that needs no formula: thousands, bits, two."""
    if value <= 0 or key.value <= 0:
        return "It has to be more than zero." if value <= 0 < key.value else ""
    ratio = value / key.value
    for factor, words in (
        (1000.0, "A factor of 1000: check the unit prefix."),
        (1e6, "A factor of a million: check the unit prefix."),
        (8.0, "A factor of 8: bits against bytes, or one GPU against a node of eight."),
        (2.0, "A factor of 2: check bytes per element and passes."),
    ):
        if min(abs(ratio / factor - 1), abs(ratio * factor - 1)) <= 0.02:
            return words
    return "Too large." if ratio > 1 else "Too small."


def _grade_choice(key: Choice, text: str) -> Grade:
    word = text.strip().lower().rstrip(").")
    letters = LETTERS[: len(key.options)]
    if len(word) != 1 or word not in letters:
        raise BadInput(f"{text!r}: answer with one of the letters {', '.join(letters)}")
    index = letters.index(word)
    right = index == key.right
    return Grade(
        right=right,
        score=float(right),
        message=f"{'Right' if right else 'Not'} {word}: {key.options[index].why}",
    )


def optimum(request: PlanRequest) -> Estimate:
    """Return the proven best plan of a design question.

    Raises
    ------
    BadInput
        No optimum was proven in time.
    """
    text = request.model_dump_json()
    if text not in _PROVEN:
        result = uninterrupted(solve(request, top=1, time_limit_s=SOLVE_S, workers=1))
        if result.best is None or result.status != "optimal":
            raise BadInput(f"no optimum was proven within {SOLVE_S:.0f} s; try again on a quieter machine")
        _PROVEN[text] = result.best
    return _PROVEN[text]


def _grade_plan(key: Design, text: str) -> Grade:
    plan = read_plan(text, key.request)
    estimate = evaluate(plan, key.request)
    words = plan_words(plan)
    if estimate.violations:
        broken = " ".join(str(violation) for violation in estimate.violations)
        return Grade(right=False, score=0.0, message=f"{words} is not possible. {broken}")
    best = optimum(key.request)
    loss = estimate.step_time_s / best.step_time_s - 1
    right = loss <= key.good_loss
    facts = (
        f"{words}: legal, {format_bytes(estimate.peak_memory_bytes)} at the fullest rank, "
        f"{format_seconds(estimate.step_time_s)} a step, {100 * max(loss, 0.0):.1f} % over the optimum."
    )
    return Grade(
        right=right, score=min(1.0, 1 / (1 + loss)), message=f"{facts} {_difference(estimate, best)}".strip()
    )


def _difference(estimate: Estimate, best: Estimate) -> str:
    """Where a plan loses against the best one: the largest differences of named terms."""
    here, there = estimate.time.as_dict(), best.time.as_dict()
    lost = sorted(((here[name] - there[name], name) for name in here), reverse=True)[:TERMS_NAMED]
    named = [
        f"{name.removesuffix('_s').replace('_', ' ')} +{format_seconds(seconds)}"
        for seconds, name in lost
        if seconds > 0.005 * best.step_time_s
    ]
    return f"It loses in {', '.join(named)}." if named else "That is as good as the best plan."


def explain(question: Question) -> Explanation:
    """Return the explanation; for a design question, solve it first."""
    if question.explanation is not None:
        return question.explanation
    if not isinstance(question.key, Design):
        raise AssertionError(f"{question.ident} has no explanation")
    best = optimum(question.key.request)
    terms = sorted(best.time.as_dict().items(), key=lambda term: -term[1])[:4]
    parts = ", ".join(
        f"{name.removesuffix('_s').replace('_', ' ')} {format_seconds(value)}" for name, value in terms
    )
    return Explanation(
        formula="smallest step time among all plans that break no rule and fit (proven by the solver)",
        substitution=f"{plan_words(best.plan)}: {format_seconds(best.step_time_s)} a step "
        f"({parts}), {format_bytes(best.peak_memory_bytes)} at the fullest rank",
        intuition="Least model parallelism that fits, ZeRO over the replicas, recompute only if memory asks. "
        f"Plans within {100 * question.key.good_loss:.0f} % count as right: the model is no more exact than "
        "that.",
    )


def answer(question: Question) -> str:
    """The right answer in short."""
    key = question.key
    if isinstance(key, Numeric):
        return key.shown
    if isinstance(key, Choice):
        return f"{key.letter}) {key.options[key.right].text}"
    return plan_words(optimum(key.request).plan)
