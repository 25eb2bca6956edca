"""How far a step-time estimate can be trusted: an error band, and a note outside the calibrated region.

Both come from the residuals of published runs (``tests/benchmarks/accuracy.md``); the tables are printed by
``tests/benchmarks/accuracy.py``.
"""

from __future__ import annotations

from typing import Literal

from planner.cost.setting import Setting
from planner.spec.request import PlanRequest

Architecture = Literal["dense", "experts"]
Width = Literal["16-bit", "low"]

GENERATIONS: dict[str, tuple[str, ...]] = {
    "ampere": ("a100", "a800"),
    "hopper": ("h100", "h200", "h800", "h20", "gh200"),
    "blackwell": ("b200", "b300", "gb200", "gb300"),
    "amd": ("mi",),
    "tpu": ("tpu",),
}
"""Names of accelerators by their beginnings."""

BANDS_PCT: dict[tuple[str, Architecture, Width], float] = {}
"""80th percentile of the absolute error by generation, architecture and number format."""
OTHER_BAND_PCT = 30.0
"""For what no published run covers."""

MEASURED: dict[str, frozenset[str]] = {}
"""Number formats with at least three measured pre-training runs, by accelerator."""
MEASURED_GPUS = 12288
"""Largest measured run."""
MEASURED_SEQUENCE = 131072
"""Longest measured sequence. [token]"""
UNMEASURED_SCHEDULES = frozenset({"zb-v", "dualpipe", "dualpipe-v"})


def generation(accelerator: str) -> str:
    """Return the family of accelerators whose runs speak for this one."""
    for name, beginnings in GENERATIONS.items():
        if accelerator.startswith(beginnings):
            return name
    return "other"


def family(request: PlanRequest, setting: Setting) -> tuple[str, Architecture, Width]:
    """Return the family of runs that an estimate is judged by."""
    architecture: Architecture = "experts" if request.model.is_moe else "dense"
    width: Width = "16-bit" if setting.precision in ("bf16", "fp16", "fp32") else "low"
    return generation(request.cluster.accelerator.name), architecture, width


def error_band_pct(request: PlanRequest, setting: Setting) -> float:
    """Return the half-width of the band that held 80 % of the published runs of this family. [%]."""
    return BANDS_PCT.get(family(request, setting), OTHER_BAND_PCT)


def outside_calibration(request: PlanRequest, setting: Setting) -> str | None:
    """Return a sentence where no measured run is near the plan, None inside the calibrated region."""
    name, gpus = request.cluster.accelerator.name, request.cluster.num_gpus
    reasons = []
    if setting.precision not in MEASURED.get(name, frozenset()):
        reasons.append(f"{setting.precision} on {name}")
    if gpus > MEASURED_GPUS:
        reasons.append(f"{gpus:,} GPUs (largest: {MEASURED_GPUS:,})")
    if request.workload.seq_length > MEASURED_SEQUENCE:
        reasons.append(
            f"sequences of {request.workload.seq_length:,} tokens (longest: {MEASURED_SEQUENCE:,})"
        )
    if setting.schedule in UNMEASURED_SCHEDULES:
        reasons.append(f"the schedule {setting.schedule}")
    if not reasons:
        return None
    return f"No published run calibrates {', '.join(reasons)}: the step time is an extrapolation."
