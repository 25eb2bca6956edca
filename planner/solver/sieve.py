"""Bounds of many waiting candidates at once, of all their layouts."""

from __future__ import annotations

import numpy as np

from planner.cost.offload import OF_ACTIVATIONS
from planner.solver.alike import Alike, Close, Index, blocks, bounded
from planner.solver.price import Known
from planner.solver.rank_shares import RankShares
from planner.solver.scan import Candidates
from planner.solver.space import Rows
from planner.solver.tables import Floats
from planner.spec.request import PlanRequest

ALIKE = ("schedule", "pipeline_parallel", "virtual_stages", "num_microbatches", "recompute")
"""Fields of candidates that share their layouts and chains."""


def alike_keys(rows: Rows) -> Index:
    """One integer a row that tells groups of candidates with the same layouts and chains apart.

    Offloaded activations make groups of their own: they decide whether recompute is of every layer.
    """
    return rows.key(ALIKE) * 2 + np.isin(rows.values("offload"), sorted(OF_ACTIVATIONS))


def sifted(
    shares: RankShares, source: Candidates, chosen: Index, worth_s: Floats, known: Known, request: PlanRequest
) -> tuple[Floats, list[Close | None]]:
    """Lower bounds of candidates alike over their layouts [s], and of each the layouts that may matter.

    Parameters
    ----------
    chosen
        Their places in ``source``.
    worth_s
        One a candidate: layouts at or above it do not matter. [s]
    """
    alike = Alike(
        source.rows.take(chosen), source.work.take(chosen), source.fixed[chosen], source.growth[chosen],
        request,
    )  # fmt: skip
    least = np.full(len(chosen), np.inf)
    closes: list[Close | None] = []
    for own in blocks(alike, shares):
        least[own], found = bounded(alike.take(own), shares, worth_s[own], known.chains)
        closes += found
    return least, closes
