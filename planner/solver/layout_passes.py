"""What the stages of layouts work at least, for many settings and layouts at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.solver.tables import Floats, Phases, WorkTimes
from planner.spec.model import LayerKind, Model
from planner.spec.plan import Recompute
from planner.spec.request import PlanRequest

Counts = npt.NDArray[np.int64]


def may_skip_recompute(request: PlanRequest) -> bool:
    """Whether the user's pins admit a plan without recompute."""
    return all(pin.admits("none") for pin in request.pins if pin.field == "recompute")


def recomputes_all(recompute: Recompute, request: PlanRequest) -> bool:
    """Whether this kind of recompute is of all layers, if any."""
    limits = request.framework.limits
    partial = limits.recomputes_partially(recompute) or limits.recompute_per_stage
    return recompute != "none" and (not partial or not may_skip_recompute(request))


def kinds_held(layouts: Counts, model: Model) -> dict[LayerKind, Counts]:
    """Layers of each kind as [layout, stage], of layouts in the order of the data."""
    stops = np.cumsum(layouts, axis=1)
    held = {}
    for kind in dict.fromkeys(model.layer_kinds):
        before = np.cumsum([0, *(own == kind for own in model.layer_kinds)])
        held[kind] = before[stops] - before[stops - layouts]
    return held


def least_passes(
    held: dict[LayerKind, Counts], again: Counts, work: WorkTimes, chosen: npt.NDArray[np.int64], chunks: int
) -> Floats:
    """Forward, input-gradient and weight-gradient seconds at least, as [setting, layout, stage, phase].

    Parameters
    ----------
    held
        Layers of each kind as [layout, stage].
    again
        Recomputed ones as [layout, stage], or as [setting, layout, stage].
    work, chosen
        Phases of settings, and which of them.
    chunks
        Chunks of a rank, which share what every rank pays anyway.
    """
    layouts = np.asarray(sum(held.values()))
    share = again / np.maximum(layouts, 1)
    engine = _phases(work.engine, chosen)[:, None, None, :3] / chunks
    passes = np.zeros((len(chosen), *layouts.shape, 3)) + engine
    for kind, counts in held.items():
        phases = _phases(work.layers[kind], chosen)[:, None, None, :]
        passes += counts[:, :, None] * phases[..., :3]
        passes[..., 1] += counts * share * phases[..., 3]
    passes[:, :, 0] += _phases(work.first, chosen)[:, None, :3]
    passes[:, :, -1] += _phases(work.last, chosen)[:, None, :3]
    return passes


def _phases(phases: Phases, chosen: npt.NDArray[np.int64]) -> Floats:
    """Forward, input gradient, weight gradient and recompute as [setting, phase]."""
    columns = (phases.forward, phases.backward_input, phases.backward_weight, phases.recompute)
    return np.stack([column[chosen] for column in columns], axis=1)
