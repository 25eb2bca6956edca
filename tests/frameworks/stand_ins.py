"""Names without content in place of packages that need CUDA to build or to import.

Frameworks import kernels, loggers and image libraries where they only read a configuration.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class Nothing(type):
    """A class whose every attribute is such a class, and which takes any arguments."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing(name)

    def __getitem__(cls, _: Any) -> Any:
        return cls


def nothing(name: str) -> Any:
    """A stand-in class."""
    return Nothing(name, (), {"__init__": lambda *_, **__: None})


class Absent(types.ModuleType):
    """A module of stand-ins, newer than anybody asks for."""

    __path__ = ()
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, nothing(name))
        return getattr(self, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the absent packages and their submodules."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == absent or name.startswith(absent + ".") for absent in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in(names: tuple[str, ...]) -> None:
    """Give every one of these packages, and whatever is in it, without content."""
    sys.meta_path.insert(0, Finder(names))
