"""Settings that need or exclude others, and that no plan shows: what the frameworks' own checks refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from planner.frameworks.deepspeed.needs import DEEPSPEED, MEGATRON_DEEPSPEED
from planner.frameworks.dialects.needs import NEMO_RL, TRAINERS, implied
from planner.frameworks.launch import Found, LaunchFile
from planner.frameworks.lint.deepspeed_settings import deepspeed_findings
from planner.frameworks.lint.findings import Finding, finding
from planner.frameworks.lint.megatron_settings import megatron_findings
from planner.frameworks.lint.packing import packing_findings
from planner.frameworks.lint.rollouts import generation_findings, rollout_findings
from planner.frameworks.megatron.needs import ARGUMENTS, CORE
from planner.frameworks.megatron.read import KEYS
from planner.frameworks.needs import Need, Said, holds
from planner.spec.request import PlanRequest

NEEDS: dict[str, tuple[Need, ...]] = {
    "megatron": (*CORE, *ARGUMENTS),
    "primus": CORE,
    "megatron-bridge": (
        *CORE,
        Need("use_tp_pp_dp_mapping", excludes=("use_megatron_fsdp",)),
        Need("use_megatron_fsdp", excludes=("use_torch_fsdp2",)),
    ),
    "accelerate": TRAINERS,
    "deepspeed": (*DEEPSPEED, *MEGATRON_DEEPSPEED, *TRAINERS),
    "megatron-deepspeed": MEGATRON_DEEPSPEED,
}
"""Framework to what its settings need."""
ON_MEGATRON = frozenset({"megatron", "megatron-bridge", "primus"})
RENAMED = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "num_moe_experts": "num_experts",
    "moe_router_padding_for_fp8": "moe_router_padding_for_quantization",
    "cuda_graph_scope": "cuda_graph_modules",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
}
"""Other names for Megatron's settings: fields of its configuration objects, and what they were called."""
_OTHER_PARTS = re.compile(r"^(critic|data|reward_model)\.|^actor_rollout_ref\.(?!actor\.)|\.generation\.")
"""Sections of trainers of agents that speak of something else than the actor's training engine."""

UNPRICED: dict[str, tuple[str, str]] = {
    "is_hybrid_model": (
        "hybrid_pattern",
        "no --hybrid-layer-pattern says which layers are state-space layers: all count as attention",
    ),
    "experimental_attention_variant=dsa": (
        "",
        "attention that an indexer restricts to some of the tokens is priced as attention to all of them",
    ),
    "expert_parallel_size>1": ("expert_parallel", "experts are priced as if each rank held all of them"),
    "tiled_mlp": ("", "MLPs that are computed in tiles keep less than is priced"),
}
"""Settings that mean less to the planner than to the framework, unless the field beside them is read."""


def need_findings(launch: LaunchFile, request: PlanRequest | None = None) -> Iterator[Finding]:
    """Yield an error for every setting without the one that it needs, or beside one that it excludes.

    Parameters
    ----------
    request
        The question, for settings that hang on the model's shape or the number of GPUs.
    """
    said = _said(launch)
    seen: set[tuple[str, str]] = set()
    parts = [_broken(need, said, _says_all(launch)) for need in NEEDS.get(launch.framework, ())]
    if "policy.model_name" in (whole := {entry.key: entry for entry in launch.found}):
        parts += [_broken(need, whole, True) for need in NEMO_RL]
    if launch.framework in ON_MEGATRON:
        parts.append(megatron_findings(launch, said, None if request is None else request.model))
        parts.append(packing_findings(launch, said))
    if launch.framework == "deepspeed" and request is not None:
        parts.append(deepspeed_findings(launch, request))
    if request is not None:
        parts += [rollout_findings(launch, request), generation_findings(launch, request)]
    parts += [_positions(said), _two_ranks(said), _unpriced(launch, said), _groups(launch, request)]
    for entry in chain.from_iterable(parts):
        if (entry.rule, entry.message) not in seen:
            seen.add((entry.rule, entry.message))
            yield entry


def _says_all(launch: LaunchFile) -> bool:
    """Whether nothing but the framework's own defaults fills in what the files leave out."""
    if launch.framework not in ON_MEGATRON:
        return True
    return launch.framework == "megatron" and any(entry.key.startswith("--") for entry in launch.found)


def _said(launch: LaunchFile) -> Said:
    """Settings by plain names; those of other parts of a program than the training engine left out."""
    on_megatron = launch.framework in ON_MEGATRON
    names = _switched_on(launch) if on_megatron else dict(implied(launch))
    for entry in launch.found:
        if entry.value is None or (on_megatron and _OTHER_PARTS.search(entry.key)):
            continue
        name = entry.key.removeprefix("--").replace("-", "_")
        if on_megatron:
            name = name.rpartition(".")[2].lower()
        names[RENAMED.get(name, name)] = entry
    return names


