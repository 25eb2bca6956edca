"""How many layers each pipeline rank can hold: memory of all layouts at once, for many settings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.cost.memory import stage_memory
from planner.cost.stage import ChunkLoad
from planner.solver.space import Rows
from planner.solver.tables import settings_by_category
from planner.spec.request import PlanRequest


def fits_somehow(rows: Rows, request: PlanRequest) -> npt.NDArray[np.bool_]:
    """Whether memory allows some layout of each setting; False is proven, True is not."""
    fits = np.ones(len(rows), dtype=bool)
    for chosen, setting in settings_by_category(rows):
        p, layers = setting.pipeline_parallel, request.model.num_layers
        held = np.maximum(layers // p, 1)
        recomputed = 0 if setting.recompute == "none" else held
        for first in (True, False):
            peaks = []
            for kind in dict.fromkeys(request.model.layer_kinds):
                load = ChunkLoad(
                    {kind: held}, recomputed, embedding=int(first), head=np.where(first & (p > 1), 0, 1)
                )
                peaks.append(stage_memory(load, setting, request, 0 if first else p - 1).total)
            fits[chosen] &= np.min(peaks, axis=0) <= request.cluster.usable_hbm_bytes
    return fits
