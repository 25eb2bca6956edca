"""``why``: every setting of the best plan against its neighbours, searched again."""

from __future__ import annotations

import sys
from typing import Any

import click

from planner.cli.options import (
    json_option,
    pin_options,
    problem_options,
    question,
    search_options,
)
from planner.cli.sections import SectionedCommand
from planner.cli.written import print_answer

RANKED = 5
"""Plans of the ranking that the search around them need not look for again."""


@click.command(
    cls=SectionedCommand,
    name="why",
    short_help="Why every setting of the best plan is what it is, re-solved.",
)
@problem_options
@pin_options
@search_options
@json_option
def command(as_json: bool, **options: Any) -> None:
    """Search again around every setting: what forces it, what forbids more, and what the others lose.

    For each neighbouring value: the same plan with it (the rule it breaks, the bytes it lacks, or its loss by
    term), and the best plan that it allows. Then what binds, and what each limit costs.
    """
    from planner.api import known_frameworks
    from planner.explain.answer import answer, find

    limit, workers = options.pop("time_limit"), options.pop("workers")
    request = question(options).request()
    result = find(request, RANKED, limit, workers)
    found = answer(request, result, full=True, seconds=limit, frameworks=known_frameworks)
    print_answer(found, as_json, only_why=True)
    sys.exit(found.exit_code)
