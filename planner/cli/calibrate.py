"""``calibrate``: measure this machine's GPUs into a hardware file."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="calibrate", short_help="Measure this machine's GPUs and write a hardware file.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.toml", help="The file.")
@click.option("--base", metavar="NAME", help="Catalog entry for what is not measured [the driver's GPU].")
@click.option("--quick", is_flag=True, help="A tenth of the shapes: about a minute.")
def command(out: Path, base: str | None, quick: bool) -> None:
    """Time matrix products, attention, memory and collectives, and fit the curves that --hardware takes.

    Needs PyTorch with a GPU; the network between nodes stays that of the catalog entry.
    """
    from planner.calibrate import calibrate

    calibrate(out, base, quick, click.echo)
