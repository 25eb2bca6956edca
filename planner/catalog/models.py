"""Models by name, by file or by size: ``load_model``; and the rows that ``plan-parallel models`` shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.catalog import files
from planner.catalog.checkpoints import UNTIED, base_of
from planner.catalog.sizes import parse_size, sized_model
from planner.errors import BadInput, did_you_mean
from planner.spec.model import Model

_SUFFIXES = ("-hf", "-base", "-instruct", "-chat", "-it", "-pt")
"""Endings of public checkpoints that change no architecture."""


def load_model(name_or_path: str | Path) -> Model:
    """Return a model of the catalog, of a file, or of a plain size.

    Parameters
    ----------
    name_or_path
        A catalog name or alias (``llama-3-70b``, ``gpt3``, ``meta-llama/Llama-3.1-8B-Instruct``), a TOML file
        in the catalog's format, a Hugging Face ``config.json`` (or its folder), or a size (``33b``).

    Raises
    ------
    BadInput
        Nothing has that name, or the file does not describe a model.
    """
    text = str(name_or_path).strip()
    if isinstance(name_or_path, Path) or _looks_like_path(text):
        return _load_file(Path(text))
    name = _normalised(text)
    path = files.located("models", name)
    if path is not None:
        return _load_file(path)
    parameters = parse_size(name)
    if parameters is not None:
        return sized_model(name, parameters)
    base = base_of(name, lambda known: files.located("models", known) is not None)
    if base is not None:
        return _derived(name, load_model(base))
    raise BadInput(
        f"unknown model {text[:80]!r}{did_you_mean(name[:80], files.names('models'))} "
        "(plan-parallel models lists them; a config.json, a TOML file or a size such as 33b works too)"
    )


def _derived(name: str, base: Model) -> Model:
    """Return the model of a checkpoint that is trained further from another."""
    note = f"{name} has the shape of {base.name}."
    changes: dict[str, Any] = {"notes": f"{base.notes} {note}".strip()}
    if UNTIED.match(name):
        changes["tied_embeddings"] = False
    return base.model_copy(update=changes)


def model_summary(model: Model) -> dict[str, Any]:
    """Plain data of one model for listings: name, shape, parameter counts, source."""
    from planner.cost.parameters import active_parameters, total_parameters

    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "num_experts": model.num_experts,
        "seq_length": model.seq_length,
        "total_parameters": total_parameters(model),
        "active_parameters": active_parameters(model),
        "source": model.source,
        "notes": model.notes,
    }


def model_summaries() -> list[dict[str, Any]]:
    """Return the summary of every model of the catalog, by name."""
    return [model_summary(load_model(name)) for name in files.entries("models")]


def _looks_like_path(text: str) -> bool:
    """A known ending, or something that exists; ``organisation/name`` alone stays a name."""
    if text.lower().endswith((".toml", ".json")):
        return True
    try:
        return ("/" in text or "\\" in text) and Path(text).exists()
    except (OSError, ValueError):
        return False


def _normalised(text: str) -> str:
    """Return a name as the catalog spells it: no organisation, lower case, dashes, no checkpoint suffix."""
    name = text.rsplit("/", 1)[-1].lower().replace("_", "-").replace(" ", "-")
    for suffix in _SUFFIXES:
        if files.located("models", name) is None:
            name = name.removesuffix(suffix)
    return name


def _load_file(path: Path) -> Model:
    if path.suffix.lower() == ".toml":
        return files.validated(Model, files.read_toml(path), str(path))
    from planner.catalog.huggingface import read_config

    return read_config(path)
