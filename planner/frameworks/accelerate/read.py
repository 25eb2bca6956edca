"""Read Accelerate's YAML, the training arguments beside it, and scripts with ``accelerate launch``."""

from __future__ import annotations

from collections.abc import Iterator

from planner.errors import BadInput
from planner.frameworks.accelerate.write import PRECISIONS, ROTATIONS
from planner.frameworks.deepspeed.read import batch_number
from planner.frameworks.dialects.common import TRAINER
from planner.frameworks.launch import (
    Found,
    Key,
    LaunchFile,
    collect,
    even_stages,
    implied_expert_tensor,
    make_plan,
    offload_named,
    one_of,
    positive,
    text,
    whole,
    yes,
)
from planner.frameworks.launcher_keys import LAUNCHER_KEYS, TRAINER_FLAGS
from planner.frameworks.shell import read_flags
from planner.frameworks.text_formats import json_settings, yaml_settings
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

_P, _F = "parallelism_config.parallelism_config_", "fsdp_config.fsdp_"


def _reshards(value: object) -> bool | str:
    """Version 2's switch; version 1 takes the name of a strategy in its place."""
    word = str(value).upper()
    return word if word in STRATEGIES else yes(value)


STRATEGIES = {
    "FULL_SHARD": 3,
    "SHARD_GRAD_OP": 2,
    "NO_SHARD": 0,
    "HYBRID_SHARD": 3,
    "HYBRID_SHARD_ZERO2": 2,
    "_HYBRID_SHARD_ZERO2": 2,
}
"""ZeRO stage of each of FSDP 1's strategies, in the order of its enumeration."""
KEYS: dict[str, Key] = {
    "distributed_type": Key("distributed_type", text),
    "num_processes": Key("num_gpus", positive),
    "mixed_precision": Key("mixed_precision", one_of(*PRECISIONS.values())),
    _F + "reshard_after_forward": Key("reshard", _reshards),
    _F + "activation_checkpointing": Key("checkpointing_by_engine", yes),
    _F + "offload_params": Key("offload", yes),
    "gradient_checkpointing_kwargs.offload": Key("activation_offload", yes),
    "activation_offloading": Key("activation_offload", yes),
    _F + "version": Key("fsdp_version", text),
    _F + "sharding_strategy": Key("sharding", text),
    _P + "dp_replicate_size": Key("replicate_degree", positive),
    _P + "dp_shard_size": Key("shard_degree", positive),
    _P + "tp_size": Key("tensor_parallel", positive),
    _P + "cp_size": Key("context_parallel", positive),
    _P + "cp_comm_strategy": Key("rotation", one_of(*ROTATIONS.values())),
    "per_device_train_batch_size": Key("micro_batch", positive),
    "gradient_accumulation_steps": Key("num_microbatches", positive),
    "gradient_checkpointing": Key("checkpointing_by_trainer", yes),
    "--config_file": Key("config_file", text),
    "--config-file": Key("config_file", text),
    "bf16": Key("bf16", yes),
    "fp16": Key("fp16", yes),
}

_D, _M = "deepspeed_config.", "megatron_lm_config.megatron_lm_"


def _is_bf16(value: object) -> bool:
    return str(value) == "bf16"


def _full_when(value: object) -> str | None:
    return "selective" if yes(value) else None


_OF_EVERY_ENGINE: dict[str, Key] = {
    "num_processes": KEYS["num_processes"],
    "mixed_precision": Key("bf16", _is_bf16),
}
ENGINES: dict[str, tuple[str, dict[str, Key]]] = {
    "DEEPSPEED": (
        "deepspeed",
        {
            **_OF_EVERY_ENGINE,
            _D + "deepspeed_config_file": Key("config_path", text),
            _D + "zero_stage": Key("zero_stage", whole),
            _D + "gradient_accumulation_steps": Key("num_microbatches", batch_number),
            _D + "offload_optimizer_device": Key("offload", text),
            _D + "offload_param_device": Key("offload_param", text),
            _P + "sp_size": Key("context_parallel", positive),
        },
    ),
    "MEGATRON_LM": (
        "megatron",
        {
            **_OF_EVERY_ENGINE,
            _M + "tp_degree": Key("tensor_parallel", positive),
            _M + "pp_degree": Key("pipeline_parallel", positive),
            _M + "num_micro_batches": Key("num_microbatches", positive),
            _M + "sequence_parallelism": Key("sequence_parallel", yes),
            _M + "use_distributed_optimizer": Key("distributed_optimizer", yes),
            _M + "recompute_activations": Key("recompute_granularity", _full_when),
        },
    ),
}
"""Engines other than Accelerate's own that its file can start: the framework that runs, and its settings."""

