"""CP-SAT loads without pandas, and pandas is still there for whoever needs it."""

from __future__ import annotations

import subprocess
import sys


def shown(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_solver_loads_without_pandas() -> None:
    probe = "import planner.solver.search, sys; print('ortools' in sys.modules, 'pandas' in sys.modules)"
    assert shown(probe).split() == ["True", "False"]


def test_series_of_variables_still_work_for_others() -> None:
    # x1 + x2 = 7 with x1 at most 2 and x2 at most 5: only (2, 5)
    probe = """
from planner.solver.cp_sat import cp_model
import pandas
model = cp_model.CpModel()
x = model.new_int_var_series("x", pandas.Index([1, 2]), 0, pandas.Series({1: 2, 2: 5}))
model.add(x[1] + x[2] == 7)
solver = cp_model.CpSolver()
solver.solve(model)
print(*solver.values(x).tolist())
"""
    assert shown(probe).split() == ["2", "5"]


def test_a_loaded_pandas_stays_loaded() -> None:
    probe = "import pandas, planner.solver.cp_sat as c, sys; print(c.cp_model.pd is sys.modules['pandas'])"
    assert shown(probe).strip() == "True"
