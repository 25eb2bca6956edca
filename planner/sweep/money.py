"""What a plan's step time means for a whole run: days and dollars, with and without failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.cost.goodput import (
    DAY_S,
    FAILURES_PER_GPU_HOUR,
    HOUR_S,
    RESTART_S,
    STORAGE_BYTES_PER_S,
    batch_efficiency,
    critical_batch_tokens,
    goodput,
    run_cost,
)
from planner.cost.parameters import total_parameters
from planner.spec import PlanRequest

if TYPE_CHECKING:
    from planner.solver.result import Estimate

MILLION = 1e6


@dataclass(frozen=True, kw_only=True)
class Economy:
    """What the run costs besides its steps. Prices default to the accelerator's file."""

    training_tokens: float | None = None
    usd_per_gpu_hour: float | None = None
    failures_per_gpu_hour: float = FAILURES_PER_GPU_HOUR
    restart_s: float = RESTART_S
    storage_bytes_per_s: float = STORAGE_BYTES_PER_S

    def price(self, request: PlanRequest) -> float | None:
        """Return what a GPU costs an hour: the user's price, else the hardware file's. [USD]."""
        listed = request.cluster.accelerator.price
        if self.usd_per_gpu_hour is not None:
            return self.usd_per_gpu_hour
        return listed.usd_per_gpu_hour if listed else None

    def figures(self, estimate: Estimate, request: PlanRequest) -> dict[str, Any]:
        """Return money and time of one plan; None where a price or the training tokens are not known."""
        plan, step_s = estimate.plan, estimate.step_time_s
        tokens = plan.global_batch * request.workload.seq_length
        price = self.price(request)
        uptime = goodput(
            total_parameters(request.model),
            plan.num_gpus,
            failures_per_gpu_hour=self.failures_per_gpu_hour,
            storage_bytes_per_s=self.storage_bytes_per_s,
            restart_s=self.restart_s,
        )
        hourly = None if price is None else price * plan.num_gpus
        per_million = None if hourly is None else hourly * step_s / HOUR_S / tokens * MILLION
        return {
            "usd_per_million_tokens": per_million,
            "goodput": float(uptime.fraction),
            "mean_time_between_failures_s": float(uptime.mean_time_between_failures_s),
            "checkpoint_bytes": float(uptime.checkpoint_bytes),
            "checkpoint_interval_s": float(uptime.interval_s),
            **self._run(tokens, step_s, plan.num_gpus, price, float(uptime.fraction)),
        }

    def _run(
        self, tokens: int, step_s: float, num_gpus: int, price: float | None, uptime: float
    ) -> dict[str, Any]:
        names = ("days", "usd", "days_with_failures", "usd_with_failures", "batch_efficiency")
        if self.training_tokens is None:
            return dict.fromkeys(names)
        ideal = run_cost(self.training_tokens, tokens, step_s, num_gpus, price or 0.0)
        real = run_cost(self.training_tokens, tokens, step_s, num_gpus, price or 0.0, max(uptime, 1e-9))
        used = batch_efficiency(tokens, critical_batch_tokens(self.training_tokens))
        return {
            "days": float(ideal.duration_s) / DAY_S,
            "usd": None if price is None else float(ideal.usd),
            "days_with_failures": float(real.duration_s) / DAY_S,
            "usd_with_failures": None if price is None else float(real.usd),
            "batch_efficiency": float(used),
        }
