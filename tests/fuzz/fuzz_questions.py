"""What a user types, made from a seed: options, pins, names, sizes of a sweep, whole command lines."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from fuzz_files import changed_file
from fuzz_oracle import assert_priceable, assert_sentence
from fuzz_values import NASTY, NASTY_TEXT, mutated_text

from planner.api import pinned_plan
from planner.catalog import load_cluster, load_model
from planner.catalog.files import entries
from planner.catalog.pins import OPTION_OF_FIELD, PIN_OPTIONS, parse_pin
from planner.cli import main
from planner.errors import BadInput
from planner.frameworks import FRAMEWORKS, load_framework
from planner.request import Question
from planner.sweep.grid import scenarios

MODELS = ("llama-3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "7b", "100b", "350m")
SIZES = ("1", "2", "7", "8", "12", "64", "100", "1000", "4096", "1000000")


def _usual(rng: random.Random) -> dict[str, Any]:
    """Options that mostly make sense."""
    return {
        "model": rng.choice(MODELS),
        "gpus": rng.choice(SIZES),
        "hardware": rng.choice((None, "h100", "a100", "b200", "mi300x", "tpu-v5p", "v100")),
        "framework": rng.choice((None, *FRAMEWORKS)),
        "global_batch": rng.choice((None, "1", "64", "100", "64:256", "4Mtok", "1000000")),
        "seq_length": rng.choice((None, "1", "128", "4096", "10000000")),
        "precision": rng.choice((None, "bf16", "fp16", "fp8", "bf16,fp8")),
    }


OPTIONS = (
    "model", "gpus", "hardware", "gpus_per_node", "domain_gpus", "domain_bandwidth", "nic_bandwidth",
    "oversubscription", "pod_gpus", "global_batch", "seq_length", "precision", "framework", "goal",
    "step_time",
    "max_bubble", "hbm", "hbm_reserve",
)  # fmt: skip


def some_pins(rng: random.Random, chance_nasty: float = 0.2) -> dict[str, str]:
    pins = {}
    for option in rng.sample(PIN_OPTIONS, rng.randrange(5)):
        good = rng.choice(option.choices or (("on", "off") if option.boolean else ("1", "2", "4", "8", "3")))
        pins[option.field] = rng.choice(NASTY_TEXT) if rng.random() < chance_nasty else good
    return pins


def options(rng: random.Random, _folder: Path) -> None:
    """Options of the command line and of the Python API: text and plain numbers."""
    said = _usual(rng)
    for name in rng.sample(OPTIONS, rng.randrange(4)):
        said[name] = rng.choice(NASTY_TEXT) if rng.random() < 0.8 else rng.choice((0, -1, 1.5, 1e30, 10**30))
    flags = {name: True for name in ("allow_idle", "robust", "allow_tp_across_nodes") if rng.random() < 0.3}
    request = Question(pins=some_pins(rng), **said, **flags).request()
    for sentence in request.assumptions:
        assert_sentence(sentence)
    assert_priceable(request, pinned_plan(request))


def pins(rng: random.Random, _folder: Path) -> None:
    """Words of the pin grammar, joined at random."""
    option = rng.choice(PIN_OPTIONS)
    words = [*NASTY_TEXT, *option.choices, *("!" + word for word in option.choices), "2:8", "!3", "on", "1"]
    pin = parse_pin(
        option, rng.choice((",", ":", " ", "")).join(rng.choice(words) for _ in range(rng.randrange(5)))
    )
    assert pin.option.startswith(option.option)


def names(rng: random.Random, _folder: Path) -> None:
    """Names of models, hardware and frameworks: misspelt, decorated, empty."""
    kind = rng.randrange(3)
    known = (entries("models"), entries("hardware"), list(FRAMEWORKS))[kind]
    name = mutated_text(rng, rng.choice(known)) if rng.random() < 0.8 else str(rng.choice(NASTY))
    (load_model, lambda word: load_cluster(word, 8), load_framework)[kind](name)


def sweep_grid(rng: random.Random, _folder: Path) -> None:
    """Sizes and accelerators of a sweep."""
    gpus = rng.choice(("64:8192", "64,96", *NASTY_TEXT)) + rng.choice(("", "", ",", ":", "8"))
    hardware = rng.choice(("h100", "h100,b200", *NASTY_TEXT))
    for asked in scenarios(gpus, hardware, {"model": "llama-3-8b", **some_pins(rng)}):
        assert asked.gpus >= 1


def command_line(rng: random.Random, folder: Path) -> None:
    """Words behind ``plan-parallel`` for the commands that do not search."""
    words = {name: str(value) for name, value in _usual(rng).items() if value is not None}
    said = [part for name, value in words.items() for part in (f"--{name.replace('_', '-')}", value)]
    said += [part for field, text in some_pins(rng).items() for part in (OPTION_OF_FIELD[field], text)]
    commands = {
        "estimate": [*said, *rng.choice(([], ["--plan", changed_file(rng, folder)]))],
        "compare": [changed_file(rng, folder), changed_file(rng, folder), *said],
        "check": [changed_file(rng, folder), "--no-search", *said],
        "launch": ["--plan", changed_file(rng, folder), *said],
        "validate": [changed_file(rng, folder)],
        "models": [], "hardware": [], "frameworks": [], "rules": [], "practice": [],
    }  # fmt: skip
    command = rng.choice(list(commands))
    chosen = [
        command,
        *commands[command],
        *rng.choice(([], ["--json"], ["--josn"], [rng.choice(NASTY_TEXT)])),
    ]
    if command == "practice":
        chosen += ["--no-progress", "--id", rng.choice(("12.1.1/2", "zero-state:7", *NASTY_TEXT))]
        chosen += ["--answer", rng.choice(("31.4 GB", "12.5%", *NASTY_TEXT))]
    if rng.random() < 0.3:
        chosen.insert(rng.randrange(len(chosen) + 1), rng.choice(NASTY_TEXT))
    if command == "compare" and any(word.isdigit() for word in chosen[1:3]):
        raise BadInput("a rank needs a search")
    result = CliRunner().invoke(main, chosen)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 1, 2, 3), result.exit_code
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        raise BadInput(result.stderr.strip().splitlines()[-1])
