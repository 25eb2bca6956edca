"""What a row's words and formats say about the software it ran on, and nothing that was measured."""

from __future__ import annotations

from typing import Any

import pytest
from test_measured import row

from planner.cost.layer import UNFUSED
from planner.frameworks import load_framework
from planner.spec.framework import TimeHabits
from planner.validate.eras import ROW_SCALED_CASTS
from planner.validate.measured import to_case
from planner.validate.spellings import framework_named


def time_of(**changes: Any) -> TimeHabits:
    return to_case(row(**changes)).request.framework.time


def test_megatron_of_the_fp16_days_reduces_16_bit_gradients_after_the_backward_pass() -> None:
    old, new = time_of(precision="fp16"), time_of()
    assert (old.attention_kernel, old.gradient_reduce_bytes) == (UNFUSED, 2.0)
    assert not old.gradient_sync_overlaps
    assert not old.parameter_gather_overlaps
    assert new.gradient_sync_overlaps
    assert new.gradient_reduce_bytes == load_framework("megatron").time.gradient_reduce_bytes == 4.0


def test_bf16_of_the_same_days_sums_in_fp32() -> None:
    old = time_of(accelerator="a100-sxm-80gb", name="Some GPT")
    assert (old.attention_kernel, old.gradient_reduce_bytes) == (UNFUSED, 4.0)
    assert not old.gradient_sync_overlaps


def test_gated_models_on_megatron_deepspeed_are_later_than_its_profile() -> None:
    later = to_case(row(framework="megatron-deepspeed")).request.framework
    assert later.memory.fused_attention
    assert later.time.attention_kernel == "fa2"
    bloom = to_case(row(framework="megatron-deepspeed", name="Some GPT")).request.framework
    assert not bloom.memory.fused_attention
    assert bloom.time.attention_kernel == UNFUSED


@pytest.mark.parametrize(
    ("changes", "is_row_scaled"),
    [
        ({"precision": "fp8 rowwise"}, True), ({"precision": "fp8", "notes": "row-wise scales"}, True),
        ({"precision": "fp8", "notes": "tensorwise"}, False),
        ({"precision": "bf16", "notes": "rowwise"}, False),
    ],
)  # fmt: skip
def test_row_scales_are_recognised(changes: dict[str, Any], is_row_scaled: bool) -> None:
    habits, usual = time_of(framework="torchtitan", **changes), load_framework("torchtitan").time
    assert habits.casts_per_product == (ROW_SCALED_CASTS if is_row_scaled else 1.0)
    assert habits.low_precision_gathers == (usual.low_precision_gathers and not is_row_scaled)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("Using DeepSpeed and Megatron to Train a Large Model", "megatron-deepspeed"),
        ("DeepSpeed + Megatron, 64 nodes", "megatron-deepspeed"),
        ("Megatron recipes", "megatron"), ("llama2_7b-megatron-deepspeed/README.md", "megatron"),
    ],
)  # fmt: skip
def test_megatron_driven_by_deepspeed(source: str, name: str) -> None:
    assert framework_named("megatron", source, "a100-sxm-80gb") == name
