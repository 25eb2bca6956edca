"""Read torchtitan settings: TOML (0.2.2), command line, or the constants of a registry module (0.3)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from planner.errors import BadInput
from planner.frameworks.launch import (
    Found,
    Key,
    LaunchFile,
    check_stages,
    collect,
    degree,
    even_stages,
    implied_expert_tensor,
    make_plan,
    microbatches,
    one_of,
    positive,
    stages_of,
    text,
    whole,
    yes,
)
from planner.frameworks.launcher_keys import LAUNCHER_KEYS, is_launcher_flag
from planner.frameworks.shell import read_flags
from planner.frameworks.text_formats import python_literals, toml_settings
from planner.frameworks.torchtitan.profile import MEMORY
from planner.frameworks.torchtitan.registry import with_registry
from planner.frameworks.torchtitan.settings import RESHARD, SCHEDULES
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

SCHEDULE_NAMES = {name.lower(): schedule for schedule, name in SCHEDULES.items()} | {
    "interleaved_1f1b": "interleaved",
    "flexible_interleaved_1f1b": "interleaved",
}
"""Names in lower case, those of 2024's releases among them."""
ROTATIONS = {"alltoall": "ring", "allgather": "all_gather"}


def mapped(words: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a reader of one of a few words, each with our value."""

    def convert(value: Any) -> Any:
        word = str(value).lower()
        if word not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return words[word]

    return convert


def layer_counts(value: Any) -> list[int]:
    """Layers of every stage of ``module_fqns_per_model_part``."""
    if not isinstance(value, list) or not all(isinstance(stage, list) for stage in value):
        raise ValueError("must be a list of lists of module names")
    return [sum(str(name).startswith("layers.") for name in stage) for stage in value]


def converters(value: Any) -> str | None:
    """Number format of the converters of 0.2.2."""
    names = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "mxfp8" if ".mx" in names else "fp8" if "float8" in names else None


def chunked(value: Any) -> dict[str, float]:
    """Loss bytes of ``ChunkedLossWrapper``: logits of one chunk, whose backward pass follows at once."""
    count = positive(value)
    parts = {"loss_peak_bytes": MEMORY.loss_peak_bytes, "parallel_loss_bytes": MEMORY.parallel_loss_bytes}
    return {"loss_saved_bytes": 0.0} | {name: size / count for name, size in parts.items()}


def _first(value: Any) -> str:
    """A name without the arguments that a script passes on behind it."""
    return str(value[0] if isinstance(value, list) and value else value)


KEYS: dict[str, Key] = {
    "parallelism.data_parallel_replicate_degree": Key("replicate_degree", positive),
    "parallelism.data_parallel_shard_degree": Key("shard_degree", degree),
    "parallelism.fsdp_reshard_after_forward": Key("reshard", one_of("default", "always", "never")),
    "parallelism.tensor_parallel_degree": Key("tensor_parallel", positive),
    "parallelism.enable_sequence_parallel": Key("sequence_parallel", yes),
    "parallelism.pipeline_parallel_degree": Key("pipeline_parallel", positive),
    "parallelism.pipeline_parallel_schedule": Key("schedule", mapped(SCHEDULE_NAMES)),
    "parallelism.pipeline_parallel_microbatch_size": Key("pipeline_microbatch", positive),
    "parallelism.pipeline_parallel_layers_per_stage": Key("layers_per_stage", positive),
    "parallelism.pipeline_parallel_first_stage_less_layers": Key("first_less", whole),
    "parallelism.pipeline_parallel_last_stage_less_layers": Key("last_less", whole),
    "parallelism.module_fqns_per_model_part": Key("layout", layer_counts),
    "parallelism.context_parallel_degree": Key("context_parallel", positive),
    "parallelism.context_parallel_rotate_method": Key("context_parallel_kind", mapped(ROTATIONS)),
    "parallelism.expert_parallel_degree": Key("expert_parallel", positive),
    "parallelism.expert_tensor_parallel_degree": Key("expert_tensor_parallel", positive),
    "training.local_batch_size": Key("local_batch", positive),
    "training.global_batch_size": Key("global_batch", whole),
    "training.seq_len": Key("seq_length", positive),
    "training.max_context_length": Key("seq_length", positive),
    "training.num_tokens_per_microbatch_per_dp_rank": Key("micro_batch_tokens", positive),
    "training.num_tokens_per_train_step": Key("step_tokens", whole),
    "parallelism.num_pp_microbatches": Key("pipeline_accumulation", positive),
    "training.mixed_precision_param": Key("dtype", text),
    "training.enable_cpu_offload": Key("offload", yes),
    "activation_checkpoint.mode": Key("recompute", mapped({w: w for w in ("none", "selective", "full")})),
    "ACTIVATION_CHECKPOINT": Key("recompute", mapped({w: w for w in ("none", "selective", "full")})),
    "PRECISION": Key("precision", text),
    "model.name": Key("named_family", text),
    "model.flavor": Key("named_flavor", text),
    "config": Key("named_model", _first),
    "job.config_file": Key("config_file", text),
    "model.converters": Key("low_precision", converters),
    "loss.num_chunks": Key("memory", chunked),
    "MODEL.n_layers": Key("model.num_layers", positive),
    "MODEL.dim": Key("model.hidden_size", positive),
    "MODEL.n_heads": Key("model.num_heads", positive),
    "MODEL.n_kv_heads": Key("model.num_kv_heads", positive),
    "MODEL.head_dim": Key("model.head_dim", positive),
    "MODEL.hidden_dim": Key("model.ffn_hidden_size", positive),
    "MODEL.vocab_size": Key("model.vocab_size", positive),
    "MODEL.num_experts": Key("model.num_experts", positive),
    "MODEL.top_k": Key("model.experts_per_token", positive),
    "MODEL.moe_hidden_dim": Key("model.expert_ffn_hidden_size", positive),
}
BATCHES = {"local_batch", "global_batch", "micro_batch_tokens", "step_tokens"}
"""Fields that say a batch: in sequences, and in tokens since the releases of summer 2026."""
SECTIONS = {"PARALLELISM": "parallelism", "TRAINING": "training"}
"""Constants of a registry module and the section they stand for."""

DEPRECATED = {
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.batch_size": "training.local_batch_size",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.context_parallel_rotate_method": "parallelism.context_parallel_rotate_method",
    "parallelism.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.compile": "compile.enable",
    **{
        f"float8.{name}": f"quantize.linear.float8.{name}"
        for name in (
            "enable_fsdp_float8_all_gather",
            "precompute_float8_dynamic_scale_for_fsdp",
            "recipe_name",
            "filter_fqns",
        )
    },
}
"""Names of older releases, whose values mean the same under the new name."""
GONE = {
    f"{section}.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatch_size"
    for section in ("experimental", "parallelism")
}
"""Names of older releases whose values mean something else: micro-batches of a step, not their size."""
KEYS |= {old: KEYS[new] for old, new in DEPRECATED.items() if new in KEYS}
KEYS |= {old: Key("pipeline_microbatches", positive) for old in GONE}


@cache
def known_keys() -> frozenset[str]:
    """Keys of 0.2.2 and of the parallelism, training, compile, comm and debug sections of 0.3.0."""
    return frozenset(Path(__file__).with_name("keys.txt").read_text(encoding="utf-8").split())


def _is_known(key: str) -> bool:
    return key in known_keys() or is_launcher_flag("--" + key) or key.split(".")[0] in {"PRECISION", "MODEL"}


def read(source: str, path: str) -> LaunchFile:
    """Read a TOML file, a script with torchtitan's flags, or a registry module."""
    if re.search(r"^PARALLELISM\s*=", source, re.MULTILINE):
        found = [_renamed(entry) for entry in python_literals(source, path)]
    elif re.search(r"(?m)^\s*\[[a-z_.]+\]", source) and not re.search(r"--(parallelism|training)\.", source):
        found = toml_settings(source, path)
    else:
        found = with_registry([*_flags(source, path), *_subcommand(source, path)], DEPRECATED)
    launchers = {name.removeprefix("--"): key for name, key in LAUNCHER_KEYS.items()}
    return collect("torchtitan", found, KEYS | launchers, _is_known, DEPRECATED | GONE)


def _renamed(entry: Found) -> Found:
    head, _, rest = entry.key.partition(".")
    key = f"{SECTIONS[head]}.{rest}" if head in SECTIONS else entry.key
    return Found(key, entry.value, entry.path, entry.line)


def _flags(source: str, path: str) -> list[Found]:
    flags = [
        Found(entry.key.removeprefix("--").replace("-", "_"), _own_value(entry.value), path, entry.line)
        for entry in read_flags(source, path)
        if entry.key in {"--config", *LAUNCHER_KEYS} or not is_launcher_flag(entry.key)
    ]
    launchers = {name.removeprefix("--").replace("-", "_") for name in LAUNCHER_KEYS}
    return [entry for entry in flags if "." in entry.key or entry.key in {"config", *launchers}]


def _own_value(value: Any) -> Any:
    """A flag's value without a subcommand (``activation-checkpoint:full``) behind it."""
    if not isinstance(value, list):
        return value
    own = [word for word in value if not re.fullmatch(r"[a-z-]+:[\w-]+", str(word))]
    return own[0] if len(own) == 1 else own


def _subcommand(source: str, path: str) -> list[Found]:
    """``activation-checkpoint:full`` at the end of a command line; variables before ``run_train.sh``."""
    patterns = {
        "activation_checkpoint.mode": r"\bactivation-checkpoint:([A-Za-z_-]+)",
        "job.config_file": r"(?m)^[^#\n]*\bCONFIG_FILE=[\"']?([\w./${}-]+\.toml)",
        "config": r"(?m)^[^#\n]*\bCONFIG=[\"']?(\w+)[\"']?\b[^#\n]*\brun_train\.sh",
        "nproc_per_node": r"(?m)^[^#\n]*\bNGPU=[\"']?(\d+)[\"']?\b[^#\n]*\brun_train\.sh",
    }
    found = {key: re.search(pattern, source) for key, pattern in patterns.items()}
    return [
        Found(key, match.group(1), path, source.count("\n", 0, match.start(1)) + 1)
        for key, match in found.items()
        if match is not None
    ]


def to_plan(launch: LaunchFile, request: PlanRequest) -> Plan:
    """Return the plan that torchtitan would run with these settings on the request's cluster.

    Raises
    ------
    BadInput
        The degrees do not multiply to the GPUs, or the batch does not divide.
    """
    _ask_for_the_batch(launch)
    t, c, p = (launch.get(name, 1) for name in ("tensor_parallel", "context_parallel", "pipeline_parallel"))
    rep, shard = _data_degrees(launch, request, t * c * p)
    d = rep * shard
    zero, group = _sharding(launch, shard * c, p)
    b, local, global_batch = _batches(launch, request.workload.seq_length, p)
    if global_batch <= 0:
        global_batch = local * d
    schedule = launch.get("schedule", "1f1b") if p > 1 else "none"
    counts, v = _layout(launch, request, p, schedule)
    plan = make_plan(
        tensor_parallel=t,
        pipeline_parallel=p,
        virtual_stages=v,
        schedule=schedule,
        data_parallel=d,
        context_parallel=c,
        context_parallel_kind=launch.get("context_parallel_kind", "all_gather") if c > 1 else "ring",
        expert_parallel=launch.get("expert_parallel", 1),
        expert_tensor_parallel=implied_expert_tensor(
            request, launch.get("expert_parallel", 1), t, launch.get("expert_tensor_parallel", 1)
        ),
        zero_stage=zero,
        shard_group_size=group,
        sequence_parallel=launch.get("sequence_parallel", True) and t > 1,
        micro_batch=b,
        num_microbatches=microbatches(global_batch, d, b),
        recompute=launch.get("recompute", "selective"),
        offload="parameters" if launch.get("offload", False) else "none",
        precision=_precision(launch),
    )
    stages = stages_of(counts, plan) if counts else even_stages(request.model, plan)
    return plan.model_copy(update={"stages": stages})


def _ask_for_the_batch(launch: LaunchFile) -> None:
    """Raise ``BadInput`` where the batch stands in a file or a configuration that is only named."""
    if BATCHES & set(launch.fields):
        return
    if "config_file" in launch.fields:
        raise BadInput(f"the batch stands in {launch.get('config_file')}: name it together with the script")
    named = launch.fields.get("named_model")
    if named is not None and named.key == "config":
        raise BadInput(
            f"the batch stands in the configuration {named.value}: "
            "add --training.local_batch_size and --training.seq_len"
        )


def _batches(launch: LaunchFile, seq_length: int, p: int) -> tuple[int, int, int]:
    """Sequences of a micro-batch, of a replica's pass, and of a step (-1: one pass of every replica)."""
    if {"micro_batch_tokens", "step_tokens"} & set(launch.fields):
        b = _rows(launch.get("micro_batch_tokens", 16384), seq_length)
        step = launch.get("step_tokens", -1)
        count = launch.get("pipeline_accumulation", 1) if p > 1 else 1
        return b, b * count, _rows(step, seq_length) if step > 0 else -1
    local = launch.get("local_batch", 8)
    return _pipeline_micro_batch(launch) if p > 1 else local, local, launch.get("global_batch", -1)


def _rows(tokens: int, seq_length: int) -> int:
    """Whole sequences of so many tokens."""
    if tokens % seq_length:
        below, above = tokens // seq_length * seq_length, -(-tokens // seq_length) * seq_length
        nearest = f"{below} or {above}" if below else str(above)
        raise BadInput(f"{tokens} tokens are not whole sequences of {seq_length}: {nearest} are")
    return tokens // seq_length


def _pipeline_micro_batch(launch: LaunchFile) -> int:
    """Sequences of a pipeline's micro-batch: a setting of its own, or the local batch over their number."""
    count, local = launch.get("pipeline_microbatches"), launch.get("local_batch", 8)
    if count is None:
        return int(launch.get("pipeline_microbatch", 1))
    if local % count:
        raise BadInput(f"a local batch of {local} sequences does not split into {count} micro-batches")
    return int(local // count)


def _data_degrees(launch: LaunchFile, request: PlanRequest, others: int) -> tuple[int, int]:
    rep, shard = launch.get("replicate_degree", 1), launch.get("shard_degree", -1)
    if shard == -1:
        num_gpus = launch.get("num_gpus", request.cluster.num_gpus)
        if num_gpus % (rep * others):
            raise BadInput(f"{num_gpus} GPUs are not a multiple of replicate x cp x tp x pp = {rep * others}")
        shard = num_gpus // (rep * others)
    return rep, shard


def _sharding(launch: LaunchFile, shard_ranks: int, p: int) -> tuple[int, int]:
    """ZeRO stage and shard group: resharding is on by default, and off with a pipeline."""
    stages = {word: stage for stage, word in RESHARD.items()}
    reshard = launch.get("reshard", "default")
    default = 0 if shard_ranks == 1 else 2 if p > 1 else 3
    zero = stages.get(reshard, default)
    return zero, shard_ranks if zero else 1


def _precision(launch: LaunchFile) -> str:
    if "precision" in launch.fields:
        return str(launch.get("precision"))
    return launch.get("low_precision") or ("fp32" if launch.get("dtype", "bfloat16") == "float32" else "bf16")


def _stages_that_do(total: int, p: int, said: int, least_chunks: int) -> str:
    """Layers a stage, the nearest first, whose stages fill the ranks in whole chunks."""
    counts = {each: -(-total // each) for each in range(1, total + 1)}
    valid = [each for each, stages in counts.items() if stages % p == 0 and stages // p >= least_chunks]
    if least_chunks == 1:  # one stage a rank
        valid = [each for each in valid if counts[each] == p]
    nearest = sorted(valid, key=lambda each: abs(each - said))[:4]
    return f"; layers_per_stage {', '.join(map(str, nearest))} would do" if nearest else ""


def _layout(launch: LaunchFile, request: PlanRequest, p: int, schedule: str) -> tuple[list[int] | None, int]:
    """Layers of every stage where the file says them, and chunks per rank.

    By itself torchtitan counts the embedding and the head as so many layers and spreads all evenly.
    """
    if p == 1:
        return None, 1
    if "layout" in launch.fields:
        counts: list[int] = launch.get("layout")
        if len(counts) % p:
            raise BadInput(f"{len(counts)} model parts are not a multiple of {p} pipeline ranks")
        return counts, len(counts) // p
    first, last = launch.get("first_less", 1), launch.get("last_less", 1)
    total = request.model.num_layers + first + last
    v = 1 if schedule in {"gpipe", "1f1b"} else 2
    if "layers_per_stage" in launch.fields:
        stages = -(-total // launch.get("layers_per_stage"))
        rounding = {"up": p - 1, "down": 0}.get(launch.get("round_stages"))
        if rounding is not None:
            stages = max((stages + rounding) // p, 1) * p
        if stages % p:
            raise BadInput(
                f"{request.model.num_layers} layers in stages of {launch.get('layers_per_stage')} make "
                f"{stages} stages, not a multiple of {p} pipeline ranks"
                + _stages_that_do(total, p, launch.get("layers_per_stage"), 1 if v == 1 else 2)
            )
        v = stages // p
    check_stages(p, v)
    base, extra = divmod(total, p * v)
    counts = [base + (index < extra) for index in range(p * v)]
    counts[0] -= first
    counts[-1] -= last
    return counts, v
