"""Free text of published rows in the planner's words: frameworks, schedules, recompute, precision.

Tables spell one thing in many ways. Each function takes the text of one key and returns the planner's name
for it; what names nothing known raises ``BadInput``, so that the row is reported and not guessed at.
"""

from __future__ import annotations

import re
from typing import Any

from planner.errors import BadInput
from planner.frameworks import DEFAULT_FRAMEWORK, load_framework
from planner.spec.framework import FrameworkProfile
from planner.spec.plan import Precision, Recompute, Schedule

PRECISIONS: tuple[tuple[str, Precision], ...] = (
    ("nvfp4", "nvfp4"), ("fp4", "nvfp4"), ("mxfp8", "mxfp8"), ("fp8", "fp8"), ("e4m3", "fp8"),
    ("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"), ("float16", "fp16"), ("half", "fp16"),
    ("amp", "bf16"), ("mixed", "bf16"), ("fp32", "fp32"), ("float32", "fp32"), ("tf32", "fp32"),
)  # fmt: skip
"""Spellings and what they mean, the more particular first."""
FRAMEWORK_WORDS: tuple[tuple[str, str], ...] = (
    ("maxtext", "maxtext"), ("jax", "maxtext"), ("torchtitan", "torchtitan"), ("pith", "torchtitan"),
    ("nanotron", "nanotron"), ("foundry", "llm-foundry"), ("mosaic", "llm-foundry"), ("nemo", "nemo"),
    ("megatron-bridge", "megatron-bridge"), ("megatron-deepspeed", "megatron-deepspeed"),
    ("neox", "megatron-deepspeed"), ("deepspeed", "deepspeed"), ("megatron", "megatron"),
    ("mindspeed", "megatron"), ("primus", "primus"), ("paddle", "paddle"), ("accelerate", "accelerate"),
    ("transformers", "accelerate"), ("hugging", "accelerate"), ("trl", "accelerate"),
    ("axolotl", "accelerate"), ("fsdp", "pytorch"), ("pytorch", "pytorch"), ("lightning", "pytorch"),
    ("olmo", "pytorch"), ("torchtune", "pytorch"), ("fairscale", "pytorch"), ("litgpt", "pytorch"),
    ("lit-gpt", "pytorch"), ("verl", "pytorch"), ("llama-factory", "accelerate"), ("swift", "accelerate"),
    ("unsloth", "accelerate"), ("bigscience", "megatron-deepspeed"), ("flagscale", "megatron"),
    ("paxml", "maxtext"), ("t5x", "maxtext"), ("levanter", "maxtext"),
)  # fmt: skip
"""Words in the name of a framework without a profile, and whose habits it has, the more particular first."""
BOTH_NAMED = r"\bdeepspeed (and|\+|with) megatron\b"
"""A source that names both: layers of one, engine of the other."""
UNKNOWN_FRAMEWORK = "any"
"""Profile of a framework of which nothing is known."""
NOT_RECOMPUTED = frozenset({"none", "false", "", "no", "off", "0", "disabled", "disable", "never"})
GRAPH_LAUNCHES = 0.1
"""Host cost of a launch inside a CUDA graph over a plain one (one launch replays many kernels)."""
PARTIAL_GRAPH_LAUNCHES = 0.5
"""The same averaged over a step of which parts are captured (attention, router: the small kernels)."""
NOT_SAID = frozenset({"n/a", "na", "unknown", "?", "not stated", "unspecified", "default", "custom", "other"})
MODULES = {
    "core": "core_attn", "core_attn": "core_attn", "attention": "core_attn", "attn": "core_attn",
    "core_attention": "core_attn", "mlp": "mlp", "moe": "moe", "moe_act": "moe_act",
    "layernorm": "layernorm", "norm": "layernorm", "mla_up_proj": "mla_up_proj",
    "shared_experts": "shared_experts",
}  # fmt: skip
"""Modules of selective recompute by their spellings."""


