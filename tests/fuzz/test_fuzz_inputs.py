"""A small share of the fuzz run (``tests/benchmarks/fuzz.py``): every kind of input, from fixed seeds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from fuzz_kinds import KINDS, outcome_of

SEEDS = 40
FEW = {
    "solve": 1, "answers": 5, "swept": 4, "plan handed on": 6, "calibrated machine": 10, "solve toys": 20,
    "command line": 20, "compared files": 20, "mixed launch files": 20,
}  # fmt: skip
"""Kinds that take longer."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_input_breaks_it(kind: str, tmp_path: Path) -> None:
    outcomes = Counter(outcome_of(kind, seed, tmp_path) for seed in range(FEW.get(kind, SEEDS)))
    assert outcomes["answered"] > 0, "every input was refused: the generator makes only nonsense"


@pytest.mark.parametrize("kind", ["options", "launch files", "hardware TOML", "model TOML"])
def test_some_inputs_are_refused(kind: str, tmp_path: Path) -> None:
    assert "refused" in {outcome_of(kind, seed, tmp_path) for seed in range(SEEDS)}
