"""The command group: lazy commands, ``plan`` as the default, errors as one sentence and an exit code."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from planner.errors import PlannerError

COMMANDS = {
    "plan": "planner.cli.plan",
    "estimate": "planner.cli.estimate",
    "why": "planner.cli.why",
    "why-not": "planner.cli.why_not",
    "compare": "planner.cli.compare",
    "check": "planner.cli.check",
    "launch": "planner.cli.launch",
    "report": "planner.cli.report",
    "sweep": "planner.cli.sweep",
    "validate": "planner.cli.validate",
    "calibrate": "planner.cli.calibrate",
    "practice": "planner.cli.practice",
    "models": "planner.cli.models",
    "hardware": "planner.cli.hardware",
    "frameworks": "planner.cli.frameworks",
    "rules": "planner.cli.rules",
}
"""Command name to the module whose ``command`` runs it, in the order of the help text."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""


class Failure(click.ClickException):
    """A planner error at the command line: one sentence on stderr and its exit code."""

    def __init__(self, error: PlannerError) -> None:
        super().__init__(str(error))
        vars(self)["exit_code"] = error.exit_code


class Refusal(click.ClickException):
    """Options that cannot be read, in one sentence on stderr, without the lines about usage."""

    exit_code = click.UsageError.exit_code

    def __init__(self, error: click.UsageError) -> None:
        where = error.ctx.command_path if error.ctx is not None else "plan-parallel"
        message = error.format_message().replace(". (", " (").rstrip(".")
        super().__init__(f"{message}; {where} --help lists the options.")


class PlannerGroup(click.Group):
    """Group whose commands are imported on use; options without a command mean ``plan``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, the main one first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name]).command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``plan`` in front when the first word is one of its options."""
        own = {"--help", "-h", "--version"}
        if args and args[0].startswith("-") and args[0] not in own:
            args = ["plan", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; errors and Ctrl-C become one sentence."""
        try:
            return super().invoke(ctx)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise Refusal(error) from error
        except PlannerError as error:
            raise Failure(error) from error
        except (KeyboardInterrupt, ImportError) as error:
            if not _is_interrupt(error):
                raise
            click.echo("Interrupted.", err=True)
            sys.exit(INTERRUPTED)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error; while a compiled module loads, it comes as an ImportError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@click.group(
    cls=PlannerGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 ok, 2 bad input, 3 nothing fits, 4 time limit without a plan. "
    'Completion: eval "$(_PLAN_PARALLEL_COMPLETE=bash_source plan-parallel)" (or zsh_source, fish_source).',
)
@click.version_option(package_name="plan-parallel", prog_name="plan-parallel")
def main() -> None:
    """Plan distributed training: which parallelism, does it fit, how fast, and why.

    Options without a command mean plan: plan-parallel --model 100b --gpus 512
    """
