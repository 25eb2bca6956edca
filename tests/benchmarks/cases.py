"""Write ``cases.md``: the planner's verdict on every practitioner's case, where it disagrees, and why.

Run from anywhere: ``python tests/benchmarks/cases.py``. High-confidence cases are judged by the statements in
``tests/rules/case_truths.py``; medium ones by what their configurations say happened (a result or a peak).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "rules"), str(HERE.parent)]

from case_adapter import Entry, entries, load_cases, measured_bytes, reported_bytes  # noqa: E402
from case_truths import DISAGREE, OUT_OF_REACH, TRUTHS, Truth  # noqa: E402
from case_truths_medium import MEDIUM_OUT_OF_REACH, MEDIUM_REASONS, MEDIUM_TRUTHS  # noqa: E402
from test_cases import SPECIAL, asked, assert_agreement  # noqa: E402

from planner.cost.memory import memory  # noqa: E402
from planner.rules import check  # noqa: E402

TOLERANCE = 0.10
FAILED = re.compile(r"OOM|out of memory", re.IGNORECASE)
WORKED = re.compile(r"fits|runs|trains|accepted|^ok", re.IGNORECASE)


@dataclass(frozen=True)
class Verdict:
    """One configuration: what the planner and the case say."""

    case: str
    number: int
    planner: str
    said: str
    agrees: bool | None
    """None where the case says nothing that can be compared."""


def planner_words(entry: Entry) -> str:
    """The planner's verdict in a few words."""
    broken = [violation.rule for violation in check(entry.plan, entry.request)]
    total = max(float(stage.total) for stage in memory(entry.plan, entry.request))
    usable = entry.request.cluster.usable_hbm_bytes
    legal = "legal" if not set(broken) - {"every_stage_fits_in_memory"} else ", ".join(broken)
    return f"{legal}; {total / 1e9:.1f} of {usable / 1e9:.1f} GB"


def medium_verdict(case: dict[str, Any], number: int, entry: Entry) -> Verdict:
    """Compare one configuration of a medium-confidence case with its result and its measured peak."""
    result = str(entry.raw.get("result") or "")
    fits = "every_stage_fits_in_memory" not in {v.rule for v in check(entry.plan, entry.request)}
    verdicts: list[bool] = []
    said = [result] if result else []
    if FAILED.search(result):
        verdicts.append(not fits)
    elif WORKED.search(result):
        verdicts.append(fits)
    if {"peak_gib", "peak_gb", "peak_mib"} & set(entry.raw):
        measured, predicted = measured_bytes(entry), reported_bytes(entry)
        said.append(f"measured {measured / 1e9:.1f} GB, predicted {predicted / 1e9:.1f}")
        verdicts.append(abs(predicted / measured - 1) <= TOLERANCE)
    agrees = all(verdicts) if verdicts else None
    return Verdict(case["id"], number, planner_words(entry), "; ".join(said) or case["truth"], agrees)


def stated_verdict(case_id: str, truth: Truth) -> Verdict:
    """Judge one statement about a case with the test that asserts it."""
    try:
        assert_agreement(case_id, truth)
        agrees = True
    except AssertionError:
        agrees = False
    return Verdict(case_id, truth.entry, planner_words(asked(case_id, truth)), said(truth), agrees)


def said(truth: Truth) -> str:
    """A statement in words."""
    words = [f"with {key} = {value}" for key, value in truth.given.items()]
    words += [f"breaks {rule}" for rule in truth.breaks]
    words += [f"{field} in {values}" for field, values in truth.allowed.items()]
    words += (
        ["legal"] * truth.is_legal
        + ["tight"] * truth.is_tight
        + ["meets the measured peak"] * truth.matches_peak
    )
    words += [] if truth.fits is None else ["fits" if truth.fits else "does not fit"]
    return ", ".join(words)


def all_verdicts() -> Iterator[tuple[str, Verdict]]:
    """Every verdict with the confidence of its case, in the order of the file."""
    for case_id, case in load_cases().items():
        level = case["confidence"]
        for truth in {**TRUTHS, **MEDIUM_TRUTHS}.get(case_id, []):
            yield level, stated_verdict(case_id, truth)
        if level == "medium" and case_id not in MEDIUM_OUT_OF_REACH:
            completed = {truth.entry for truth in MEDIUM_TRUTHS.get(case_id, []) if "seq_len" in truth.given}
            for number, entry in enumerate(entries(case)):
                if number in completed:
                    continue  # judged above, with the length that the case leaves open
                verdict = medium_verdict(case, number, entry)
                if verdict.agrees is not None or case_id not in MEDIUM_TRUTHS:
                    yield level, verdict


def reason(verdict: Verdict) -> str:
    """Why the planner disagrees, as far as it is known."""
    place = verdict.case, verdict.number
    if place in DISAGREE:
        return DISAGREE[place].reason
    return MEDIUM_REASONS.get(place) or MEDIUM_REASONS.get(verdict.case) or "not understood"


def report() -> str:
    """The whole page."""
    rows = list(all_verdicts())
    lines = ["# Practitioners' cases", "", *summary(rows), "", "## Disagreements", ""]
    lines += ["| case | configuration | planner | case says | reason |", "|---|---|---|---|---|"]
    for confidence, verdict in rows:
        if verdict.agrees is False:
            name = f"{verdict.case} ({confidence})"
            lines.append(
                f"| {name} | {verdict.number} | {verdict.planner} | {verdict.said} | {reason(verdict)} |"
            )
    lines += ["", "## Outside the planner's reach", ""]
    lines += [f"- `{case}`: {why}" for case, why in sorted({**OUT_OF_REACH, **MEDIUM_OUT_OF_REACH}.items())]
    lines += [
        "",
        "## Every verdict",
        "",
        "| case | configuration | planner | case says | agrees |",
        "|---|---|---|---|---|",
    ]
    for _, verdict in rows:
        agrees = {True: "yes", False: "**no**", None: "not comparable"}[verdict.agrees]
        lines.append(f"| {verdict.case} | {verdict.number} | {verdict.planner} | {verdict.said} | {agrees} |")
    return "\n".join(lines) + "\n"


def summary(rows: list[tuple[str, Verdict]]) -> list[str]:
    """Counts by confidence."""
    lines = []
    for confidence in ("high", "medium"):
        verdicts = [verdict.agrees for level, verdict in rows if level == confidence]
        lines.append(
            f"- {confidence} confidence: {verdicts.count(True)} statements agree, {verdicts.count(False)} "
            f"disagree, {verdicts.count(None)} have no outcome to compare."
        )
    lines.append(
        f"- {len(SPECIAL)} high-confidence cases have a test of their own in `tests/rules/test_cases.py`."
    )
    return lines


if __name__ == "__main__":
    (HERE / "cases.md").write_text(report(), encoding="utf-8")