TOP_LEVEL = frozenset(
    {
        "compute_environment", "debug", "distributed_type", "mixed_precision", "use_cpu", "num_processes",
        "machine_rank", "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend",
        "same_network", "main_training_function", "enable_cpu_affinity", "fp8_config", "deepspeed_config",
        "fsdp_config", "parallelism_config", "megatron_lm_config", "ipex_config", "mpirun_config",
        "downcast_bf16", "tpu_name", "tpu_zone", "command_file", "commands", "command", "tpu_vm", "tpu_env",
        "tpu_use_cluster", "tpu_use_sudo", "dynamo_config", "max_grad_norm",
    }
)  # fmt: skip
"""Keys that Accelerate's file may have; it raises on any other."""

REST = -1
"""A replicate degree of all GPUs that the other degrees leave."""

DEPRECATED = {
    _F + "sharding_strategy": "fsdp_reshard_after_forward (FSDP2)",
    _F + "backward_prefetch": "nothing: FSDP2 prefetches by itself",
    _F + "forward_prefetch": "nothing: FSDP2 refuses it",
    _F + "use_orig_params": "nothing: FSDP2 always does",
    _F + "sync_module_states": "nothing: FSDP2 loads on rank 0 and broadcasts by itself",
}


def read(source: str, path: str) -> LaunchFile:
    """Read the YAML, the JSON of training arguments, or a script."""
    if "accelerate launch" in source:
        trainer = TRAINER_FLAGS | {"--gradient_checkpointing": KEYS["gradient_checkpointing"]}
        return collect("accelerate", _flags(source, path), KEYS | trainer | LAUNCHER_KEYS, lambda key: True)
    if source.lstrip().startswith("{"):  # the Trainer's arguments, of which there are hundreds
        return collect("accelerate", json_settings(source, path), TRAINER | KEYS, lambda key: True)
    found = yaml_settings(source, path)
    engine = next((str(entry.value).upper() for entry in found if entry.key == "distributed_type"), "")
    if engine in ENGINES:
        framework, keys = ENGINES[engine]
        return collect(framework, found, keys, lambda key: key.split(".")[0] in TOP_LEVEL)
    old_is_right = any(entry.key == _F + "version" and str(entry.value) == "1" for entry in found)
    deprecated = {} if old_is_right else DEPRECATED
    return collect("accelerate", found, KEYS, lambda key: key.split(".")[0] in TOP_LEVEL, deprecated)


def _flags(source: str, path: str) -> Iterator[Found]:
    """The flags of ``accelerate launch`` under the names of its file, and those of the training script."""
    for entry in read_flags(source, path):
        name = entry.key.removeprefix("--").replace("-", "_")
        prefix = next((prefix for prefix in (_P, _F) if name.startswith(prefix.split(".")[1])), None)
        key = f"{prefix.split('.')[0]}.{name}" if prefix else name if name in KEYS else entry.key
        value = entry.value[0] if isinstance(entry.value, list) else entry.value
        if name in {"use_fsdp", "fsdp"}:
            key, value = "distributed_type", "FSDP"
        yield Found(key, value, path, entry.line)


