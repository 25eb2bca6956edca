"""How far a step-time estimate can be trusted: an error band, and a note outside the calibrated region.

Both come from the residuals of published runs (``tests/benchmarks/accuracy.md``); the tables are printed by
``tests/benchmarks/accuracy.py``.
"""

from __future__ import annotations

from typing import Literal

from planner.cost.setting import Setting
from planner.cost.words import LINEAR_MIXER_WORDS
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

BANDS_PCT: dict[tuple[str, Architecture, Width], float] = {
    ("ampere", "dense", "16-bit"): 10.0,
    ("hopper", "dense", "16-bit"): 9.0,
    ("hopper", "dense", "low"): 12.0,
    ("hopper", "experts", "16-bit"): 19.0,
    ("hopper", "experts", "low"): 13.0,
    ("blackwell", "dense", "16-bit"): 21.0,
    ("blackwell", "dense", "low"): 18.0,
    ("blackwell", "experts", "16-bit"): 22.0,
    ("blackwell", "experts", "low"): 27.0,
    ("amd", "experts", "16-bit"): 44.0,
    ("tpu", "dense", "16-bit"): 24.0,
}
"""80th percentile of the absolute error by generation, architecture and number format, rounded up, of runs
whose whole source took no part in the fit: what a cluster of one's own is to the planner. For clusters and
frameworks that did take part it is about half. The sweep's own cluster is left out."""
OTHER_BAND_PCT = 30.0
"""For what no published run covers."""

MEASURED: dict[str, frozenset[str]] = {
    "a100-sxm-40gb": frozenset({"bf16", "fp16"}),
    "a100-sxm-80gb": frozenset({"bf16", "fp16"}),
    "a800-sxm-80gb": frozenset({"bf16"}),
    "h100-sxm-80gb": frozenset({"bf16", "fp8"}),
    "h100-sxm-96gb-hbm2e": frozenset({"bf16", "fp8"}),
    "h200-sxm-141gb": frozenset({"fp8"}),
    "b200-sxm-180gb": frozenset({"bf16", "fp8", "mxfp8", "nvfp4"}),
    "b300-sxm": frozenset({"mxfp8"}),
    "gb200-nvl72": frozenset({"bf16", "fp8", "mxfp8", "nvfp4"}),
    "gb300-nvl72": frozenset({"fp8", "mxfp8", "nvfp4"}),
    "mi355x-288gb": frozenset({"bf16"}),
    "tpu-v5e": frozenset({"bf16"}),
    "tpu-v5p": frozenset({"bf16"}),
    "tpu-v6e": frozenset({"bf16"}),
    "v100-sxm2-32gb": frozenset({"fp16"}),
}
"""Number formats with at least three measured pre-training runs, by accelerator."""
MEASURED_GPUS = 10752
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
    """Return the half-width of the band that held 80 % of the published runs of this family. [%].

    Two models with linear mixers were measured (Nemotron-H, Nemotron-3-Super: 90 % within 22): theirs is not
    below the band of what no run covers.
    """
    band = BANDS_PCT.get(family(request, setting), OTHER_BAND_PCT)
    return max(band, OTHER_BAND_PCT) if request.model.is_hybrid else band


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
    if request.model.is_hybrid:
        only = " other than Nemotron's" if request.model.linear_mixer == "mamba2" else ""
        reasons.append(f"layers of {LINEAR_MIXER_WORDS[request.model.linear_mixer]}{only}")
    if not reasons:
        return None
    return f"No published run calibrates {', '.join(reasons)}: the step time is an extrapolation."
