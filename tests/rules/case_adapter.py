"""From a practitioner's case (loose keys, missing numbers) to plans and requests that the planner can judge.

Only facts that a case states are taken; what it leaves open is filled from the catalogs and written into
``Entry.filled``, so that a verdict can be read with its assumptions.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.catalog import load_cluster, load_model
from planner.catalog.training import with_fine_tuning, with_optimizer
from planner.cost.memory import memory
from planner.frameworks import load_framework
from planner.frameworks.launch import offload_named
from planner.spec import Cluster, FrameworkProfile, Model, Plan, PlanRequest, StagePlan, Workload

CASES = Path(__file__).parent.parent / "data" / "cases.jsonl"

FRAMEWORKS = (
    ("mbridge", "megatron-bridge"), ("nemo-", "nemo"), ("nemorl", "megatron"), ("automodel", "automodel"),
    ("titan", "torchtitan"), ("touchnet", "torchtitan"), ("nanotron", "nanotron"), ("ds-", "deepspeed"),
    ("lf-", "deepspeed"), ("openrlhf", "deepspeed"), ("axolotl-2989", "accelerate"),
    ("axolotl-1428", "accelerate"), ("axolotl", "deepspeed"),
    ("xtuner", "deepspeed"), ("qwenvl", "deepspeed"), ("linly", "deepspeed"), ("s1-", "accelerate"),
    ("neox", "megatron-deepspeed"), ("foundry", "llm-foundry"), ("mpt30b", "llm-foundry"),
    ("maxtext", "maxtext"), ("easylm", "maxtext"), ("accel", "accelerate"), ("trl", "accelerate"),
    ("lcb", "accelerate"), ("yarn", "deepspeed"), ("torchtune", "pytorch"), ("rocmte", "accelerate"),
    ("colossal", "any"), ("nnscaler", "any"),
)  # fmt: skip
"""Beginning of a case's id to the framework it is about; Megatron-LM (also swift, verl, slime) otherwise."""

RECOMPUTE = (
    ("titan", "selective"), ("automodel", "none"), ("lf-", "full"), ("openrlhf", "full"), ("xtuner", "full"),
    ("s1-", "full"), ("yarn", "full"), ("axolotl", "full"), ("qwenvl", "full"), ("ds-3448", "full"),
)  # fmt: skip
"""What a project recomputes when a case does not say: torchtitan's default, fine-tuning scripts' habit."""

HARDWARE = (
    ("H100-96", "h100-sxm-96gb-hbm2e"), ("GB200", "gb200-nvl72"), ("GB300", "gb300-nvl72"),
    ("B200|Blackwell", "b200-sxm-180gb"), ("H800", "h800-sxm-80gb"), ("H20-", "h20-sxm-96gb"),
    ("H100", "h100-sxm-80gb"), ("A100-40", "a100-sxm-40gb"), ("A800", "a800-sxm-80gb"),
    ("A100|80 ?GB", "a100-sxm-80gb"), ("V100-16", "v100-sxm2-16gb"), ("V100-32", "v100-sxm2-32gb"),
    ("MI355", "mi355x-288gb"), ("MI300", "mi300x-192gb"), ("MI250", "mi250x-gcd-64gb"),
    ("4090", "rtx-4090"), ("3090", "rtx-3090"), ("A10", "a10-24gb"), ("A40", "a40-48gb"),
    ("TPU v5e", "tpu-v5e"), ("TPU v3|TPU v4", "tpu-v4"),
)  # fmt: skip
"""Patterns of a case's GPU to the catalog; cards that it lacks become the nearest one with as much memory."""

HBM_BYTES = {"TPU v3": 16 * 2.0**30}
"""Memory of cards that stand in for others."""

EAGER_LOSS_BYTES = 14.0
"""Bytes of a logit at the peak of an uncompiled loss: 16-bit logits, fp32 copy, log-softmax, gradient.
torchtitan compiles only when asked to; the planner's profile lies between."""
OPTIMIZERS = {"Lion": "lion", "SGD": "sgd", "8-bit": "adam-8bit", "16-bit": "pure-adam"}
COMPILED_LOSS_BYTES = 6.0
"""The same compiled."""
COMPILES_THE_LOSS = ("titan-1610", "titan-1789", "titan-1993")
"""Cases that run torchtitan's own DeepSeek file, which compiles the loss."""
PARALLEL_LOSS_BYTES = 4.0
"""One more fp32 copy where an uncompiled loss runs on logits split over tensor ranks (DTensor)."""

