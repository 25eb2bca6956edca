"""``report``: the whole answer as one offline page, and the simulated step as a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from planner.cli.options import pin_options, problem_options, question, search_options, top_option
from planner.cli.sections import SectionedCommand
from planner.cli.written import force_option, refuse_existing, trace_option, write_answer


@click.command(
    cls=SectionedCommand, name="report", short_help="Write the whole answer as one offline HTML page."
)
@problem_options
@pin_options
@search_options
@top_option
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.html", help="The page.")
@trace_option
@click.option("--what-if/--no-what-if", default=False, help="Add the sensitivity table (more searches).")
@force_option
def command(out: Path, trace: Path | None, top: int, what_if: bool, force: bool, **options: Any) -> None:
    """Find the best plans and write them, with every reason and figure, as one page that needs no network."""
    from planner.api import known_frameworks
    from planner.explain.answer import answer, find

    limit, workers = options.pop("time_limit"), options.pop("workers")
    refuse_existing((out, trace), force)
    request = question(options).request()
    found = answer(request, find(request, top, limit, workers), what_if=what_if, frameworks=known_frameworks)
    for sentence in write_answer(found, out, trace, force):
        click.echo(sentence)
    sys.exit(found.exit_code)
