"""``check``: what is wrong with existing launch files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from planner.cli.options import problem_options, question, search_options
from planner.cli.sections import SectionedCommand
from planner.errors import BadInput

ERRORS = 3


def assignment(said: str) -> tuple[str, str]:
    """Split ``NAME=VALUE``.

    Raises
    ------
    BadInput
        It is no assignment to a shell variable.
    """
    name, equals, value = said.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*|\d", name):
        raise BadInput(f"--set {said!r}: write NAME=VALUE with the name of a shell variable, such as TP=8")
    return name, value


@click.command(
    cls=SectionedCommand,
    name="check",
    short_help="Check launch files: errors, memory, time, and a better plan.",
)
@click.argument("files", nargs=-1, required=True)
@click.option("--format", "style", default="text", metavar="text|json|github", help="How to print findings.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--set",
    "assigned",
    multiple=True,
    metavar="NAME=VALUE",
    help="A shell variable of the files (TP=8), or an argument (1=8).",
)
@click.option("--fix", "out", metavar="DIR", help="Write the better plan's files into this folder.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option("--no-search", is_flag=True, help="Only check; do not look for a better plan.")
@problem_options
@search_options
def command(files: tuple[str, ...], style: str, as_json: bool, out: str | None, **options: Any) -> None:
    """Check the launch FILES of one run; the model may come from --model or from the files.

    Exit code 3 when the run cannot work as written.
    """
    from planner.api import review_files
    from planner.frameworks.lint import fix, format_findings
    from planner.output import write_folder
    from planner.report.json import dumps, review_report
    from planner.report.table import review_text

    limit, _ = options.pop("time_limit"), options.pop("workers")
    force, no_search = options.pop("force"), options.pop("no_search")
    style = "json" if as_json else style
    variables = dict(assignment(said) for said in options.pop("assigned"))
    found = review_files(files, question(options), 0.0 if no_search else limit, variables)
    if style == "json":
        click.echo(dumps(review_report(found)))
    else:
        click.echo(format_findings(found.findings, style), nl=False)
    if style == "text":
        click.echo(review_text(found))
    if out is not None:
        write_folder(Path(out), fix(found), force)
    sys.exit(ERRORS if found.has_errors else 0)
