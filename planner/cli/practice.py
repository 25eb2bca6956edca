"""``practice``: interview questions with computed answers, in the terminal, as a file, or from a script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli.options import json_option

if TYPE_CHECKING:
    from planner.practice.progress import Progress
    from planner.practice.question import Question

WRONG = 1
DEFAULT_COUNT = 10
LARGEST_SEED = 10**9


@click.command(name="practice", short_help="Interview practice: computed questions, explained answers.")
@click.option("--topic", metavar="TOPIC", help="One topic: its name or section (12.1.2), as --list shows.")
@click.option("--level", metavar="LEVEL", help="mid, senior or staff.")
@click.option(
    "--seed",
    type=click.IntRange(0, LARGEST_SEED),
    metavar="N",
    help="Draws order and numbers [default: new].",
)
@click.option(
    "--count", type=click.IntRange(1, 500), metavar="N", help=f"Questions [default: {DEFAULT_COUNT}]."
)
@click.option("--id", "ident", metavar="ID", help="One question: 12.1.1/2, zero-state:7, zero-state:7+1.")
@click.option("--answer", "given", metavar="TEXT", help="Grade this answer to --id; exit code 1 when wrong.")
@click.option("--list", "show_list", is_flag=True, help="List all questions and kinds.")
@click.option("--stats", is_flag=True, help="Answers so far by topic, and what is due.")
@click.option(
    "--export", "path", metavar="FILE", help="Write a quiz: FILE ends in .md, .html or .csv (Anki)."
)
@click.option("--force", is_flag=True, help="Replace the file.")
@click.option("--no-progress", is_flag=True, help="Neither read nor write the progress file.")
@json_option
def command(**options: Any) -> None:
    """Practise the interview questions of distributed training.

    Answers take units (31.4 GB, 12.5%, 3.1 ms). Without options: ten questions, those due first.
    """
    from planner.errors import BadInput

    modes = [name for name in ("show_list", "stats", "path", "given") if options[name] not in (None, False)]
    if len(modes) > 1:
        raise BadInput("give only one of --list, --stats, --export and --answer")
    if options["given"] is not None and options["ident"] is None:
        raise BadInput("--answer needs --id, which question it answers")
    chosen = [name for name in ("topic", "level", "seed", "count") if options[name] is not None]
    if options["ident"] is not None and chosen:
        raise BadInput(f"--id names one question, so --{chosen[0]} has nothing to choose")
    if options["show_list"]:
        _list(options)
    elif options["stats"]:
        _stats(options)
    elif options["path"] is not None:
        _export(options)
    elif options["given"] is not None:
        _grade(options)
    else:
        _ask(options)


def _list(options: dict[str, Any]) -> None:
    from planner.practice.bank import cards
    from planner.practice.show import list_data, list_text

    found = cards(options["topic"], options["level"])
    click.echo(_json(list_data(found)) if options["as_json"] else list_text(found))


def _stats(options: dict[str, Any]) -> None:
    from planner.practice.bank import cards
    from planner.practice.show import stats_data, stats_text

    progress, found = _progress(), cards(options["topic"], options["level"])
    click.echo(_json(stats_data(progress, found)) if options["as_json"] else stats_text(progress, found))


def _export(options: dict[str, Any]) -> None:
    from planner.output import write_file
    from planner.practice.export import export

    path = Path(options["path"])
    questions = _questions(options, None)
    write_file(path, export(questions, path), options["force"])
    click.echo(f"{path}: {len(questions)} questions")


def _grade(options: dict[str, Any]) -> None:
    from planner.practice.bank import find
    from planner.practice.grade import grade
    from planner.practice.show import explanation_text, question_data, wrap

    question = find(options["ident"])
    found = grade(question, options["given"])
    if not options["no_progress"]:
        _progress().record(question.ident, question.card, found.right, helped=False)
    if options["as_json"]:
        result = {"right": found.right, "score": found.score, "message": found.message}
        click.echo(_json({**result, "question": question_data(question)}))
    else:
        click.echo(f"{wrap(found.message)}\n{explanation_text(question)}")
    sys.exit(0 if found.right else WRONG)


def _ask(options: dict[str, Any]) -> None:
    from planner.practice.session import Session
    from planner.practice.show import question_data

    progress = None if options["no_progress"] or options["as_json"] else _progress()
    questions = _questions(options, progress)
    if options["as_json"]:
        click.echo(_json([question_data(question) for question in questions]))
        return
    prompt = "> " if sys.stdin.isatty() else ""
    Session(questions, lambda: _line(prompt), click.echo, progress).run()


def _line(prompt: str) -> str:
    """Read one line; ``EOFError`` at the end of the input."""
    return input(prompt)


def _questions(options: dict[str, Any], progress: Progress | None) -> list[Question]:
    """Questions that the options choose; with progress and no seed, cards that are due come first."""
    from random import randrange

    from planner.practice import bank

    if options["ident"] is not None:
        return [bank.find(options["ident"])]
    found, seed = bank.cards(options["topic"], options["level"]), options["seed"]
    count = options["count"] or min(DEFAULT_COUNT, len(found))
    if seed is not None or progress is None:
        return bank.choose(found, count, 1 if seed is None else seed)
    drawn = randrange(LARGEST_SEED)
    by_name = {question.card: question for question in bank.choose(found, len(found), drawn)}
    first = [by_name[own] for own in progress.in_order(list(by_name))[:count]]
    return first + bank.choose(found, count, drawn)[len(found) :]


def _progress() -> Progress:
    from planner.practice.progress import Progress

    progress = Progress.open()
    if progress.notice:
        click.echo(progress.notice, err=True)
    return progress


def _json(data: Any) -> str:
    from planner.report.json import dumps

    return dumps(data)
