"""Fit the few physical constants of the cost module to published runs, robustly, and write them back.

Run ``python tests/benchmarks/fit.py`` from the repository root. Two kinds of constants are fitted:

* of an accelerator: the clock of a long run relative to the burst benchmark (``sustained_fraction``);
* of a framework's profile: efficiencies of its kernels, what it overlaps, what its host costs.

Nothing is fitted per row, per model or per source. The loss is the mean of a smoothed absolute log error,
each row weighted so that a source with many near-identical rows does not outvote the others, plus a pull
towards the value from documents (:data:`CONSTANTS`). One constant at a time is improved, in sweeps.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from planner.catalog import load_accelerator
from planner.cost.step import step_time
from planner.errors import BadInput
from planner.frameworks import load_framework
from planner.spec.request import PlanRequest
from planner.validate.measured import Case, Row, read_rows, to_case

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "tests" / "data" / "measured"
FILES = ("calibration.jsonl", "sweep_calibration.jsonl", "sequence_parallel_paper.jsonl")
SMOOTHING = 0.02
"""Errors below this count almost nothing. [1]"""
HIGHEST_SHARE = 0.97
"""Of the vendor's peak, that a fitted rate may reach."""
REFERENCE, REFERENCE_WEIGHT = "2205.05198", 6.0
"""The paper that analytic tools are compared on counts more than its eight rows."""
SWEEP_SHARE = 4
"""One point of the sweep in so many is fitted; all are reported."""
CLIPPED = 1.0
"""Log errors beyond this are failures of a run and count no more than this. [1]"""


@dataclass(frozen=True)
class Constant:
    """One fitted number: where it lives, where it may lie, and the value it is pulled to."""

    owner: str
    """Accelerator file (``hw:a100-sxm-80gb``) or framework (``fw:nemo``)."""
    name: str
    """``gemm.bf16``, ``attention`` (a sustained fraction), or a field of ``TimeHabits``."""
    low: float
    high: float
    prior: float
    tolerance: float
    """Distance from the prior that costs as much as 1 % of mean error."""


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
    """Sustained fractions by accelerator file and precision; priors from power limits (physics 3.2)."""
    priors = {
        "a100-sxm-80gb": ("bf16",), "a100-pcie-80gb": ("bf16",), "v100-sxm2-32gb": ("fp16",),
        "h100-sxm-80gb": ("bf16", "fp8"), "h100-sxm-96gb-hbm2e": ("bf16", "fp8"),
        "h200-sxm-141gb": ("bf16", "fp8"), "b200-sxm-180gb": ("bf16", "fp8", "mxfp8", "nvfp4"),
        "b300-sxm": ("bf16", "mxfp8"), "gb200-nvl72": ("bf16", "fp8", "mxfp8", "nvfp4"),
        "gb300-nvl72": ("bf16", "fp8", "mxfp8", "nvfp4"), "mi300x-192gb": ("fp8",), "mi325x-256gb": ("fp8",),
        "mi355x-288gb": ("bf16", "fp8"), "tpu-v5e": ("bf16",), "tpu-v5p": ("bf16",), "tpu-v6e": ("bf16",),
    }  # fmt: skip
    constants = []
    for part, precisions in priors.items():
        for name in precisions:
            limit = min(1.3, HIGHEST_SHARE * _peak_over_rate(part, name))
            constants.append(Constant(f"hw:{part}", f"gemm.{name}", 0.4, limit, 0.92, 0.15))
        constants.append(Constant(f"hw:{part}", "attention", 0.4, 1.3, 0.92, 0.15))
    return constants


def _peak_over_rate(part: str, precision: str) -> float:
    """Vendor peak over the burst rate: how far a fitted clock may go."""
    accelerator = load_accelerator(part)
    peaks = accelerator.compute.peak_flop_per_s
    peak = peaks.get(precision) or peaks["bf16" if precision in ("bf16", "fp16") else "fp8"]
    return peak / accelerator.gemm[precision].rate_flop_per_s


