"""Option sets that commands share, so that two commands cannot drift apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from planner.catalog.pins import PIN_OPTIONS

if TYPE_CHECKING:
    from planner.request import Question

F = TypeVar("F", bound=Callable[..., Any])


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    """Refuse infinite and not-a-number seconds, which pass any range."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds")
    return value


_PROBLEM = (
    click.option(
        "--model", metavar="NAME|FILE", help="Catalog name, size such as 33b, .toml or config.json."
    ),
    click.option("--hardware", metavar="NAME|FILE", help="Accelerator [default: h100-sxm-80gb]."),
    click.option("--gpus", metavar="N", help="GPUs of the cluster."),
    click.option("--gpus-per-node", metavar="N", help="GPUs per node [default: the hardware's usual node]."),
    click.option("--global-batch", metavar="N|LO:HI", help="Sequences per step, a range, or tokens (4Mtok)."),
    click.option("--seq-length", metavar="N", help="Tokens per sequence [default: the model's]."),
    click.option("--precision", metavar="LIST", help="bf16, fp8, ...; a list lets the planner choose."),
    click.option("--framework", metavar="NAME", help="Whose limits and habits hold [default: megatron]."),
    click.option("--finetune", metavar="full|lora|qlora", help="What is trained [default: full]."),
    click.option(
        "--optimizer",
        metavar="NAME",
        help="adam, adam-bf16, adam-8bit, lion, sgd-momentum or sgd [default: the framework's].",
    ),
    click.option("--loss", metavar="whole|chunked", help="Logits at once [default: the framework's]."),
    click.option("--hbm", metavar="SIZE", help="Pretend each GPU has this much HBM (80GB, 79.6GiB)."),
    click.option("--hbm-reserve", metavar="SIZE", help="HBM to keep free on each GPU."),
    click.option("--domain-gpus", metavar="N", help="GPUs of the fastest tier (NVLink, xGMI, ICI)."),
    click.option(
        "--domain-bandwidth", metavar="GB/s", help="Rate of the fastest tier, per GPU and direction."
    ),
    click.option("--nic-bandwidth", metavar="GB/s", help="Rate of the network, per GPU and direction."),
    click.option("--pod-gpus", metavar="N", help="GPUs below one spine connection."),
    click.option("--oversubscription", metavar="X", help="Oversubscription of the outermost tier."),
)

_SEARCH = (
    click.option(
        "--goal", default="step-time", metavar="GOAL", help="step-time, memory, cost or tokens-per-s."
    ),
    click.option("--step-time", metavar="SECONDS", help="Target: the fewest GPUs that reach it."),
    click.option(
        "--max-bubble",
        default="0.25",
        metavar="X|none",
        help="Bubble budget, a fraction of ideal [default: 0.25].",
    ),
    click.option(
        "--allow-tp-across-nodes", is_flag=True, help="TP may leave the NVLink domain (priced there)."
    ),
    click.option("--allow-idle", is_flag=True, help="A plan may use fewer GPUs than the cluster has."),
    click.option(
        "--robust", is_flag=True, help="Prefer plans that stay good when the model is a little wrong."
    ),
    click.option(
        "--time-limit",
        default=60.0,
        type=click.FloatRange(min=0.1),
        callback=_finite,
        help="Seconds to search [60].",
    ),
    click.option("--workers", type=click.IntRange(min=1), help="Solver threads [default: all cores]."),
)

plan_file_option = click.option(
    "--plan", "path", metavar="FILE", help="Plan from a JSON file (--json) or a launch file."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
top_option = click.option("--top", default=5, type=click.IntRange(1, 100), help="Plans to show [5].")


def _apply(function: F, options: tuple[Callable[[F], F], ...]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def problem_options(function: F) -> F:
    """Model, machine and workload."""
    return _apply(function, _PROBLEM)


def search_options(function: F) -> F:
    """Goal, budgets and effort."""
    return _apply(function, _SEARCH)


def pin_options(function: F) -> F:
    """One option per plan field; each takes a value, a list 4,8, a range 1:8 or a ban !8."""
    for pin in reversed(PIN_OPTIONS):
        words = "|".join(pin.choices) if pin.choices else "on|off" if pin.boolean else "N|A,B|LO:HI|!N"
        function = click.option(pin.option, *pin.aliases, f"pin_{pin.field}", metavar=words, help=pin.help)(
            function
        )
    return click.option("--no-recompute", is_flag=True, help="The same as --recompute none.")(function)


def question(options: dict[str, Any]) -> Question:
    """Take problem, pin and search options out of a command's options; return the question they ask."""
    from planner.errors import BadInput
    from planner.request import Question

    pins = {name.removeprefix("pin_"): options.pop(name) for name in list(options) if name.startswith("pin_")}
    pins = {name: text for name, text in pins.items() if text is not None}
    if options.pop("no_recompute", False):
        if "recompute" in pins:
            raise BadInput(
                f"--no-recompute and --recompute {pins['recompute']} contradict each other; give one"
            )
        pins["recompute"] = "none"
    names = set(Question.__dataclass_fields__) - {"pins"}
    return Question(pins=pins, **{name: options.pop(name) for name in list(options) if name in names})
