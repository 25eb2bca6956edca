"""Findings as text for people, JSON for machines, and annotations for GitHub Actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from planner.errors import BadInput, did_you_mean
from planner.frameworks.lint.findings import Finding

GITHUB_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def _text(findings: Sequence[Finding]) -> str:
    return "".join(
        f"{entry.path}:{entry.line}: {entry.severity}: {entry.message} [{entry.rule}]\n" for entry in findings
    )


def _json(findings: Sequence[Finding]) -> str:
    return json.dumps({"findings": [asdict(entry) for entry in findings]}, indent=2) + "\n"


def _github(findings: Sequence[Finding]) -> str:
    return "".join(
        f"::{GITHUB_COMMANDS[entry.severity]} file={_property(entry.path)},line={entry.line},"
        f"title={_property(entry.rule)}::{_data(entry.message)}\n"
        for entry in findings
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: dict[str, Callable[[Sequence[Finding]], str]] = {"text": _text, "json": _json, "github": _github}


def format_findings(findings: Sequence[Finding], style: str = "text") -> str:
    """Return the findings in one of ``FORMATS``.

    Raises
    ------
    BadInput
        The format is unknown.
    """
    if style not in FORMATS:
        raise BadInput(
            f"unknown format {style!r}{did_you_mean(style, FORMATS)}; formats are {', '.join(FORMATS)}"
        )
    return FORMATS[style](findings)
