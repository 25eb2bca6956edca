"""plan-parallel: which parallelism settings to train a large model with, proven and explained.

>>> import planner
>>> planner.plan(model="100b", gpus=512)            # doctest: +SKIP
>>> planner.estimate(model="100b", gpus=512, tp=8)  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import estimate, plan
    from planner.catalog.hardware import load_accelerator, load_cluster
    from planner.catalog.models import load_model
    from planner.spec import Cluster, Model, Plan, PlanRequest

__all__ = [
    "Cluster", "Model", "Plan", "PlanRequest", "estimate", "load_accelerator", "load_cluster", "load_model",
    "plan",
]  # fmt: skip

_HOME = {
    "estimate": "planner.api",
    "plan": "planner.api",
    "load_accelerator": "planner.catalog.hardware",
    "load_cluster": "planner.catalog.hardware",
    "load_model": "planner.catalog.models",
    "Cluster": "planner.spec",
    "Model": "planner.spec",
    "Plan": "planner.spec",
    "PlanRequest": "planner.spec",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import planner`` stays light."""
    if name not in _HOME:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
