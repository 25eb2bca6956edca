"""``estimate``: the price of one given plan."""

from __future__ import annotations

import sys
from typing import Any

import click

from planner.cli.options import json_option, pin_options, plan_file_option, problem_options, question
from planner.cli.sections import SectionedCommand

NOT_RUNNABLE = 3


@click.command(
    cls=SectionedCommand,
    name="estimate",
    short_help="Price one plan: time and memory by cause, legal or not, fits or not.",
)
@problem_options
@pin_options
@plan_file_option
@click.option(
    "--recompute-modules", metavar="LIST", help="What selective recompute covers, such as mlp,layernorm."
)
@click.option(
    "--max-bubble",
    default="0.25",
    metavar="X|none",
    help="Bubble budget, a fraction of the ideal time [default: 0.25].",
)
@click.option("--allow-tp-across-nodes", is_flag=True, help="TP may leave the fast domain (priced there).")
@click.option("--allow-idle", is_flag=True, help="The plan may use fewer GPUs than the cluster has.")
@json_option
def command(as_json: bool, path: str | None, recompute_modules: str | None, **options: Any) -> None:
    """Price one plan. Settings that are not given take the plainest value.

    Exit code 3 when the plan breaks a rule or does not fit.
    """
    from planner.api import pinned_plan, priced_file
    from planner.solver.evaluate import evaluate

    asked = question(options)
    if path:
        plan, request = priced_file(path, asked)
    else:
        request = asked.request()
        plan = pinned_plan(request)
    if recompute_modules is not None:
        plan = plan.model_copy(update={"recompute_modules": _modules(recompute_modules)})
    estimate = evaluate(plan, request)
    if as_json:
        from planner.report.json import dumps, estimate_report, request_report

        report = estimate_report(estimate)
        click.echo(dumps({"request": request_report(request), "assumptions": request.assumptions, **report}))
    else:
        from planner.report.table import estimate_text

        click.echo(estimate_text(estimate, request))
    sys.exit(0 if estimate.is_legal and estimate.fits else NOT_RUNNABLE)


def _modules(said: str) -> tuple[str, ...]:
    """Names of recomputed modules.

    Raises
    ------
    BadInput
        No layer has a part of that name.
    """
    from planner.cost.activations import RECOMPUTE_DROPS
    from planner.errors import BadInput, did_you_mean

    words = tuple(word.strip() for word in said.split(","))
    for word in words:
        if word not in RECOMPUTE_DROPS:
            known = ", ".join(RECOMPUTE_DROPS)
            hint = did_you_mean(word, RECOMPUTE_DROPS)
            raise BadInput(f"--recompute-modules {word!r} is not one of {known}{hint}")
    return words
