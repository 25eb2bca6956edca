"""From a name or a file to a spec: models, accelerators, clusters."""

from planner.catalog.hardware import load_accelerator, load_cluster
from planner.catalog.models import load_model

__all__ = ["load_accelerator", "load_cluster", "load_model"]