def framework_named(said: Any, source: str, accelerator: str) -> str:
    """Return the profile for a row's framework; one without a profile is read by the words in its name.

    Without a framework the source decides, then the accelerator. A name that says nothing gets the habits
    that all frameworks share. Megatron driven by DeepSpeed goes by either name; the source says which it is.
    """
    text = re.sub(r"[ _]+", "-", str(said or "").strip().lower())
    if not text or text in NOT_SAID:
        return _framework_of_source(source.lower(), accelerator)
    if text in ("nemo", "megatron") and re.search(BOTH_NAMED, source, re.IGNORECASE):
        return "megatron-deepspeed"
    try:
        return load_framework(text).name
    except BadInput:
        return next((name for word, name in FRAMEWORK_WORDS if word in text), UNKNOWN_FRAMEWORK)


def _framework_of_source(source: str, accelerator: str) -> str:
    words = (("jax", "maxtext"), ("maxtext", "maxtext"), ("tpu", "maxtext"), ("torchtitan", "torchtitan"))
    found = next((name for word, name in (*words, ("pith", "torchtitan")) if word in source), None)
    return found or ("maxtext" if accelerator.startswith("tpu") else DEFAULT_FRAMEWORK)


def graph_launches(said: Any) -> float:
    """Return the host cost of a launch over a plain one, from what a row says about CUDA graphs. [1].

    ``True`` and whole iterations are captured whole; other words name the modules that are.
    """
    text = str(said if said is not None else "").strip().lower()
    if text in NOT_RECOMPUTED or text in NOT_SAID:
        return 1.0
    return (
        GRAPH_LAUNCHES
        if text in ("true", "yes", "full") or "full_iteration" in text
        else PARTIAL_GRAPH_LAUNCHES
    )


def precision_named(text: str) -> Precision:
    """Return the number format of the linear layers."""
    said = text.lower()
    found = next((precision for spelling, precision in PRECISIONS if spelling in said), None)
    if found is None:
        known = ", ".join(dict.fromkeys(precision for _, precision in PRECISIONS))
        raise BadInput(f"precision {text!r} is none of {known}")
    return found


def schedule_named(text: str, p: int, v: int) -> Schedule:
    """Read a schedule's name in any source's spelling; ``p`` stages, ``v`` chunks a rank."""
    if p == 1:
        return "none"
    said = text.lower().replace("_", "-")
    spellings: tuple[tuple[str, Schedule], ...] = (
        ("zb-1p", "zb-h1"), ("zb-h1", "zb-h1"), ("zb-2p", "zb-h2"), ("zb-h2", "zb-h2"), ("zbv", "zb-v"),
        ("zb-v", "zb-v"), ("dualpipe-v", "dualpipe-v"), ("dualpipev", "dualpipe-v"), ("dualpipe", "dualpipe"),
        ("gpipe", "gpipe"), ("afab", "gpipe"), ("all-forward", "gpipe"),
    )  # fmt: skip
    found = next((name for spelling, name in spellings if spelling in said), None)
    if v > 1 and found in (None, "gpipe", "zb-h1", "zb-h2"):  # these have one chunk a rank
        return "interleaved"
    return found or "1f1b"


def recompute_named(said: Any, framework: FrameworkProfile) -> tuple[Recompute, tuple[str, ...], float]:
    """Return recompute kind, modules, and the share of layers it covers."""
    text = str(said).strip().lower()
    if said is None or text in NOT_SAID:
        text = framework.time.default_recompute
    if text in NOT_RECOMPUTED:
        return "none", (), 0.0
    if text.startswith("selective layer"):
        return "full", (), 0.5
    if text.startswith("selective op"):
        return "selective", ("op",), 1.0
    if "offload" in text:  # what the policy would keep lies on the host
        return "full", (), 1.0
    if text.startswith(("minimal", "qkv_proj", "save_")):
        return "selective", ("elementwise",), 1.0
    words = [word for word in re.split(r"[ ,()+]+", text.partition(":")[2] or text) if word]
    named = tuple(dict.fromkeys(MODULES[word] for word in words if word in MODULES))
    if text.startswith("selective:") or (named and len(named) == len(words)):
        return "selective", named or framework.memory.unsaid_modules, 1.0
    if text.startswith("selective"):
        return "selective", framework.memory.unsaid_modules, 1.0
    return "full", (), 1.0
