"""Read MaxText's YAML, or ``key=value`` arguments of its command line."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from planner.errors import BadInput
from planner.frameworks.launch import (
    Found,
    Key,
    LaunchFile,
    collect,
    degree,
    even_stages,
    implied_expert_tensor,
    make_plan,
    one_of,
    positive,
    text,
    yes,
)
from planner.frameworks.maxtext.write import REMAT, STRATEGIES
from planner.frameworks.shell import read_pairs
from planner.frameworks.text_formats import plain_value, yaml_settings
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

AXES = (
    "data",
    "fsdp",
    "fsdp_transpose",
    "sequence",
    "context",
    "tensor",
    "tensor_sequence",
    "expert",
    "pipeline",
)


def batch(value: Any) -> float:
    """Read sequences per device: a fraction is allowed."""
    number = float(value)
    if number <= 0:
        raise ValueError("must be more than 0")
    return number


KEYS: dict[str, Key] = {
    **{
        f"{tier}_{axis}_parallelism": Key(f"{tier}.{axis}", degree)
        for tier in ("ici", "dcn")
        for axis in AXES
    },
    "per_device_batch_size": Key("per_device_batch", batch),
    "gradient_accumulation_steps": Key("accumulation", positive),
    "max_target_length": Key("seq_length", positive),
    "remat_policy": Key("recompute", text),
    "shard_optimizer_over_data": Key("shards_optimizer", yes),
    "context_parallel_strategy": Key("context_parallel_kind", one_of(*STRATEGIES.values())),
    "num_pipeline_microbatches": Key("num_microbatches", degree),
    "num_pipeline_repeats": Key("virtual_stages", degree),
    "num_layers_per_pipeline_stage": Key("layers_per_stage", positive),
    "optimizer_memory_host_offload": Key("offload", yes),
    "decoder_layer_input": Key("layer_input", text),
    "quantization": Key("quantization", text),
    "dtype": Key("dtype", text),
    "model_name": Key("named_model", text),
    "base_num_decoder_layers": Key("model.num_layers", positive),
    "base_emb_dim": Key("model.hidden_size", positive),
    "base_mlp_dim": Key("model.ffn_hidden_size", positive),
    "base_num_query_heads": Key("model.num_heads", positive),
    "base_num_kv_heads": Key("model.num_kv_heads", positive),
    "head_dim": Key("model.head_dim", positive),
    "vocab_size": Key("model.vocab_size", positive),
    "logits_via_embedding": Key("model.tied_embeddings", yes),
    "num_experts_per_tok": Key("model.experts_per_token", positive),
}


@cache
def known_keys() -> frozenset[str]:
    """Keys of ``base.yml`` and of the configuration types of MaxText 0.2.5."""
    return frozenset(Path(__file__).with_name("keys.txt").read_text(encoding="utf-8").split())


def read(source: str, path: str) -> LaunchFile:
    """Read a YAML file or the ``key=value`` words of a command line."""
    try:
        found = yaml_settings(source, path)
    except BadInput:
        found = [
            Found(entry.key, plain_value(str(entry.value)), path, entry.line)
            for entry in read_pairs(source, path, r"[a-z][a-z0-9_]*")
        ]
        if not found:
            raise
    keys = dict(KEYS)
    said = {entry.key: entry.value for entry in found}
    if "num_experts" in said and not said.get("first_num_dense_layers"):
        del keys["base_mlp_dim"]  # repeats the experts' width where every layer has experts
    return collect("maxtext", found, keys, lambda key: key in known_keys(), {})


def to_plan(launch: LaunchFile, request: PlanRequest) -> Plan:
    """Return the plan that MaxText would run with these settings on the request's cluster.

    Raises
    ------
    BadInput
        The axes do not multiply to the devices, or the batch does not divide.
    """
    sizes = _axes(launch, request)
    devices = 1
    for size in sizes.values():
        devices *= size
    ep, c, p = sizes["expert"], sizes["context"] * sizes["sequence"], sizes["pipeline"]
    t = sizes["tensor"] * sizes["tensor_sequence"]
    fsdp = sizes["fsdp"] * sizes["fsdp_transpose"]
    d = sizes["data"] * fsdp * ep
    zero, group = _sharding(launch, fsdp * ep * c, d)
    m, b = _batch(launch, devices, d, p)
    v = max(1, launch.get("virtual_stages", 1)) if p > 1 else 1
    schedule = "none" if p == 1 else "interleaved" if v > 1 else "gpipe"
    kinds = {word: kind for kind, word in STRATEGIES.items()}
    remat = {word: kind for kind, word in REMAT.items()}
    inputs_away = launch.get("recompute") == "custom" and launch.get("layer_input") == "offload"
    plan = make_plan(
        tensor_parallel=t,
        pipeline_parallel=p,
        virtual_stages=v,
        schedule=schedule,
        data_parallel=d,
        context_parallel=c,
        context_parallel_kind=kinds[launch.get("context_parallel_kind", "all_gather")] if c > 1 else "ring",
        expert_parallel=ep,
        expert_tensor_parallel=implied_expert_tensor(request, ep, t),
        zero_stage=zero,
        shard_group_size=group,
        sequence_parallel=t > 1,
        micro_batch=b,
        num_microbatches=m,
        recompute="full" if inputs_away else remat.get(launch.get("recompute", "full"), "selective"),
        offload="optimizer" if launch.get("offload", False) else "activations" if inputs_away else "none",
        precision=_precision(launch),
    )
    return plan.model_copy(update={"stages": even_stages(request.model, plan)})


def _axes(launch: LaunchFile, request: PlanRequest) -> dict[str, int]:
    """Sizes of all axes, network and slice together; one -1 in each tier takes what is left of it."""
    num_gpus = request.cluster.num_gpus
    tiers = {tier: {axis: launch.get(f"{tier}.{axis}", 1) for axis in AXES} for tier in ("ici", "dcn")}
    if not any(name == "ici.fsdp" for name in launch.fields):
        tiers["ici"]["fsdp"] = -1
    if not any(name == "dcn.data" for name in launch.fields):
        tiers["dcn"]["data"] = 1
    slices = max(1, num_gpus // request.cluster.nvlink_domain)
    is_open = {tier: -1 in sizes.values() for tier, sizes in tiers.items()}
    if is_open["dcn"]:
        _fill("dcn", tiers["dcn"], slices if is_open["ici"] else num_gpus // _product(tiers["ici"]))
    if is_open["ici"]:
        _fill("ici", tiers["ici"], num_gpus // _product(tiers["dcn"]))
    return {axis: tiers["ici"][axis] * tiers["dcn"][axis] for axis in AXES}


def _fill(tier: str, sizes: dict[str, int], devices: int) -> None:
    """Give the tier's one open axis what the others leave of the devices."""
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise BadInput(f"more than one axis is -1: {', '.join(f'{tier}_{axis}' for axis in open_axes)}")
    sizes[open_axes[0]] = max(1, devices // _product(sizes))


def _product(sizes: dict[str, int]) -> int:
    """Ranks of all axes that say how many."""
    result = 1
    for size in sizes.values():
        result *= size if size > 0 else 1
    return result


def _sharding(launch: LaunchFile, shard_ranks: int, data_ranks: int) -> tuple[int, int]:
    if shard_ranks > 1:
        return 3, shard_ranks
    return (1, data_ranks) if launch.get("shards_optimizer", False) else (0, 1)


def _batch(launch: LaunchFile, devices: int, d: int, p: int) -> tuple[int, int]:
    """Micro-batches and micro-batch of one replica."""
    loaded = launch.get("per_device_batch", 12.0) * devices
    m = launch.get("accumulation", 1)
    pieces = max(1, launch.get("num_microbatches", p)) if p > 1 else 1
    b = loaded / (d * pieces)
    if abs(b - round(b)) > 1e-9 or round(b) < 1:
        raise BadInput(f"{loaded:g} sequences do not split over {d} replicas and {pieces} micro-batches")
    return m * pieces, round(b)


def _precision(launch: LaunchFile) -> str:
    if "fp8" in str(launch.get("quantization", "")):
        return "fp8"
    return "fp32" if launch.get("dtype", "bfloat16") == "float32" else "bf16"
