"""Fit the few physical constants of the cost module to published runs, robustly, and write them back.

Run ``python tests/benchmarks/fit.py`` from the repository root. Two kinds of constants are fitted:

* of an accelerator: the clock of a long run relative to the burst benchmark (``sustained_fraction``);
* of a framework's profile: efficiencies of its kernels, what it overlaps, what its host costs.

Nothing is fitted per row, per model or per source. Constants that describe the same physics are drawn to one
shared value, and that to the value from documents (``priors.py``): the clocks of one generation's parts;
kernels, launches, overlap and stragglers of a family of frameworks to the family's value, and that to the
value of all. A framework keeps an offset only as far as its rows insist. The arithmetic is in ``shrink.py``.
The sweep's rows speak for nanotron alone, not for its hardware, and only where the run did not fail.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from priors import (
    ATTENTION_CLOCK,
    BORROWED,
    CLOCK,
    CLOCKS,
    EAGER_HOST,
    ENGINE,
    EXPERTS,
    FAILED,
    FAMILIES,
    FUSED_EXPERTS,
    GROUPED,
    HABITS,
    OTHERS,
    OWN_KERNELS,
    PARTS,
    POWER,
    SENDS,
    SHARED,
    STATED,
    SWEPT,
    TRANSFORMER_ENGINE,
    UNMEASURED,
    UNMEASURED_PARTS,
    XLA,
    Habit,
)  # fmt: skip

from planner.catalog import load_accelerator
from planner.cost.confidence import generation
from planner.cost.step import step_time
from planner.errors import BadInput
from planner.frameworks import load_framework
from planner.spec.request import PlanRequest
from planner.validate.measured import Case, Row, read_rows, to_case

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "tests" / "data" / "measured"
FILES = ("calibration.jsonl", "sweep_calibration.jsonl", "sequence_parallel_paper.jsonl")
HIGHEST_SHARE = 0.95
"""Of the vendor's peak, that a fitted rate may reach."""
REFERENCE, REFERENCE_WEIGHT = "2205.05198", 4.0
"""The paper that analytic tools are compared on counts more than its eight rows."""


@dataclass(frozen=True)
class Constant:
    """One fitted number: where it lives, whom it shares a value with, and its kind."""

    owner: str
    """Accelerator file (``hw:a100-sxm-80gb``) or framework (``fw:nemo``)."""
    name: str
    """``gemm.bf16``, ``attention`` (a sustained fraction), or a field of ``TimeHabits``."""
    group: str
    """Constants of one group and name describe the same physics and are drawn to one value."""
    habit: Habit
    high: float
    parent: str | None = None
    """Group whose shared value this group's is drawn to; None: the value from documents."""
    scale: float = 1.0
    """This one over the shared value, as documents have it."""

    @property
    def key(self) -> tuple[str, str]:
        """Owner and name."""
        return self.owner, self.name


@dataclass
class Sample:
    """One row with its case, weight and source."""

    row: Row
    case: Case
    weight: float
    measured_s: float
    tags: frozenset[str] = field(default_factory=frozenset)


Values = dict[tuple[str, str], float]


def hardware_constants() -> list[Constant]:
    """Sustained fractions by accelerator file and precision."""
    constants = []
    for part, precisions in PARTS.items():
        group = generation(part)
        names = (*(f"gemm.{precision}" for precision in precisions), "attention")
        for name in names:
            habit = ATTENTION_CLOCK if name == "attention" else CLOCKS.get(group, CLOCK)
            highest, scale = _highest(part, name), POWER.get(part, 1.0)
            constants.append(Constant(f"hw:{part}", name, f"hw:{group}", habit, highest, scale=scale))
    return constants


def _highest(part: str, name: str) -> float:
    """Highest sustained fraction: the curve itself, or for a borrowed curve the vendor's peak."""
    if name == "attention":
        return BORROWED.get(part, 1.0)
    precision = name.removeprefix("gemm.")
    accelerator = load_accelerator(part)
    peaks = accelerator.compute.peak_flop_per_s
    peak = peaks.get(precision) or peaks["bf16" if precision in ("bf16", "fp16") else "fp8"]
    share = HIGHEST_SHARE * peak / accelerator.gemm[precision].rate_flop_per_s
    return min(BORROWED.get(part, 1.0), share)


