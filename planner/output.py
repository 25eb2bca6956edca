"""Writing files for people: whole or not at all, never over something that is there unless told to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from planner.errors import BadInput


def write_file(path: Path, text: str, force: bool = False) -> None:
    """Write one text file atomically.

    Raises
    ------
    BadInput
        The file exists and ``force`` is off, or the folder cannot be written.
    """
    write_folder(path.parent, {path.name: text}, force)


def write_folder(folder: Path, files: Mapping[str, str], force: bool = False) -> list[Path]:
    """Write several text files into a folder, creating it; return their paths.

    Every file is written beside its place and renamed into it, so that a reader never sees half a file and a
    failure leaves no temporary file behind. Nothing is written when any target exists and ``force`` is off.

    Raises
    ------
    BadInput
        A target exists, a name leaves the folder, or the folder cannot be written (read-only, full).
    """
    targets = {folder / name: text for name, text in files.items()}
    try:
        for path in targets:
            _check_target(folder, path, force)
        for path, text in targets.items():
            _replace(path, text)
    except (OSError, ValueError) as error:  # ValueError: a name that no file system takes
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"cannot write into {folder}: {reason}") from error
    return list(targets)


def _check_target(folder: Path, path: Path, force: bool) -> None:
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadInput(f"{path} would be written outside {folder}")
    if path.exists() and not force:
        raise BadInput(f"{path} exists; give --force to replace it, or another --out")


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(name, 0o755 if path.suffix == ".sh" else 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
