"""Plans from files: the JSON that ``plan --json`` and ``estimate --json`` print, or a bare plan object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.catalog.files import read_text
from planner.errors import BadInput
from planner.spec import Plan
from planner.spec.problems import first_problem


def read_plan(path: str, rank: int = 1) -> Plan:
    """Read one plan from a JSON file.

    Parameters
    ----------
    rank
        Which plan of a ranked list.

    Raises
    ------
    BadInput
        The file is not JSON, has no plan of that rank, or a setting is not a plan's.
    """
    return plan_of(_data(path), path, rank)


def is_plan_file(path: str) -> bool:
    """Whether a JSON file holds a plan of ours (and not, say, a DeepSpeed configuration)."""
    data = _data(path)
    return isinstance(data, dict) and ("plans" in data or "data_parallel" in data)


def _data(path: str) -> Any:
    """What stands in a JSON file."""
    text = read_text(Path(path))
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}") from error
    except ValueError as error:
        raise BadInput(f"{path} holds a number of thousands of digits") from error


def plan_of(data: Any, where: str, rank: int = 1) -> Plan:
    """Return the plan inside report data."""
    if isinstance(data, dict) and isinstance(data.get("plans"), list):
        if not 1 <= rank <= len(data["plans"]):
            raise BadInput(f"{where} has {len(data['plans'])} plans, so there is no rank {rank}")
        data = data["plans"][rank - 1]
    if not isinstance(data, dict):
        raise BadInput(f"{where}: expected a plan object with settings such as tensor_parallel")
    values = {name: data[name] for name in Plan.model_fields if name in data and name != "stages"}
    if not values:
        raise BadInput(
            f"{where} holds no plan: none of {', '.join(list(Plan.model_fields)[:4])}, ... is there"
        )
    stages = data.get("stages") or []
    if not isinstance(stages, list):
        raise BadInput(f"{where}: stages must be a list with one entry per pipeline rank")
    values["stages"] = _stages(stages)
    try:
        return Plan.model_validate(values)
    except ValidationError as error:
        raise BadInput(f"{where}: {first_problem(error, Plan)}") from error


def _stages(rows: list[Any]) -> list[dict[str, Any]]:
    kept = []
    for row in rows:
        if not isinstance(row, dict) or (row.get("layers") is None and row.get("chunk_layers") is None):
            return []
        chunks = row.get("chunk_layers") or [row.get("layers") or 0]
        kept.append({"chunk_layers": chunks, "recompute_layers": row.get("recompute_layers") or 0})
    return kept
