"""Results as JSON-ready dictionaries. Key names are frozen by tests; new keys may be added, none removed.

Gigabytes (1e9 bytes) appear only here, under names that end in ``_gb``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from planner.report.table import bubble_fraction
from planner.spec import Plan, PlanRequest
from planner.units import GB

if TYPE_CHECKING:
    from planner.explain.answer import Answer
    from planner.explain.compare import Comparison
    from planner.explain.why_not import WhyNot
    from planner.frameworks.lint import Review
    from planner.solver.result import Estimate

PLAN_FIELDS = (
    "tensor_parallel", "pipeline_parallel", "virtual_stages", "schedule", "data_parallel", "context_parallel",
    "context_parallel_kind", "expert_parallel", "expert_tensor_parallel", "zero_stage", "shard_group_size",
    "sequence_parallel", "micro_batch", "num_microbatches", "recompute", "recompute_modules", "offload",
    "precision", "rank_order",
)  # fmt: skip
"""Plan fields in the order they are printed (everything but the stages)."""


def dumps(data: Any) -> str:
    """Text of a report; numbers that JSON cannot say (infinite, not a number) are an error."""
    return json.dumps(data, indent=2, allow_nan=False)


def plan_fields(plan: Plan) -> dict[str, Any]:
    """Flat settings of a plan, without its stages."""
    data = plan.model_dump(mode="json")
    return {name: data[name] for name in PLAN_FIELDS}


def stage_rows(estimate: Estimate) -> list[dict[str, Any]]:
    """One row per pipeline rank: layers, recomputed layers and peak bytes."""
    plan = estimate.plan
    rows = []
    for rank, memory in enumerate(estimate.stages):
        stage = plan.stages[rank] if plan.stages else None
        rows.append(
            {
                "layers": stage.layers if stage else None,
                "chunk_layers": list(stage.chunk_layers) if stage else None,
                "recompute_layers": stage.recompute_layers if stage else None,
                "peak_memory_bytes": float(memory.total),
                "memory_bytes": memory.as_dict(),
            }
        )
    return rows


def estimate_report(estimate: Estimate, explanation: Iterable[str] = ()) -> dict[str, Any]:
    """Everything about one priced plan."""
    worst = estimate.stages[estimate.worst_stage]
    return {
        **plan_fields(estimate.plan),
        "num_gpus": estimate.plan.num_gpus,
        "global_batch": estimate.plan.global_batch,
        "stages": stage_rows(estimate),
        "legal": not estimate.violations,
        "violations": [violation_row(violation) for violation in estimate.violations],
        "fits": estimate.fits,
        "step_time_s": estimate.step_time_s,
        "error_band_pct": estimate.error_band_pct,
        "time_s": estimate.time.as_dict(),
        "memory_bytes": worst.as_dict(),
        "peak_memory_gb": estimate.peak_memory_bytes / GB,
        "bubble_pct": 100 * bubble_fraction(estimate.time),
        "tokens_per_s_per_gpu": float(estimate.tokens_per_s_per_gpu),
        "mfu": float(estimate.mfu),
        "notes": list(estimate.notes),
        "explanation": list(explanation),
    }


def violation_row(violation: Any) -> dict[str, Any]:
    """One broken rule: its name, its sentence and the values it would accept."""
    return {
        "rule": violation.rule,
        "sentence": violation.sentence,
        "allowed": list(violation.allowed or ()),
        "nearest": violation.nearest,
    }


def request_report(request: PlanRequest) -> dict[str, Any]:
    """What was asked, after names were resolved and defaults filled in."""
    return {
        "model": request.model.name,
        "hardware": request.cluster.accelerator.name,
        "gpus": request.cluster.num_gpus,
        "gpus_per_node": request.cluster.gpus_per_node,
        "usable_memory_gb": request.cluster.usable_hbm_bytes / GB,
        "global_batch": request.workload.global_batch,
        "global_batch_max": request.workload.global_batch_max,
        "seq_length": request.workload.seq_length,
        "precision": list(request.workload.precisions),
        "framework": request.framework.name,
        "goal": request.goal,
        "pins": [pin.option for pin in request.pins],
    }


def answer_report(answer: Answer) -> dict[str, Any]:
    """The whole answer of the main job."""
    result, conflict = answer.result, answer.conflict
    plans = [
        {"rank": rank, **estimate_report(estimate, answer.explanation if rank == 1 else ())}
        for rank, estimate in enumerate(result.plans, 1)
    ]
    return {
        "status": result.status,
        "gap_pct": result.gap_pct,
        "solve_s": result.solve_s,
        "settings_covered": result.num_settings,
        "request": request_report(answer.request),
        "assumptions": list(answer.request.assumptions),
        "notes": list(result.notes),
        "plans": plans,
        "reasons": [reason.as_dict() for reason in answer.reasons],
        "conflict": [member.as_dict() for member in conflict.members] if conflict else [],
        "relaxations": [relaxation.as_dict() for relaxation in conflict.relaxations] if conflict else [],
        "hopeless": list(conflict.hopeless) if conflict else [],
        "sensitivity": answer.sensitivity.as_dict() if answer.sensitivity else None,
    }


def why_not_report(found: WhyNot) -> dict[str, Any]:
    """The verdict on a choice."""
    completion, conflict = found.completion, found.conflict
    return {
        "request": request_report(found.request),
        "choice": list(found.choice),
        "possible": completion is not None,
        "legal": completion is not None and completion.is_legal and not found.lifted,
        "fits": completion is not None and completion.fits,
        "needs": list(found.lifted),
        "loss_pct": found.loss_pct,
        "loss_s": {row.term: row.change for row in found.terms},
        "best": estimate_report(found.best) if found.best else None,
        "completion": estimate_report(completion) if completion else None,
        "sentences": found.sentences,
        "conflict": [member.as_dict() for member in conflict.members] if conflict else [],
        "relaxations": [relaxation.as_dict() for relaxation in conflict.relaxations] if conflict else [],
        "hopeless": list(conflict.hopeless) if conflict else [],
    }


def review_report(found: Review) -> dict[str, Any]:
    """A checked run: findings, its price and that of the better plan, null where there is none."""
    return {
        "findings": [asdict(finding) for finding in found.findings],
        "request": request_report(found.request),
        "estimate": estimate_report(found.estimate) if found.estimate else None,
        "better": estimate_report(found.better) if found.better else None,
    }


def comparison_report(found: Comparison) -> dict[str, Any]:
    """Two plans side by side."""
    return {
        "request": request_report(found.request),
        "names": list(found.names),
        "first": estimate_report(found.first),
        "second": estimate_report(found.second),
        "difference_pct": found.difference_pct,
        "settings": {row[0]: list(row[1:]) for row in found.settings},
        "time_s": {row.term: row.change for row in found.time},
        "memory_bytes": {row.term: row.change for row in found.memory},
    }