def framework_constants() -> list[Constant]:
    """Habits that documents leave open."""
    megatron = ("nemo", "megatron-bridge", "megatron")
    others = ("llm-foundry", "torchtitan", "maxtext", "megatron-deepspeed", "paddle", "primus")
    constants = []
    for name in (*megatron, *others):
        constants += [
            Constant(f"fw:{name}", "elementwise_factor", 0.7, 4.0, 1.3, 0.8),
            Constant(f"fw:{name}", "tensor_comm_hidden_fraction", 0.0, 0.8, 0.1, 0.3),
            Constant(f"fw:{name}", "overlap_slowdown", 0.0, 0.8, 0.1, 0.2),
            Constant(f"fw:{name}", "step_overhead_s", 0.0, 0.3, 0.02, 0.05),
        ]
    for name in others:
        constants.append(Constant(f"fw:{name}", "kernel_efficiency", 0.4, 1.15, 0.95, 0.1))
        constants.append(Constant(f"fw:{name}", "attention_efficiency", 0.3, 1.15, 0.95, 0.2))
    for name in ("nemo", "megatron-bridge", "megatron", "primus"):
        constants.append(Constant(f"fw:{name}", "kernels_per_moe_layer", 40.0, 600.0, 150.0, 100.0))
        constants.append(Constant(f"fw:{name}", "expert_comm_hidden_fraction", 0.0, 0.8, 0.1, 0.3))
        constants.append(Constant(f"fw:{name}", "expert_kernel_efficiency", 0.4, 1.0, 0.85, 0.2))
    constants += [
        Constant("fw:nanotron", "kernel_efficiency", 0.5, 1.1, 0.85, 0.2),
        Constant("fw:nanotron", "attention_efficiency", 0.5, 1.1, 0.85, 0.2),
        Constant("fw:nanotron", "elementwise_factor", 0.7, 4.0, 1.5, 1.0),
        Constant("fw:nanotron", "kernels_per_layer", 100.0, 400.0, 250.0, 100.0),
        Constant("fw:nanotron", "cross_node_launch_growth", 0.0, 1.5, 0.5, 0.5),
        Constant("fw:nanotron", "step_overhead_s", 0.0, 0.3, 0.02, 0.05),
        Constant("fw:nanotron", "overlap_slowdown", 0.0, 1.0, 0.2, 0.3),
        Constant("fw:nanotron", "straggler_per_doubling", 0.0, 0.02, 0.005, 0.005),
    ]
    constants.append(Constant("fw:megatron-deepspeed", "microbatch_overhead_s", 0.0, 0.1, 0.02, 0.03))
    constants.append(Constant("fw:megatron", "microbatch_overhead_s", 0.0, 0.02, 0.0, 0.003))
    for name in ("nemo", "megatron"):
        constants.append(Constant(f"fw:{name}", "straggler_per_doubling", 0.0, 0.02, 0.005, 0.005))
    return constants


CONSTANTS: tuple[Constant, ...] = (*hardware_constants(), *framework_constants())


def samples(paths: Iterable[Path]) -> list[Sample]:
    """Rows that may be fitted: tier A, with a step time, priced without trouble; repeated figures once."""
    found: list[Sample] = []
    seen: set[tuple[Any, ...]] = set()
    for row in (row for path in paths for row in read_rows(path)):
        measured = row.get("measured", {}).get("step_time_s")
        if not measured or row.get("tier", "A") != "A":
            continue
        key = (measured, json.dumps(row["config"], sort_keys=True), row["cluster"]["num_gpus"])
        if key in seen or (row.get("group") and len(seen) % SWEEP_SHARE):
            seen.add(key)
            continue
        seen.add(key)
        try:
            case = to_case(row)
        except BadInput:
            continue
        found.append(Sample(row, case, 1.0, float(measured)))
    return _weighted(found)


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
    part = case.request.cluster.accelerator.name
    yield f"hw:{'a100-sxm-80gb' if part == 'a100-sxm-40gb' else part}"
    yield f"fw:{case.request.framework.name}"


