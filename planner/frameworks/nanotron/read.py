"""Read nanotron's YAML."""

from __future__ import annotations

from planner.frameworks.launch import (
    Key,
    LaunchFile,
    collect,
    even_stages,
    make_plan,
    one_of,
    positive,
    stages_of,
    whole,
    yes,
)
from planner.frameworks.nanotron.split import split_layers
from planner.frameworks.text_formats import yaml_settings
from planner.spec.plan import Plan
from planner.spec.request import PlanRequest

_M = "model.model_config."

KEYS: dict[str, Key] = {
    "parallelism.dp": Key("data_parallel", positive),
    "parallelism.pp": Key("pipeline_parallel", positive),
    "parallelism.tp": Key("tensor_parallel", positive),
    "parallelism.context_parallel_size": Key("context_parallel", positive),
    "parallelism.expert_parallel_size": Key("expert_parallel", positive),
    "parallelism.pp_engine": Key("engine", one_of("1f1b", "afab")),
    "parallelism.tp_mode": Key("mode", one_of("all_reduce", "reduce_scatter")),
    "parallelism.recompute_layer": Key("recompute", yes),
    "optimizer.zero_stage": Key("zero_stage", whole),
    "tokens.micro_batch_size": Key("micro_batch", positive),
    "tokens.batch_accumulation_per_replica": Key("num_microbatches", positive),
    "tokens.sequence_length": Key("seq_length", positive),
    _M + "num_hidden_layers": Key("model.num_layers", positive),
    _M + "hidden_size": Key("model.hidden_size", positive),
    _M + "intermediate_size": Key("model.ffn_hidden_size", positive),
    _M + "num_attention_heads": Key("model.num_heads", positive),
    _M + "num_key_value_heads": Key("model.num_kv_heads", positive),
    _M + "vocab_size": Key("model.vocab_size", positive),
    _M + "tie_word_embeddings": Key("model.tied_embeddings", yes),
}

SECTIONS: dict[str, frozenset[str] | None] = {
    "parallelism": frozenset(
        {
            "dp", "pp", "tp", "pp_engine", "tp_mode", "tp_linear_async_communication", "recompute_layer",
            "tp_recompute_allgather", "expert_parallel_size", "context_parallel_size",
        }
    ),
    "tokens": frozenset(
        {
            "sequence_length", "train_steps", "micro_batch_size", "batch_accumulation_per_replica",
            "val_check_interval", "limit_val_batches", "limit_test_batches",
        }
    ),
    "optimizer": frozenset(
        {
            "zero_stage", "weight_decay", "clip_grad", "accumulate_grad_in_fp32", "learning_rate_scheduler",
            "optimizer_factory", "weight_decay_exclude_named_params",
        }
    ),
    "general": None, "model": None, "tokenizer": None, "checkpoints": None, "logging": None,
    "data_stages": None, "profiler": None, "lighteval": None, "s3_upload": None, "metrics_logging": None,
}  # fmt: skip
"""Sections of the schema; where the planner reads a section, its keys too (nanotron refuses unknown ones)."""


def _is_known(key: str) -> bool:
    head, _, rest = key.partition(".")
    if head not in SECTIONS:
        return False
    names = SECTIONS[head]
    return names is None or rest.split(".")[0] in names


def read(source: str, path: str) -> LaunchFile:
    """Read the YAML."""
    return collect("nanotron", yaml_settings(source, path), KEYS, _is_known)


def to_plan(launch: LaunchFile, request: PlanRequest) -> Plan:
    """Return the plan that nanotron would run with these settings."""
    p = launch.get("pipeline_parallel", 1)
    t, c, d = (launch.get(name, 1) for name in ("tensor_parallel", "context_parallel", "data_parallel"))
    zero = min(launch.get("zero_stage", 0), 1)
    schedule = {"1f1b": "1f1b", "afab": "gpipe"}[launch.get("engine", "1f1b")] if p > 1 else "none"
    plan = make_plan(
        tensor_parallel=t,
        pipeline_parallel=p,
        schedule=schedule,
        data_parallel=d,
        context_parallel=c,
        expert_parallel=launch.get("expert_parallel", 1),
        zero_stage=zero,
        shard_group_size=d * c if zero else 1,
        sequence_parallel=launch.get("mode", "all_reduce") == "reduce_scatter" and t > 1,
        micro_batch=launch.get("micro_batch", 1),
        num_microbatches=launch.get("num_microbatches", 1),
        recompute="full" if launch.get("recompute", False) else "none",
        precision="bf16",
    )
    if p == 1:
        return plan.model_copy(update={"stages": even_stages(request.model, plan)})
    return plan.model_copy(update={"stages": stages_of(split_layers(request.model, p), plan)})
