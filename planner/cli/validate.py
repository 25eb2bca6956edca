"""``validate``: predicted against measured."""

from __future__ import annotations

import click

from planner.cli.options import json_option


@click.command(name="validate", short_help="Compare predictions with measured runs (JSONL).")
@click.argument("file")
@json_option
def command(file: str, as_json: bool) -> None:
    """Predict every run of a JSON-lines FILE and compare with what was measured; no row is dropped."""
    from planner.report.json import dumps
    from planner.report.validation import validation_text
    from planner.validate.compare import validate_file

    report = validate_file(file)
    click.echo(dumps(report) if as_json else validation_text(report))
