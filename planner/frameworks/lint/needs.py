"""Settings that need or exclude others, and that no plan shows: what the frameworks' own checks refuse.

From Megatron-LM's ``validate_args`` and ``TransformerConfig`` (0.19.2), Bridge's ``validate`` and DeepSpeed's
configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.frameworks.launch import Found, LaunchFile
from planner.frameworks.lint.findings import Finding, finding
from planner.frameworks.megatron.read import KEYS


@dataclass(frozen=True, slots=True)
class Need:
    """``setting`` goes only with one of ``needs`` (where given) and with none of ``excludes``.

    A name alone is a setting that is on; ``name=value`` one with that value.
    """

    setting: str
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


_DISTRIBUTED = ("use_distributed_optimizer", "use_megatron_fsdp")

NEEDS: dict[str, tuple[Need, ...]] = {
    "megatron": (
        Need("overlap_param_gather", (*_DISTRIBUTED, "optimizer=dist_muon")),
        Need("overlap_param_gather", ("overlap_grad_reduce",)),
        Need("overlap_param_gather_with_optimizer_step", ("use_distributed_optimizer",)),
        Need("overlap_param_gather_with_optimizer_step", ("overlap_param_gather",)),
        Need("fp8_param_gather", (*_DISTRIBUTED, "use_torch_fsdp2")),
        Need("use_torch_fsdp2", excludes=("use_distributed_optimizer",)),
        Need("use_torch_fsdp2", ("untie_embeddings_and_output_weights",)),
        Need("tp_comm_overlap", ("sequence_parallel",)),
        Need("recompute_granularity=full", ("recompute_method",)),
        Need("recompute_granularity=full", ("recompute_num_layers",)),
        Need("recompute_granularity=selective", excludes=("recompute_method", "recompute_num_layers")),
        Need("recompute_activations", excludes=("recompute_method", "recompute_num_layers")),
        Need("distribute_saved_activations", ("recompute_granularity=full",)),
        Need("distribute_saved_activations", excludes=("sequence_parallel",)),
        Need("num_layers_per_virtual_pipeline_stage", excludes=("num_virtual_stages_per_pipeline_rank",)),
        Need("bf16", excludes=("fp16",)),
    ),
    "megatron-bridge": (Need("dist.use_tp_pp_dp_mapping", excludes=("ddp.use_megatron_fsdp",)),),
    "deepspeed": (Need("bf16.enabled", excludes=("fp16.enabled",)),),
}
"""Framework to what its settings need."""


HYBRID = frozenset({"hybrid_layer_pattern", "hybrid_override_pattern", "is_hybrid_model"})
"""Settings of models with state-space layers between those of attention."""


def need_findings(launch: LaunchFile) -> Iterator[Finding]:
    """Yield an error for every setting without the one that it needs, or beside one that it excludes."""
    said = _switched_on(launch) | {_plain(entry.key): entry for entry in launch.found}
    for need in NEEDS.get(launch.framework, ()):
        at = _given(said, need.setting)
        if at is None:
            continue
        if need.needs and not any(_given(said, name) for name in need.needs):
            words = " or ".join(_spelled(name, at.key) for name in need.needs)
            yield finding(at, "error", "settings-need-others", f"{_shown(at)} needs {words}")
        for name in need.excludes:
            other = _given(said, name)
            if other is not None:
                message = f"{_shown(at)} does not go with {other.key}"
                yield finding(at, "error", "settings-need-others", message)
    yield from _positions(said)
    yield from _two_ranks(said)
    for name in HYBRID & set(said):
        message = (
            f"{said[name].key}: state-space layers are not priced; every layer counts as an attention layer"
        )
        yield finding(said[name], "warning", "setting-means-less", message)
    stage = launch.fields.get("zero_stage")
    if launch.framework == "nanotron" and stage is not None and stage.value > 1:
        message = f"nanotron shards the optimizer alone: {_shown(stage)} runs as 1"
        yield finding(stage, "warning", "setting-means-less", message)


def _switched_on(launch: LaunchFile) -> dict[str, Found]:
    """Megatron's switches that a trainer around it turns on by itself."""
    if launch.framework != "megatron":
        return {}
    fields = launch.fields
    on = {name: fields[key.field] for name, key in KEYS.items() if key.field in fields}
    return {name: found for name, found in on.items() if found.value is True}


def _positions(said: dict[str, Found]) -> Iterator[Finding]:
    """Megatron wants a position for every token, rotary embeddings or not."""
    positions, tokens = said.get("max_position_embeddings"), said.get("seq_length")
    if (
        positions is None
        or tokens is None
        or not (f"{positions.value}".isdigit() and f"{tokens.value}".isdigit())
    ):
        return
    if int(positions.value) < int(tokens.value):
        message = f"{_shown(positions)} is less than {_shown(tokens)}"
        yield finding(positions, "error", "settings-need-others", message)


def _two_ranks(said: dict[str, Found]) -> Iterator[Finding]:
    """Interleaving over two ranks puts two sends to one rank into a batch unless they overlap computation."""
    chunks = ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage")
    ranks, apart = said.get("pipeline_model_parallel_size"), said.get("no_overlap_p2p_communication")
    if ranks is None or apart is None or str(ranks.value) != "2":
        return
    at = next((said[name] for name in chunks if name in said), None)
    if at is not None:
        message = f"{_shown(at)} over 2 pipeline ranks does not go with {apart.key}; it takes 3 ranks or more"
        yield finding(at, "error", "settings-need-others", message)


def _plain(key: str) -> str:
    return key.removeprefix("--").replace("-", "_")


def _spelled(name: str, like: str) -> str:
    """``name`` as the framework spells it: a flag where ``like`` is one."""
    key, _, value = name.partition("=")
    return " ".join([f"--{key.replace('_', '-')}" if like.startswith("--") else key, value]).strip()


def _shown(at: Found) -> str:
    return at.key if at.value is True else f"{at.key} {at.value}"


def _given(said: dict[str, Found], name: str) -> Found | None:
    key, _, value = name.partition("=")
    entry = said.get(key)
    if entry is None or str(entry.value).lower() in {"false", "none", "auto"}:
        return None
    return entry if not value or str(entry.value).lower() == value else None
