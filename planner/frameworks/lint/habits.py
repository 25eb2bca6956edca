"""How a run's files change the framework's habits: formats of state, buckets, sharding groups, overlap."""

from __future__ import annotations

from planner.catalog.training import with_unfused_attention
from planner.frameworks.launch import LaunchFile
from planner.spec.framework import FrameworkProfile
from planner.spec.model import Model

MASTER_BYTES, MOMENT_BYTES = 4.0, 4.0
"""Of a parameter's fp32 master copy, and of each moment of Adam. [byte]"""
REMAINDER_BYTES = 2.0
"""Transformer Engine's Adam keeps the half of the fp32 master that the bf16 weight lacks
(``store_param_remainders``, on with ``--use-precision-aware-optimizer``). [byte]"""
WITH_BUCKETS = frozenset({"deepspeed", "megatron-deepspeed"})
"""Frameworks whose profiles count DeepSpeed's buffers."""
BUCKET_ELEMENTS = 5e8
"""``reduce_bucket_size`` and ``allgather_bucket_size`` where nothing is said. [element]"""
LIVE_PARAMETERS = 1e9
"""``stage3_max_live_parameters`` where nothing is said. [parameter]"""


def with_said_habits(framework: FrameworkProfile, launch: LaunchFile, model: Model) -> FrameworkProfile:
    """Return the framework with what the files say of its memory and of what it hides."""
    changes = {**_state_formats(launch), **_buckets(launch, model), **_dropouts(launch)}
    if _is_fp32(launch):  # the weights are the master copy
        changes["optimizer_bytes"] = framework.memory.optimizer_bytes - MASTER_BYTES
    group = launch.get("recompute_num_layers", launch.get("checkpoint_interval", 1))
    if launch.get("recompute_method", "uniform") == "uniform" and group > 1:
        changes["recomputed_together"] = group
    if launch.get("fp8_weights") is not None:
        changes["fp8_weight_bytes"] = 1.0 if launch.get("fp8_weights") else None
    if changes:
        framework = framework.model_copy(update={"memory": framework.memory.model_copy(update=changes)})
    own_layers = launch.get("transformer_impl") == "local" and not launch.get("flash_attention", False)
    if _is_fp32(launch) or own_layers:  # neither Transformer Engine nor flash-attn has fp32
        framework = with_unfused_attention(framework)
    times: dict[str, float | bool] = {**_overlap(launch)}
    if "gradients_in_16_bits" in launch.fields:
        times["gradient_reduce_bytes"] = 2.0 if launch.get("gradients_in_16_bits") else 4.0
    if times:
        framework = framework.model_copy(update={"time": framework.time.model_copy(update=times)})
    if launch.framework in WITH_BUCKETS and "shard_group_size" in launch.fields:  # MiCS
        limits = framework.limits.model_copy(update={"hybrid_sharding": True})
        framework = framework.model_copy(update={"limits": limits})
    return framework


def _dropouts(launch: LaunchFile) -> dict[str, float | None]:
    """What Megatron's dropouts keep; both are on where a command of its own says nothing.

    References
    ----------
    Megatron-LM ``TransformerConfig``: ``hidden_dropout``, ``attention_dropout`` 0.1.
    """
    own = 0.1 if launch.framework == "megatron" and _says_shape(launch) else None
    hidden, scores = (launch.get(name, own) for name in ("hidden_dropout", "attention_dropout"))
    changes: dict[str, float | None] = {}
    if hidden is not None:
        changes["dropout_mask_bytes"] = 2.0 if hidden else 0.0
    if scores is not None:
        changes["drops_scores"] = bool(scores)
    return changes


def _says_shape(launch: LaunchFile) -> bool:
    """Whether a command gives Megatron-LM the model's shape; those of checkpoints set dropouts to 0."""
    return any(entry.key == "--num-layers" for entry in launch.found)


def _is_fp32(launch: LaunchFile) -> bool:
    """Whether a run of Megatron-LM trains in fp32, for want of a 16-bit format."""
    return launch.framework == "megatron" and not any(
        launch.get(name, False) for name in ("bf16", "fp16", "fp8", "fp4")
    )


def _overlap(launch: LaunchFile) -> dict[str, bool]:
    """What Megatron-LM's own command line hides behind the computation only when it is told to."""
    said = {entry.key for entry in launch.found if entry.value is not False}
    if launch.framework != "megatron" or not any(key.startswith("--") for key in said):
        return {}
    return {
        "gradient_sync_overlaps": "--overlap-grad-reduce" in said,
        "parameter_gather_overlaps": "--overlap-param-gather" in said,
    }


def _state_formats(launch: LaunchFile) -> dict[str, float | None]:
    """Bytes of a gradient and of the optimizer's state, where Megatron's settings name their formats."""
    changes: dict[str, float | None] = {}
    if "gradients_in_16_bits" in launch.fields:
        changes["gradient_bytes"] = 2.0 if launch.get("gradients_in_16_bits") else 4.0
    if launch.get("gradient_bytes", 4.0) < 4.0:
        changes["gradient_bytes"] = launch.get("gradient_bytes")
    said = {"precision_aware", "master_bytes", "first_moment_bytes", "second_moment_bytes"}
    if said & set(launch.fields) and not launch.get("optimizer_offload", False):
        master = launch.get("master_bytes", MASTER_BYTES)
        splits = launch.get("precision_aware", False) and launch.get("bf16", False)
        master = REMAINDER_BYTES if splits and master == MASTER_BYTES else master
        moments = [launch.get(f"{which}_moment_bytes", MOMENT_BYTES) for which in ("first", "second")]
        changes["optimizer_bytes"] = master + sum(moments)
    return changes


def _buckets(launch: LaunchFile, model: Model) -> dict[str, float | None]:
    """DeepSpeed's buffers: two of a reduction and two of a gathering, 16 bits an element.

    With ZeRO-3 gathered weights stay up to a number of parameters. ``auto`` of the Trainer is a bucket of
    the hidden size squared (``transformers/integrations/deepspeed.py``).
    """
    names = ("reduce_bucket", "gather_bucket", "live_parameters")
    if launch.framework not in WITH_BUCKETS or not set(names) & set(launch.fields):
        return {}
    reduce, gather = (launch.get(name, BUCKET_ELEMENTS) for name in names[:2])
    reduce = model.hidden_size**2 if reduce == "auto" else reduce
    gather = BUCKET_ELEMENTS if gather == "auto" else gather
    live = launch.get("live_parameters", LIVE_PARAMETERS)
    live = LIVE_PARAMETERS if live == "auto" else live
    gathered = 2.0 * live if launch.get("zero_stage", 0) == 3 else 4.0 * gather
    return {"bucket_bytes": 4.0 * reduce + gathered}