MODELS = (
    ("V2-Lite|DeepSeek-V3-16B", "deepseek-v2-lite"), ("DeepSeek-(V3|R1)", "deepseek-v3"),
    ("Moonlight", "moonlight-16b-a3b"), ("GLM-4.5-Air", "glm-4.5-air"), ("GLM-4.5", "glm-4.5"),
    ("Gemma-4-31B", "gemma-4-31b"), ("Falcon-H1-34B", "falcon-h1-34b"),
    ("Nemotron-3-Nano", "nemotron-3-nano-30b-a3b"), ("Hy3-preview", "hy3-preview"),
    ("Qwen3.5.*35B", "qwen3.5-35b-a3b"), ("Qwen3.5-9B", "qwen3.5-9b"),
    ("Qwen3.5.*122B", "qwen3.5-122b-a10b"), ("Qwen3.5.*397B", "qwen3.5-397b-a17b"),
    ("Qwen3.5-MoE", "qwen3.5-35b-a3b"), ("Qwen3.*30B", "qwen3-30b-a3b"), ("30B-A3B", "qwen3-30b-a3b"),
    ("Qwen3-235B", "qwen3-235b-a22b"), ("gpt-oss-120b", "gpt-oss-120b"), ("Mixtral-8x7B", "mixtral-8x7b"),
    ("Qwen3-32B", "qwen3-32b"), ("MiniMax-M2", "minimax-m2"), ("MPT-30B", "mpt-30b"),
    ("NeoX-20B", "gpt-neox-20b"), ("BLOOM", "bloom-176b"), ("GPT-2 small", "gpt2-small"),
    ("MoE", "mixtral-8x7b"),
)  # fmt: skip
"""Patterns of a case's model to the catalog; else a default shape of its size."""

MODEL_KEYS = {
    "layers": "num_layers", "hidden": "hidden_size", "heads": "num_heads", "kv_heads": "num_kv_heads",
    "head_dim": "head_dim", "ffn": "ffn_hidden_size", "dense_ffn": "ffn_hidden_size", "vocab": "vocab_size",
    "experts": "num_experts", "topk": "experts_per_token", "moe_ffn": "expert_ffn_hidden_size",
    "first_dense_layers": "num_dense_layers", "tied_embeddings": "tied_embeddings", "mtp": "mtp_depth",
}  # fmt: skip

OUTCOMES = {
    "result", "peak_gb", "peak_gib", "peak_mib", "static_mib", "tok_s_gpu", "mfu", "step_s", "step_ms",
    "tflops", "min_gpus", "gpu_gib", "cpu_gib", "saved_gb", "slowdown", "estimate_gb", "actual_gb",
    "user_estimate_gb", "assumed", "label",
}  # fmt: skip
"""Keys that say what happened: not inherited from one configuration to the next."""


@dataclass(frozen=True)
class Entry:
    """One configuration of a case: what the planner is asked, and what the case says."""

    plan: Plan
    request: PlanRequest
    raw: dict[str, Any]
    filled: tuple[str, ...] = field(default=())


@lru_cache
def load_cases() -> dict[str, dict[str, Any]]:
    """All cases by id, in the order of the file."""
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row for row in rows}


def entries(case: dict[str, Any], **given: Any) -> list[Entry]:
    """Every configuration of the case. ``given`` overrides or completes configuration keys of all of them.

    What a configuration leaves out is as in the one before it of the same model.
    """
    configs = case["config"] if isinstance(case["config"], list) else [case["config"]]
    found: list[Entry] = []
    before: dict[Any, dict[str, Any]] = {}
    model = None
    defaults = {
        "recompute": next((usual for start, usual in RECOMPUTE if case["id"].startswith(start)), "none")
    }
    for config in configs:
        model = config.get("model", model)
        raw = {
            **defaults,
            **{key: value for key, value in before.get(model, {}).items() if key not in OUTCOMES},
            **config,
            **given,
        }
        before[model] = raw
        found.append(_entry(case, raw))
    return found


