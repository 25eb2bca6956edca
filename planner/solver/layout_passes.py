"""What the stages of layouts work at least, for many settings and layouts at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.cost.offload import OF_ACTIVATIONS
from planner.solver.tables import Floats, Phases, WorkTimes
from planner.spec.model import LayerKind, Model
from planner.spec.plan import Offload, Recompute
from planner.spec.request import PlanRequest

Counts = npt.NDArray[np.int64]


def may_skip_recompute(offload: Offload, request: PlanRequest) -> bool:
    """Whether a plan with recompute is worth no more than the same one without, where that fits.

    Not where the user's pins rule that one out, nor where less is copied to the host of recomputed layers.
    """
    pins = [pin for pin in request.pins if pin.field == "recompute"]
    return offload not in OF_ACTIVATIONS and all(pin.admits("none") for pin in pins)


def recomputes_all(recompute: Recompute, offload: Offload, request: PlanRequest) -> bool:
    """Whether this kind of recompute is of all layers, if any."""
    limits = request.framework.limits
    partial = limits.recomputes_partially(recompute) or limits.recompute_per_stage
    return recompute != "none" and (not partial or not may_skip_recompute(offload, request))


def kinds_held(layouts: Counts, model: Model) -> dict[LayerKind, Counts]:
    """Layers of each kind as [layout, stage], of layouts in the order of the data."""
    stops = np.cumsum(layouts, axis=1)
    held = {}
    for kind in model.kind_counts:
        before = np.cumsum([0, *(own == kind for own in model.layer_kinds)])
        held[kind] = before[stops] - before[stops - layouts]
    return held


def least_passes(held: dict[LayerKind, Counts], again: Counts | None, work: WorkTimes, chunks: int) -> Floats:
    """Forward, input-gradient and weight-gradient seconds at least, as [setting, layout, stage, phase].

    Parameters
    ----------
    held
        Layers of each kind as [layout, stage].
    again
        Recomputed ones as [layout, stage], or as [setting, layout, stage]; None where nothing is.
    work
        Phases of settings.
    chunks
        Chunks of a rank, which share what every rank pays anyway.
    """
    engine = _phases(work.engine)[:, None, None, :3] / chunks
    passes = engine + np.zeros((*next(iter(held.values())).shape, 3))
    share = None if again is None else again / np.maximum(np.asarray(sum(held.values())), 1)
    for kind, counts in held.items():
        phases = _phases(work.layers[kind])[:, None, None, :]
        passes += counts[:, :, None] * phases[..., :3]
        if share is not None:
            passes[..., 1] += counts * share * phases[..., 3]
    passes[:, :, 0] += _phases(work.first)[:, None, :3]
    passes[:, :, -1] += _phases(work.last)[:, None, :3]
    return passes


def _phases(phases: Phases) -> Floats:
    """Forward, input gradient, weight gradient and recompute as [setting, phase]."""
    columns = (phases.forward, phases.backward_input, phases.backward_weight, phases.recompute)
    return np.array(columns).T
