"""Read Megatron-Bridge or NeMo overrides: ``section.field=value`` lines, flags or YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from planner.frameworks.launch import Found, Key, LaunchFile, collect, positive, text, yes
from planner.frameworks.megatron.arguments import PRECISIONS
from planner.frameworks.megatron.read import KEYS as MEGATRON_KEYS
from planner.frameworks.megatron.read import to_plan as megatron_to_plan
from planner.frameworks.megatron_bridge.write import CONSTANTS, MIXED_PRECISION, RENAMED
from planner.frameworks.shell import read_pairs
from planner.frameworks.text_formats import plain_value, python_settings, yaml_settings
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

_SECTIONS = (
    "model|train|ddp|optimizer|optim|dataset|data|dist|checkpoint|comm_overlap|tokenizer|logger|scheduler|rng"
    "|trainer|mixed_precision"
)
_PAIR = rf"(?:(?:cfg|recipe|config)\.)?(?:{_SECTIONS})\.[\w.]+|mixed_precision"


def _keys() -> dict[str, Key]:
    keys = {}
    for name, key in MEGATRON_KEYS.items():
        if name not in CONSTANTS:
            keys[RENAMED.get(name, f"model.{name}")] = key
    keys["model.gated_linear_unit"] = Key("model.gated_mlp", yes)
    keys["model.share_embeddings_and_output_weights"] = Key("model.tied_embeddings", yes)
    keys["model.vocab_size"] = Key("model.vocab_size", positive)
    keys["model.hybrid_layer_pattern"] = MEGATRON_KEYS["hybrid_layer_pattern"]
    keys["dataset.sequence_length"] = Key("seq_length", positive)
    keys["dataset.seq_length"] = Key("seq_length", positive)
    group = MEGATRON_KEYS["microbatch_group_size_per_virtual_pipeline_stage"]
    keys["model.microbatch_group_size_per_vp_stage"] = group
    keys["model.num_layers_in_first_pipeline_stage"] = MEGATRON_KEYS["decoder_first_pipeline_num_layers"]
    keys["model.num_layers_in_last_pipeline_stage"] = MEGATRON_KEYS["decoder_last_pipeline_num_layers"]
    keys |= {name: MEGATRON_KEYS[name] for name in ("bf16", "fp16", "fp8_format", "fp8_recipe", "fp4_format")}
    keys["ddp.use_distributed_optimizer"] = MEGATRON_KEYS["use_distributed_optimizer"]
    keys["optimizer.use_distributed_optimizer"] = Key("optimizer_shards", yes)
    keys["mixed_precision.grad_reduce_in_fp32"] = MEGATRON_KEYS["accumulate_allreduce_grads_in_fp32"]
    keys["dist.use_torch_fsdp2"] = MEGATRON_KEYS["use_torch_fsdp2"]
    return keys


_NEMO: dict[str, Key] = {
    "num_nodes": Key("launcher.nodes", positive),
    "devices": Key("launcher.processes_per_node", positive),
    "encoder_seq_length": Key("seq_length", positive),
    "activations_checkpoint_granularity": MEGATRON_KEYS["recompute_granularity"],
    "activations_checkpoint_method": MEGATRON_KEYS["recompute_method"],
    "activations_checkpoint_num_layers": MEGATRON_KEYS["recompute_num_layers"],
}
"""NeMo's own words, whatever section they stand in."""

DEPRECATED = {
    "model.moe_extended_tp": "model.expert_tensor_parallel_size",
    "model.encoder_tensor_model_parallel_size": "nothing: encoder sizes are gone",
    "model.encoder_pipeline_model_parallel_size": "nothing: encoder sizes are gone",
    "model.moe_layer_recompute": "model.recompute_modules=[moe]",
}


def read(source: str, path: str) -> LaunchFile:
    """Read overrides from text, a script, a YAML file or a Python recipe; NeMo's sections count as well."""
    if path.endswith(".py"):
        found = [*_recipes(source, path), *python_settings(source, path)]
    else:
        found = _overrides(source, path) or yaml_settings(source, path)
    for entry in [entry for entry in found if _tail(entry.key) in {"mixed_precision", "precision"}]:
        flags = _precision_flags(str(entry.value))
        found += [Found(name, value, path, entry.line) for name, value in flags.items()]
    keys = _keys() | {key: Key("named_model", text) for key in (_RECIPE, _CHECKPOINT)}
    by_tail = {_tail(name): key for name, key in keys.items()} | _NEMO
    keys |= {
        entry.key: by_tail[_tail(entry.key)]
        for entry in found
        if entry.key not in keys and _tail(entry.key) in by_tail and not OVERWRITTEN.search(entry.key)
    }
    launch = collect("megatron-bridge", found, keys, lambda key: True, DEPRECATED)
    at = _mixed_precision(source, found)
    if at is None or "gradients_in_16_bits" in launch.fields or launch.get("fp16", False):
        return launch
    return replace(launch, fields={**launch.fields, "gradients_in_16_bits": replace(at, value=False)})


