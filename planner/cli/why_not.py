"""``why-not``: a partial choice, a plan or a launch file against the best plan."""

from __future__ import annotations

import sys
from typing import Any

import click

from planner.cli.options import (
    json_option,
    pin_options,
    plan_file_option,
    problem_options,
    question,
    search_options,
)
from planner.cli.sections import SectionedCommand

REFUSED = 3


@click.command(
    cls=SectionedCommand,
    name="why-not",
    short_help="Why not this choice: the rule it breaks, or what it loses and where.",
)
@problem_options
@pin_options
@plan_file_option
@search_options
@json_option
def command(as_json: bool, path: str | None, **options: Any) -> None:
    """Compare a choice (pins such as --tp 16, or --plan FILE) with the best plan.

    Says whether the choice is legal and fits, what its best completion loses term by term, and the smallest
    change of the machine or the batch that would make it win.
    """
    from planner.api import known_frameworks, priced_file
    from planner.errors import BadInput
    from planner.explain.why_not import why_not, why_not_plan

    limit, _ = options.pop("time_limit"), options.pop("workers")
    asked = question(options)
    if path is not None:
        plan, request = priced_file(path, asked)
        found = why_not_plan(plan, request, seconds=limit)
    else:
        request = asked.request()
        if not request.pins:
            raise BadInput("say which choice: a pin such as --tp 16, or --plan FILE")
        found = why_not(request, seconds=limit, frameworks=known_frameworks)
    if as_json:
        from planner.report.json import dumps, why_not_report

        click.echo(dumps(why_not_report(found)))
    else:
        from planner.report.table import why_not_text

        click.echo(why_not_text(found))
    sys.exit(0 if found.completion is not None else REFUSED)
