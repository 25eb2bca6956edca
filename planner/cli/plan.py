"""``plan``: the ranked plans and why the first one is what it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from planner.cli.options import (
    json_option,
    pin_options,
    problem_options,
    question,
    search_options,
    top_option,
)
from planner.cli.sections import SectionedCommand
from planner.cli.written import (
    force_option,
    html_option,
    print_answer,
    refuse_existing,
    trace_option,
    write_answer,
)


@click.command(
    cls=SectionedCommand,
    name="plan",
    short_help="Find, rank and explain the best plans (the default command).",
)
@problem_options
@pin_options
@search_options
@top_option
@click.option("--explain", "full", is_flag=True, help="Re-solve around every degree; slower, longer reasons.")
@click.option(
    "--what-if", is_flag=True, help="Which changes of the machine or the batch make another plan win."
)
@html_option
@trace_option
@force_option
@json_option
def command(as_json: bool, top: int, full: bool, what_if: bool, **options: Any) -> None:
    """Find the best plans for a model on a cluster, rank them, and explain the first.

    Pins take a value (--tp 8), a list (--tp 4,8), a range (--pp 1:8) or a ban (--schedule not-gpipe).
    """
    from planner.api import known_frameworks
    from planner.explain.answer import SEARCH_S, answer, find

    limit, workers = options.pop("time_limit"), options.pop("workers")
    html: Path | None = options.pop("html")
    trace: Path | None = options.pop("trace")
    force: bool = options.pop("force")
    refuse_existing((html, trace), force)
    request = question(options).request()
    result = find(request, top, limit, workers)
    seconds = limit if full else min(limit, SEARCH_S)
    found = answer(request, result, full=full, what_if=what_if, seconds=seconds, frameworks=known_frameworks)
    print_answer(found, as_json)
    for sentence in write_answer(found, html, trace, force):
        click.echo(sentence, err=True)
    sys.exit(found.exit_code)
