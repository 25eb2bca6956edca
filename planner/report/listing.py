"""Catalogs, frameworks and rules as plain text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from planner.report.table import WIDTH, paragraph
from planner.spec import Accelerator, FrameworkProfile
from planner.units import GB

INDENT = "  "


def models_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a model."""
    headers = ("model", "parameters", "active", "layers", "hidden", "heads", "kv", "experts", "seq")
    lines = [
        (
            row["name"], _billions(row["total_parameters"]), _billions(row["active_parameters"]),
            row["num_layers"], row["hidden_size"], row["num_heads"], row["num_kv_heads"],
            row["num_experts"] or "", row["seq_length"],
        )
        for row in rows
    ]  # fmt: skip
    return tabulate(lines, headers, tablefmt="simple", disable_numparse=True, colalign=_first_left(headers))


def hardware_row(accelerator: Accelerator) -> dict[str, Any]:
    """Key figures of one accelerator, in base units."""
    outer = accelerator.links[-1]
    return {
        "name": accelerator.name,
        "aliases": list(accelerator.aliases),
        "vendor": accelerator.vendor,
        "gpus_per_node": accelerator.gpus_per_node,
        "peak_flop_per_s": accelerator.compute.peak_flop_per_s,
        "hbm_bytes": accelerator.memory.hbm_bytes,
        "hbm_bytes_per_s": accelerator.memory.hbm_bytes_per_s,
        "domain_gpus": accelerator.links[0].group_gpus,
        "domain_bytes_per_s": accelerator.links[0].bytes_per_s,
        "network_bytes_per_s": outer.bytes_per_s,
        "gemm_origin": {name: curve.origin for name, curve in accelerator.gemm.items()},
        "source": accelerator.compute.source,
    }


def hardware_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line an accelerator."""
    headers = (
        "hardware",
        "bf16 TFLOP/s",
        "fp8",
        "HBM GB",
        "HBM TB/s",
        "domain",
        "GB/s",
        "network GB/s",
        "GEMM fit",
    )
    lines = [
        (
            row["name"], _tera(row["peak_flop_per_s"].get("bf16")), _tera(row["peak_flop_per_s"].get("fp8")),
            f"{row['hbm_bytes'] / GB:.1f}", f"{row['hbm_bytes_per_s'] / 1e12:.2f}", row["domain_gpus"],
            f"{row['domain_bytes_per_s'] / GB:.0f}", f"{row['network_bytes_per_s'] / GB:.0f}",
            row["gemm_origin"].get("bf16", "-"),
        )
        for row in rows
    ]  # fmt: skip
    return tabulate(lines, headers, tablefmt="simple", disable_numparse=True, colalign=_first_left(headers))


def framework_row(profile: FrameworkProfile) -> dict[str, Any]:
    """Key limits and habits of one framework."""
    limits, memory = profile.limits, profile.memory
    return {
        "name": profile.name,
        "version": profile.version,
        "aliases": list(profile.aliases),
        "schedules": list(limits.schedules),
        "zero_stages": list(limits.zero_stages),
        "context_parallel_kinds": list(limits.context_parallel_kinds),
        "rank_orders": list(limits.rank_orders),
        "bytes_per_parameter": memory.weight_bytes + memory.gradient_bytes + memory.optimizer_bytes,
    }


def frameworks_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a framework."""
    headers = ("framework", "version", "ZeRO", "state B/param", "pipeline schedules")
    lines = [
        (
            row["name"], row["version"], ",".join(map(str, row["zero_stages"])),
            f"{row['bytes_per_parameter']:g}",
            " ".join(row["schedules"]),
        )
        for row in rows
    ]  # fmt: skip
    return tabulate(lines, headers, tablefmt="simple", disable_numparse=True)


def rules_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """One paragraph a rule; where its sentence takes a number, the number's name stands in ``<>``."""
    blocks = []
    for row in rows:
        body = paragraph(_PLACE.sub(_named, row["sentence"]), INDENT)
        blocks.append(
            f"{row['rule']} ({', '.join(row['fields'])})\n{body}\n{paragraph(row['source'], INDENT)}"
        )
    return "\n".join(blocks)


_PLACE = re.compile(r"\{(?:\w+\.)*?(\w+)(?:\.name)?(?:[^}\w.][^}]*)?\}")
"""A field of a rule's sentence; ``request.framework.name`` is the framework."""


def _named(place: re.Match[str]) -> str:
    return f"<{place[1].replace('_', ' ')}>"


def details(data: Mapping[str, Any], indent: str = "") -> str:
    """Nested data as indented ``key: value`` lines."""
    lines: list[str] = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:", details(value, indent + INDENT)] if value else []
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for entry in value:
                lines += [f"{indent}{key}:", details(entry, indent + INDENT)]
        else:
            lines.append(_line(key, value, indent))
    return "\n".join(lines)


def _line(key: str, value: Any, indent: str) -> str:
    text = ", ".join(_plain(entry) for entry in value) if isinstance(value, list) else _plain(value)
    return textwrap.fill(
        f"{key}: {text}",
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + INDENT,
        break_long_words=False,
    )


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _billions(count: float) -> str:
    return f"{count / 1e9:.2f}B"


def _tera(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e12:.0f}"


def _first_left(headers: tuple[str, ...]) -> tuple[str, ...]:
    return ("left", *("right" for _ in headers[1:]))
