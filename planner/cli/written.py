"""What a command makes of an answer: the printed text or JSON, the page and the trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.errors import BadInput
from planner.output import write_file

if TYPE_CHECKING:
    from planner.explain.answer import Answer

trace_option = click.option(
    "--trace", type=click.Path(path_type=Path), metavar="FILE.json", help="Write the step for Perfetto."
)
html_option = click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    help="Write the answer as an offline page.",
)
force_option = click.option("--force", is_flag=True, help="Replace files that exist.")


def refuse_existing(paths: tuple[Path | None, ...], force: bool) -> None:
    """Refuse files that exist before a long search rather than after it.

    Raises
    ------
    BadInput
        A file exists and ``force`` is off.
    """
    for path in paths:
        if path is not None and path.exists() and not force:
            raise BadInput(f"{path} exists; give --force to replace it, or another name")


def write_answer(found: Answer, page: Path | None, trace: Path | None, force: bool) -> list[str]:
    """Write the page and the trace that are asked for; return one sentence a file.

    There is no trace where there is no plan, which the sentence says.
    """
    said = []
    if page is not None:
        from planner.report.page import answer_page

        write_file(page, answer_page(found), force)
        said.append(f"Wrote {page}")
    if trace is not None and found.result.best is None:
        said.append(f"{trace} is not written: there is no plan to trace")
    elif trace is not None and found.result.best is not None:
        from planner.report.timeline import chrome_trace

        write_file(trace, chrome_trace(found.result.best.plan, found.request), force)
        said.append(f"Wrote {trace} (open it in Perfetto or chrome://tracing)")
    return said


def print_answer(found: Answer, as_json: bool, only_why: bool = False) -> None:
    """Print an answer as JSON or as text; ``only_why`` as for ``answer_text``."""
    if as_json:
        from planner.report.json import answer_report, dumps

        click.echo(dumps(answer_report(found)))
    else:
        from planner.report.table import answer_text

        click.echo(answer_text(found, only_why=only_why))
