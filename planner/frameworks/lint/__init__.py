"""``check``: what is wrong, too big, slow or stale in a launch file, with file and line, and a better plan.

``review(launch, request)`` does everything; ``lint(launch, request)`` returns only the findings;
``fix(review)`` returns the better plan's files; ``format_findings`` prints for people, machines and GitHub.
"""

from planner.frameworks.lint.findings import Finding, Severity
from planner.frameworks.lint.models import model_of, unknown_model
from planner.frameworks.lint.output import FORMATS, format_findings
from planner.frameworks.lint.review import Review, adopt, batch_of, fix, gpus_of, lint, review

__all__ = [
    "FORMATS", "Finding", "Review", "Severity", "adopt", "batch_of", "fix", "format_findings", "gpus_of",
    "lint", "model_of", "review", "unknown_model",
]  # fmt: skip
