"""``models``: the model catalog, or one model in full."""

from __future__ import annotations

from typing import Any

import click

from planner.cli.options import json_option


@click.command(name="models", short_help="List the model catalog, or show one model.")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the models that --model knows; with NAME (or a file), show that one."""
    from planner.catalog.models import load_model, model_summaries, model_summary
    from planner.report.json import dumps
    from planner.report.listing import details, models_table

    if name is not None:
        data: Any = model_summary(load_model(name))
        click.echo(dumps(data) if as_json else details(data))
        return
    rows = model_summaries()
    click.echo(dumps(rows) if as_json else models_table(rows))
