"""``hardware``: the accelerator catalog, or one accelerator in full."""

from __future__ import annotations

import click

from planner.cli.options import json_option


@click.command(name="hardware", short_help="List the accelerator catalog, or show one with its sources.")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the accelerators that --hardware knows; with NAME (or a file), show that one with its sources."""
    from planner.catalog.files import entries
    from planner.catalog.hardware import load_accelerator
    from planner.report.json import dumps
    from planner.report.listing import details, hardware_row, hardware_table

    if name is not None:
        data = load_accelerator(name).model_dump(mode="json")
        click.echo(dumps(data) if as_json else details(data))
        return
    rows = [hardware_row(load_accelerator(entry)) for entry in entries("hardware")]
    click.echo(dumps(rows) if as_json else hardware_table(rows))
