"""Read DeepSpeed's JSON, the Hugging Face arguments beside it, and Megatron-DeepSpeed flags."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from planner.errors import BadInput
from planner.frameworks.dialects.common import TRAINER
from planner.frameworks.launch import (
    Found,
    Key,
    LaunchFile,
    collect,
    even_stages,
    fixed,
    implied_expert_tensor,
    make_plan,
    positive,
    schedule_of,
    text,
    whole,
    yes,
)
from planner.frameworks.launcher_keys import LAUNCHER_KEYS, TRAINER_FLAGS, is_launcher_flag
from planner.frameworks.shell import read_flags
from planner.frameworks.text_formats import json_settings
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest


def batch_number(value: Any) -> int | None:
    """Read a batch size; ``auto`` (filled in by Hugging Face) is no number."""
    return None if value == "auto" else positive(value)


def switch(value: Any) -> bool | None:
    """Read a flag; ``auto`` (filled in by Hugging Face) is no word on it."""
    return None if value == "auto" else yes(value)


def zero_stage(value: Any) -> int:
    """Read a ZeRO stage."""
    stage = whole(value)
    if stage not in {0, 1, 2, 3}:
        raise ValueError("must be 0, 1, 2 or 3")
    return stage


def group_size(value: Any) -> int | None:
    """Read the ranks of a sharding group; -1 and 0 are all of them."""
    number = whole(value)
    return number if number > 0 else None


def elements(value: Any) -> float | str:
    """Read a number of elements, written whole or as 5e8; ``auto`` hangs on the model."""
    if value == "auto":
        return "auto"
    number = float(value)
    if number < 0:
        raise ValueError("must be 0 or more")
    return number


def recomputes_all(value: Any) -> bool:
    """Read ``--recompute-granularity``: selective recompute leaves nothing out of a fused attention."""
    return str(value) == "full"


def config_path(value: Any) -> str | None:
    """Read the path of a JSON; a flag without one only switches DeepSpeed on."""
    return None if isinstance(value, bool) else str(value)


KEYS: dict[str, Key] = {
    "train_batch_size": Key("global_batch", batch_number),
    "train_micro_batch_size_per_gpu": Key("micro_batch", batch_number),
    "gradient_accumulation_steps": Key("num_microbatches", batch_number),
    "per_device_train_batch_size": Key("micro_batch", batch_number),
    "zero_optimization.stage": Key("zero_stage", zero_stage),
    "zero_optimization.offload_optimizer.device": Key("offload", text),
    "zero_optimization.offload_param.device": Key("offload_param", text),
    "zero_optimization.mics_shard_size": Key("shard_group_size", group_size),
    "zero_optimization.zero_hpz_partition_size": Key("second_copy_ranks", group_size),
    "zero_optimization.reduce_bucket_size": Key("reduce_bucket", elements),
    "zero_optimization.allgather_bucket_size": Key("gather_bucket", elements),
    "zero_optimization.stage3_max_live_parameters": Key("live_parameters", elements),
    "bf16.enabled": Key("bf16", switch),
    "fp16.enabled": Key("fp16", switch),
    "bf16": Key("bf16", yes),
    "fp16": Key("fp16", yes),
    "pipeline.stages": Key("pipeline_parallel", positive),
    "pipeline.activation_checkpoint_interval": Key("checkpoint_interval", whole),
    "tensor_parallel.autotp_size": Key("tensor_parallel", positive),
    "tensor_parallel.tp_size": Key("tensor_parallel", positive),
    "tensor_parallel.tensor_parallel.tp_size": Key("tensor_parallel", positive),
    "sequence_parallel_size": Key("context_parallel", positive),
    "expert_parallel.autoep_size": Key("expert_parallel", positive),
    "expert_parallel.expert_tensor_parallel_size": Key("expert_tensor_parallel", positive),
    "activation_checkpointing.number_checkpoints": Key("checkpoints", positive),
    "gradient_checkpointing": Key("checkpointing", yes),
    "deepspeed": Key("config_path", config_path),
}

FLAGS: dict[str, Key] = {
    "--tensor-model-parallel-size": Key("tensor_parallel", positive),
    "--pipeline-model-parallel-size": Key("pipeline_parallel", positive),
    "--ds-sequence-parallel-size": Key("context_parallel", positive),
    "--zero-stage": Key("zero_stage", zero_stage),
    "--micro-batch-size": Key("micro_batch", positive),
    "--global-batch-size": Key("global_batch", positive),
    "--seq-length": Key("seq_length", positive),
    "--model-parallel-size": Key("tensor_parallel", positive),
    "--batch-size": Key("micro_batch", positive),
    "--moe-expert-parallel-size": Key("expert_parallel", positive),
    "--checkpoint-activations": Key("checkpointing", yes),
    "--checkpoint-num-layers": Key("recompute_num_layers", whole),
    "--recompute-num-layers": Key("recompute_num_layers", whole),
    "--recompute-method": Key("recompute_method", text),
    "--recompute-granularity": Key("checkpointing", recomputes_all),
    "--bf16": Key("bf16", yes),
    "--fp16": Key("fp16", yes),
    "--num-layers": Key("model.num_layers", positive),
    "--hidden-size": Key("model.hidden_size", positive),
    "--ffn-hidden-size": Key("model.ffn_hidden_size", positive),
    "--num-attention-heads": Key("model.num_heads", positive),
    "--num-key-value-heads": Key("model.num_kv_heads", positive),
    "--num-experts": Key("model.num_experts", positive),
    "--topk": Key("model.experts_per_token", positive),
    "--swiglu": Key("model.gated_mlp", yes),
    "--untie-embeddings-and-output-weights": Key("model.tied_embeddings", fixed(False)),
    "--num_processes": Key("num_gpus", positive),
    "--mixed_precision": Key("bf16", lambda value: str(value) == "bf16"),
    "--zero_stage": Key("zero_stage", zero_stage),
    "--offload_optimizer_device": Key("offload", text),
    "--offload_param_device": Key("offload_param", text),
    **{
        name: Key("config_path", config_path)
        for name in ("--deepspeed", "--deepspeed_config", "--deepspeed-config", "--deepspeed_config_file")
    },
}


@cache
def known_keys() -> frozenset[str]:
    """Keys of ``ds_config.json`` in DeepSpeed 0.19.8; ``section.*`` where any inner key passes."""
    return frozenset(Path(__file__).with_name("keys.txt").read_text(encoding="utf-8").split())


DEPRECATED = {
    "zero_optimization.cpu_offload": "zero_optimization.offload_optimizer.device = cpu",
    "zero_optimization.cpu_offload_param": "zero_optimization.offload_param.device = cpu",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.legacy_stage1": "nothing: it has no effect",
    "fp16.type": "bf16.enabled",
}


def _is_known(key: str) -> bool:
    head, _, rest = key.partition(".")
    return f"{head}.*" in known_keys() or ".".join([head, *rest.split(".")[:1]]).strip(".") in known_keys()


def read(source: str, path: str) -> LaunchFile:
    """Read JSON, or a script with Megatron-DeepSpeed flags."""
    if source.lstrip().startswith("{"):
        settings = json_settings(source, path)
        if any(entry.key == "per_device_train_batch_size" for entry in settings):  # the Trainer's arguments
            return collect("deepspeed", settings, TRAINER | KEYS, lambda key: True)
        return collect("deepspeed", settings, KEYS, _is_known, DEPRECATED)
    found = [
        entry
        for entry in read_flags(source, path)
        if entry.key in LAUNCHER_KEYS or not is_launcher_flag(entry.key)
    ]
    flags = {entry.key for entry in found}
    framework = "megatron-deepspeed" if {"--deepspeed", "--num-layers"} <= flags else "deepspeed"
    return collect(framework, found, FLAGS | TRAINER_FLAGS | LAUNCHER_KEYS, lambda key: True)


def to_plan(launch: LaunchFile, request: PlanRequest) -> Plan:
    """Return the plan that DeepSpeed would run with these settings on the request's cluster.

    Raises
    ------
    BadInput
        Degrees and batch contradict each other.
    """
    t, c, p = (launch.get(name, 1) for name in ("tensor_parallel", "context_parallel", "pipeline_parallel"))
    d, b, m = _batch(launch, request, t * c * p)
    zero, offload = sharding_of(launch)
    checkpointed = any(launch.get(name, False) for name in ("checkpointing", "checkpointing_by_trainer"))
    checkpointed = checkpointed or "checkpoints" in launch.fields
    recompute = "full" if checkpointed or launch.get("checkpoint_interval", 0) else "none"
    plan = make_plan(
        tensor_parallel=t,
        pipeline_parallel=p,
        schedule=schedule_of(p, 1),
        data_parallel=d,
        context_parallel=c,
        context_parallel_kind=launch.get("context_parallel_kind", "all_to_all") if c > 1 else "ring",
        expert_parallel=launch.get("expert_parallel", 1),
        expert_tensor_parallel=implied_expert_tensor(
            request, launch.get("expert_parallel", 1), t, launch.get("expert_tensor_parallel", 1)
        ),
        zero_stage=zero,
        shard_group_size=launch.get("shard_group_size", d * c) if zero == 3 else d * c if zero else 1,
        micro_batch=b,
        num_microbatches=m,
        recompute=recompute,
        offload=offload,
        precision=_precision(launch),
    )
    return plan.model_copy(update={"stages": even_stages(request.model, plan)})


AWAY = frozenset({"cpu", "nvme"})
"""Devices that are not the GPU."""


def weights_alone_away(launch: LaunchFile) -> Found | None:
    """Return the setting that sends weights to the host while the optimizer stays on the GPU.

    No plan says that; both stay in the one that is priced.
    """
    alone = launch.get("offload_param", "none") in AWAY and launch.get("offload", "none") not in AWAY
    return launch.fields["offload_param"] if alone and _is_read(launch) else None


def _is_read(launch: LaunchFile) -> bool:
    path = launch.get("config_path")
    is_there = path is None or Path(path).name in {Path(name).name for name in launch.paths}
    return is_there or "zero_stage" in launch.fields


def sharding_of(launch: LaunchFile) -> tuple[int, str]:
    """ZeRO stage and what is offloaded; a JSON that is not there says it by its name (``ds_z3_offload``).

    Published files of that name send weights along with the optimizer under ZeRO-3 (LLaMA-Factory, axolotl's
    ``zero3_bf16_cpuoffload_all``), or weights alone (``..._params``), which no plan says.
    """
    if _is_read(launch):
        kind = "parameters" if launch.get("offload_param", "none") in AWAY else "optimizer"
        return launch.get("zero_stage", 0), kind if launch.get("offload", "none") in AWAY else "none"
    path = launch.get("config_path")
    found = re.search(r"(?:z|zero|stage)[-_]?([0-3])(?![0-9])", Path(path).name.lower())
    if found is None:
        raise BadInput(f"the settings stand in {path}: name it together with the script")
    stage = int(found.group(1))
    kind = "parameters" if stage == 3 else "optimizer"
    is_away = "offload" in path and "offload_params" not in path
    return stage, kind if is_away or launch.get("offload", "none") in AWAY else "none"


def _precision(launch: LaunchFile) -> str:
    """bf16 before fp16; bf16 as well where all that is said is left to Hugging Face."""
    said = {"bf16", "fp16"} & set(launch.fields)
    left_open = any(entry.key in {"bf16.enabled", "fp16.enabled"} for entry in launch.found)
    if launch.get("bf16", False) or (left_open and not said):
        return "bf16"
    return "fp16" if launch.get("fp16", False) else "fp32"


def _batch(launch: LaunchFile, request: PlanRequest, others: int) -> tuple[int, int, int]:
    """Replicas, micro-batch and accumulation; two of the three batch settings give the third."""
    total, b, m = (launch.get(name) for name in ("global_batch", "micro_batch", "num_microbatches"))
    num_gpus = launch.get("num_gpus", request.cluster.num_gpus)
    if num_gpus % others:
        raise BadInput(f"{num_gpus} GPUs are not a multiple of tensor x sequence x pipeline = {others}")
    d = num_gpus // others
    total = total or (b * m * d if b and m else request.workload.global_batch)
    b = b or (total // (m * d) if m else max(1, total // d))
    m = m or total // (b * d)
    if total != b * m * d:
        made = f"micro-batch {b} x accumulation {m} x {d} replicas = {b * m * d}"
        raise BadInput(f"train_batch_size {total} is not {made} ({_other_batches(total, b, d)})")
    return d, b, m


def _other_batches(total: int, micro_batch: int, replicas: int) -> str:
    """Accumulation that makes up the batch, else the batches next to it that some accumulation does."""
    step = max(micro_batch, 1) * replicas
    if total % step == 0:
        return f"accumulation {total // step} makes it up"
    below = total // step * step
    return f"nearest batch: {' and '.join(str(batch) for batch in (below, below + step) if batch)}"
