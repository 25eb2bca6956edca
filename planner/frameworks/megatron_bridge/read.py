"""Read Megatron-Bridge or NeMo overrides: ``section.field=value`` lines, flags or YAML."""

from __future__ import annotations

import re
from typing import Any

import yaml

from planner.errors import BadInput
from planner.frameworks.launch import Found, Key, LaunchFile, collect, positive, yes
from planner.frameworks.megatron.arguments import PRECISIONS
from planner.frameworks.megatron.read import KEYS as MEGATRON_KEYS
from planner.frameworks.megatron.read import to_plan as megatron_to_plan
from planner.frameworks.megatron_bridge.write import CONSTANTS, MIXED_PRECISION, RENAMED
from planner.frameworks.text_formats import yaml_settings
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

_SECTIONS = "model|train|ddp|optimizer|dataset|dist|checkpoint|comm_overlap|tokenizer|logger|scheduler|rng"
_LINE = re.compile(
    rf"(?:^|[\s\"'])\+{{0,2}}((?:{_SECTIONS})\.[\w.]+|mixed_precision)="
    r"(\"[^\"]*\"|\[[^\]]*\]|[^\s\\]+)"
)


def _keys() -> dict[str, Key]:
    keys = {}
    for name, key in MEGATRON_KEYS.items():
        if name not in CONSTANTS:
            keys[RENAMED.get(name, f"model.{name}")] = key
    keys["model.gated_linear_unit"] = Key("model.gated_mlp", yes)
    keys["model.share_embeddings_and_output_weights"] = Key("model.tied_embeddings", yes)
    keys["model.vocab_size"] = Key("model.vocab_size", positive)
    keys["dataset.sequence_length"] = Key("seq_length", positive)
    keys["dataset.seq_length"] = Key("seq_length", positive)
    keys["model.num_layers_in_first_pipeline_stage"] = MEGATRON_KEYS["decoder_first_pipeline_num_layers"]
    keys["model.num_layers_in_last_pipeline_stage"] = MEGATRON_KEYS["decoder_last_pipeline_num_layers"]
    keys |= {name: MEGATRON_KEYS[name] for name in ("bf16", "fp16", "fp8_format", "fp8_recipe", "fp4_format")}
    keys["dist.use_torch_fsdp2"] = MEGATRON_KEYS["use_torch_fsdp2"]
    return keys


DEPRECATED = {
    "model.moe_extended_tp": "model.expert_tensor_parallel_size",
    "model.encoder_tensor_model_parallel_size": "nothing: encoder sizes are gone",
    "model.encoder_pipeline_model_parallel_size": "nothing: encoder sizes are gone",
    "model.moe_layer_recompute": "model.recompute_modules=[moe]",
}


def read(source: str, path: str) -> LaunchFile:
    """Read overrides from text, a script or a YAML file."""
    found = _overrides(source, path) or yaml_settings(source, path)
    for entry in [entry for entry in found if entry.key == "mixed_precision"]:
        flags = _precision_flags(str(entry.value))
        found += [Found(name, value, path, entry.line) for name, value in flags.items()]
    return collect("megatron-bridge", found, _keys(), lambda key: True, DEPRECATED)


def _precision_flags(recipe: str) -> dict[str, Any]:
    """Megatron's flags that a mixed-precision recipe stands for."""
    for precision, name in MIXED_PRECISION.items():
        if recipe == name:
            return PRECISIONS[precision]
    return PRECISIONS["fp8" if "fp8" in recipe else "fp16" if recipe.startswith("fp16") else "bf16"]


def _overrides(source: str, path: str) -> list[Found]:
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        found += [
            Found(match.group(1), _value(match.group(2), path, number), path, number)
            for match in _LINE.finditer(line)
        ]
    return found


def _value(word: str, path: str, line: int) -> Any:
    try:
        return yaml.safe_load(word)
    except yaml.YAMLError as error:
        raise BadInput(f"{path}:{line}: {word!r} is no value") from error


def _yaml(source: str, path: str) -> list[Found]:
    return yaml_settings(source, path)


def to_plan(launch: LaunchFile, request: PlanRequest) -> Plan:
    """Return the plan that Bridge would run with these settings on the request's cluster.

    Raises
    ------
    BadInput
        The degrees do not divide the GPUs, the batch or the layers.
    """
    return megatron_to_plan(launch, request)
