"""``launch``: the launch files of the best plan, or of a given one."""

from __future__ import annotations

from pathlib import Path
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


@click.command(
    cls=SectionedCommand, name="launch", short_help="Write the launch files of the best plan, or of another."
)
@click.option("--out", metavar="DIR", help="Folder to write into; without it the files are printed.")
@click.option(
    "--rank", default=1, type=click.IntRange(1, 100), metavar="N", help="Plan of the ranking [default: 1]."
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@plan_file_option
@problem_options
@pin_options
@search_options
@json_option
def command(out: str | None, rank: int, path: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Write what starts the plan with --framework: scripts, arguments, environment, rank map."""
    from planner.api import expressible_plan, launch_files, plan_file
    from planner.output import write_folder
    from planner.report.json import dumps

    limit, workers = options.pop("time_limit"), options.pop("workers")
    request = question(options).request()
    said: list[str] = []
    if path:
        plan = plan_file(path, request)
    else:
        plan, said = expressible_plan(request, rank, limit, workers)
    files = launch_files(plan, request)
    for sentence in said:
        click.echo(sentence, err=True)
    if out is not None:
        write_folder(Path(out), files, force)
    if as_json:
        click.echo(dumps({"folder": out, "files": files}))
    elif out is not None:
        click.echo("\n".join(f"{out}/{name}" for name in files))
    else:
        click.echo("\n".join(f"# ---- {name}\n{text.rstrip()}\n" for name, text in files.items()))
