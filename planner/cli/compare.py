"""``compare``: two plans side by side."""

from __future__ import annotations

from typing import Any

import click

from planner.cli.options import json_option, pin_options, problem_options, question, search_options
from planner.cli.sections import SectionedCommand


@click.command(
    cls=SectionedCommand,
    name="compare",
    short_help="Two plans side by side: ranks, plan files or launch files.",
)
@click.argument("first")
@click.argument("second")
@problem_options
@pin_options
@search_options
@json_option
def command(first: str, second: str, as_json: bool, **options: Any) -> None:
    """Compare FIRST and SECOND under the same model, machine and batch.

    Each is a rank of the plan command (1, 2, ...), a JSON file that it printed (plan.json, or plan.json#2 for
    its second plan), or a launch file of the framework.
    """
    from planner.api import plans_from
    from planner.explain.compare import compare

    limit, workers = options.pop("time_limit"), options.pop("workers")
    request = question(options).request()
    one, two = plans_from((first, second), request, time_limit_s=limit, workers=workers)
    found = compare(one, two, request, (_name(first), _name(second)))
    if as_json:
        from planner.report.json import comparison_report, dumps

        click.echo(dumps(comparison_report(found)))
    else:
        from planner.report.table import comparison_text

        click.echo(comparison_text(found))


def _name(word: str) -> str:
    return f"plan {word}" if word.isascii() and word.isdigit() else word.rsplit("/", 1)[-1]
