"""What the time of a run says about its software: releases, the code before FlashAttention, scaling recipes.

Each function reads what a row states (its source, precision, part) and returns the habits that software had;
none looks at what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from planner.catalog.vendor_names import accelerator_named
from planner.cost.layer import UNFUSED
from planner.spec.framework import FrameworkProfile, TimeHabits
from planner.spec.model import Model
from planner.validate.spellings import precision_named

ROW_SCALED_CASTS = 3.0
"""Casts of the input per product where every row has a scale of its own: along rows for one product, along
columns for the other, and a pass for the maxima that no other kernel does on the way (torchao float8; agrees
with the tables of torchao and torchtitan that have both recipes, over one and over eight tensor ranks)."""


def release_of(source: str) -> str | None:
    """Year and month of the software that a source names (``NeMo container 26.04.01``), else None."""
    found = re.search(r"\bcontainer (\d\d\.\d\d)(?!\d)", source)
    return found[1] if found else None


def time_of_release(profile: FrameworkProfile, release: str | None) -> TimeHabits:
    """Return the time habits of a release, of the current one where none is said."""
    earlier = profile.earlier
    if earlier is None or release is None or release >= earlier.before:
        return profile.time
    return earlier.time


def predates_fused_attention(
    accelerator: str, config: Mapping[str, Any], profile: FrameworkProfile, model: Model
) -> bool:
    """Whether Megatron code ran before FlashAttention came into it (2022-2023).

    fp16 training is from before; so is a GPT-shaped model (GELU, not gated) on A100 or V100.
    """
    if not profile.memory.fused_attention or profile.name not in ("megatron", "nemo"):
        return False
    gpt_shaped = not model.gated_mlp and model.activation == "gelu" and not model.is_moe
    precision = precision_named(str(config.get("precision") or "bf16"))
    return precision == "fp16" or (gpt_shaped and accelerator_named(accelerator).startswith(("a100", "v100")))


def adopted_fused_attention(profile: FrameworkProfile, model: Model) -> bool:
    """Whether code with a profile from before FlashAttention ran with it: gated models (Llama) are later."""
    return profile.name == "megatron-deepspeed" and model.gated_mlp


def before_fused_attention(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time habits of Megatron before FlashAttention.

    Notes
    -----
    Data-parallel gradients were reduced after the last backward pass (``--overlap-grad-reduce`` came in
    2023), in fp16 training in 16 bits (``--accumulate-allreduce-grads-in-fp32`` is a bf16 default).
    """
    is_fp16 = precision_named(str(config.get("precision") or "bf16")) == "fp16"
    return {
        "attention_kernel": UNFUSED,
        "tensor_comm_hidden_fraction": 0.0,
        "gradient_sync_overlaps": False,
        "parameter_gather_overlaps": False,
    } | ({"gradient_reduce_bytes": 2.0} if is_fp16 else {})


def row_scaled(row: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time habits of FP8 with one scale a row, where a row's words say so; else nothing.

    Notes
    -----
    Only one scale for the whole tensor lets the cast come before the gather over tensor ranks.
    """
    said = " ".join(str(text) for text in (row.get("id"), row.get("notes"), config.get("precision")))
    if precision_named(str(config.get("precision") or "bf16")) != "fp8":
        return {}
    if not re.search(r"row-?wise", said, re.IGNORECASE):
        return {}
    return {"casts_per_product": ROW_SCALED_CASTS, "low_precision_gathers": False}
