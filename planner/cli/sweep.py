"""``sweep``: scaling curve, days and dollars over cluster sizes and accelerators."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from planner.cli.options import json_option, pin_options, problem_options, search_options
from planner.cli.sections import SectionedCommand

MOST = 1e30
"""No figure of a run is near it, and none that follows from it is infinite."""
NOTHING_FITS, NO_TIME = 3, 4
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    cls=SectionedCommand, name="sweep", short_help="Scaling curve, days and dollars over cluster sizes."
)
@problem_options
@pin_options
@search_options
@click.option("--tokens", metavar="15T", help="Tokens of the whole run, for days and dollars.")
@click.option(
    "--price",
    type=click.FloatRange(min=0),
    metavar="USD",
    help="Per GPU-hour [default: the hardware file's].",
)
@click.option(
    "--mtbf", metavar="TIME", help="Mean time between failures of one GPU [default: 50.7 kh, Llama 3's]."
)
@click.option("--restart", metavar="TIME", help="From a failure to the next step [default: 10 min].")
@click.option("--storage", metavar="GB/s", help="Rate at which a checkpoint is written [default: 2000].")
@click.option("--csv", "csv_file", type=_FILE, metavar="FILE", help="Write every figure as CSV.")
@click.option("--html", "html_file", type=_FILE, metavar="FILE", help="Write the scaling curves as a page.")
@click.option("--state", type=_FILE, metavar="FILE", help="Remember answers here; a rerun goes on from it.")
@click.option(
    "--processes", type=click.IntRange(min=1), metavar="N", help="Worker processes [default: one per core]."
)
@click.option("--cluster", metavar="ADDRESS", help="A Dask scheduler to spread the questions over.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@json_option
def command(
    as_json: bool, force: bool, csv_file: Path | None, html_file: Path | None, **options: Any
) -> None:
    """Plan the model at every size (--gpus 64:8192 doubles; 64,96,128 lists) and accelerator (a list)."""
    from planner.cli.written import refuse_existing
    from planner.output import write_file
    from planner.sweep.show import batch_budget, csv_text, page, rows, table

    model = options.get("model")
    refuse_existing((csv_file, html_file), force)
    outcomes = _outcomes(options)
    if csv_file is not None:
        write_file(csv_file, csv_text(outcomes), force)
    if html_file is not None:
        write_file(html_file, page(outcomes, f"Scaling of {model}"), force)
    if as_json:
        from planner.report.json import dumps

        click.echo(dumps({"rows": rows(outcomes), "notes": batch_budget(outcomes)}))
    else:
        click.echo("\n".join([table(outcomes), *batch_budget(outcomes)]))
    sys.exit(_exit_code({outcome.status for outcome in outcomes}))


def _exit_code(statuses: set[str]) -> int:
    """0 where some question has a plan, else that of the commands that ask one question."""
    if statuses & {"optimal", "feasible"}:
        return 0
    return NO_TIME if "time-limit" in statuses else NOTHING_FITS


def _outcomes(options: dict[str, Any]) -> list[Any]:
    from dataclasses import asdict

    from planner.cli.options import question
    from planner.errors import BadInput
    from planner.sweep import run, scenarios

    extra = {name: options.pop(name) for name in ("state", "processes", "cluster", "time_limit")}
    options.pop("workers")
    economy = _economy(options)
    said = asdict(question(options))
    if not said["model"] or not said["gpus"]:
        raise BadInput("a sweep needs --model and --gpus (64:8192, or 64,96,128)")
    gpus, hardware = said.pop("gpus"), said.pop("hardware") or "h100-sxm-80gb"
    given = {name: value for name, value in said.items() if value is not None}
    asked = scenarios(gpus, hardware, given)
    _refuse_what_no_question_takes(asked)
    answers = run(
        asked, economy, state=extra["state"], time_limit_s=extra["time_limit"],
        processes=extra["processes"], cluster=extra["cluster"],
    )  # fmt: skip
    if not sys.stderr.isatty():
        return list(answers)
    with click.progressbar(answers, length=len(asked), label="planning", file=sys.stderr) as bar:
        return list(bar)


def _economy(options: dict[str, Any]) -> Any:
    from planner.errors import BadInput
    from planner.sweep import Economy
    from planner.units import parse_count, parse_seconds

    price = options.pop("price")
    given: dict[str, Any] = {"usd_per_gpu_hour": price if not price else _positive(price, "--price")}
    tokens, mtbf, restart, storage = (options.pop(name) for name in ("tokens", "mtbf", "restart", "storage"))
    if tokens is not None:
        given["training_tokens"] = _positive(parse_count(tokens, "--tokens"), "--tokens")
    if mtbf is not None:
        given["failures_per_gpu_hour"] = 3600.0 / _positive(parse_seconds(mtbf, "--mtbf"), "--mtbf")
    if restart is not None:
        given["restart_s"] = parse_seconds(restart, "--restart")
    if storage is not None:
        try:
            given["storage_bytes_per_s"] = _positive(float(storage), "--storage") * 1e9
        except ValueError as error:
            raise BadInput(f"--storage {storage!r} is not a number of GB/s") from error
    return Economy(**given)


def _positive(value: float, option: str) -> float:
    from planner.errors import BadInput

    if not 0 < value <= MOST:
        raise BadInput(f"{option} {value:g}: must be a number above zero, up to {MOST:g}")
    return value


def _refuse_what_no_question_takes(asked: list[Any]) -> None:
    """Raise the error of the first question where all of them are refused: searching would answer none."""
    from planner.errors import BadInput

    errors = []
    for scenario in asked:
        try:
            scenario.question().request()
            return
        except BadInput as error:
            errors.append(error)
    raise errors[0]
