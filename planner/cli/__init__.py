"""The command line: one module a command, loaded when it is called.

Nothing here imports numpy or ortools, so that help and the catalogs answer at once.
"""

from __future__ import annotations

from planner.cli.group import main

__all__ = ["main"]
