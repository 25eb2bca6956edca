"""The longest chain has the makespan's length, and is no longer than any other layout's makespan."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from planner.cost.critical_path import chains_in_order, chains_through_ranks, critical_path
from planner.cost.schedule import simulate
from planner.spec.plan import Schedule

CASES: tuple[tuple[Schedule, int], ...] = (
    ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("dualpipe", 1),
)  # fmt: skip


def stages(rng: np.random.Generator, p: int, v: int) -> list[list[list[float]]]:
    return [rng.uniform(0.5, 2.0, size=(p, v)).tolist() for _ in range(3)]


def length(chain: dict[tuple[int, int, int], int], phases: list[list[list[float]]]) -> float:
    return sum(times * phases[phase][rank][chunk] for (rank, chunk, phase), times in chain.items())


@pytest.mark.parametrize(("schedule", "v"), CASES)
def test_the_chain_is_as_long_as_the_makespan_and_bounds_others(schedule: Schedule, v: int) -> None:
    rng = np.random.default_rng(7)
    for _ in range(8):
        p, m = 2 * int(rng.integers(1, 4)), 12 * int(rng.integers(1, 5))
        own, other = stages(rng, p, v), stages(rng, p, v)
        chain = critical_path(schedule, *own, m)
        assert chain is not None
        assert length(chain, own) == pytest.approx(simulate(schedule, *own, m).makespan_s, rel=1e-9)
        assert length(chain, other) <= simulate(schedule, *other, m).makespan_s * (1 + 1e-9)


@pytest.mark.parametrize(("schedule", "v"), CASES[:4])
def test_a_chain_made_longer_bounds_long_pipelines(
    schedule: Schedule, v: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.cost.critical_path.MOST_WALKED", 4 * v * 40)
    rng = np.random.default_rng(3)
    known = 0
    for _ in range(8):
        own, other = stages(rng, 4, v), stages(rng, 4, v)
        chain = critical_path(schedule, *own, 160)
        if chain is not None:
            known += 1
            assert length(chain, other) <= simulate(schedule, *other, 160).makespan_s * (1 + 1e-9)
    assert known > 0 or schedule == "gpipe", "two ranks pace gpipe's two halves"


def test_by_hand() -> None:
    """Two stages, 1F1B, three micro-batches, stage 1 twice as slow: F0, then 3 (F1 + B1), then B0."""
    chain = critical_path("1f1b", [[1.0], [2.0]], [[1.0], [2.0]], [[1.0], [2.0]], 3)
    assert dict(chain or {}) == {
        (0, 0, 0): 1, (0, 0, 1): 1, (0, 0, 2): 1, (1, 0, 0): 3, (1, 0, 1): 3, (1, 0, 2): 3,
    }  # fmt: skip


@pytest.mark.parametrize(("schedule", "v"), [*CASES, ("interleaved", 3), ("zb-h2", 1), ("dualpipe-v", 2)])
def test_chains_of_many_microbatches_follow_from_those_of_few(
    schedule: Schedule, v: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told from two short pipelines they are those that the whole order of operations gives."""
    listed = chains_in_order if schedule in ("dualpipe", "dualpipe-v") else chains_through_ranks
    cases = [(p, m) for p, m in product((2, 4, 6), (12, 20, 26, 41, 57, 97, 150)) if m >= 2 * p]
    for p, m in cases:
        if schedule == "dualpipe" and m % 2:
            continue
        told = []
        for most in (10**9, 0):
            monkeypatch.setattr("planner.cost.critical_path.MOST_WALKED", most)
            listed.cache_clear()
            chains = listed(schedule, p, v, m)
            told.append([{stage: times for stage, times in chain.items() if times} for chain in chains])
        assert told[0] == told[1], (p, m)
    listed.cache_clear()


def test_rounds_of_any_number_of_microbatches_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's rounds: 25 micro-batches on 6 ranks go in rounds of 6, 23 on 6 in rounds of 7."""
    for p, m in product((3, 4, 6, 8), range(8, 75)):
        told = []
        for most in (10**9, 0):
            monkeypatch.setattr("planner.cost.critical_path.MOST_WALKED", most)
            chains_through_ranks.cache_clear()
            told.append([dict(chain) for chain in chains_through_ranks("interleaved", p, 2, m)])
        assert told[0] == told[1], (p, m)
    chains_through_ranks.cache_clear()
