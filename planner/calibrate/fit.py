"""From measured times to the constants of a hardware file. No torch here: plain arithmetic on arrays.

Letters: M, N, K sizes of a product, t its time; t0, R, K0, q, D the constants of ``GemmCurve``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

NARROW_CANDIDATES = range(0, 401, 10)
"""Values of D that are tried."""
ROUNDS = 25
"""Reweighting rounds; each halves the pull of outliers, far more than convergence needs."""
SMALLEST_RESIDUAL = 0.01
"""Relative residuals below this count alike, which keeps the weights finite."""
MEMORY_BOUND_SHARE = 0.8
"""Products that spend more than this share of their time on moving operands say nothing about the rate."""
FASTEST_FLOP_PER_S = 1e21
"""No accelerator is near it: the fit found no rate at all."""
LOWEST_SHARE, HIGHEST_SHARE = 0.05, 1.0
"""Bounds of a bandwidth share; a cached copy can seem faster than memory."""


@dataclass(frozen=True)
class GemmFit:
    """Constants of one precision and how well they describe the measured times."""

    rate_flop_per_s: float
    k0: float
    launch_s: float
    quantise_s_per_element: float
    small_dimension: float
    median_error: float


def fit_gemm(
    m: Sequence[float],
    n: Sequence[float],
    k: Sequence[float],
    seconds: Sequence[float],
    hbm_bytes_per_s: float,
    quantised: bool = False,
) -> GemmFit:
    """Fit t = t0 + 2 M' N' (K + K0) / R + q M K with M'^2 = M^2 + 2 D^2, N' likewise, to measured products.

    Parameters
    ----------
    m, n, k, seconds
        Sizes and times, at least eight of them.
    hbm_bytes_per_s
        Leaves out products that the memory bounds.
    quantised
        The time includes a pass over the activation (fit q too).

    Notes
    -----
    Linear in t0, 1/R, K0/R and q for a given D: least absolute *relative* deviations by reweighted least
    squares, constants that would be negative are dropped; D is the one with the least median error.
    """
    sizes = tuple(np.asarray(values, dtype=np.float64) for values in (m, n, k))
    times = np.asarray(seconds, dtype=np.float64)
    rows, columns, inner = sizes
    moved = 2.0 * (rows * inner + inner * columns + rows * columns) / hbm_bytes_per_s
    counts = moved < MEMORY_BOUND_SHARE * times
    if counts.sum() < 8:
        raise ValueError("at least eight products that are not bound by memory are needed")
    kept = tuple(values[counts] for values in sizes)
    fits = [_fit_with(kept, times[counts], float(narrow), quantised) for narrow in NARROW_CANDIDATES]
    best = min(fits, key=lambda fit: fit.median_error)
    if best.rate_flop_per_s > FASTEST_FLOP_PER_S:
        raise ValueError("the times of the matrix products do not grow with their size")
    return best


def _fit_with(sizes: tuple[Array, ...], times: Array, narrow: float, quantised: bool) -> GemmFit:
    rows, columns, inner = sizes
    area = np.sqrt((rows**2 + 2.0 * narrow**2) * (columns**2 + 2.0 * narrow**2))
    features = [np.ones_like(times), 2.0 * area * inner, 2.0 * area]
    if quantised:
        features.append(rows * inner)
    table = np.stack(features, axis=1)
    solution = least_deviation(table / times[:, None], np.ones_like(times))
    residuals = np.abs(table @ solution / times - 1.0)
    launch, per_flop, prologue = solution[:3]
    rate = 1.0 / max(per_flop, 1e-30)
    return GemmFit(
        rate_flop_per_s=rate,
        k0=prologue * rate,
        launch_s=launch,
        quantise_s_per_element=float(solution[3]) if quantised else 0.0,
        small_dimension=narrow,
        median_error=float(np.median(residuals)),
    )


def least_deviation(table: Array, target: Array) -> Array:
    """Return the x >= 0 of least sum |A x - y|: the most negative coefficient is set to 0 until none is."""
    scale = np.maximum(np.median(np.abs(table), axis=0), 1e-300)
    scaled, active = table / scale, list(range(table.shape[1]))
    solution = np.zeros(table.shape[1])
    while active:
        found = _reweighted(scaled[:, active], target)
        if found.min() >= 0:
            solution[active] = found
            break
        del active[int(np.argmin(found))]
    return np.asarray(solution / scale)


def _reweighted(table: Array, target: Array) -> Array:
    """Least squares whose rows are weighted by the inverse of their last residual."""
    weights: Array = np.ones_like(target)
    found: Array = np.zeros(table.shape[1])
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        found = np.asarray(np.linalg.lstsq(table * root[:, None], target * root, rcond=None)[0], np.float64)
        weights = 1.0 / np.maximum(np.abs(table @ found - target), SMALLEST_RESIDUAL)
    return found


def bandwidth_share(bytes_moved: float, seconds: float, hbm_bytes_per_s: float) -> float:
    """Share of the memory's bandwidth that a kernel reached. [1]."""
    return float(np.clip(bytes_moved / seconds / hbm_bytes_per_s, LOWEST_SHARE, HIGHEST_SHARE))


def sustained_share(burst_s: float, sustained_s: float) -> float:
    """Clock of a long run over the clock of a short one, at most 1. [1]."""
    return float(np.clip(burst_s / sustained_s, LOWEST_SHARE, 1.0))


def rising(message_bytes: Sequence[float], seconds: Sequence[float]) -> tuple[list[float], list[float]]:
    """Sort a collective's points by size and take the median of repeated sizes."""
    sizes = sorted(set(message_bytes))
    pairs = list(zip(message_bytes, seconds, strict=True))
    times = [float(np.median([time for size, time in pairs if size == wanted])) for wanted in sizes]
    return [float(size) for size in sizes], times