def applied(request: PlanRequest, values: Values) -> PlanRequest:
    """Return the request with the values of its accelerator and framework put in."""
    part = request.cluster.accelerator.name
    owner = f"hw:{'a100-sxm-80gb' if part == 'a100-sxm-40gb' else part}"
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


def loss(errors: Any, weights: Any) -> float:
    """Weighted mean of the smoothed, clipped absolute error."""
    size = np.minimum(np.sqrt(np.asarray(errors) ** 2 + SMOOTHING**2), CLIPPED)
    return float((size * weights).sum() / np.sum(weights))


class Fit:
    """Coordinate descent over the constants that the samples can tell apart."""

    def __init__(self, rows: Sequence[Sample], report: Callable[[str], None] = print) -> None:
        self.rows, self.report = list(rows), report
        self.weights = np.array([sample.weight for sample in rows])
        self.values = start_values()
        self.errors = np.array([log_error(sample, self.values) for sample in rows])
        self.by_owner: dict[str, list[int]] = defaultdict(list)
        for index, sample in enumerate(rows):
            for tag in sample.tags:
                self.by_owner[tag].append(index)

    def restart(self, values: Values) -> None:
        """Start from other values, where the samples have the constant."""
        self.values = {key: values.get(key, value) for key, value in self.values.items()}
        self.errors = np.array([log_error(sample, self.values) for sample in self.rows])

    def run(self, sweeps: int, width: float = 1.0, only: str = "") -> Values:
        """Improve every constant (of owner ``only``) ``sweeps`` times, steps shrinking from ``width``."""
        chosen = [constant for constant in CONSTANTS if only in ("", constant.owner)]
        for sweep in range(sweeps):
            for constant in chosen:
                self._improve(constant, width=width * 0.6**sweep)
            self.report(f"sweep {sweep + 1}: loss {loss(self.errors, self.weights):.4f}")
        return self.values

    def _improve(self, constant: Constant, width: float) -> None:
        members = self.by_owner.get(constant.owner, [])
        key = (constant.owner, constant.name)
        if len(members) < 3 or key not in self.values:
            return
        best = self._cost(constant, self.values[key], members, self.errors[members])
        span = (constant.high - constant.low) * 0.3 * width
        for step in (span, -span, span / 3, -span / 3, span / 9, -span / 9):
            value = float(np.clip(self.values[key] + step, constant.low, constant.high))
            errors = np.array([log_error(self.rows[i], self.values | {key: value}) for i in members])
            cost = self._cost(constant, value, members, errors)
            if cost < best - 1e-6:
                best, self.values[key], self.errors[members] = cost, value, errors

    def _cost(self, constant: Constant, value: float, members: list[int], errors: Any) -> float:
        pull = 0.01 * ((value - constant.prior) / constant.tolerance) ** 2
        return loss(errors, self.weights[members]) + 3.0 / (3.0 + len(members)) * pull


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


def main() -> None:
    """Fit, show, and with ``--write`` put the values into hardware files and framework profiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=2)
    parser.add_argument("--width", type=float, default=1.0, help="first step, as a share of the usual one")
    parser.add_argument("--only", default="", help="one owner, such as fw:nanotron")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "benchmarks" / "fitted.json")
    options = parser.parse_args()
    rows = samples([MEASURED / name for name in FILES])
    print(f"{len(rows)} rows")
    fit = Fit(rows)
    values = fit.run(options.sweeps, options.width, options.only)
    options.out.write_text(
        json.dumps({f"{o} {n}": round(v, 4) for (o, n), v in values.items()}, indent=1) + "\n"
    )
    if options.write:
        from write_fit import write_values

        write_values(values, {owner: len(members) for owner, members in fit.by_owner.items()})


if __name__ == "__main__":
    main()
