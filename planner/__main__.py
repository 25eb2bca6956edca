"""``python -m planner`` is ``plan-parallel``."""

from planner.cli import main

main(prog_name="plan-parallel")
