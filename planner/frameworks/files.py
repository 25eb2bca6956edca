"""Write, read and recognise launch files of every framework that the planner writes for.

``write`` and ``read_files`` are inverse: ``to_plan(read_files(write(plan)))`` is the plan.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

from planner.errors import BadInput, did_you_mean
from planner.frameworks.detect import detect
from planner.frameworks.dialects import reader
from planner.frameworks.expressible import refuse, shape_problems
from planner.frameworks.launch import LaunchFile, merge, stages_of
from planner.frameworks.shell import read_script
from planner.spec.plan import DEFAULT_ORDER, Plan
from planner.spec.request import PlanRequest

WRITERS: tuple[str, ...] = (
    "megatron",
    "megatron-bridge",
    "torchtitan",
    "deepspeed",
    "accelerate",
    "nanotron",
    "maxtext",
    "pytorch",
)
"""Frameworks with launch files; the other profiles only price and limit."""

WRITTEN_AS = {
    "nemo": "megatron-bridge",
    "primus": "megatron",
    "flagperf": "megatron",
    "any": "pytorch",
    "megatron-deepspeed": "deepspeed",
}
"""Profiles without files of their own, and whose files start the same run."""

READ_AS = {"automodel": "torchtitan", "llm-foundry": "accelerate", "paddle": "megatron"}
"""Profiles whose files a dialect reads, and whose settings make a plan in the same way."""

SETTINGS_ONLY = tuple(READ_AS)
"""Profiles of which only the plan's settings are written, for a configuration of the user's own."""

NOT_SHELL = frozenset({".json", ".toml", ".yaml", ".yml", ".py", ".gin", ".cfg"})
"""Endings of files in which a shell sets no variables."""


def write(plan: Plan, request: PlanRequest) -> dict[str, str]:
    """Return file names and contents that start the plan with the request's framework.

    Raises
    ------
    BadInput
        The framework has no launch files here, or cannot express something in the plan.
    """
    refuse(request.framework.name, shape_problems(plan, request))
    files: dict[str, str] = _module(request.framework.name, "write").write(plan, request)
    return files


def inexpressible(plan: Plan, request: PlanRequest) -> list[str]:
    """Return, in words, what the request's framework cannot express of the plan (empty: nothing)."""
    if shapeless := shape_problems(plan, request):
        return shapeless
    problems: list[str] = _module(request.framework.name, "write").inexpressible(plan, request)
    return problems


def as_run(plan: Plan, request: PlanRequest) -> Plan:
    """Return the plan as the request's framework runs it: nanotron takes no split of layers but its own."""
    if request.framework.name != "nanotron" or plan.pipeline_parallel == 1:
        return plan
    from planner.frameworks.nanotron.split import split_layers

    counts = split_layers(request.model, plan.pipeline_parallel)
    return plan.model_copy(update={"stages": stages_of(counts, plan)})


def read_text(source: str, path: str = "<text>", framework: str | None = None) -> LaunchFile:
    """Read one file; the format is recognised from name and content unless the framework is given.

    Raises
    ------
    BadInput
        The format is not recognised, or the file does not parse.
    """
    name = framework or detect(source, path) or ""
    read = reader(name) or _module(name, "read").read
    launch: LaunchFile = read(source, path)
    return launch if launch.paths else replace(launch, paths=(path,))


def read_files(
    sources: Mapping[str, str],
    framework: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> LaunchFile:
    """Read several files of one run together, in order; files that carry no settings are passed over.

    Parameters
    ----------
    variables
        Values of shell variables; they win over what a script assigns.

    Raises
    ------
    BadInput
        No file is recognised, or two belong to different frameworks.
    """
    launches = []
    for path, source in _with_variables(_with_sourced(sources), variables or {}).items():
        name = framework or detect(source, path, strict=len(sources) == 1)
        if name:
            launches.append(read_text(source, path, name))
    if not launches:
        raise BadInput(f"no settings of a known framework in {', '.join(sources)}")
    names = sorted({launch.framework for launch in launches})
    if names in (["deepspeed", "megatron-deepspeed"], ["accelerate", "deepspeed"]):  # a JSON beside the flags
        names = ["deepspeed"]
        launches = [replace(launch, framework="deepspeed") for launch in launches]
    if len(names) > 1:
        raise BadInput(
            f"the files belong to different frameworks ({', '.join(names)}); check them one by one"
        )
    if names == ["torchtitan"]:  # a command's flags win over its file
        launches.sort(key=lambda launch: not launch.paths[0].endswith(".toml"))
    return merge(launches)


def _with_sourced(sources: Mapping[str, str]) -> dict[str, str]:
    """The scripts with the variables of those given files that they source, on their first line."""
    by_name = {Path(path).name: source for path, source in sources.items()}
    found = {}
    for path, source in sources.items():
        names = [
            Path(name).name for name in re.findall(r"(?m)^\s*(?:source|\.)\s+[\"']?([^\s\"';]+)", source)
        ]
        variables: dict[str, str] = {}
        for name in names:
            variables |= read_script(by_name.get(name, "")).variables
        found[path] = _assigned(variables) + source
    return found


def _assigned(variables: Mapping[str, str], how: str = "") -> str:
    """Assignments to put on a script's first line."""
    return "".join(f"{how}{name}={shlex.quote(value)}; " for name, value in variables.items())


def _with_variables(sources: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The scripts with the given variables fixed, on their first line."""
    said = _assigned(variables, "readonly ")
    return {
        path: source if Path(path).suffix in NOT_SHELL else said + source for path, source in sources.items()
    }


def to_plan(launch: LaunchFile, request: PlanRequest) -> Plan:
    """Return the plan that the files describe, on the GPUs they name (else the request's).

    Raises
    ------
    BadInput
        The settings contradict each other (degrees against GPUs, batch or layers).
    """
    name = READ_AS.get(launch.framework, launch.framework)
    plan: Plan = _module(name, "read").to_plan(launch, request)
    if plan.pipeline_parallel == 1 or plan.data_parallel == 1:  # both orders number alike
        plan = plan.model_copy(update={"rank_order": DEFAULT_ORDER})
    if plan.context_parallel > 1:
        return plan
    kinds = request.framework.limits.context_parallel_kinds  # without meaning: the solver says the first
    return plan.model_copy(update={"context_parallel_kind": kinds[0] if kinds else "ring"})


def _module(framework: str, part: str) -> ModuleType:
    if part == "write" and framework in SETTINGS_ONLY:
        return import_module("planner.frameworks.settings")
    name = WRITTEN_AS.get(framework, framework)
    if name not in WRITERS:
        hint = did_you_mean(framework, (*WRITERS, *SETTINGS_ONLY))
        known = ", ".join((*WRITERS, *SETTINGS_ONLY))
        raise BadInput(f"no launch files for {framework!r}{hint}; they exist for {known}")
    return import_module(f"planner.frameworks.{name.replace('-', '_')}.{part}")
