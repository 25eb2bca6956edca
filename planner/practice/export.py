"""Questions as a file: Markdown, one offline HTML page, or cards for Anki."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from pathlib import Path

from planner.errors import BadInput
from planner.practice.grade import answer, explain
from planner.practice.question import LETTERS, TOPICS, Choice, Question
from planner.practice.show import form

TITLE = "plan-parallel practice"

_STYLE = """
:root { color-scheme: light dark; --edge: #8886; --soft: #8881; --accent: #2563eb; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
article { border: 1px solid var(--edge); border-radius: .6rem; padding: 1rem 1.2rem; margin: 1rem 0; }
article article { border-style: dashed; margin: .8rem 0 0; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.name { font-size: .8rem; opacity: .7; } .form { font-size: .85rem; opacity: .8; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--accent); }
dl { display: grid; grid-template-columns: 7rem 1fr; gap: .35rem .8rem; margin: .5rem 0; }
dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }
code { background: var(--soft); padding: .05rem .3rem; border-radius: .3rem; }
ol { list-style: lower-alpha; }
@media print { details > *:not(summary) { display: block; } article { break-inside: avoid; } }
"""


def export(questions: Sequence[Question], path: Path) -> str:
    """Return the text of a file whose ending says the format.

    Raises
    ------
    BadInput
        The ending is none of ``.md``, ``.html`` and ``.csv``.
    """
    formats = {".md": markdown, ".html": page, ".csv": anki}
    if path.suffix.lower() not in formats:
        raise BadInput(f"--export {path}: the name must end in {', '.join(formats)}")
    return formats[path.suffix.lower()](questions)


def _parts(question: Question) -> list[tuple[str, str]]:
    found = explain(question)
    parts = [
        ("Answer", answer(question)), ("Formula", found.formula), ("Numbers", found.substitution),
        ("Why it matters", found.intuition), ("In the book", found.book),
    ]  # fmt: skip
    return [(name, text) for name, text in parts if text]


def markdown(questions: Sequence[Question]) -> str:
    """Questions first, answers in folded blocks."""
    lines = [f"# {TITLE}", ""]
    for number, question in enumerate(questions, start=1):
        lines += [f"## {number}. {TOPICS[question.topic]} ({question.level})", ""]
        lines += _markdown_one(question)
        for follow in question.follow_ups:
            lines += _markdown_one(follow)
    return "\n".join(lines)


def _markdown_one(question: Question) -> list[str]:
    lines = [f"`{question.ident}` {_escape(question.text)}", ""]
    if isinstance(question.key, Choice):
        lines += [f"- {LETTERS[i]}) {_escape(option.text)}" for i, option in enumerate(question.key.options)]
        lines.append("")
    lines += [f"*{form(question)}*", ""]
    lines += ["<details><summary>Hint</summary>", "", _escape(question.hint), "", "</details>"]
    lines += ["<details><summary>Answer</summary>", ""]
    lines += [f"- **{name}:** {_escape(text)}" for name, text in _parts(question)]
    return [*lines, "", "</details>", ""]


def _escape(text: str) -> str:
    """Keep Markdown from reading formulas as emphasis, tables or tags."""
    for sign in ("\\", "*", "_", "|", "<", "`", "~"):
        text = text.replace(sign, f"\\{sign}")
    return text


def page(questions: Sequence[Question]) -> str:
    """One HTML page without scripts or outside resources."""
    body = "\n".join(_article(question, number) for number, question in enumerate(questions, start=1))
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{TITLE}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>{TITLE}</h1>\n"
        f"<p>{len(questions)} questions. Answers are computed; open them after "
        f"yours.</p>\n{body}\n</body>\n</html>\n"
    )


def _article(question: Question, number: int | None = None) -> str:
    head = ""
    if number is not None:
        head = f"<h2>{number}. {html.escape(TOPICS[question.topic])} ({question.level})</h2>"
    options = ""
    if isinstance(question.key, Choice):
        options = "<ol>" + "".join(f"<li>{html.escape(o.text)}</li>" for o in question.key.options) + "</ol>"
    parts = "".join(f"<dt>{name}</dt><dd>{_value(name, text)}</dd>" for name, text in _parts(question))
    follow = "".join(_article(other) for other in question.follow_ups)
    return (
        f'{head}<article><p class="name">{html.escape(question.ident)}</p><p>{html.escape(question.text)}</p>'
        f'{options}<p class="form">{html.escape(form(question))}</p>'
        f"<details><summary>Hint</summary><p>{html.escape(question.hint)}</p></details>"
        f"<details><summary>Answer</summary><dl>{parts}</dl></details>{follow}</article>"
    )


def _value(name: str, text: str) -> str:
    shown = html.escape(text)
    return f"<code>{shown}</code>" if name == "Formula" else shown


def anki(questions: Sequence[Question]) -> str:
    """Comma-separated cards: front, back, tags; Anki reads the first lines as instructions."""
    text = io.StringIO()
    text.write("#separator:Comma\n#html:true\n#columns:Front,Back,Tags\n#tags column:3\n")
    writer = csv.writer(text, lineterminator="\n")
    for question in questions:
        for one in (question, *question.follow_ups):
            writer.writerow([_front(one), _back(one), f"plan-parallel {one.topic} {one.level}"])
    return text.getvalue()


def _front(question: Question) -> str:
    options = ""
    if isinstance(question.key, Choice):
        options = "".join(
            f"<br>{LETTERS[i]}) {html.escape(o.text)}" for i, o in enumerate(question.key.options)
        )
    return f"{html.escape(question.text)}{options}<br><i>{html.escape(form(question))}</i>"


def _back(question: Question) -> str:
    return "<br>".join(f"<b>{name}:</b> {html.escape(text)}" for name, text in _parts(question))
