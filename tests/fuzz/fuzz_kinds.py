"""Every kind of input: made from a seed, handed in as a user would, and looked at.

Each kind gives ``answered`` or ``refused``; anything else that happens (an exception, a hang, a bad figure,
an error that is no sentence) is a finding.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fuzz_commands import (
    answers,
    compared,
    damaged_runs,
    graded,
    handed_on,
    mixed_launch_files,
    staged_plan,
    swept,
)
from fuzz_files import (
    binary,
    config_json,
    hardware_base,
    hardware_toml,
    launch_files,
    measured_runs,
    model_toml,
    plan_json,
    progress_file,
    sweep_state,
)
from fuzz_machines import calibrated_machine, made_up_model, tiered_machine
from fuzz_oracle import assert_sentence, no_longer_than
from fuzz_questions import command_line, names, options, pins, sweep_grid
from fuzz_solver import solve_small, solve_tiny

from planner.errors import PlannerError

Outcome = Literal["answered", "refused"]
Kind = Callable[[random.Random, Path], None]


def outcome_of(kind: str, seed: int, folder: Path) -> Outcome:
    """Run one generated input; raise whatever is a finding."""
    rng = random.Random(f"{kind}-{seed}")
    with no_longer_than(), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            KINDS[kind](rng, folder)
        except PlannerError as error:
            assert error.exit_code in (2, 3, 4)
            assert_sentence(error)
            return "refused"
    return "answered"


KINDS: dict[str, Kind] = {
    "options": options,
    "pins": pins,
    "names": names,
    "config.json": config_json,
    "model TOML": model_toml,
    "hardware TOML": hardware_toml,
    "hardware on a base": hardware_base,
    "bytes": binary,
    "launch files": launch_files,
    "measured runs": measured_runs,
    "plan JSON": plan_json,
    "sweep state": sweep_state,
    "practice progress": progress_file,
    "sweep grid": sweep_grid,
    "command line": command_line,
    "plan of stages": staged_plan,
    "plan handed on": handed_on,
    "compared files": compared,
    "mixed launch files": mixed_launch_files,
    "damaged runs": damaged_runs,
    "swept": swept,
    "graded words": graded,
    "made-up model": made_up_model,
    "tiered machine": tiered_machine,
    "calibrated machine": calibrated_machine,
    "answers": answers,
    "solve": solve_small,
    "solve toys": solve_tiny,
}
"""Kind of input to the function that makes and tries one."""
