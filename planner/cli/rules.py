"""``rules``: every rule that a legal plan satisfies."""

from __future__ import annotations

import click

from planner.cli.options import json_option


@click.command(name="rules", short_help="List the rules that every plan has to satisfy.")
@json_option
def command(as_json: bool) -> None:
    """List every rule: its name, the fields it reads, what it says when broken, and where it comes from."""
    from planner.report.json import dumps
    from planner.report.listing import rules_text
    from planner.rules import RULES

    rows = [
        {"rule": rule.name, "fields": list(rule.scope), "sentence": " ".join(rule.sentence.split()),
         "source": rule.source}
        for rule in RULES
    ]  # fmt: skip
    click.echo(dumps(rows) if as_json else rules_text(rows))
