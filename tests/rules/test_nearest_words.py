"""Words that a broken rule proposes: formats by their width, never a pipeline without a schedule."""

from __future__ import annotations

from planner.api import question
from planner.rules import check
from planner.spec import Plan


def proposed(plan: Plan, rule: str, framework: str, batch: int, seq: int) -> tuple[str, object]:
    request = question(
        {
            "model": "llama-3-8b",
            "hardware": "h100-sxm-80gb",
            "gpus": 8,
            "global_batch": batch,
            "seq_length": seq,
            "framework": framework,
        }
    )
    violation = next(found for found in check(plan, request) if found.rule == rule)
    return violation.field, violation.nearest


def test_the_format_nearest_to_eight_bits_has_sixteen() -> None:
    plan = Plan(data_parallel=8, precision="fp8")
    field, nearest = proposed(plan, "low_precision_rows_are_aligned", "megatron", 8, 4098)
    assert (field, nearest) == ("precision", "bf16")


def test_a_pipeline_is_not_told_to_do_without_a_schedule() -> None:
    plan = Plan(pipeline_parallel=8, schedule="1f1b", micro_batch=2)
    field, nearest = proposed(plan, "microbatches_cover_the_pipeline", "nanotron", 2, 4096)
    assert (field, nearest) == ("pipeline_parallel", 2)
