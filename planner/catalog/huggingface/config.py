"""Typed access to one ``config.json``: every problem is one sentence with file and key."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import BadInput
from planner.spec.model import MAX_WIDTH

_ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh"), "gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("relu2", "squared_relu"), "squared_relu"),
    "relu": "relu",
}
_GATED = {"silu": "swiglu", "gelu": "geglu"}


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of one (possibly nested) configuration. ``null`` counts as absent, as in transformers."""

    path: Path
    data: dict[str, Any]
    section: str = ""

    def error(self, key: str, problem: str) -> BadInput:
        """Return the error that names this file and key."""
        return BadInput(f"{self.path}: {self.section}{key} {problem}")

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.data.get(key) is not None

    def count(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_WIDTH) -> int:
        """Return a whole number within bounds; ``default`` when absent, an error without one."""
        value = self.data.get(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"must be a whole number, not {_shown(value)}")
        if not minimum <= value <= maximum:
            raise self.error(key, f"must be between {minimum} and {maximum}, not {_shown(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {_shown(value)}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """Return a string."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, f"must be text, not {_shown(value)}")
        return value

    def items(self, key: str) -> list[Any] | None:
        """Return a list, or None when absent."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(key, f"must be a list, not {_shown(value)}")
        return value

    def words(self, key: str, known: Collection[str]) -> list[str] | None:
        """Return a list of known words, or None when absent."""
        values = self.items(key)
        for value in values or ():
            if not isinstance(value, str) or value not in known:
                raise self.error(key, f"holds {_shown(value)}; known are {', '.join(known)}")
        return values

    def indices(self, key: str) -> tuple[int, ...] | None:
        """Return a list of layer indices, or None when absent."""
        values = self.items(key)
        if values is None:
            return None
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise self.error(key, f"must list layer indices, not {_shown(value)}")
        return tuple(values)

    def part(self, key: str) -> Config:
        """Return a nested table; an absent one is empty."""
        value = self.data.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(key, f"must be a table, not {_shown(value)}")
        return Config(self.path, value, f"{self.section}{key}.")

    def activation(self, key: str, default: str, gated: bool) -> str:
        """Return our name of the MLP's activation."""
        name = self.text(key, default)
        plain = _ACTIVATIONS.get(name)
        if plain is None:
            raise self.error(key, f"{name!r} is not one of {', '.join(_ACTIVATIONS)}")
        if not gated:
            return plain
        if plain not in _GATED:
            raise self.error(key, f"{name!r} is not known in a gated MLP (silu and gelu are)")
        return _GATED[plain]


def _shown(value: object) -> str:
    """A value, short enough for one sentence."""
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
