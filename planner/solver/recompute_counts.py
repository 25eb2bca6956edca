"""How many layers each rank of a layout has to recompute so that all fit, as a framework can say it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.solver.layout_passes import Counts, may_skip_recompute
from planner.solver.rank_shares import RankShares, Shares
from planner.spec.plan import Offload, Recompute
from planner.spec.request import PlanRequest

Fits = npt.NDArray[np.bool_]


def tried(own: Shares, mirror: Shares | None, recompute: Recompute, request: PlanRequest) -> Counts:
    """Numbers of recomputed layers whose memory decides; a load with fewer layers recomputes all it has."""
    if recompute == "none":
        return np.zeros(1, dtype=np.int64)
    most = max(int(each.num_layers.max(initial=0)) for each in (own, mirror or own))
    is_partial = request.framework.limits.recomputes_partially(recompute)
    return np.arange(most + 1) if is_partial else np.array([0, most])


def fewest(
    fits: Fits, shares: RankShares, recompute: Recompute, offload: Offload, request: PlanRequest
) -> tuple[Fits, Counts]:
    """Whether layouts fit, as [setting, layout], and the fewest recomputed layers, as [.., layout, rank].

    Parameters
    ----------
    fits
        Whether each load fits, as [setting, load, number of recomputed layers (``tried``)].

    Notes
    -----
    A setting without recompute recomputes nothing, and one with it something: what fits without belongs
    to the setting without. Where that is no other (``may_skip_recompute``), every layer is recomputed.
    """
    held = np.sum(shares.chunks, axis=2)
    shape = (len(fits), *held.shape)
    plain = np.all(fits[:, shares.place, 0], axis=2)
    if recompute == "none":
        return plain, np.zeros(shape, dtype=np.int64)
    if not may_skip_recompute(offload, request):
        return np.all(fits[:, shares.place, -1], axis=2), np.broadcast_to(held, shape)
    if request.framework.limits.recompute_per_stage:
        numbers = tried(shares.own, shares.mirror, recompute, request)
        enough, counts = _by_stage(fits, shares, numbers, held)
    else:
        is_partial = request.framework.limits.recomputes_partially(recompute)
        enough, counts = _first_of_chunks(fits, shares, held, is_partial)
    return enough & ~plain, counts


def _by_stage(fits: Fits, shares: RankShares, numbers: Counts, held: Counts) -> tuple[Fits, Counts]:
    """Every rank as few as it needs; two ranks that hold the same stages recompute them alike."""
    each = fits[:, shares.place]
    if shares.mirror is not None:
        each = each & each[:, :, ::-1]
    enough = np.all(np.any(each, axis=3), axis=2)
    return enough, np.minimum(numbers[np.argmax(each, axis=3)], held)


def _first_of_chunks(fits: Fits, shares: RankShares, held: Counts, is_partial: bool) -> tuple[Fits, Counts]:
    """The first n layers of every chunk, n as small as it can be; where no part is possible, all of them."""
    most = int(shares.chunks.max(initial=0))
    counts = np.zeros((len(fits), *held.shape), dtype=np.int64)
    enough = np.zeros(counts.shape[:2], dtype=bool)
    for first in range(1 if is_partial else most, most + 1):
        own = np.sum(np.minimum(shares.chunks, first), axis=2)
        number = np.full_like(own, first) if shares.chunks.shape[2] == 1 else own
        each = fits[:, shares.place, number if is_partial else -1]
        new = ~enough & np.all(each, axis=2)
        counts = np.where(new[:, :, None], own, counts)
        enough |= new
        if np.all(enough):
            break
    return enough, counts


def spread(chunks: Counts, recomputed: Counts) -> Counts:
    """Recomputed layers of every chunk as [setting, layout, rank, chunk]: ``spread_recomputed`` in bulk.

    Parameters
    ----------
    chunks
        Layers as [layout, rank, chunk].
    recomputed
        Of a rank's chunks together, as [setting, layout, rank].
    """
    most = int(chunks.max(initial=1))
    sums = np.stack([np.sum(np.minimum(chunks, level), axis=2) for level in range(1, most + 1)], axis=-1)
    level = np.sum(sums <= recomputed[..., None], axis=-1)[..., None]
    even = np.minimum(chunks, level)
    left = recomputed - np.sum(even, axis=-1)
    larger = chunks > level
    return np.asarray(even + (larger & (np.cumsum(larger, axis=-1) <= left[..., None])))
