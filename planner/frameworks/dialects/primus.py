"""Read Primus's YAML: a trainer's module over Megatron, torchtitan or MaxText.

Names: AMD-AGI/Primus examples/*/configs (``modules.pre_trainer.framework``, ``model``, ``overrides``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.frameworks.dialects.common import gathered, value_of
from planner.frameworks.launch import Found, Key, LaunchFile, text
from planner.frameworks.maxtext.read import KEYS as MAXTEXT
from planner.frameworks.megatron.read import KEYS as MEGATRON
from planner.frameworks.text_formats import yaml_settings
from planner.frameworks.torchtitan.read import KEYS as TORCHTITAN

_MODULE = "modules.pre_trainer."


def _model(value: Any) -> str:
    """``llama3.1_8B.yaml`` as a model's name."""
    return str(value).removesuffix(".yaml").replace("_", "-")


_NAMES = {"model": Key("named_model", _model), "fp8": Key("fp8", text)}
ENGINES: dict[str, tuple[str, dict[str, Key]]] = {
    "megatron": ("primus", MEGATRON),
    "torchtitan": ("torchtitan", TORCHTITAN),
    "maxtext": ("maxtext", MAXTEXT),
}
"""What a module runs: our name for it, and its settings."""


def read(source: str, path: str) -> LaunchFile:
    """Read an experiment; precision is bf16 unless fp8 is asked for, as in its Megatron defaults."""
    found = yaml_settings(source, path)
    engine = str(value_of(found, _MODULE + "framework", "megatron"))
    framework, keys = ENGINES.get(engine, ENGINES["megatron"])
    plain = [_override(entry) for entry in found]
    defaults = {"bf16": True, "distributed_optimizer": True} if framework == "primus" else {}
    return gathered(framework, plain, {**keys, **_NAMES}, path, defaults)


def _override(entry: Found) -> Found:
    return replace(entry, key=entry.key.removeprefix(_MODULE).removeprefix("overrides."))
