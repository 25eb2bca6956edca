"""CP-SAT's Python module, loaded without pandas.

OR-Tools imports pandas for functions over series of variables, which nothing here calls: more than half of
the import's time. A stand-in takes its place while the module loads, and becomes pandas on first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

CP_MODEL = "ortools.sat.python.cp_model"
ANNOTATED = ("Index", "Series")
"""What the module's annotations name; an annotation needs no more than a type of that name."""


class PandasOnDemand(ModuleType):
    """Stands for pandas: any attribute that it lacks imports the real one."""

    def __getattr__(self, name: str) -> Any:
        """Look a name up in the real pandas."""
        if sys.modules.get("pandas") is self:
            del sys.modules["pandas"]
        return getattr(import_module("pandas"), name)


def load_cp_model() -> ModuleType:
    """Import CP-SAT; pandas stays unloaded unless somebody loaded it before."""
    if "pandas" in sys.modules or CP_MODEL in sys.modules:
        return import_module(CP_MODEL)
    stand_in = PandasOnDemand("pandas")
    vars(stand_in).update({name: type(name, (), {}) for name in ANNOTATED})
    sys.modules["pandas"] = stand_in
    try:
        return import_module(CP_MODEL)
    finally:
        if sys.modules.get("pandas") is stand_in:
            del sys.modules["pandas"]
        for name in ANNOTATED:
            delattr(stand_in, name)


if TYPE_CHECKING:
    from ortools.sat.python import cp_model
else:
    cp_model = load_cp_model()

SEED = 20240229
"""Fixed, so that the same question has the same answer."""


def new_solver(workers: int = 1) -> cp_model.CpSolver:
    """Return a solver with the fixed seed that leaves Ctrl-C to Python.

    CP-SAT's own handler would end one solve, tell nobody, and leave the process with no handler at all.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = SEED
    solver.parameters.catch_sigint_signal = False
    return solver


def new_table_solver(workers: int = 1) -> cp_model.CpSolver:
    """Return a solver for a choice among a few rows, which one pass of presolve all but decides.

    What it leaves out (probing, symmetries, linear relaxations) changes the time and not the answer: the
    optimum is proven all the same.
    """
    solver = new_solver(workers)
    solver.parameters.max_presolve_iterations = 1
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    solver.parameters.linearization_level = 0
    return solver


__all__ = ["SEED", "cp_model", "load_cp_model", "new_solver", "new_table_solver"]
