"""Finding and reading the TOML files of ``models/`` and ``hardware/``: names, aliases, did-you-mean."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from planner.errors import BadInput, did_you_mean
from planner.spec.problems import first_problem

T = TypeVar("T", bound=BaseModel)

PACKAGE = Path(__file__).resolve().parent.parent
MAX_FILE_BYTES = 10_000_000


def folder(kind: str) -> Path:
    """Return the catalog folder: inside an installed package, else beside it in a checkout."""
    installed = PACKAGE / kind
    return installed if installed.is_dir() else PACKAGE.parent / kind


def is_folder(path: Path) -> bool:
    """Whether a folder is there; a path that no file system takes is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def read_text(path: Path) -> str:
    """Read a user's text file.

    Raises
    ------
    BadInput
        The file is missing, a folder, unreadable, larger than 10 MB, or not UTF-8.
    """
    try:
        if not path.is_file():
            raise BadInput(f"{path} is not a file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadInput(f"{path} is larger than {MAX_FILE_BYTES // 1_000_000} MB: no configuration is")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text (byte {error.start})") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"cannot read {str(path)[:300]}: {reason}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read one TOML file; a syntax error is reported with its line."""
    try:
        return tomllib.loads(read_text(path))
    except ValueError as error:
        raise BadInput(f"{path} is not TOML: {str(error)[:200]}") from error
    except RecursionError as error:
        raise BadInput(f"{path} is nested too deeply") from error


def validated(kind: type[T], data: dict[str, Any], where: str) -> T:
    """Build a spec from plain data; the first problem becomes one sentence with its key."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise BadInput(f"{where}: {first_problem(error, kind)}") from error


@cache
def stems(kind: str) -> dict[str, Path]:
    """Every canonical name of a catalog and its file, by name; nothing is read."""
    return {path.stem.lower(): path for path in sorted(folder(kind).glob("*.toml"))}


@cache
def names(kind: str) -> dict[str, Path]:
    """Every name and alias of a catalog and its file. Names are lower case."""
    found = dict(stems(kind))
    for path in stems(kind).values():
        for alias in _aliases(path):
            found.setdefault(alias, path)
    return found


@cache
def located(kind: str, name: str) -> Path | None:
    """Return the file of a name or an alias; only files in which the name occurs are parsed."""
    lower = name.lower()
    if lower in stems(kind):
        return stems(kind)[lower]
    for path in stems(kind).values():
        if lower in read_text(path).lower() and lower in _aliases(path):
            return path
    return None


def _aliases(path: Path) -> list[str]:
    return [str(alias).lower() for alias in read_toml(path).get("aliases", ())]


def entries(kind: str) -> list[str]:
    """Return the canonical names of a catalog, sorted (no aliases)."""
    return sorted(path.stem for path in stems(kind).values())


def find(kind: str, name: str) -> Path:
    """Return the file of a catalog entry.

    Raises
    ------
    BadInput
        No entry has that name; the nearest one is suggested.
    """
    path = located(kind, name)
    if path is not None:
        return path
    noun = {"models": "model", "hardware": "hardware"}[kind]
    hint = did_you_mean(name[:80], names(kind))
    raise BadInput(f"unknown {noun} {name[:80]!r}{hint} (plan-parallel {kind} lists them all)")
