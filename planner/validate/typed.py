"""What type each key of a measured row has: a row that says otherwise is reported, not guessed at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from planner.errors import one_sentence
from planner.spec.model import MAX_WIDTH
from planner.spec.problems import first_problem, shown

MAX_COUNT = 10**9
"""GPUs, sequences, ranks: more is a typing mistake."""


def _no_text(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError(f"must be a number, not {shown(value)}")
    return value


Count = Annotated[int, BeforeValidator(_no_text), Field(ge=0, le=MAX_COUNT)]
Width = Annotated[int, BeforeValidator(_no_text), Field(ge=1, le=MAX_WIDTH)]
Figure = Annotated[float, BeforeValidator(_no_text), Field(ge=0, le=1e12)]


class _Table(BaseModel):
    """Keys that are not named below are notes, of any type."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class _Model(_Table):
    name: str | None = None
    attention: str | None = None
    activation: str | None = None
    gated_mlp: bool | None = None
    num_layers: Width | None = None
    hidden_size: Width | None = None
    num_heads: Width | None = None
    num_kv_heads: Width | None = None
    head_dim: Width | None = None
    ffn_hidden_size: Count | None = None
    expert_ffn_hidden_size: Count | None = None
    num_shared_experts: Count | None = None


class _Cluster(_Table):
    accelerator: str | None = None
    num_gpus: Count | None = None
    gpus_per_node: Width | None = None
    network: str | None = None


class _Config(_Table):
    zero_stage: Annotated[int, BeforeValidator(_no_text), Field(ge=0, le=3)] | None = None
    global_batch: Count | None = None
    micro_batch: Count | None = None
    seq_length: Width | None = None
    sequence_parallel: bool | None = None


class _Measured(_Table):
    step_time_s: Annotated[Figure, Field(ge=1e-9)] | None = None
    peak_memory_gb: Figure | None = None
    memory_kind: str | None = None
    out_of_memory: bool | None = None


class _Row(_Table):
    id: str | int | float | None = None
    group: str | None = None
    framework: str | None = None
    source: str | None = None
    notes: str | None = None
    tier: str | None = None
    assumed: list[Any] | None = None
    model: _Model | None = None
    cluster: _Cluster | None = None
    config: _Config | None = None
    measured: _Measured | None = None


def readable(row: Mapping[str, Any], name: str = "row") -> Mapping[str, Any]:
    """Return the row, or where a key has a wrong type, a row that only says so (``unreadable``)."""
    try:
        _Row.model_validate(row)
    except ValidationError as error:
        stated = row.get("id")
        shown_id = one_sentence(stated) if isinstance(stated, str) else name
        return {"id": shown_id, "unreadable": first_problem(error, _Row)}
    return row
