"""Questions, explanations, lists and statistics as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from tabulate import tabulate

from planner.practice.bank import name
from planner.practice.grade import answer, explain
from planner.practice.kind import Entry, Kind
from planner.practice.progress import Progress
from planner.practice.quantity import WORDS
from planner.practice.question import LETTERS, TOPICS, Choice, Design, Numeric, Question

WIDTH = 100


def wrap(text: str, indent: str = "") -> str:
    """One paragraph within ``WIDTH`` columns."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def form(question: Question) -> str:
    """How to answer, in one line."""
    key = question.key
    if isinstance(key, Choice):
        return f"Answer with a letter, a to {LETTERS[len(key.options) - 1]}."
    if isinstance(key, Design):
        return f"A legal plan within {100 * key.good_loss:.0f} % of the optimum counts as right."
    unit = WORDS.get(key.unit, f"in {key.unit}")
    exact = "exact" if key.tolerance == 0 else f"within {100 * key.tolerance:.2g} %"
    return f"Answer: {unit}, {exact}."


def question_text(question: Question) -> str:
    """The question as it is asked."""
    head = f"[{question.ident}] {TOPICS[question.topic]} ({question.level})"
    parts = [head, wrap(question.text)]
    if isinstance(question.key, Choice):
        parts += [
            wrap(f"{letter}) {option.text}", "  ")
            for letter, option in zip(LETTERS, question.key.options, strict=False)
        ]
    return "\n".join([*parts, form(question)])


def explanation_text(question: Question) -> str:
    """Formula, substitution, result, intuition, and what the book prints where it differs."""
    found = explain(question)
    lines = [
        wrap(f"Answer: {answer(question)}", "  "),
        wrap(f"Formula: {found.formula}", "  "),
        wrap(f"Numbers: {found.substitution}", "  "),
        wrap(f"Why it matters: {found.intuition}", "  "),
    ]
    if found.book:
        lines.append(wrap(f"In the book: {found.book}", "  "))
    return "\n".join(lines)


def question_data(question: Question) -> dict[str, Any]:
    """A question with key and explanation as JSON-ready data."""
    found = explain(question)
    data: dict[str, Any] = {
        "id": question.ident, "topic": question.topic, "section": TOPICS[question.topic].split()[0],
        "level": question.level, "text": question.text, "form": form(question), "hint": question.hint,
        "answer": answer(question),
    }  # fmt: skip
    key = question.key
    if isinstance(key, Numeric):
        data |= {
            "kind": "numeric", "value": key.value, "unit": key.unit, "tolerance": key.tolerance,
            "mistakes": [{"value": slip.value, "diagnosis": slip.diagnosis} for slip in key.mistakes],
        }  # fmt: skip
    elif isinstance(key, Choice):
        data |= {
            "kind": "choice",
            "options": [{"text": option.text, "why": option.why} for option in key.options],
        }
    else:
        data |= {"kind": "design", "good_loss": key.good_loss}
    data["explanation"] = {
        "formula": found.formula, "substitution": found.substitution, "intuition": found.intuition,
        "book": found.book,
    }  # fmt: skip
    data["follow_ups"] = [question_data(follow) for follow in question.follow_ups]
    return data


def list_data(cards: Iterable[Entry | Kind]) -> list[dict[str, Any]]:
    """What there is to practise, one row a card."""
    return [
        {
            "id": name(card) if isinstance(card, Entry) else f"{name(card)}:SEED",
            "topic": card.topic,
            "level": card.level,
            "title": card.title,
        }
        for card in cards
    ]


def list_text(cards: Iterable[Entry | Kind]) -> str:
    """The same as a table."""
    rows = list_data(cards)
    table = tabulate([list(row.values()) for row in rows], headers=["id", "topic", "level", "title"])
    return f"{table}\n\n{len(rows)} cards. Ask one with --id; SEED is any whole number and draws the numbers."


def stats_data(progress: Progress, cards: Iterable[Entry | Kind]) -> dict[str, Any]:
    """Answers by topic, and what is due."""
    rows = []
    found = list(cards)
    for topic in dict.fromkeys(card.topic for card in found):
        names = [name(card) for card in found if card.topic == topic]
        known = [progress.records[own] for own in names if own in progress.records]
        asked, right = sum(record.asked for record in known), sum(record.right for record in known)
        rows.append(
            {
                "topic": topic, "cards": len(names), "seen": len(known), "asked": asked, "right": right,
                "due": sum(progress.is_due(own) for own in names),
            }
        )  # fmt: skip
    waiting = [record.card.due for own, record in progress.records.items() if not progress.is_due(own)]
    return {
        "file": str(progress.path),
        "topics": rows,
        "asked": sum(row["asked"] for row in rows),
        "right": sum(row["right"] for row in rows),
        "due": sum(row["due"] for row in rows),
        "next_due": f"{min(waiting):%Y-%m-%d %H:%M} UTC" if waiting else None,
    }


def stats_text(progress: Progress, cards: Iterable[Entry | Kind]) -> str:
    """The same as a table."""
    data = stats_data(progress, cards)
    rows = [
        [
            row["topic"], row["cards"], row["seen"], row["asked"],
            f"{100 * row['right'] / row['asked']:.0f} %" if row["asked"] else "-", row["due"],
        ]
        for row in data["topics"]
    ]  # fmt: skip
    table = tabulate(rows, headers=["topic", "cards", "seen", "asked", "right", "due"])
    after = f"; next due {data['next_due']}" if data["next_due"] and not data["due"] else ""
    total = f"{data['asked']} answers, {data['right']} right, {data['due']} due now{after}."
    return f"{table}\n\n{total}\n{data['file']}"
