"""``frameworks``: whose limits and habits the planner knows."""

from __future__ import annotations

import click

from planner.cli.options import json_option


@click.command(name="frameworks", short_help="List the frameworks, or show one with its limits and habits.")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the frameworks that --framework knows; with NAME, show its limits and habits."""
    from planner.frameworks import FRAMEWORKS, load_framework
    from planner.report.json import dumps
    from planner.report.listing import details, framework_row, frameworks_table

    if name is not None:
        data = load_framework(name).model_dump(mode="json")
        click.echo(dumps(data) if as_json else details(data))
        return
    rows = [framework_row(load_framework(entry)) for entry in FRAMEWORKS]
    click.echo(dumps(rows) if as_json else frameworks_table(rows))
