"""Write ``fuzz.md``: at least 20,000 generated inputs of every kind, and what came back.

Run from anywhere: ``python tests/benchmarks/fuzz.py [--inputs 20000] [--first-seed 0] [--workers 1]``. Exit
code 1 when there is a finding: a traceback, a hang, a bad figure, an error that is no sentence, or a plan
that the independent checker rejects.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "fuzz"), str(HERE.parent)]

from fuzz_kinds import KINDS, outcome_of  # noqa: E402

SHARE = {
    "solve": 0.04,
    "solve toys": 0.5,
    "answers": 0.1,
    "swept": 0.1,
    "calibrated machine": 0.3,
    "plan handed on": 0.5,
    "mixed launch files": 0.5,
}
"""Kinds that take longer get this share of an equal share."""


@dataclass
class Tally:
    """What became of one kind of input."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Place of the failure to the first seed that showed it and its message."""
    wall_s: float = 0.0
    slowest_s: float = 0.0

    @property
    def tried(self) -> int:
        return sum(self.outcomes.values())


def counts(total: int) -> dict[str, int]:
    """Inputs of each kind, together at least ``total``."""
    weights = {kind: SHARE.get(kind, 1.0) for kind in KINDS}
    return {kind: int(total * weight / sum(weights.values())) + 1 for kind, weight in weights.items()}


def try_kind(kind: str, seeds: range) -> Tally:
    """Make and try inputs of one kind."""
    tally = Tally()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            begun = time.perf_counter()
            try:
                tally.outcomes[outcome_of(kind, seed, Path(folder))] += 1
            except Exception as error:
                tally.outcomes["finding"] += 1
                tally.findings.setdefault(place(error), (seed, " ".join(str(error).split())[:200]))
            tally.slowest_s = max(tally.slowest_s, time.perf_counter() - begun)
    tally.wall_s = time.perf_counter() - start
    return tally


def place(error: Exception) -> str:
    """Where an error came from: the last frame inside the package, else the last one."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "planner" in Path(frame.filename).parts]
    last = (inside or frames)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def report(tallies: dict[str, Tally], first_seed: int) -> Iterator[str]:
    """Lines of ``fuzz.md``."""
    total = sum(tally.tried for tally in tallies.values())
    found = sum(len(tally.findings) for tally in tallies.values())
    yield "# Generated inputs"
    yield ""
    yield "Written by `python tests/benchmarks/fuzz.py`; each input is made from its kind and a seed, handed"
    yield "in as a user would, and must give an answer with finite, not negative figures (and plans that the"
    yield "independent checker accepts), or one sentence and exit code 2, 3 or 4."
    yield ""
    yield f"{total:,} inputs, seeds from {first_seed}: {found} kinds of finding."
    yield ""
    yield "| kind | inputs | answered | refused | findings | seconds | slowest input [s] |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for kind, tally in tallies.items():
        row = tally.outcomes
        yield (
            f"| {kind} | {tally.tried:,} | {row['answered']:,} | {row['refused']:,} | {row['finding']:,} "
            f"| {tally.wall_s:.0f} | {tally.slowest_s:.2f} |"
        )
    yield ""
    yield "## Findings"
    yield ""
    lines = [
        f"- {kind}, seed {seed}: {where}: {message}"
        for kind, tally in tallies.items()
        for where, (seed, message) in tally.findings.items()
    ]
    yield from lines or ["None."]


def main() -> int:
    """Try all inputs, write the report, and say how many findings there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    asked = parser.parse_args()
    wanted = counts(asked.inputs)
    seeds = [range(asked.first_seed, asked.first_seed + count) for count in wanted.values()]
    tallies = {}
    with ProcessPoolExecutor(asked.workers) as pool:
        for kind, tally in zip(wanted, pool.map(try_kind, wanted, seeds), strict=True):
            tallies[kind] = tally
            sys.stderr.write(f"{kind}: {dict(tally.outcomes)} in {tally.wall_s:.0f} s\n")
    (HERE / "fuzz.md").write_text("\n".join(report(tallies, asked.first_seed)) + "\n", encoding="utf-8")
    return 1 if any(tally.findings for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
