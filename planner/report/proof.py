"""The sentence that says whether an answer is proven."""

from __future__ import annotations

from planner.solver import PlanResult
from planner.spec import PlanRequest

BEHIND = {
    "step-time": "% slower than the best possible plan",
    "memory": "% more memory than the leanest possible plan",
    "cost": "% dearer than the cheapest possible plan",
    "tokens-per-s": "% fewer tokens a second than the best possible plan",
}
"""What a gap means, by goal."""
EXCLUDED = "rules, or the memory of a single layer, exclude all of them together"
"""Why nothing is left where no setting had to be bounded by itself."""


def proof_line(result: PlanResult, request: PlanRequest) -> str:
    """Whether the answer is proven, over how many settings, in which time.

    Where settings were excluded or left as a whole, none of them having been bounded, there is no number.
    """
    covered = _covered(result)
    if result.status == "optimal":
        among = " (the simplest within 1 % of the fastest plan)" if request.prefer_simple else ""
        return f"Proof: optimal by the cost model{among}; {covered}."
    if result.status == "feasible" and result.gap_pct is None:
        return f"Not proven: how much faster another plan could be is not known; {covered}."
    if result.status == "feasible":
        return f"Not proven: at most {result.gap_pct:.1f} {BEHIND[request.goal]}; {covered}."
    if result.status == "time-limit":
        return f"Not proven: no plan within the time limit; {covered}."
    if not result.num_settings:
        return f"Proof: no setting is legal and fits: {EXCLUDED}, in {_seconds(result)}."
    return f"Proof: no setting is legal and fits; {covered}."


def _covered(result: PlanResult) -> str:
    if not result.num_settings:
        return f"{_seconds(result)} were too short to cover settings one by one"
    return f"{result.num_settings:,} settings covered in {_seconds(result)}"


def _seconds(result: PlanResult) -> str:
    return f"{result.solve_s:.1f} s"
