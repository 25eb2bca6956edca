"""Read NeMo-RL: the policy's Megatron settings, or its DTensor ones where Megatron is off.

Names: NVIDIA-NeMo/RL examples/configs (``policy.megatron_cfg``, ``policy.dtensor_cfg``, ``cluster``). A
recipe says only what differs from the file that its ``defaults`` names; a command, what differs from the
file of ``--config`` or of its program.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from planner.catalog.files import read_text
from planner.errors import BadInput
from planner.frameworks.dialects.common import chunked, gathered, paired, value_of
from planner.frameworks.launch import Found, Key, LaunchFile, positive, text, yes
from planner.frameworks.megatron.read import KEYS as MEGATRON
from planner.frameworks.shell import read_pairs
from planner.frameworks.text_formats import flatten, with_references, yaml_settings

_M, _D = "policy.megatron_cfg.", "policy.dtensor_cfg."
LOG_PROBABILITIES = {"loss_saved_bytes": 8.0, "loss_peak_bytes": 16.0}
"""Per logit (distributed/model_utils.py ``DistributedLogprob``): fp32 logits, their log-softmax, its
exponential, which the backward pass keeps beside the logits, and one gradient. [byte]"""
PARTS = frozenset({"policy", "cluster", "dpo", "rm"})
"""Sections that say how the trained model runs; others are a teacher, a critic, the rollout's environment."""
DEEPEST = 8
"""Files that build on each other; more are taken for a ring."""
PROGRAMS = {
    "sft": "sft",
    "dpo": "dpo",
    "rm": "rm",
    "grpo": "grpo_math_1B",
    "grpo_sliding_puzzle": "grpo_sliding_puzzle",
    "ppo": "ppo_math_1B",
    "distillation": "distillation_math",
}
"""Programs (``run_<name>.py``) and the configuration that each reads by itself."""


def _all_layers(value: Any) -> str | None:
    return "full" if yes(value) else None


def _adapters(value: Any) -> str:
    return "lora" if yes(value) else "full"


SHARED: dict[str, Key] = {
    "policy.model_name": Key("named_model", text),
    "policy.train_global_batch_size": Key("global_batch", positive),
    "policy.max_total_sequence_length": Key("seq_length", positive),
    "cluster.num_nodes": Key("launcher.nodes", positive),
    "cluster.gpus_per_node": Key("launcher.processes_per_node", positive),
}
MEGATRON_KEYS: dict[str, Key] = {
    **SHARED,
    **{_M + name: key for name, key in MEGATRON.items()},
    "policy.train_micro_batch_size": Key("micro_batch", positive),
    _M + "use_fused_linear_logprobs": Key("loss", chunked),
    _M + "peft.enabled": Key("finetune", _adapters),
    _M + "num_layers_in_first_pipeline_stage": MEGATRON["decoder_first_pipeline_num_layers"],
    _M + "num_layers_in_last_pipeline_stage": MEGATRON["decoder_last_pipeline_num_layers"],
}
DTENSOR_KEYS: dict[str, Key] = {
    **SHARED,
    "policy.train_micro_batch_size": Key("local_batch", positive),
    _D + "tensor_parallel_size": Key("tensor_parallel", positive),
    _D + "context_parallel_size": Key("context_parallel", positive),
    _D + "expert_parallel_size": Key("expert_parallel", positive),
    _D + "lora_cfg.enabled": Key("finetune", _adapters),
    _D + "sequence_parallel": Key("sequence_parallel", yes),
    _D + "activation_checkpointing": Key("recompute", _all_layers),
    _D + "cpu_offload": Key("offload", yes),
}


def read(source: str, path: str) -> LaunchFile:
    """Read the YAML of an algorithm, or a command with overrides of one.

    Raises
    ------
    BadInput
        The file below is neither where it is named nor one of NeMo-RL's own.
    """
    is_command = bool(re.search(r"\brun_\w+\.py\b", source))
    found = _of_command(source, path) if is_command else _of_recipe(source, path, DEEPEST)
    found = [entry for entry in with_references(found) if _is_of_the_run(entry.key)]
    if _runs_megatron(found):
        found = _recomputing(found)
        own = {"distributed_optimizer": True, "bf16": True, "memory": LOG_PROBABILITIES}
        launch = gathered("megatron", found, MEGATRON_KEYS, path, own)
    else:
        own = {"recompute": "none", "sequence_parallel": False, "memory": LOG_PROBABILITIES}
        launch = gathered("automodel", found, DTENSOR_KEYS, path, own)
    is_dpo = "run_dpo.py" in source or any(entry.key.startswith("dpo.") for entry in found)
    is_reward = "run_rm.py" in source or any(entry.key.startswith("rm.") for entry in found)
    return paired(launch, beside_reference=is_dpo) if is_dpo or is_reward else launch


