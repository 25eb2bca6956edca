"""Help pages whose options stand under headings, in the order in which a user needs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

PROBLEM = "The problem"
MACHINE = "The machine, without a file"
PINS = "Pins: a value (8), a list (4,8), a range (1:8) or a ban (!8, not-gpipe)"
SEARCH = "The search"
OTHER = "Options"
ORDER = (PROBLEM, MACHINE, PINS, SEARCH, OTHER)
"""Headings from top to bottom; one without options is left out."""


class SectionOption(click.Option):
    """Option that says under which heading of the help page it stands."""

    def __init__(self, *declarations: Any, section: str, **named: Any) -> None:
        super().__init__(*declarations, **named)
        self.section = section


def sectioned(section: str) -> Callable[..., Callable[[F], F]]:
    """Return ``click.option`` for the options of one section."""

    def option(*declarations: str, **named: Any) -> Callable[[F], F]:
        return click.option(*declarations, cls=SectionOption, section=section, **named)

    return option


class SectionedCommand(click.Command):
    """Command whose help page groups its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list a section; options that name none stand under ``OTHER``."""
        rows: dict[str, list[tuple[str, str]]] = {name: [] for name in ORDER}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                rows[getattr(parameter, "section", OTHER)].append(record)
        for name, found in rows.items():
            if found:
                with formatter.section(name):
                    formatter.write_dl(found)
