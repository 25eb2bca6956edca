"""Chains of operations that every layout of a schedule contains, before any layout is simulated.

A chain's length, summed with the durations of a layout's stages, is a lower bound of that layout's makespan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from planner.cost.critical_path import Chain, chains_in_order, chains_through_ranks, critical_path
from planner.cost.layer_comm import PAIRED_SCHEDULES
from planner.cost.orders import BIDIRECTIONAL
from planner.cost.program import Matrix
from planner.cost.stage import V_SHAPED, stage_order
from planner.spec.plan import Schedule

ADAPTIVE: frozenset[Schedule] = frozenset({"zb-v", "zb-h2"})
"""Schedules without chains between ranks: ZB-V's order follows the durations, steps of ZB-H2 interlock."""
MOST_LEARNED = 128
"""Chains that are kept of the layouts of one (schedule, p, v, m)."""


@lru_cache(maxsize=256)
def first_chains(schedule: Schedule, p: int, v: int, m: int) -> tuple[Chain, ...]:
    """Every rank's own work, the way to it and back where ranks fill one after the other, and through it."""
    chains = list(_own_work(schedule, p, v, m))
    if p > 1 and schedule not in V_SHAPED | ADAPTIVE | BIDIRECTIONAL:
        chains += chains_through_ranks(schedule, p, v, m)
    if p > 1 and schedule in PAIRED_SCHEDULES:
        chains += chains_in_order(schedule, p, v, m)
    return tuple(chains)


def _own_work(schedule: Schedule, p: int, v: int, m: int) -> Iterator[Chain]:
    for rank in range(p):
        if schedule in BIDIRECTIONAL:
            yield {(own, 0, phase): m // 2 for own in (rank, p - 1 - rank) for phase in range(3)}
            continue
        chain = {(rank, chunk, phase): m for chunk in range(v) for phase in range(3)}
        if schedule not in V_SHAPED | ADAPTIVE:
            phases = (0,) if schedule == "zb-h1" else (0, 1, 2)
            chain |= {(before, 0, phase): 1 for before in range(rank) for phase in phases}
        yield chain


class ChainPool:
    """Chains of every schedule as matrices, those that simulated layouts ran into included.

    Settings that share (schedule, p, v, m) share their chains, whatever their layers take.
    """

    def __init__(self) -> None:
        self._matrices: dict[tuple[Schedule, int, int, int], npt.NDArray[np.float64]] = {}

    def matrix(self, schedule: Schedule, p: int, v: int, m: int) -> npt.NDArray[np.float64]:
        """Chains as [chain, stage times phase], stages in the order of the data."""
        key = (schedule, p, v, m)
        if key not in self._matrices:
            self._matrices[key] = _rows(first_chains(*key), schedule, p, v)
        return self._matrices[key]

    def number(self, schedule: Schedule, p: int, v: int, m: int) -> int:
        """How many chains are known; new ones come last."""
        return len(self.matrix(schedule, p, v, m))

    def longest(
        self, passes: npt.NDArray[np.float64], schedule: Schedule, p: int, v: int, m: int, start: int = 0
    ) -> npt.NDArray[np.float64]:
        """Longest known chain of passes given as [..., stage, phase], of those from ``start`` on. [s]."""
        flat = passes.reshape(*passes.shape[:-2], 3 * passes.shape[-2])
        lengths = flat @ self.matrix(schedule, p, v, m)[start:].T
        return np.asarray(np.max(lengths, axis=-1, initial=0.0))

    def learn(self, schedule: Schedule, passes: tuple[Matrix, Matrix, Matrix], m: int) -> None:
        """Add the longest chain of a layout, given its passes as [rank][chunk] (``critical_path``)."""
        p, v = len(passes[0]), len(passes[0][0])
        if schedule in ADAPTIVE or self._is_full(schedule, p, v, m):
            return
        chain = critical_path(schedule, *passes, m)
        if chain is not None:
            self.keep(chain, schedule, p, v, m)

    def keep(self, chain: Chain, schedule: Schedule, p: int, v: int, m: int) -> None:
        """Add a chain, unless there are many or it is known."""
        known, row = self.matrix(schedule, p, v, m), _rows([chain], schedule, p, v)
        if not (self._is_full(schedule, p, v, m) or np.any(np.all(known == row, axis=1))):
            self._matrices[schedule, p, v, m] = np.concatenate([known, row])

    def chains(self, schedule: Schedule, p: int, v: int, m: int) -> list[Chain]:
        """All of them, as ``critical_path`` has them."""
        places = stage_order(schedule, p, v)
        found: list[Chain] = []
        for row in self.matrix(schedule, p, v, m).reshape(-1, len(places), 3):
            stages, phases = np.nonzero(row)
            times = row[stages, phases].astype(np.int64).tolist()
            keys = [(*places[stage], phase) for stage, phase in zip(stages, phases.tolist(), strict=True)]
            found.append(dict(zip(keys, times, strict=True)))
        return found

    def _is_full(self, schedule: Schedule, p: int, v: int, m: int) -> bool:
        return len(self.matrix(schedule, p, v, m)) >= len(first_chains(schedule, p, v, m)) + MOST_LEARNED


def _rows(chains: Iterable[Chain], schedule: Schedule, p: int, v: int) -> npt.NDArray[np.float64]:
    stage_of = {place: stage for stage, place in enumerate(stage_order(schedule, p, v))}
    rows = []
    for chain in chains:
        row = np.zeros((len(stage_of), 3))
        for (rank, chunk, phase), times in chain.items():
            row[stage_of[rank, chunk], phase] = times
        rows.append(row.ravel())
    return np.array(rows)
