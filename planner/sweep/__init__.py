"""Many questions at once: the same model over cluster sizes and accelerators, with days and dollars."""

from planner.sweep.execute import Outcome, run
from planner.sweep.grid import Scenario, scenarios
from planner.sweep.money import Economy

__all__ = ["Economy", "Outcome", "Scenario", "run", "scenarios"]
