"""Numbers of Megatron's settings that have to fit each other, and settings that do nothing by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from planner.frameworks.launch import Found, LaunchFile
from planner.frameworks.lint.findings import Finding, finding
from planner.frameworks.megatron.split import recipe_counts_ends
from planner.frameworks.megatron_bridge.read import OVERWRITTEN
from planner.frameworks.needs import Said, holds
from planner.spec.model import Model

RULE = "settings-need-others"


def megatron_findings(launch: LaunchFile, said: Said, model: Model | None) -> Iterator[Finding]:
    """Yield what is wrong with settings that megatron-core compares by number."""
    yield from _hierarchy(launch, said, model)
    yield from _router_groups(said, model)
    yield from _exchange_of_each_layer(launch, said, model)
    yield from _strategy_alone(said)
    yield from _recipe_split(launch, model)
    yield from _overwritten(launch)
    if launch.framework == "megatron" and any(entry.key.startswith("--") for entry in launch.found):
        yield from _slow_experts(launch, said)


def _numbers(entry: Found | None) -> list[int]:
    """Whole numbers of a setting, none where it has other words."""
    if entry is None:
        return []
    words = (
        entry.value
        if isinstance(entry.value, list)
        else str(entry.value).strip("[]()").replace(",", " ").split()
    )
    digits = [str(word).strip() for word in words]
    return [int(word) for word in digits] if all(word.isdigit() for word in digits) else []


def _hierarchy(launch: LaunchFile, said: Said, model: Model | None) -> Iterator[Finding]:
    """All-to-all in groups of the first size, a ring between as many groups as the second says."""
    at = said.get("hierarchical_context_parallel_sizes")
    sizes, ranks = _numbers(at), launch.get("context_parallel", 1)
    if at is None or not sizes:
        return
    if prod(sizes) != ranks:
        message = (
            f"{at.key} {' x '.join(map(str, sizes))} is {prod(sizes)} ranks, context parallelism has {ranks}"
        )
        yield finding(at, "error", RULE, message)
    if model is None or holds("cp_comm_type~a2a+p2p", said) is None:
        return
    t = launch.get("tensor_parallel", 1)
    heads = {"attention": model.num_heads, "KV": model.num_heads if model.is_mla else model.num_kv_heads}
    for kind, count in heads.items():
        if count // t % sizes[0]:
            local = max(count // t, 1)
            message = f"the all-to-all of {at.key} splits {local} {kind} heads over {sizes[0]} ranks"
            yield finding(at, "error", RULE, message)
    message = f"{at.key}: the exchange is priced as one ring over {ranks} ranks"
    yield finding(at, "note", "setting-means-less", message)


def _router_groups(said: Said, model: Model | None) -> Iterator[Finding]:
    """Experts are routed within groups of equal size (``transformer_config.py``)."""
    at, chosen = said.get("moe_router_num_groups"), said.get("moe_router_group_topk")
    (groups,), picked = _numbers(at) or [0], (_numbers(chosen) or [0])[0]
    experts = (_numbers(said.get("num_experts")) or [model.num_experts if model is not None else 0])[0]
    if at is None or not groups:
        return
    if experts % groups:
        near = [n for n in range(1, experts + 1) if experts % n == 0]
        nearest = min(near, key=lambda n: (abs(n - groups), n))
        message = f"{at.key} {groups} does not divide {experts} experts (nearest: {nearest})"
        yield finding(at, "error", RULE, message)
    if chosen is not None and picked > groups:
        yield finding(chosen, "error", RULE, f"{chosen.key} {picked} is more than {at.key} {groups}")


def _exchange_of_each_layer(launch: LaunchFile, said: Said, model: Model | None) -> Iterator[Finding]:
    """A list of exchanges has one entry a layer."""
    at = said.get("cp_comm_type")
    layers = launch.get("model.num_layers", model.num_layers if model is not None else 0)
    if at is None or not isinstance(at.value, list) or len(at.value) in {1, layers} or not layers:
        return
    message = f"{at.key} has {len(at.value)} entries; it takes one, or one for each of the {layers} layers"
    yield finding(at, "error", RULE, message)


def _strategy_alone(said: Said) -> Iterator[Finding]:
    at = said.get("data_parallel_sharding_strategy")
    if at is None or str(at.value) == "no_shard" or holds("use_megatron_fsdp", said) is not None:
        return
    message = f"{at.key} {at.value} does nothing without use_megatron_fsdp"
    yield finding(at, "warning", "setting-means-less", message)


def _overwritten(launch: LaunchFile) -> Iterator[Finding]:
    """The format of gradients in a section that the mixed-precision recipe sets anew.

    References
    ----------
    Megatron-Bridge training/mixed_precision.py, ``MixedPrecisionConfig.setup``; NeMo's plugin does the same.
    """
    at = next((entry for entry in launch.found if OVERWRITTEN.search(entry.key)), None)
    kept = launch.get("gradients_in_16_bits")
    if launch.framework != "megatron-bridge" or at is None or kept is None or at.value is not kept:
        return
    message = (
        f"{at.key} {at.value} does not hold: the mixed-precision recipe sets it to {not kept} "
        "(mixed_precision.grad_reduce_in_fp32)"
    )
    yield finding(at, "warning", "setting-means-less", message)


def _slow_experts(launch: LaunchFile, said: Said) -> Iterator[Finding]:
    """Megatron-LM's defaults for experts: all tokens gathered on every rank, one product after another."""
    experts = said.get("num_experts")
    if experts is None:
        return
    ranks, dispatcher = launch.get("expert_parallel", 1), said.get("moe_token_dispatcher_type")
    if ranks > 1 and (dispatcher is None or str(dispatcher.value) == "allgather"):
        message = (
            f"every token is gathered on all {ranks} expert ranks (dispatcher allgather, the default); it is "
            "priced as --moe-token-dispatcher-type alltoall, which sends it to its experts alone"
        )
        yield finding(dispatcher or experts, "warning", "setting-means-less", message)
    if "moe_grouped_gemm" not in said and launch.get("model.num_experts", 1) > ranks:
        message = "experts run one after another without --moe-grouped-gemm, and are priced as with it"
        yield finding(experts, "warning", "setting-means-less", message)


def _recipe_split(launch: LaunchFile, model: Model | None) -> Iterator[Finding]:
    """A split that only what the recipe below says makes even."""
    at = launch.place("pipeline_parallel")
    stages = launch.get("pipeline_parallel", 1) * launch.get("virtual_stages", 1)
    if model is None or at is None or not recipe_counts_ends(launch, model.num_layers, stages):
        return
    names = "account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split"
    message = (
        f"{model.num_layers} layers do not divide over {stages} stages; the recipe is taken to count "
        f"embedding and loss as layers ({names})"
    )
    yield finding(at, "warning", "setting-means-less", message)
