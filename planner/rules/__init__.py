"""What is legal: named predicates over plan fields; check, mask, encoding and sentences follow from them.

A rule is written once (see ``rule.py``), in the file of its subject; ``encode.py`` (which alone imports
ortools here) turns it into constraints.
"""

from planner.rules.check import (
    RULES,
    TABULAR_RULES,
    Violation,
    broken_rules,
    candidates,
    check,
    mask,
    valid_values,
)
from planner.rules.rule import Rule, rule
from planner.rules.user import is_choice, pin_rules

__all__ = [
    "RULES", "TABULAR_RULES", "Rule", "Violation", "broken_rules", "candidates", "check", "is_choice", "mask",
    "pin_rules", "rule", "valid_values",
]  # fmt: skip