def framework_constants() -> list[Constant]:
    """Habits that documents leave open."""
    found: list[tuple[str, str, Habit]] = []
    for name in (*TRANSFORMER_ENGINE, *XLA, *OTHERS):
        habits = dict(HABITS)
        habits |= OWN_KERNELS if name in OTHERS else {}
        habits |= EXPERTS if name in (*TRANSFORMER_ENGINE, "primus") else {}
        habits |= GROUPED if name in ("torchtitan", *XLA) else {}
        habits |= SENDS if name in TRANSFORMER_ENGINE else {}
        habits |= FUSED_EXPERTS if name == "megatron-bridge" else {}
        habits |= ENGINE if name == "megatron-deepspeed" else {}
        habits |= EAGER_HOST if name == SWEPT else {}
        found += [(name, field, habit) for field, habit in habits.items()]
    families: dict[str, set[str]] = {}
    for framework, name, _ in found:
        families.setdefault(name, set()).add(_family(framework))
    return [_habit_of(*one, is_common=len(families[one[1]]) > 1) for one in found]


def _family(framework: str) -> str:
    return next(family for family, members in FAMILIES.items() if framework in members)


def _habit_of(framework: str, name: str, habit: Habit, is_common: bool) -> Constant:
    """One framework's constant: in its family's group where several families have it, else in that of all.

    Where documents set a framework apart, it is alone.
    """
    stated, owner = STATED.get((framework, name)), f"fw:{framework}"
    if stated is not None:
        return Constant(owner, name, owner, stated, stated.high)
    if not is_common:
        return Constant(owner, name, "fw", habit, habit.high)
    return Constant(owner, name, f"fw:{_family(framework)}", habit, habit.high, parent="fw")


CONSTANTS: tuple[Constant, ...] = (*hardware_constants(), *framework_constants())


def samples(paths: Iterable[Path]) -> list[Sample]:
    """Rows that may be fitted: tier A, with a step time, priced without trouble; repeated figures once."""
    found: list[Sample] = []
    seen: set[tuple[Any, ...]] = set()
    for row in (row for path in paths for row in read_rows(path)):
        measured = row.get("measured", {}).get("step_time_s")
        if not measured or row.get("tier", "A") != "A":
            continue
        key = _figure(row, measured)
        if key in seen:
            continue
        seen.add(key)
        try:
            case = to_case(row)
        except BadInput:
            continue
        if case.request.model.is_hybrid:  # priced with the others' constants and one of their own
            continue
        sample = Sample(row, case, 1.0, float(measured))
        if not in_sweep(sample) or abs(log_error(sample, {})) < FAILED:
            found.append(sample)
    return _weighted(found)


def _figure(row: Row, measured: float) -> tuple[Any, ...]:
    """What makes two rows the same published figure; the sweep's are printed with more and fewer digits."""
    config, gpus = row["config"], row["cluster"]["num_gpus"]
    if row.get("framework") == SWEPT:
        layout = [config.get(name) for name in ("tensor_parallel", "pipeline_parallel", "micro_batch")]
        return (float(f"{measured:.3g}"), config.get("zero_stage"), *layout, gpus)
    return measured, json.dumps(config, sort_keys=True), gpus


def in_sweep(sample: Sample) -> bool:
    """Whether the run is of the sweep's own cluster."""
    return sample.case.request.framework.name == SWEPT


def _weighted(found: list[Sample]) -> list[Sample]:
    """Weight a row by one over the root of how many rows share its source, model and layout kind."""
    counts = Counter(cluster_of(sample.row) for sample in found)
    for sample in found:
        sample.weight = 1.0 / np.sqrt(counts[cluster_of(sample.row)])
        sample.weight *= REFERENCE_WEIGHT if REFERENCE in str(sample.row.get("source")) else 1.0
        sample.tags = frozenset(_tags(sample.case))
    return found


def source_of(row: Row) -> str:
    """Shorten a source to the project that published it."""
    return re.split(r"[|,(@]| README| train/| docs", str(row.get("source")))[0].strip()[:40]


def cluster_of(row: Row) -> tuple[str, str]:
    """Source and model: rows that stand or fall together."""
    return source_of(row), str(row["model"].get("name"))


