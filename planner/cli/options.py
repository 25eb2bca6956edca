"""Option sets that commands share, so that two commands cannot drift apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from planner.catalog.pins import PIN_OPTIONS
from planner.cli.sections import MACHINE, PINS, PROBLEM, SEARCH, sectioned
from planner.spec.plan import Precision
from planner.spec.request import Goal

if TYPE_CHECKING:
    from planner.request import Question

F = TypeVar("F", bound=Callable[..., Any])


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    """Refuse infinite and not-a-number seconds, which pass any range."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds")
    return value


_problem, _machine, _search = (sectioned(name) for name in (PROBLEM, MACHINE, SEARCH))

_PROBLEM = (
    _problem(
        "--model",
        metavar="NAME|FILE",
        help="Name (plan-parallel models), size such as 33b, .toml, or a Hugging Face config.json.",
    ),
    _problem(
        "--hardware",
        metavar="NAME|FILE",
        help="Accelerator: name (plan-parallel hardware) or .toml [default: h100-sxm-80gb].",
    ),
    _problem("--gpus", metavar="N", help="GPUs of the cluster; needed unless a hardware file says it."),
    _problem("--gpus-per-node", metavar="N", help="GPUs per node [default: the hardware's usual node]."),
    _problem(
        "--global-batch",
        metavar="N|LO:HI",
        help="Sequences per step, a range, or tokens (4Mtok) [default: about 4M tokens].",
    ),
    _problem("--seq-length", metavar="N", help="Tokens per sequence [default: the model's]."),
    _problem(
        "--precision",
        metavar="LIST",
        help=f"{', '.join(get_args(Precision))}; of a list the planner chooses [default: bf16; V100: fp16].",
    ),
    _problem(
        "--framework",
        metavar="NAME",
        help="Whose limits and habits hold (plan-parallel frameworks) [default: megatron; TPU: maxtext].",
    ),
    _problem("--finetune", metavar="full|lora|qlora", help="What is trained [default: full]."),
    _problem(
        "--optimizer",
        metavar="NAME",
        help="adam, adam-bf16, adam-8bit, lion, sgd-momentum, sgd; pure-adam, ...: no master copy.",
    ),
    _problem(
        "--loss", metavar="whole|chunked", help="Logits at once or in parts [default: the framework's]."
    ),
    _machine(
        "--hbm", metavar="SIZE", help="HBM of each GPU (80GB, 79.6GiB) [default: what its driver reports]."
    ),
    _machine("--hbm-reserve", metavar="SIZE", help="HBM to keep free on each GPU [default: 0]."),
    _machine("--domain-gpus", metavar="N", help="GPUs of the fastest tier (NVLink, xGMI, ICI)."),
    _machine("--domain-bandwidth", metavar="GB/s", help="Rate of the fastest tier, per GPU and direction."),
    _machine("--nic-bandwidth", metavar="GB/s", help="Rate of the network, per GPU and direction."),
    _machine("--pod-gpus", metavar="N", help="GPUs below one spine connection."),
    _machine("--oversubscription", metavar="X", help="Of the outermost tier; 1 is none."),
)

_SEARCH = (
    _search(
        "--goal",
        default="step-time",
        metavar="GOAL",
        help=f"{', '.join(get_args(Goal))} [default: step-time].",
    ),
    _search("--step-time", metavar="SECONDS", help="Target: the fewest GPUs that reach it."),
    _search(
        "--max-bubble",
        default="0.25",
        metavar="X|none",
        help="Bubble budget, a fraction of the ideal time [default: 0.25].",
    ),
    _search("--allow-tp-across-nodes", is_flag=True, help="TP may leave the fast domain (priced there)."),
    _search("--allow-idle", is_flag=True, help="A plan may use fewer GPUs than the cluster has."),
    _search("--robust", is_flag=True, help="Prefer plans that stay good when the model is a little wrong."),
    _search(
        "--time-limit",
        default=60.0,
        type=click.FloatRange(min=0.1),
        callback=_finite,
        metavar="SECONDS",
        help="Of the search [default: 60].",
    ),
    _search(
        "--workers", type=click.IntRange(min=1), metavar="N", help="Solver threads [default: all cores]."
    ),
)

plan_file_option = click.option(
    "--plan", "path", metavar="FILE", help="Plan from a JSON file (--json) or a launch file."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
top_option = click.option(
    "--top", default=5, type=click.IntRange(1, 100), metavar="N", help="Plans to show [default: 5]."
)


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
    pinned = sectioned(PINS)
    function = pinned("--no-recompute", is_flag=True, help="The same as --recompute none.")(function)
    for pin in reversed(PIN_OPTIONS):
        words = "|".join(pin.choices) if pin.choices else "on|off" if pin.boolean else "N"
        names = (pin.option, *pin.aliases, f"pin_{pin.field}")
        function = pinned(*names, metavar=words, help=pin.help)(function)
    return function


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
