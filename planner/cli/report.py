"""``report``: the whole answer as one offline page, and the simulated step as a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from planner.cli.options import pin_options, problem_options, question, search_options, top_option


@click.command(name="report", short_help="Write the whole answer as one offline HTML page.")
@problem_options
@pin_options
@search_options
@top_option
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.html", help="The page.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE.json", help="The step for Perfetto.")
@click.option("--what-if/--no-what-if", default=False, help="Add the sensitivity table (more searches).")
@click.option("--force", is_flag=True, help="Replace files that exist.")
def command(out: Path, trace: Path | None, top: int, what_if: bool, force: bool, **options: Any) -> None:
    """Find the best plans and write them, with every reason and figure, as one page that needs no network."""
    from planner.explain.answer import answer, find
    from planner.output import write_file
    from planner.report.page import answer_page

    limit, workers = options.pop("time_limit"), options.pop("workers")
    request = question(options).request()
    found = answer(request, find(request, top, limit, workers), what_if=what_if)
    write_file(out, answer_page(found), force)
    click.echo(f"Wrote {out}")
    if trace is not None and found.result.best is not None:
        from planner.report.timeline import chrome_trace

        write_file(trace, chrome_trace(found.result.best.plan, request), force)
        click.echo(f"Wrote {trace} (open it in Perfetto or chrome://tracing)")
    sys.exit(found.exit_code)
