"""Error bands and the notes outside the calibrated region."""

from __future__ import annotations

import pytest

from planner.cost.confidence import (
    BANDS_PCT,
    OTHER_BAND_PCT,
    error_band_pct,
    family,
    generation,
    outside_calibration,
)
from planner.cost.setting import Settings
from planner.spec import PlanRequest


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100-sxm-40gb", "ampere"), ("a800-sxm-80gb", "ampere"), ("h200-nvl", "hopper"),
        ("gb300-nvl72", "blackwell"), ("mi355x-288gb", "amd"), ("tpu-v6e", "tpu"), ("l40s", "other"),
    ],
)  # fmt: skip
def test_generations(name: str, expected: str) -> None:
    assert generation(name) == expected


def test_a_band_comes_from_the_family(llama3_8b_on_h100: PlanRequest) -> None:
    assert family(llama3_8b_on_h100, Settings()) == ("hopper", "dense", "16-bit")
    assert error_band_pct(llama3_8b_on_h100, Settings()) == BANDS_PCT["hopper", "dense", "16-bit"]
    assert all(1.0 < band < 100.0 for band in BANDS_PCT.values())


def test_an_unmeasured_part_has_the_wide_band(tiny_dense: PlanRequest) -> None:
    assert error_band_pct(tiny_dense, Settings()) == OTHER_BAND_PCT
    assert outside_calibration(tiny_dense, Settings()) == (
        "No published run calibrates bf16 on toy: the step time is an extrapolation."
    )


def test_inside_the_calibrated_region_there_is_nothing_to_say(llama3_8b_on_h100: PlanRequest) -> None:
    assert outside_calibration(llama3_8b_on_h100, Settings()) is None


@pytest.mark.parametrize(
    ("setting", "gpus", "length", "words"),
    [
        (Settings(schedule="zb-v"), 8, 8192, "the schedule zb-v"),
        (Settings(), 100_000, 8192, "100,000 GPUs"),
        (Settings(), 8, 1_000_000, "sequences of 1,000,000 tokens"),
        (Settings(precision="nvfp4"), 8, 8192, "nvfp4 on h100-sxm-80gb"),
    ],
)
def test_reasons(
    llama3_8b_on_h100: PlanRequest, setting: Settings, gpus: int, length: int, words: str
) -> None:
    request = llama3_8b_on_h100.model_copy(
        update={
            "cluster": llama3_8b_on_h100.cluster.model_copy(update={"num_gpus": gpus}),
            "workload": llama3_8b_on_h100.workload.model_copy(update={"seq_length": length}),
        }
    )
    sentence = outside_calibration(request, setting)
    assert sentence is not None
    assert words in sentence
