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


def proof_line(result: PlanResult, request: PlanRequest) -> str:
    """Whether the answer is proven, over how many settings, in which time."""
    covered = f"{result.num_settings:,} settings covered in {result.solve_s:.1f} s"
    if result.status == "optimal":
        among = " (the simplest within 1 % of the fastest plan)" if request.prefer_simple else ""
        return f"Proof: optimal by the cost model{among}; {covered}."
    if result.status == "feasible" and result.gap_pct is None:
        return f"Not proven: how much faster another plan could be is not known; {covered}."
    if result.status == "feasible":
        return f"Not proven: at most {result.gap_pct:.1f} {BEHIND[request.goal]}; {covered}."
    if result.status == "time-limit":
        return f"Not proven: no plan within the time limit; {covered}."
    return f"Proof: no setting is legal and fits; {covered}."
