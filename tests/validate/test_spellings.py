"""Free text of published rows: every spelling means one thing, and what names nothing is refused."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from test_measured import row

from planner.catalog.vendor_names import accelerator_named
from planner.frameworks import FRAMEWORKS, load_framework
from planner.validate.compare import validate_rows
from planner.validate.measured import to_case
from planner.validate.spellings import (
    framework_named,
    graph_launches,
    precision_named,
    recompute_named,
    schedule_named,
)

MEASURED = Path(__file__).parents[1] / "data" / "measured"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Megatron-LM", "megatron"), ("PyTorch FSDP", "pytorch"), ("GPT-NeoX", "megatron-deepspeed"),
        ("torchtitan/FSDP2", "torchtitan"), ("HF Transformers", "accelerate"), ("OLMo", "pytorch"),
        ("Megatron_DeepSpeed 0.7", "megatron-deepspeed"), ("DeepSpeed ZeRO-3", "deepspeed"),
        ("JAX", "maxtext"), ("NeMo 25.04", "nemo"), (None, "megatron"),
        ("BigScience fork", "megatron-deepspeed"), ("LLaMA-Factory", "accelerate"), ("torchtune", "pytorch"),
        ("Paxml on TPU", "maxtext"),
    ],
)  # fmt: skip
def test_frameworks_by_their_words(said: str | None, name: str) -> None:
    assert framework_named(said, "a table", "h100-sxm-80gb") == name


def test_every_known_framework_keeps_its_name() -> None:
    assert [framework_named(name, "", "") for name in FRAMEWORKS] == list(FRAMEWORKS)


def test_a_framework_of_which_nothing_is_known_has_the_shared_habits() -> None:
    assert framework_named("abacus", "", "") == "any"
    assert framework_named("unknown", "", "tpu-v5p") == "maxtext"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"), ("A100 40GB", "a100-sxm-40gb"), ("TPU v5p", "tpu-v5p"),
        ("A100-SXM4-80GB", "a100-sxm-80gb"), ("H200", "h200-sxm-141gb"), ("AMD MI300X", "mi300x-192gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA L4", "l4-24gb"), ("NVIDIA L40", "l40-48gb"), ("NVIDIA A10", "a10-24gb"), ("A1000", "A1000"),
        ("GeForce RTX 3090", "rtx-3090"), ("h100-sxm-80gb", "h100-sxm-80gb"),
        ("abacus", "abacus"), ("my/h100.toml", "my/h100.toml"),
    ],
)  # fmt: skip
def test_parts_by_a_vendors_spelling(said: str, name: str) -> None:
    assert accelerator_named(said) == name


@pytest.mark.parametrize(
    ("said", "precision"),
    [
        ("BF16", "bf16"), ("bfloat16", "bf16"), ("float16", "fp16"), ("bf16-mixed", "bf16"),
        ("FP8 (delayed scaling)", "fp8"), ("MXFP8", "mxfp8"), ("NVFP4", "nvfp4"), ("fp4", "nvfp4"),
        ("tf32", "fp32"),
    ],
)  # fmt: skip
def test_number_formats(said: str, precision: str) -> None:
    assert precision_named(said) == precision


@pytest.mark.parametrize(
    ("said", "recompute", "modules", "share"),
    [
        ("off", "none", (), 0.0), ("no", "none", (), 0.0), (False, "none", (), 0.0), (0, "none", (), 0.0),
        ("unknown", "none", (), 0.0), ("yes", "full", (), 1.0), (True, "full", (), 1.0),
        ("activation checkpointing", "full", (), 1.0), ("uniform", "full", (), 1.0),
        ("core_attn", "selective", ("core_attn",), 1.0),
        ("mlp, moe_act", "selective", ("mlp", "moe_act"), 1.0),
        ("selective: mlp, moe_act", "selective", ("mlp", "moe_act"), 1.0),
        ("selective:unheard_of", "selective", ("core_attn",), 1.0),
    ],
)  # fmt: skip
def test_recompute_in_other_words(said: Any, recompute: str, modules: tuple[str, ...], share: float) -> None:
    assert recompute_named(said, load_framework("megatron")) == (recompute, modules, share)


def test_schedules_of_one_chunk_interleave_where_a_rank_has_several() -> None:
    assert schedule_named("ZB-H1", 4, 1) == "zb-h1"
    assert schedule_named("ZB-H1", 4, 2) == "interleaved"
    assert schedule_named("PipeDream-flush", 4, 1) == "1f1b"


def test_interleaving_runs_the_nearest_multiple_of_the_stages() -> None:
    # 17 sequences over one replica, interleaved on 4 stages: 16 micro-batches
    case = to_case(
        row(tensor_parallel=1, data_parallel=1, pipeline_parallel=4, virtual_stages=2, num_gpus=4,
            micro_batch=1, global_batch=17)
    )  # fmt: skip
    assert (case.plan.schedule, case.plan.num_microbatches) == ("interleaved", 16)


def test_a_row_that_does_not_count_its_gpus_has_the_product_of_its_degrees() -> None:
    case = to_case(row(num_gpus=None, tensor_parallel=2, data_parallel=3, pipeline_parallel=1))
    assert case.request.cluster.num_gpus == 6


def test_damaged_rows_are_skipped_with_a_reason_or_priced() -> None:
    """One key removed, emptied or replaced by text, in rows of every kind: no crash and no lost row."""
    random.seed(7)
    lines = random.sample((MEASURED / "calibration.jsonl").read_text().splitlines(), 24)
    damaged = [one for line in lines for one in _damaged(json.loads(line))]
    report = validate_rows(damaged)
    assert len(report["rows"]) == len(damaged)
    for entry in report["rows"]:
        assert entry["skipped"] or entry["predicted_step_s"] > 0
    json.dumps(report, allow_nan=False)


def _damaged(original: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for value in ("gone", None, "said in words", 3, [1]):
        one = deepcopy(original)
        table = one[random.choice(("model", "config", "cluster", "measured"))]
        if not table:
            continue
        key = random.choice(sorted(table))
        if value == "gone":
            del table[key]
        else:
            table[key] = value
        found.append(one)
    return found


@pytest.mark.parametrize(
    ("said", "launches"),
    [(None, 1.0), ("none", 1.0), (False, 1.0), (True, 0.1), ("local:full_iteration", 0.1),
     ("moe_router+moe_preprocess", 0.5), ("partial (yes)", 0.5)],
)  # fmt: skip
def test_graphs_by_any_words(said: object, launches: float) -> None:
    assert graph_launches(said) == launches