def reported_bytes(entry: Entry) -> float:
    """Predicted memory as the framework's own log would print it. [byte]"""
    habits = entry.request.framework.memory
    stages = memory(entry.plan, entry.request)
    kinds = {"allocated": "allocated_bytes", "reserved": "reserved_bytes", "device": "total"}
    figures = [float(getattr(stage, kinds[habits.reported])) for stage in stages]
    return figures[0] if habits.reported_rank == "first" else max(figures)


def measured_bytes(entry: Entry) -> float:
    """Measured peak memory of the configuration. [byte]"""
    units = {
        "peak_gib": 2.0**30,
        "peak_mib": 2.0**20,
        "peak_gb": entry.request.framework.memory.reported_unit_bytes,
    }
    return next(float(entry.raw[key]) * unit for key, unit in units.items() if key in entry.raw)


def _entry(case: dict[str, Any], raw: dict[str, Any]) -> Entry:
    filled: list[str] = []
    model = _model(case, raw, filled)
    plan = _plan(case, raw, model)
    hardware = case["hardware"] if isinstance(case["hardware"], dict) else {}
    num_gpus = _whole(raw.get("num_gpus")) or _whole(hardware.get("num_gpus")) or plan.num_gpus
    if "dp" not in raw and "dp_shard" not in raw:
        others = plan.num_gpus // plan.data_parallel
        plan = _with_data_parallel(plan, max(num_gpus // others, 1), raw)
    cluster = _cluster(hardware, raw, num_gpus, filled)
    workload = Workload(
        global_batch=_whole(raw.get("gbs")) or plan.global_batch,
        seq_length=_whole(raw.get("seq_len"))
        or _whole(_first(case["model"], raw).get("seq_len"))
        or model.seq_length,
        precisions=(plan.precision,),
    )
    if raw.get("peft"):
        workload = with_fine_tuning(workload, "qlora" if "QLoRA" in raw["peft"] else "lora")
    profile = _profile(case["id"], raw, plan)
    request = PlanRequest(
        model=model,
        cluster=cluster,
        workload=workload,
        framework=profile,
        max_bubble=None,
        allow_tensor_parallel_across_nodes=bool(raw.get("lift_domain")),
    )
    return Entry(plan, request, raw, tuple(filled))


def _profile(case_id: str, raw: dict[str, Any], plan: Plan) -> FrameworkProfile:
    """The framework, with what the case says about its loss, its optimizer and how it counts memory."""
    profile = load_framework(raw.get("framework") or _framework(case_id))
    changes: dict[str, Any] = {}
    if re.match("fused|TE fused|chunked", str(raw.get("loss"))):
        changes |= {"loss_saved_bytes": 0.0, "loss_peak_bytes": 0.0, "parallel_loss_bytes": 0.0}
    elif profile.name == "torchtitan" and (raw.get("compile") or case_id.startswith(COMPILES_THE_LOSS)):
        changes["loss_peak_bytes"] = COMPILED_LOSS_BYTES
    elif case_id.startswith("titan") and not raw.get("compile"):
        changes |= {"loss_peak_bytes": EAGER_LOSS_BYTES, "parallel_loss_bytes": PARALLEL_LOSS_BYTES}
    if raw.get("moments") == "bf16":
        changes["optimizer_bytes"] = 8.0
    optimizer = re.match("|".join(OPTIMIZERS), str(raw.get("optimizer")))
    if optimizer:
        profile = with_optimizer(profile, OPTIMIZERS[optimizer.group(0)])
    return profile.model_copy(update={"memory": profile.memory.model_copy(update=changes)})


def _framework(case_id: str) -> str:
    return next((name for start, name in FRAMEWORKS if case_id.startswith(start)), "megatron")


def _first(models: Any, raw: dict[str, Any]) -> dict[str, Any]:
    """The model of this configuration, where a case compares several."""
    if isinstance(models, dict):
        return models
    wanted = str(raw.get("model", ""))
    return next((model for model in models if wanted and wanted in model["name"]), models[0])


def _model(case: dict[str, Any], raw: dict[str, Any], filled: list[str]) -> Model:
    said = {**_first(case["model"], raw), **{key: raw[key] for key in MODEL_KEYS if key in raw}}
    name = str(said.get("name") or "")
    size = f"{said['params_b']}b" if "params_b" in said else "7b"
    base = load_model(next((known for pattern, known in MODELS if re.search(pattern, name)), size))
    numbers = {ours: said[key] for key, ours in MODEL_KEYS.items() if said.get(key) is not None}
    if said.get("shared_experts"):
        numbers["shared_expert_ffn_hidden_size"] = said["shared_experts"] * said["moe_ffn"]
    if "num_heads" in numbers:
        numbers.setdefault("num_kv_heads", base.num_kv_heads if base.is_mla else numbers["num_heads"])
        width = numbers.setdefault("hidden_size", 128 * numbers["num_heads"])
        if not base.is_mla:
            numbers.setdefault("head_dim", width // numbers["num_heads"])
    missing = {"num_layers", "hidden_size", "num_heads", "ffn_hidden_size"} - set(numbers)
    if missing:
        filled.append(f"{', '.join(sorted(missing))} of {base.name}")
    return base.model_copy(update={**numbers, "name": name or base.name, "notes": ""})


def _plan(case: dict[str, Any], raw: dict[str, Any], model: Model) -> Plan:
    t, p, c = (_whole(raw.get(key)) or 1 for key in ("tp", "pp", "cp"))
    c = _whole(raw.get("sp_ulysses")) or c
    e = _whole(raw.get("ep")) or 1
    v = 2 if raw.get("vpp") == ">1" else _whole(raw.get("vpp")) or _chunks(raw, model, p)
    layers = _layer_counts(raw, model, p, v)
    plan = Plan(
        tensor_parallel=t,
        pipeline_parallel=p,
        virtual_stages=v,
        schedule="none" if p == 1 else "interleaved" if v > 1 else "1f1b",
        context_parallel=c,
        context_parallel_kind="all_to_all" if _exchanges_heads(raw, case["id"]) else "ring",
        expert_parallel=e,
        expert_tensor_parallel=_whole(raw.get("etp")) or (t if model.is_moe and e == 1 else 1),
        zero_stage=_zero_stage(raw, case["id"]),
        sequence_parallel=bool(raw.get("sp", _has_sequence_parallelism(raw, case["id"]))) and t > 1,
        micro_batch=_whole(raw.get("mbs")) or 1,
        num_microbatches=1,
        recompute=_recompute(raw)[0],
        recompute_modules=_recompute(raw)[1],
        offload=_offload(raw, case["id"]),
        precision=_precision(raw),
        stages=layers,
    )
    d = (_whole(raw.get("dp_shard")) or 1) * (_whole(raw.get("dp_replicate")) or 1)
    return _with_data_parallel(plan, _whole(raw.get("dp")) or d, raw)


def _offload(raw: dict[str, Any], case_id: str) -> Any:
    """What lies on the host; parameters only in frameworks that train with them there (not verl's phases)."""
    text, checkpoints = str(raw.get("offload") or ""), "offload" in str(raw.get("recompute"))
    has = load_framework(raw.get("framework") or _framework(case_id)).limits.offloads
    parameters = text.startswith("params") and "parameters" in has
    if text and "25%" not in text and not parameters:
        return "optimizer"
    return offload_named(parameters, checkpoints)


def _has_sequence_parallelism(raw: dict[str, Any], case_id: str) -> bool:
    return load_framework(raw.get("framework") or _framework(case_id)).limits.sequence_parallel


def _with_data_parallel(plan: Plan, d: int, raw: dict[str, Any]) -> Plan:
    """The plan over d replicas, with the micro-batches that the batch asks for and state sharded over all."""
    batch = _whole(raw.get("gbs"))
    m = _whole(raw.get("num_microbatches")) or _whole(raw.get("grad_accum"))
    if raw.get("local_batch") and not batch:
        m = max(raw["local_batch"] // plan.micro_batch, 1)
    if m is None:
        m = max(batch // (d * plan.micro_batch), 1) if batch else plan.pipeline_parallel
    is_unasked_fsdp = plan.zero_stage == 3 and not {"zero", "fsdp"} & set(raw)
    stage = 0 if is_unasked_fsdp and d * plan.context_parallel == 1 else plan.zero_stage
    group = d * plan.context_parallel if stage else 1
    return plan.model_copy(
        update={"data_parallel": d, "num_microbatches": m, "zero_stage": stage, "shard_group_size": group}
    )


def _chunks(raw: dict[str, Any], model: Model, p: int) -> int:
    if p == 1 or "interleaved" not in str(raw.get("schedule", "")).lower():
        return 1
    per_chunk = re.search(r"(\d+) layers per chunk", raw["schedule"])
    return model.num_layers // (p * int(per_chunk.group(1))) if per_chunk else 2


def _layer_counts(raw: dict[str, Any], model: Model, p: int, v: int) -> tuple[StagePlan, ...]:
    """Explicit stages where the case names them: a list, or the first or last stage."""
    if "chunks" in raw:
        return tuple(StagePlan(chunk_layers=tuple(chunks)) for chunks in raw["chunks"])
    if "pp_layers" in raw:
        counts = list(raw["pp_layers"])
    elif v == 1 and ("first_stage_layers" in raw or "last_stage_layers" in raw):
        ends = [raw[key] for key in ("first_stage_layers", "last_stage_layers") if key in raw]
        middle, extra = divmod(model.num_layers - sum(ends), p - len(ends))
        counts = [middle + (i < extra) for i in range(p - len(ends))]
        if "first_stage_layers" in raw:
            counts.insert(0, raw["first_stage_layers"])
        if "last_stage_layers" in raw:
            counts.append(raw["last_stage_layers"])
    else:
        return ()
    again = [n if _recompute(raw)[0] != "none" else 0 for n in counts]
    return tuple(StagePlan(chunk_layers=(n,), recompute_layers=r) for n, r in zip(counts, again, strict=True))


def _exchanges_heads(raw: dict[str, Any], case_id: str) -> bool:
    return "sp_ulysses" in raw or str(raw.get("cp_comm", "")) == "a2a" or _framework(case_id) == "deepspeed"


def _zero_stage(raw: dict[str, Any], case_id: str) -> int:
    if raw.get("fsdp"):
        return 3
    if _framework(case_id) == "accelerate" and raw.get("dp_shard") == 1:
        return 0
    framework = raw.get("framework") or _framework(case_id)
    default = {"torchtitan": 3, "automodel": 3, "megatron": 1, "megatron-bridge": 1, "nemo": 1}
    return int(raw.get("zero", default.get(framework, 0)))


def _recompute(raw: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    text = str(raw.get("recompute") or "none")
    if text.startswith(("none", "not stated")):
        return "none", ()
    if text.startswith("full"):
        return "full", ()
    words = [word for word in re.split(r"[ +]", text.removeprefix("selective")) if word]
    known = {"core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts"}
    return "selective", tuple(word for word in words if word in known)


def _precision(raw: dict[str, Any]) -> Any:
    text = str(raw.get("precision") or "bf16").lower()
    if text.startswith(("fp8", "float8")):
        return "fp8"
    return next((name for name in ("mxfp8", "fp16", "fp32") if text.startswith(name)), "bf16")


def _cluster(hardware: dict[str, Any], raw: dict[str, Any], num_gpus: int, filled: list[str]) -> Cluster:
    said = str(raw.get("gpu") or hardware.get("gpu") or "")
    name = next((known for pattern, known in HARDWARE if re.search(pattern, said)), None)
    if name is None:
        filled.append("H100 80 GB")
    cluster = load_cluster(name or "h100-sxm-80gb", num_gpus, _whole(hardware.get("gpus_per_node")))
    accelerator = cluster.accelerator
    hbm = next((size for pattern, size in HBM_BYTES.items() if pattern in said), accelerator.memory.hbm_bytes)
    host = (
        float(
            raw.get("host_ram_gb") or hardware.get("host_ram_gb") or accelerator.host.node_memory_bytes / 1e9
        )
        * 1e9
    )
    accelerator = accelerator.model_copy(
        update={
            "memory": accelerator.memory.model_copy(update={"hbm_bytes": hbm}),
            "host": accelerator.host.model_copy(update={"node_memory_bytes": host}),
        }
    )
    return cluster.model_copy(update={"accelerator": accelerator})


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
