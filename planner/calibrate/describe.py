"""From measurements to the text of a hardware file that stands on a catalog entry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.calibrate.fit import GemmFit, bandwidth_share, fit_gemm, rising, sustained_share
from planner.cost.kernels import BACKWARD_FLOPS
from planner.spec.cluster import Accelerator

COLLECTIVE_ORDER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Measurements:
    """Raw times of one machine. Seconds are medians over repeats."""

    device: str
    software: str
    hbm_bytes: float
    gemm: Mapping[str, list[tuple[int, int, int, float]]]
    """By precision: M, N, K, seconds."""
    burst_and_sustained_s: tuple[float, float] = (1.0, 1.0)
    """Seconds of one large product in a short and in a long run."""
    attention: Mapping[str, list[tuple[int, float, float, float]]] = field(default_factory=dict)
    """By kernel generation: sequence length, forward FLOPs, forward seconds, backward seconds."""
    moved: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By kind (elementwise, permute, loss, optimizer): bytes, seconds."""
    collectives: Mapping[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)
    """By collective and number of ranks: message bytes, seconds."""
    host_link_bytes_per_s: float | None = None
    kernel_launch_s: float | None = None


def describe(measured: Measurements, base: Accelerator, name: str) -> dict[str, Any]:
    """Return the tables of a hardware file named ``name`` that overrides what was measured of ``base``."""
    source = f"measured on {measured.device} with {measured.software} (plan-parallel calibrate)"
    stamp = {"source": source, "origin": "measured"}
    bandwidth = base.memory.hbm_bytes_per_s
    data: dict[str, Any] = {
        "base": base.name,
        "name": name,
        "memory": {**stamp, "hbm_bytes": measured.hbm_bytes, **_shares(measured, bandwidth)},
        "gemm": {
            precision: _gemm_table(fit_points(points, bandwidth, precision), measured, source)
            for precision, points in measured.gemm.items()
        },
    }
    attention = {
        kernel: {**stamp, **_attention_table(points)} for kernel, points in measured.attention.items()
    }
    host = _host_table(measured)
    if attention:
        data["attention"] = attention
    if host:
        data["host"] = {**stamp, **host}
    if measured.collectives:
        data["collectives"] = [
            {**stamp, **_collective_table(key, points, base)}
            for key, points in sorted(measured.collectives.items(), key=_collective_order)
        ]
    return data


def fit_points(points: list[tuple[int, int, int, float]], hbm_bytes_per_s: float, precision: str) -> GemmFit:
    """Fit the products of one precision."""
    m, n, k, seconds = zip(*points, strict=True)
    return fit_gemm(m, n, k, seconds, hbm_bytes_per_s, quantised=precision in ("fp8", "mxfp8", "nvfp4"))


def _gemm_table(fit: GemmFit, measured: Measurements, source: str) -> dict[str, Any]:
    return {
        "source": f"{source}; fitted, median error {100 * fit.median_error:.1f} %",
        "origin": "fitted",
        "rate_flop_per_s": fit.rate_flop_per_s,
        "k0": fit.k0,
        "launch_s": fit.launch_s,
        "quantise_s_per_element": fit.quantise_s_per_element,
        "small_dimension": fit.small_dimension,
        "sustained_fraction": sustained_share(*measured.burst_and_sustained_s),
    }


def _attention_table(points: list[tuple[int, float, float, float]]) -> dict[str, Any]:
    ordered = sorted(points)
    return {
        "seq_lengths": [length for length, *_ in ordered],
        "forward_flop_per_s": [flop / forward for _, flop, forward, _ in ordered],
        "backward_flop_per_s": [BACKWARD_FLOPS * flop / backward for _, flop, _, backward in ordered],
    }


def _shares(measured: Measurements, hbm_bytes_per_s: float) -> dict[str, float]:
    return {
        f"{kind}_fraction": bandwidth_share(moved, seconds, hbm_bytes_per_s)
        for kind, (moved, seconds) in measured.moved.items()
    }


def _host_table(measured: Measurements) -> dict[str, float]:
    values = {
        "pcie_bytes_per_s": measured.host_link_bytes_per_s,
        "kernel_launch_s": measured.kernel_launch_s,
    }
    return {key: value for key, value in values.items() if value is not None}


def _collective_table(
    key: tuple[str, int], points: list[tuple[float, float]], base: Accelerator
) -> dict[str, Any]:
    collective, ranks = key
    sizes, times = rising(*zip(*points, strict=True))
    return {
        "collective": collective,
        "num_ranks": ranks,
        "link_bytes_per_s": base.links[0].bytes_per_s,
        "message_bytes": sizes,
        "time_s": times,
    }


def _collective_order(item: tuple[tuple[str, int], Any]) -> tuple[int, int]:
    (collective, ranks), _ = item
    return COLLECTIVE_ORDER.index(collective), ranks


def to_toml(data: Mapping[str, Any], prefix: str = "") -> str:
    """Write plain tables as TOML: values first, then tables, then arrays of tables."""
    lines = [f"{key} = {_value(value)}" for key, value in data.items() if not _is_table(value)]
    for key, value in data.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            nested = to_toml(value, f"{path}.")
            only_tables = all(_is_table(inner) for inner in value.values())
            lines.append(nested if only_tables else f"\n[{path}]\n{nested}")
        elif _is_table(value):
            lines += [f"\n[[{path}]]\n{to_toml(table, f'{path}.')}" for table in value]
    return "\n".join(line.rstrip("\n") for line in lines) + "\n"


def _is_table(value: Any) -> bool:
    is_array = isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
    return isinstance(value, Mapping) or is_array


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)  # TOML's basic strings know every escape of JSON
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return repr(float(value)) if isinstance(value, float) else str(value)