def _is_of_the_run(key: str) -> bool:
    """Whether a setting is the trained model's, and goes through Megatron's own arguments if it is on."""
    return key.partition(".")[0] in PARTS and ".distributed_data_parallel_config." not in key


def _recomputing(found: list[Found]) -> list[Found]:
    """Settings of recomputation as they hold: when it is on, and of every layer where it is full."""
    names = {_M + name for name in ("recompute_granularity", "recompute_modules")}
    rest = [entry for entry in found if entry.key not in names]
    switch = next((entry for entry in reversed(found) if entry.key == _M + "activation_checkpointing"), None)
    if switch is None or not _is_on(switch.value):
        return rest
    if value_of(found, _M + "recompute_granularity", "full") != "full":
        return [entry for entry in found if entry.key != switch.key]
    whole = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return [*rest, *(replace(switch, key=_M + name, value=value) for name, value in whole.items())]


def _is_on(value: Any) -> bool:
    return str(value).lower() in {"true", "1", "yes", "on"}


def _runs_megatron(found: list[Found]) -> bool:
    """Whether Megatron is on, or nothing is and only its settings are there."""
    on = {name: value_of(found, name + "enabled") for name in (_M, _D)}
    if on[_M] is None:
        return not on[_D] and not any(entry.key.startswith(_D) for entry in found)
    return _is_on(on[_M])


def _of_command(source: str, path: str) -> list[Found]:
    """Overrides of a command over the configuration that it names, or else that of its program."""
    named = re.search(r"--config[= ]+[\"']?([^\s\"']+\.ya?ml)", source)
    program = re.search(r"\brun_(\w+?)\.py\b", source)
    at = named or program
    line = 1 if at is None else source.count("\n", 0, at.start()) + 1
    base = named.group(1) if named else PROGRAMS.get(program.group(1) if program else "", "grpo_math_1B")
    overrides = read_pairs(source, path, r"(?:policy|cluster)\.[\w.]+")
    return [*_below(Found("defaults", base, path, line), DEEPEST), *overrides]


def _of_recipe(source: str, path: str, depth: int) -> list[Found]:
    """A file's settings after those of the files that it builds on, which it overrides."""
    found = yaml_settings(source, path, refer=False)
    below = [entry for entry in found if entry.key == "defaults"]
    return [setting for entry in below for setting in _below(entry, depth - 1)] + [
        entry for entry in found if entry.key != "defaults"
    ]


def _below(at: Found, depth: int) -> list[Found]:
    """Settings of the files that ``defaults`` names: as they lie beside it, or as NeMo-RL has them."""
    names = at.value if isinstance(at.value, list) else [at.value]
    found: list[Found] = []
    for name in map(str, names):
        file = Path(at.path).parent / name
        if depth > 0 and file.is_file():
            found += _of_recipe(read_text(file), str(file), depth)
        else:
            found += [Found(key, value, at.path, at.line) for key, value in _own(Path(name).stem, at)]
    return found


def _own(name: str, at: Found) -> list[tuple[str, Any]]:
    """Settings of one of NeMo-RL's own configurations, with those of the ones below it."""
    if name not in bases():
        raise BadInput(f"{at.place}: builds on {at.value}, which is not there: check it where that file lies")
    settings = dict(flatten(bases()[name]))
    below = settings.pop("defaults", None)
    return [*([] if below is None else _own(Path(below).stem, at)), *settings.items()]


@cache
def bases() -> dict[str, Any]:
    """NeMo-RL's own configurations by name, as far as they say how a run is spread."""
    source = Path(__file__).with_name("nemo_rl_bases.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(source)
    return found
