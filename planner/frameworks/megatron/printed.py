"""The arguments that Megatron prints when it starts: ``  micro_batch_size ................ 1``.

All of them are there, defaults too; what a default says of a feature that is off is left out.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from planner.frameworks.launch import Found

LINE = r"(?:^|[ \t\]:])([a-z][a-z0-9_]+) \.{3,} *(\S[^\n]*)$"
"""One argument of the print, behind whatever a launcher puts in front of a line."""
FEWEST = 10
"""Lines that make a print of arguments: fewer may stand in any text."""

WHERE_ON: dict[str, tuple[str, ...]] = {
    "group_query_attention": ("num_query_groups",),
    "multi_latent_attention": (
        "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
    ),
    "use_megatron_fsdp": ("data_parallel_sharding_strategy",),
    "recompute_granularity": ("recompute_modules", "recompute_method", "recompute_num_layers"),
    "num_experts": (
        "moe_router_topk", "moe_ffn_hidden_size", "moe_layer_freq", "moe_token_dispatcher_type",
        "moe_shared_expert_overlap", "expert_tensor_parallel_size",
    ),
}  # fmt: skip
"""Features to arguments that mean something only where the feature is on."""
RENAMED = {
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}
"""Names of parsed arguments whose flag is called otherwise."""
WHERE_FALSE = {
    "add_bias_linear": "disable_bias_linear",
    "gradient_accumulation_fusion": "no_gradient_accumulation_fusion",
    "accumulate_allreduce_grads_in_fp32": "grad_reduce_in_bf16",
}
"""Arguments that a flag turns off."""
OFF = {"None", "False"}


def is_printed(source: str) -> bool:
    """Whether a text is, or holds, a print of arguments."""
    return len(re.findall(LINE, source, re.MULTILINE)) >= FEWEST


def printed_flags(source: str, path: str) -> list[Found]:
    """Return the printed arguments as flags, and the size of the world."""
    rows = {}
    for match in re.finditer(LINE, source, re.MULTILINE):
        line = source.count("\n", 0, match.start(1)) + 1
        rows[match.group(1)] = (match.group(2).strip(), line)
    idle = {
        name
        for feature, names in WHERE_ON.items()
        if rows.get(feature, ("None",))[0] in OFF
        for name in names
    }
    chunked = "num_layers_per_virtual_pipeline_stage"
    if rows.get("virtual_pipeline_model_parallel_size", ("None",))[0] not in OFF:
        idle |= {chunked, "num_virtual_stages_per_pipeline_rank"}
    found = []
    for name, (value, line) in rows.items():
        if value == "False" and name in WHERE_FALSE and rows.get("bf16", ("True",))[0] == "True":
            found.append(Found(_flag(WHERE_FALSE[name]), True, path, line))
        elif value not in OFF and name not in idle and not (name in WHERE_FALSE and value == "True"):
            found.append(Found(_flag(RENAMED.get(name, name)), _value(value), path, line))
    return found


def _flag(name: str) -> str:
    return "WORLD_SIZE_OF_PLAN" if name == "world_size" else f"--{name.replace('_', '-')}"


def _value(text: str) -> Any:
    """A flag that is on, a list of words, or the word itself."""
    if text == "True":
        return True
    if text.startswith("["):
        try:
            values = ast.literal_eval(text)
        except (SyntaxError, ValueError, TypeError):
            return text
        words = [str(value) for value in values]
        return words[0] if len(words) == 1 else words
    return text