def _tags(case: Case) -> Iterable[str]:
    """Owners of constants that can change this case's price."""
    part, framework = case.request.cluster.accelerator.name, case.request.framework.name
    if framework != SWEPT:
        yield f"hw:{SHARED.get(part, part)}"
    yield f"fw:{framework}"


def applied(request: PlanRequest, values: Values) -> PlanRequest:
    """Return the request with the values of its accelerator and framework put in."""
    part = request.cluster.accelerator.name
    owner = f"hw:{SHARED.get(part, part)}"
    accelerator = request.cluster.accelerator
    gemm, attention = dict(accelerator.gemm), dict(accelerator.attention)
    habits: dict[str, float] = {}
    for (place, name), value in values.items():
        if place == f"fw:{request.framework.name}":
            habits[name] = value
        elif place == owner and name == "attention":
            attention = {
                key: curve.model_copy(update={"sustained_fraction": value})
                for key, curve in attention.items()
            }
        elif place == owner:
            key = name.removeprefix("gemm.")
            gemm[key] = gemm[key].model_copy(update={"sustained_fraction": value})
    part_copy = accelerator.model_copy(update={"gemm": gemm, "attention": attention})
    return request.model_copy(
        update={
            "cluster": request.cluster.model_copy(update={"accelerator": part_copy}),
            "framework": request.framework.model_copy(
                update={"time": request.framework.time.model_copy(update=kept_switches(request, habits))}
            ),
        }
    )


def kept_switches(request: PlanRequest, habits: dict[str, float]) -> dict[str, float]:
    """Leave alone what the row's own switches (compiled, graphs, asynchronous TP) have changed."""
    usual, own = load_framework(request.framework.name).time, request.framework.time
    return {name: value for name, value in habits.items() if getattr(usual, name) == getattr(own, name)}


def log_error(sample: Sample, values: Values) -> float:
    """Logarithm of predicted over measured step time. [1]"""
    predicted = float(step_time(sample.case.plan, applied(sample.case.request, values)).total)
    return float(np.log(predicted / sample.measured_s))


def start_values() -> Values:
    """Values in the repository now."""
    values: Values = {}
    for constant in CONSTANTS:
        kind, _, name = constant.owner.partition(":")
        if kind == "fw":
            value = float(getattr(load_framework(name).time, constant.name))
        else:
            accelerator = load_accelerator(name)
            curves: dict[str, Any] = dict(accelerator.gemm)
            curve = next(iter(accelerator.attention.values())) if constant.name == "attention" else None
            curve = curve or curves.get(constant.name.removeprefix("gemm."))
            if curve is None:
                continue
            value = float(curve.sustained_fraction)
        values[constant.owner, constant.name] = value
    return values


def _clocks_of_generations(shared: dict[tuple[str, str], float]) -> Values:
    """Shared clocks for the curves that no row measures."""
    return {
        (f"hw:{part}", name): min(shared[f"hw:{generation(part)}", name] * POWER.get(part, 1.0), 1.0)
        for part, names in UNMEASURED_PARTS.items()
        for name in names
    }


def main() -> None:
    """Fit, show, and with ``--write`` put the values into hardware files and framework profiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=2, help="solves, each with the errors where the last one ended"
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    from shrink import linearise, moved, solve

    rows = samples([MEASURED / name for name in FILES])
    print(f"{len(rows)} rows")
    model = linearise(rows, start_values())
    values, shared = solve(model)
    for _ in range(options.rounds - 1):
        model = moved(model, rows, values)
        print(f"median error {np.median(np.abs(model.errors)):.3f}", flush=True)
        values, shared = solve(model)
    for (owner, name), value in [*values.items(), *shared.items()]:
        print(f"{owner} {name}: {value:.4f}")
    if options.write:
        from write_fit import write_values

        counts = Counter(tag for sample in rows for tag in sample.tags)
        counts = Counter({owner: n for owner, n in counts.items() if owner[3:] not in UNMEASURED})
        unmeasured = {
            (f"fw:{place}", name): shared.get((group, name), shared["fw", name])
            for place, group in UNMEASURED.items()
            for name in (*HABITS, *OWN_KERNELS, *EXPERTS, *SENDS)
        }
        write_values(values | unmeasured | _clocks_of_generations(shared), dict(counts))


if __name__ == "__main__":
    main()
