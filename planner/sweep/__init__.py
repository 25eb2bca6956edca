"""Many questions at once: the same model over cluster sizes and accelerators, with days and dollars."""

from planner.sweep.execute import Outcome, run
from planner.sweep.money import Economy
from planner.sweep.scenarios import Scenario, scenarios

__all__ = ["Economy", "Outcome", "Scenario", "run", "scenarios"]