OVERWRITTEN = re.compile(r"(^|\.)ddp(_config)?\.grad_reduce_in_fp32$")
"""What the mixed-precision recipe sets anew (``MixedPrecisionConfig.setup``)."""


def _mixed_precision(source: str, found: list[Found]) -> Found | None:
    """The setting by which gradients are kept in fp32: a mixed-precision recipe, or the one of a library's.

    Of the recipes for a number of GPUs, those of the performance tables, most keep 16 bits.
    """
    named = [entry for entry in found if _tail(entry.key) == "mixed_precision"]
    if named or re.search(r"_\d+gpu_\w*config\(", source):
        return named[-1] if named else None
    return next((entry for entry in found if entry.key == _RECIPE), None)


_RECIPE, _CHECKPOINT = "recipe", "checkpoint"
_RECIPES = (
    (_RECIPE, r"\b(\w+?)_(?:pretrain|sft|finetune|peft)(?:_\w+)?_config\("),
    (_RECIPE, r"\bllm\.(?:recipes\.)?(\w+)\.(?:pretrain|finetune)_recipe\("),
    (_CHECKPOINT, r"\bfrom_hf_pretrained\(\s*[\"']([^\"']+)[\"']"),
)


def _recipes(source: str, path: str) -> Iterator[Found]:
    """The model that a recipe's name, or the checkpoint it starts from, says."""
    for key, pattern in _RECIPES:
        for match in re.finditer(pattern, source):
            line = source.count("\n", 0, match.start()) + 1
            name = re.sub(r"^(llama|qwen)(\d)(\d)_", r"\1\2.\3_", match.group(1))
            yield Found(key, name, path, line)


def _tail(key: str) -> str:
    """Field without its sections: they differ between Bridge, NeMo and what is built on them."""
    return key.rpartition(".")[2]


def _precision_flags(recipe: str) -> dict[str, Any]:
    """Megatron's flags that a mixed-precision recipe, or NeMo's ``trainer.precision``, stands for."""
    name = recipe.lower().replace("-", "_")
    for precision, known in MIXED_PRECISION.items():
        if name == known:
            return PRECISIONS[precision]
    for sign, precision in (("mxfp8", "mxfp8"), ("fp8", "fp8"), ("bf16", "bf16"), ("16", "fp16")):
        if sign in name:
            return PRECISIONS[precision]
    return {"bf16": False}


def _overrides(source: str, path: str) -> list[Found]:
    return [
        Found(entry.key, plain_value(str(entry.value)), path, entry.line)
        for entry in read_pairs(source, path, _PAIR)
    ]


def to_plan(launch: LaunchFile, request: PlanRequest) -> Plan:
    """Return the plan that Bridge would run with these settings on the request's cluster.

    Its optimizer shards by default, and one word for sharding, in either section, is enough; it trains in
    bf16 unless told otherwise, and its recipes keep experts whole on their ranks.

    Raises
    ------
    BadInput
        The degrees do not divide the GPUs, the batch or the layers.
    """
    shards = launch.get("distributed_optimizer", False) or launch.get("optimizer_shards", True)
    said = launch.place("distributed_optimizer", "optimizer_shards") or Found("", None, launch.paths[0], 1)
    fields = {**launch.fields, "distributed_optimizer": Found(said.key, shards, said.path, said.line)}
    if not {"bf16", "fp16", "fp8", "fp4"} & set(fields):
        fields["bf16"] = Found("", True, said.path, said.line)
    recipe = fields.get("named_model")
    if recipe is not None and recipe.key == _RECIPE and "expert_tensor_parallel" not in fields:
        fields["expert_tensor_parallel"] = Found("", 1, said.path, said.line)
    return megatron_to_plan(replace(launch, fields=fields), request)
