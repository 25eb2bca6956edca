"""The price of one plan, legal or not: the cost module's word, with the rules that the plan breaks.

The solver's objective is this function's step time; nothing here imports ortools.
"""

from __future__ import annotations

from planner.cost.confidence import error_band_pct, outside_calibration
from planner.cost.flops import mfu
from planner.cost.longest import longest_sentence
from planner.cost.memory import memory
from planner.cost.stage import with_stages
from planner.cost.step import step_time, tight_memory_factor
from planner.cost.terms import Memory, StepTime
from planner.errors import BadInput
from planner.rules import check
from planner.rules.memory import has_priceable_stages
from planner.rules.rule import Rule
from planner.rules.stages import STAGE_RULES
from planner.solver.result import Estimate
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest


def evaluate(plan: Plan, request: PlanRequest) -> Estimate:
    """Price one plan under a request.

    Parameters
    ----------
    plan
        Any plan whose stages, if given, match its pipeline and hold the model's layers. Broken rules are
        reported in ``violations`` and do not stop the pricing.

    Returns
    -------
    Estimate
        Step time and memory by term, broken rules, throughput per GPU that the plan occupies.

    Raises
    ------
    BadInput
        The stages do not match the pipeline or the model, so there is nothing to price.
    """
    plan = with_stages(plan, request.model)
    if not has_priceable_stages(plan, request):
        raise BadInput(_shape_sentence(plan, request))
    time, stages = _step_time(plan, request), memory(plan, request)
    step_s = float(time.total)
    tokens_per_s_per_gpu = plan.global_batch * request.workload.seq_length / step_s / plan.num_gpus
    return Estimate(
        plan=plan,
        time=time,
        stages=stages,
        violations=check(plan, request),
        fits=_peak(stages) <= request.cluster.usable_hbm_bytes,
        tokens_per_s_per_gpu=tokens_per_s_per_gpu,
        mfu=mfu(
            request.model,
            request.workload.seq_length,
            tokens_per_s_per_gpu,
            _peak_flop_per_s(plan, request),
            request.workload.frozen_weights,
        ),
        error_band_pct=error_band_pct(request, plan),
        notes=_notes(plan, request, stages),
    )


def _step_time(plan: Plan, request: PlanRequest) -> StepTime:
    """The step's time; where no schedule runs at all, the rule that says why takes the place of the error."""
    try:
        return step_time(plan, request)
    except BadInput:
        broken = [violation for violation in check(plan, request) if violation.field in UNSIMULATED]
        if broken:
            raise BadInput(str(broken[0])) from None
        raise


UNSIMULATED = frozenset({"schedule", "pipeline_parallel", "virtual_stages", "num_microbatches"})
"""Fields that can make a schedule impossible to run, and so to price."""


def _peak(stages: tuple[Memory, ...]) -> float:
    return max(float(stage.total) for stage in stages)


TIGHT = 0.9
"""Share of the memory beyond which a plan is called tight: 90 % of the predictions of measured runs are
within 12 % (tests/benchmarks/memory.md)."""


def _is_tight(peak_bytes: float, usable_bytes: float) -> bool:
    return TIGHT * usable_bytes < peak_bytes <= usable_bytes


def _peak_flop_per_s(plan: Plan, request: PlanRequest) -> float:
    """Dense peak of the plan's number format; of the first one listed where the accelerator lacks it."""
    peaks = request.cluster.accelerator.compute.peak_flop_per_s
    return peaks.get(plan.precision) or next(iter(peaks.values()))


def _shape_sentence(plan: Plan, request: PlanRequest) -> str:
    broken: list[Rule] = [rule for rule in STAGE_RULES[:2] if not rule.admits(plan, request)]
    return f"{broken[0].broken_sentence(plan, request)}."


def _notes(plan: Plan, request: PlanRequest, stages: tuple[Memory, ...]) -> tuple[str, ...]:
    """Say what the figures leave out: idle GPUs, lengths that fit, a full allocator, no measured run near."""
    notes = []
    if _peak(stages) > request.cluster.usable_hbm_bytes:
        said = longest_sentence(plan, request)
        notes.append(f"{said[0].upper()}{said[1:]}.")
    idle = request.cluster.num_gpus - plan.num_gpus
    if idle > 0:
        notes.append(f"{idle} of {request.cluster.num_gpus} GPUs stay idle.")
    full = fullness_sentence(stages, request)
    notes += [] if full is None else [full]
    outside = outside_calibration(request, plan)
    return tuple(notes) if outside is None else (*notes, outside)


def fullness_sentence(stages: tuple[Memory, ...], request: PlanRequest) -> str | None:
    """Say that a plan which fits leaves the allocator little room, None where it leaves enough."""
    peak_bytes, usable_bytes = _peak(stages), request.cluster.usable_hbm_bytes
    slowdown = tight_memory_factor(peak_bytes, request)
    if slowdown > 1:
        name = request.framework.name
        return f"Memory is nearly full: measured {name} runs this full were {slowdown:g} times slower."
    if not _is_tight(peak_bytes, usable_bytes):
        return None
    free = 1 - peak_bytes / usable_bytes
    return (
        f"Memory is tight: {100 * free:.0f} % stay free, and one prediction in ten "
        "is off by 12 % or more; --hbm-reserve keeps more free."
    )