def to_plan(launch: LaunchFile, request: PlanRequest) -> Plan:
    """Return the plan that Accelerate would run with these settings on the request's cluster.

    Raises
    ------
    BadInput
        The degrees do not multiply to the processes.
    """
    if "config_file" in launch.fields and "distributed_type" not in launch.fields:
        raise BadInput(f"the settings stand in {launch.get('config_file')}: name it together with the script")
    num_gpus = launch.get("num_gpus", request.cluster.num_gpus)
    t, c = launch.get("tensor_parallel", 1), launch.get("context_parallel", 1)
    sharded = (
        launch.get("distributed_type", "FSDP" if "shard_degree" in launch.fields else "MULTI_GPU") == "FSDP"
    )
    rep = launch.get("replicate_degree", _nodes_apart(launch, request, num_gpus) if sharded else 1)
    if rep == REST:
        rep = max(1, num_gpus // (launch.get("shard_degree", 1) * t * c))
    if num_gpus % (rep * t * c):
        raise BadInput(f"{num_gpus} processes are not a multiple of dp_replicate x tp x cp = {rep * t * c}")
    shard = launch.get("shard_degree", num_gpus // (rep * t * c)) if sharded else num_gpus // (rep * t * c)
    if rep * shard * t * c != num_gpus:
        raise BadInput(
            f"dp_replicate {rep} x dp_shard {shard} x cp {c} x tp {t} is {rep * shard * t * c}, "
            f"not {num_gpus} processes{_made_whole(num_gpus, rep, shard, t * c)}"
        )
    alone = shard * c == 1 and (num_gpus == 1 or not request.framework.limits.sharding_needs_replicas)
    zero = _zero_stage(launch) if sharded and not alone else 0
    d, b = rep * shard, launch.get("micro_batch", 1)
    switches = ("checkpointing", "checkpointing_by_trainer", "checkpointing_by_engine")
    checkpointed = any(launch.get(name, False) for name in switches)
    kinds = {word: kind for kind, word in ROTATIONS.items()}
    plan = make_plan(
        tensor_parallel=t,
        data_parallel=d,
        context_parallel=c,
        context_parallel_kind=kinds[launch.get("rotation", "allgather")] if c > 1 else "ring",
        expert_tensor_parallel=implied_expert_tensor(request, 1, t),
        zero_stage=zero,
        shard_group_size=shard * c if zero else 1,
        micro_batch=b,
        num_microbatches=launch.get("num_microbatches", max(1, request.workload.global_batch // (d * b))),
        recompute="full" if checkpointed else "none",
        offload=offload_named(launch.get("offload", False), launch.get("activation_offload", False)),
        precision=_precision(launch),
    )
    return plan.model_copy(update={"stages": even_stages(request.model, plan)})


def _made_whole(num_gpus: int, rep: int, shard: int, others: int) -> str:
    """Which one degree, changed alone, fills the processes."""
    beside = {"dp_replicate": shard * others, "dp_shard": rep * others}
    said = [f"{name} {num_gpus // rest}" for name, rest in beside.items() if num_gpus % rest == 0]
    return f"; {' or '.join(said)} fills them" if said else ""


def _zero_stage(launch: LaunchFile) -> int:
    """FSDP's stage: version 1 names a strategy, or its number, and version 2 whether it reshards."""
    named = _strategy(launch)
    return STRATEGIES[named] if named is not None else 3 if launch.get("reshard", True) else 2


def _strategy(launch: LaunchFile) -> str | None:
    """Strategy of version 1 that the files name, None where they name none."""
    said = str(launch.get("sharding", launch.get("reshard", ""))).upper()
    names = list(STRATEGIES)
    if said.isdecimal() and 1 <= int(said) <= len(names):
        return names[int(said) - 1]
    return said if said in STRATEGIES else None


def _nodes_apart(launch: LaunchFile, request: PlanRequest, num_gpus: int) -> int:
    """Replicas of hybrid sharding: one a node."""
    if "HYBRID" not in (_strategy(launch) or ""):
        return 1
    return max(num_gpus // request.cluster.gpus_per_node, 1)


def _precision(launch: LaunchFile) -> str:
    """What is computed in: without mixed precision the format of the weights as they are loaded."""
    words = {word: precision for precision, word in PRECISIONS.items()}
    own = "bf16" if launch.get("half_weights", False) else "fp32"
    if "mixed_precision" in launch.fields:
        said = words[launch.get("mixed_precision")]
        return own if said == "fp32" else said
    return "bf16" if launch.get("bf16", False) else "fp16" if launch.get("fp16", False) else own
