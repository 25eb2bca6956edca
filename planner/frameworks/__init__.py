"""One module or package a framework: limits and habits, launch files written and read, and the linter.

``load_framework(name)`` is what the layers above need to make a request; it imports one small module.
"""

from __future__ import annotations

from importlib import import_module

from planner.errors import BadInput, did_you_mean
from planner.spec.framework import FrameworkProfile

DEFAULT_FRAMEWORK = "megatron"

_PROFILE_MODULES = {
    "megatron": "megatron.profile",
    "megatron-bridge": "megatron_bridge.profile",
    "torchtitan": "torchtitan.profile",
    "deepspeed": "deepspeed.profile",
    "accelerate": "accelerate.profile",
    "nanotron": "nanotron.profile",
    "maxtext": "maxtext.profile",
    "pytorch": "pytorch.profile",
    "megatron-deepspeed": "megatron_deepspeed",
    "nemo": "nemo",
    "automodel": "automodel",
    "llm-foundry": "llm_foundry",
    "paddle": "paddle",
    "primus": "primus",
    "flagperf": "flagperf",
    "meta-llama3": "meta_llama3",
    "deepseek": "deepseek",
    "any": "unrestricted",
}

FRAMEWORKS: tuple[str, ...] = tuple(_PROFILE_MODULES)
"""Names that ``load_framework`` knows (each profile adds aliases)."""


def load_framework(name: str) -> FrameworkProfile:
    """Return the profile of a framework by name or alias, ignoring case and ``_``/``-``.

    Raises
    ------
    BadInput
        The name is unknown; the message suggests the nearest one.
    """
    wanted = _normal(name)
    if wanted in _PROFILE_MODULES:
        return _profile(wanted)
    known = {_normal(alias): framework for framework in FRAMEWORKS for alias in _profile(framework).aliases}
    if wanted in known:
        return _profile(known[wanted])
    hint = did_you_mean(wanted, [*FRAMEWORKS, *known])
    raise BadInput(f"unknown framework {name!r}, known are {', '.join(FRAMEWORKS)}{hint}")


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _profile(name: str) -> FrameworkProfile:
    profile = import_module(f"{__name__}.{_PROFILE_MODULES[name]}").PROFILE
    assert isinstance(profile, FrameworkProfile)
    return profile