def _switched_on(launch: LaunchFile) -> dict[str, Found]:
    """Megatron's switches that a trainer around it turns on by itself."""
    fields = launch.fields
    on = {name: fields[key.field] for name, key in KEYS.items() if key.field in fields}
    return {name: found for name, found in on.items() if found.value is True}


def _broken(need: Need, said: Said, says_all: bool) -> Iterator[Finding]:
    at = holds(need.setting, said)
    if need.within and need.within not in said:
        return
    if at is None or not all(holds(condition, said) for condition in need.when):
        return
    may_miss = need.passed_on or says_all
    if need.needs and may_miss and not any(holds(condition, said) for condition in need.needs):
        words = " or ".join(_spelled(condition, at.key) for condition in need.needs)
        beside = "".join(f" beside {_spelled(condition, at.key)}" for condition in need.when)
        yield finding(at, "error", "settings-need-others", f"{_shown(at)} needs {words}{beside}")
    for condition in need.excludes:
        other = holds(condition, said)
        if other is not None and (other.branch == at.branch or not (other.branch or at.branch)):
            words = _spelled(condition, other.key)
            yield finding(at, "error", "settings-need-others", f"{_shown(at)} does not go with {words}")


def _positions(said: Said) -> Iterator[Finding]:
    """Megatron wants a position for every token, rotary embeddings or not."""
    positions, tokens = said.get("max_position_embeddings"), said.get("seq_length")
    if positions is None or tokens is None or not positions.key.startswith("--"):
        return
    if not (f"{positions.value}".isdigit() and f"{tokens.value}".isdigit()):
        return
    if int(positions.value) < int(tokens.value):
        message = f"{_shown(positions)} is less than {_shown(tokens)}"
        yield finding(positions, "error", "settings-need-others", message)


def _two_ranks(said: Said) -> Iterator[Finding]:
    """Interleaving over two ranks puts two sends to one rank into a batch unless they overlap computation."""
    chunks = ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage")
    ranks, apart = said.get("pipeline_model_parallel_size"), said.get("no_overlap_p2p_communication")
    if ranks is None or apart is None or str(ranks.value) != "2":
        return
    at = next((said[name] for name in chunks if name in said), None)
    if at is not None:
        message = f"{_shown(at)} over 2 pipeline ranks does not go with {apart.key}; it takes 3 ranks or more"
        yield finding(at, "error", "settings-need-others", message)


def _groups(launch: LaunchFile, request: PlanRequest | None) -> Iterator[Finding]:
    """Layers that are recomputed together live together: groups save less the larger they are.

    References
    ----------
    megatron-core transformer_block.py, ``uniform``; DeepSpeed's ``activation_checkpoint_interval``.
    """
    at = launch.place("recompute_num_layers", "checkpoint_interval")
    if at is None or request is None or request.framework.memory.recomputed_together == 1:
        return
    group, stages = at.value, launch.get("pipeline_parallel", 1) * launch.get("virtual_stages", 1)
    if stages == 1 and group >= request.model.num_layers:
        message = f"{_shown(at)} recomputes all layers together, which saves next to nothing"
        yield finding(at, "warning", "setting-means-less", f"{message}; 1 keeps those of one layer")
    else:
        message = f"{_shown(at)} recomputes as many layers together, whose activations all live then"
        yield finding(at, "note", "setting-means-less", f"{message}; 1 keeps those of one layer")


def _unpriced(launch: LaunchFile, said: Said) -> Iterator[Finding]:
    for name, (field, words) in UNPRICED.items():
        at = holds(name, said)
        if at is not None and field not in launch.fields:
            yield finding(at, "warning", "setting-means-less", f"{_shown(at)}: {words}")
    stage = launch.fields.get("zero_stage")
    if launch.framework == "nanotron" and stage is not None and stage.value > 1:
        message = f"nanotron shards the optimizer alone: {_shown(stage)} runs as 1"
        yield finding(stage, "warning", "setting-means-less", message)


def _spelled(condition: str, like: str) -> str:
    """A condition as the framework spells it: flags where ``like`` is one."""
    for sign, word in (("=", " "), ("~", " with "), (">", " above ")):
        name, found, value = condition.partition(sign)
        if found:
            return f"{_key(name, like)}{word}{value}"
    return _key(condition, like)


def _key(name: str, like: str) -> str:
    if name == "cuda_device_max_connections":
        return name.upper()
    return f"--{name.replace('_', '-')}" if like.startswith("--") else name


def _shown(at: Found) -> str:
    value = " ".join(map(str, at.value)) if isinstance(at.value, list) else at.value
    return at.key if at.value is True or at.value == "true" else f"{at.key} {value}"
