"""Two plans side by side: settings, time and memory, what differs most first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.explain.loss import Difference, loss_phrase, memory_differences, percent, time_differences
from planner.spec import Plan, PlanRequest
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.solver.result import Estimate


@dataclass(frozen=True)
class Comparison:
    """Two priced plans of one request."""

    request: PlanRequest
    names: tuple[str, str]
    first: Estimate
    second: Estimate

    @property
    def difference_pct(self) -> float:
        """Step time of the second plan against the first, per sequence. [%]."""
        return percent(self.first, self.second)

    @property
    def settings(self) -> list[tuple[str, str, str]]:
        """Settings that differ: field, first value, second value."""
        one, two = self.first.plan, self.second.plan
        fields = [name for name in Plan.model_fields if name != "stages"]
        rows = [(name, str(getattr(one, name)), str(getattr(two, name))) for name in fields]
        if one.stages != two.stages:
            rows.append(("stages", _layers(one), _layers(two)))
        return [row for row in rows if row[1] != row[2]]

    @property
    def time(self) -> list[Difference]:
        """Terms of the step time, the largest difference first. [s]."""
        return time_differences(self.first.time, self.second.time)

    @property
    def memory(self) -> list[Difference]:
        """Terms of the fullest rank's memory, the largest difference first. [byte]."""
        one, two = self.first, self.second
        return memory_differences(one.stages[one.worst_stage], two.stages[two.worst_stage])

    @property
    def notes(self) -> list[str]:
        """What a reader of the tables should know."""
        return [*self._trading_places(), *self._close()]

    def _close(self) -> list[str]:
        band = max(self.first.error_band_pct, self.second.error_band_pct)
        if self.first.plan == self.second.plan or abs(self.difference_pct) >= band:
            return []
        return [
            f"The step times differ by less than the error band of {band:g} %: measure both before deciding."
        ]

    def _trading_places(self) -> list[str]:
        piped = max(self.first.plan.pipeline_parallel, self.second.plan.pipeline_parallel) > 1
        ends = [float(estimate.time.embedding_and_loss_s) for estimate in (self.first, self.second)]
        if not piped or min(ends) >= 0.5 * max(ends):
            return []
        return [
            "The busy terms are those of the pipeline rank that sets the pace. In one plan that rank holds "
            "an end of the model and fewer layers, in the other not: embedding and loss and the terms of the "
            "layers trade places."
        ]

    @property
    def sentence(self) -> str:
        """The comparison in one sentence."""
        change = self.second.peak_memory_bytes - self.first.peak_memory_bytes
        amount = f"{format_bytes(abs(change))} {'more' if change > 0 else 'less'}" if change else "the same"
        broken = [
            f" {name} breaks {', '.join(violation.rule for violation in estimate.violations)}."
            for name, estimate in zip(self.names, (self.first, self.second), strict=True)
            if estimate.violations
        ]
        return (
            f"{self.names[1]} against {self.names[0]}: {loss_phrase(self.first, self.second)}; "
            f"{amount} memory on the fullest GPU.{''.join(broken)}"
        )


def compare(
    first: Plan, second: Plan, request: PlanRequest, names: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Price two plans under the same request."""
    from planner.solver.evaluate import evaluate

    return Comparison(request, names, evaluate(first, request), evaluate(second, request))


def _layers(plan: Plan) -> str:
    return " ".join(str(stage.layers) for stage in plan.stages) or "even"
