"""Rows of published, measured runs: from one JSON line to a request and a plan.

A row never decides anything by its ``measured`` values: :func:`to_case` is not given them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.catalog import load_cluster, load_model
from planner.catalog.files import read_text
from planner.catalog.hardware import described_network
from planner.catalog.vendor_names import accelerator_named
from planner.cost.split import default_stages
from planner.errors import BadInput
from planner.frameworks import load_framework
from planner.spec.framework import FrameworkProfile
from planner.spec.model import Model
from planner.spec.plan import Offload, Plan, Schedule, StagePlan
from planner.spec.problems import first_problem, shown
from planner.spec.request import PlanRequest
from planner.spec.workload import Workload
from planner.validate.eras import (
    adopted_fused_attention,
    before_fused_attention,
    predates_fused_attention,
    release_of,
    row_scaled,
    time_of_release,
)
from planner.validate.memory import habits_of_run, settled_recompute, splits_sequence
from planner.validate.spellings import (
    framework_named,
    graph_launches,
    precision_named,
    recompute_named,
    schedule_named,
)
from planner.validate.typed import MAX_COUNT, readable

Row = Mapping[str, Any]
GATED = frozenset({"swiglu", "geglu", "silu"})
ACTIVATIONS = frozenset({"gelu", "swiglu", "geglu", "relu", "squared_relu", "silu"})
SHAPE_KEYS = (
    "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_hidden_size", "vocab_size",
    "tied_embeddings", "num_experts", "experts_per_token", "expert_ffn_hidden_size",
    "shared_expert_ffn_hidden_size", "num_dense_layers", "moe_layer_freq", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "mtp_depth",
)  # fmt: skip
DEFAULT_VOCABULARY = 50257
"""GPT-2's, where neither the row nor the catalog gives one."""


@dataclass(frozen=True)
class Case:
    """One row, ready to be priced."""

    request: PlanRequest
    plan: Plan


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file; a line that is no JSON object becomes a row with an ``unreadable`` reason.

    Raises
    ------
    BadInput
        The file cannot be read.
    """
    lines = read_text(path).split("\n")
    return [_row(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _row(number: int, line: str) -> dict[str, Any]:
    name = f"line {number}"
    try:
        row = json.loads(line)
    except json.JSONDecodeError as problem:
        return {"id": name, "unreadable": f"not JSON: {problem.msg} at column {problem.colno}"}
    except (ValueError, RecursionError):
        return {"id": name, "unreadable": "not JSON that can be read: nested too deeply, or a huge number"}
    if not isinstance(row, dict):
        return {"id": name, "unreadable": "not a JSON object"}
    return dict(readable({"id": name, **row}, name))


def to_case(row: Row) -> Case:
    """Turn a row into a request and a plan, filling gaps from the catalog and the framework's defaults.

    Raises
    ------
    BadInput
        The row lacks what no default can give, or describes something that is not modelled.
    """
    if "unreadable" in row:
        raise BadInput(row["unreadable"])
    said, config, cluster = _table(row, "model"), _table(row, "config"), _table(row, "cluster")
    model = read_model({"mtp_depth": 0, **said} if _without_mtp(row) else said)
    framework = read_framework(row, config, model)
    num_gpus = _number(cluster, "num_gpus", _stated_ranks(config))
    machine = _cluster(
        str(cluster.get("accelerator") or cluster.get("accelerator_as_printed")),
        num_gpus,
        cluster.get("gpus_per_node"),
        cluster.get("network"),
    )
    plan = read_plan(config, model, framework, num_gpus)
    request = PlanRequest(
        model=model,
        cluster=machine,
        workload=Workload(
            global_batch=_number(config, "global_batch"),
            seq_length=_number(config, "seq_length", model.seq_length),
            precisions=(plan.precision,),
            frozen_weights=_frozen(row),
        ),
        framework=framework,
        max_bubble=None,
        allow_tensor_parallel_across_nodes=True,
    )
    return Case(request, settled_recompute(row, plan, request))


def _stated_ranks(config: Mapping[str, Any]) -> int | None:
    """Return t p c d where a configuration states its replicas, for a row that does not count its GPUs."""
    if config.get("data_parallel") is None:
        return None
    return math.prod(
        _number(config, f"{name}_parallel", 1) for name in ("tensor", "pipeline", "context", "data")
    )


def _table(row: Row, key: str) -> Mapping[str, Any]:
    value = row.get(key)
    if not isinstance(value, Mapping):
        raise BadInput(f"the row has no {key} table")
    return value


def _number(table: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = table.get(key)
    value = default if value is None else value
    if value is None:
        raise BadInput(f"{key} is missing")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 1 <= value <= MAX_COUNT or value != int(value):
        raise BadInput(f"{key} must be a positive whole number up to {MAX_COUNT}, not {shown(value)}")
    return int(value)


@lru_cache(maxsize=256)
def _cluster(accelerator: str, num_gpus: int, gpus_per_node: int | None, network: str | None) -> Any:
    per_node = None if gpus_per_node is None else min(int(gpus_per_node), num_gpus)
    described = described_network(network, gpus_per_node) if network and gpus_per_node else {}
    return load_cluster(accelerator_named(accelerator), num_gpus, per_node, **described)


def _without_mtp(row: Row) -> bool:
    """Whether the words of a row say that the model was run without its multi-token prediction."""
    return any(
        re.search(r"\b(w/o|without|no) MTP\b", str(row.get(key)), re.IGNORECASE)
        for key in ("source", "notes")
    )


def _frozen(row: Row) -> bool:
    """Whether adapters are trained: the model's name, the fine-tuning kind or the source's words say LoRA."""
    config, model = _table(row, "config"), _table(row, "model")
    said = [model.get("name"), config.get("finetune"), row.get("source"), row.get("notes")]
    return any(re.search(r"(?<![a-z])lora(?![a-z_])", str(text), re.IGNORECASE) for text in said)


def read_model(said: Mapping[str, Any]) -> Model:
    """Build the model of a row: its own keys first, then the catalog's entry of that name.

    Raises
    ------
    BadInput
        The shape is incomplete, inconsistent, or has linear mixers of which the catalog does not know.
    """
    attention = str(said.get("attention", ""))
    known = _catalog_entry(str(said.get("name", "")), said.get("hidden_size"))
    is_hybrid = re.search(r"hybrid|mamba|ssm|linear attention", attention, re.IGNORECASE)
    if is_hybrid and (known is None or not known.is_hybrid):
        raise BadInput(f"which layers mix tokens how ({attention}) is known of catalog models alone")
    data: dict[str, Any] = (
        {} if known is None else known.model_dump(exclude={"published_parameters", "aliases"})
    )
    data |= {key: said[key] for key in SHAPE_KEYS if said.get(key) is not None}
    if (
        known is not None
        and said.get("head_dim") is None
        and said.get("num_heads") not in (None, known.num_heads)
    ):
        del data["head_dim"]
    if known is not None and said.get("mtp_depth") is None and data["num_layers"] != known.num_layers:
        data["mtp_depth"] = 0  # a model cut short for a test is run without its extra prediction module
    data |= _latent_from_text(attention)
    data["name"] = str(said.get("name", "unnamed"))
    for key in ("num_layers", "hidden_size", "num_heads"):
        if key not in data:
            raise BadInput(f"model.{key} is missing and no catalog model is called {data['name']!r}")
    _fill_shape(data, said, known)
    try:
        return Model.model_validate(data)
    except ValidationError as problem:
        raise BadInput(f"model: {first_problem(problem, Model)}") from problem


def _fill_shape(data: dict[str, Any], said: Mapping[str, Any], known: Model | None) -> None:
    heads, h = data["num_heads"], data["hidden_size"]
    data.setdefault("num_kv_heads", heads)
    data.setdefault("head_dim", h // heads)
    data.setdefault("vocab_size", DEFAULT_VOCABULARY)
    data.setdefault("ffn_hidden_size", data.get("expert_ffn_hidden_size") or 4 * h)
    activation = said.get("activation")
    if activation in ACTIVATIONS:
        data["activation"] = activation
    if said.get("gated_mlp") is not None:
        data["gated_mlp"] = bool(said["gated_mlp"])
    elif activation is not None:
        data["gated_mlp"] = activation in GATED
    elif known is None:
        data["gated_mlp"] = data["ffn_hidden_size"] != 4 * h
    if known is None and not data["gated_mlp"]:
        data.setdefault("tied_embeddings", True)
        data["learned_positions"] = 2048
    shared = said.get("num_shared_experts")
    if shared and not said.get("shared_expert_ffn_hidden_size"):
        data["shared_expert_ffn_hidden_size"] = shared * data["expert_ffn_hidden_size"]
    if data.get("dense_layers"):
        data["dense_layers"] = tuple(i for i in data["dense_layers"] if i < data["num_layers"])
    if data.get("full_attention_layers"):
        data["full_attention_layers"] = tuple(
            i for i in data["full_attention_layers"] if i < data["num_layers"]
        )


def _latent_from_text(attention: str) -> dict[str, int]:
    """Read ``MLA kv_lora 512, qk_nope 128, qk_rope 64, v 128``."""
    names = {"kv_lora": "kv_lora_rank", "q_lora": "q_lora_rank", "qk_nope": "qk_nope_head_dim",
             "qk_rope": "qk_rope_head_dim", "v": "v_head_dim"}  # fmt: skip
    found = re.findall(r"\b(kv_lora|q_lora|qk_nope|qk_rope|v) (\d+)", attention)
    return {names[name]: int(value) for name, value in found}


@lru_cache(maxsize=512)
def _catalog_entry(name: str, hidden_size: int | None) -> Model | None:
    """Return the catalog's model of this name, or of its beginning, if the hidden size agrees."""
    words = re.sub(r"\(.*?\)", " ", name).replace("_", "-").split()
    for count in range(len(words), 0, -1):
        for separator in ("-", ""):
            known = _known_model(separator.join(words[:count]))
            if known is not None and hidden_size in (None, known.hidden_size):
                return known
    return None


@lru_cache(maxsize=512)
def _known_model(name: str) -> Model | None:
    spellings = dict.fromkeys((name, re.sub(r"^(llama|qwen|gpt)(\d)", r"\1-\2", name, flags=re.IGNORECASE)))
    for spelling in spellings:
        if re.fullmatch(r"[\d.]+[bmtBMT]", spelling):
            continue
        try:
            return load_model(spelling)
        except BadInput:
            continue
    return None


def read_framework(row: Row, config: Mapping[str, Any], model: Model) -> FrameworkProfile:
    """Return the profile of the row's framework, adapted to the switches that the row states."""
    accelerator = str(_table(row, "cluster").get("accelerator", ""))
    profile = load_framework(framework_named(row.get("framework"), str(row.get("source", "")), accelerator))
    if profile.name == "megatron" and "flagperf" in str(row.get("source", "")).lower():
        profile = load_framework("flagperf")  # its launch scripts turn none of Megatron's fusions on
    time = time_of_release(profile, release_of(str(row.get("source", ""))))
    changes: dict[str, Any] = {}
    if config.get("compile") is True:
        changes["elementwise_factor"] = min(time.elementwise_factor, time.compiled_elementwise_factor)
        changes["kernels_per_layer"] = time.kernels_per_layer / 2
    changes["launch_factor"] = min(time.launch_factor, graph_launches(config.get("cuda_graph")))
    if config.get("async_tp") is True:
        changes["tensor_comm_hidden_fraction"] = max(time.tensor_comm_hidden_fraction, ASYNC_TENSOR_HIDDEN)
    memory = profile.memory
    if isinstance(config.get("compile"), bool):
        memory = habits_of_run(memory, config["compile"], str(row.get("source", "")))
    changes |= row_scaled(row, config)
    if predates_fused_attention(accelerator, config, profile, model):
        memory = memory.model_copy(update={"fused_attention": False})
        changes |= before_fused_attention(config)
    if adopted_fused_attention(profile, model):
        memory = memory.model_copy(update={"fused_attention": True})
        changes["attention_kernel"] = "fa2"
    return profile.model_copy(update={"time": time.model_copy(update=changes), "memory": memory})


ASYNC_TENSOR_HIDDEN = 0.6
"""Share of tensor-parallel time that micro-pipelined products hide (torchtitan: 10-17 % of a step)."""


def read_plan(config: Mapping[str, Any], model: Model, framework: FrameworkProfile, num_gpus: int) -> Plan:
    """Build the plan of a row; unstated settings take the framework's defaults.

    Raises
    ------
    BadInput
        The degrees do not multiply to the GPU count, or a value is none that a plan can have.
    """
    t, p, c, e = (
        _number(config, f"{name}_parallel", 1) for name in ("tensor", "pipeline", "context", "expert")
    )
    d = _number(config, "data_parallel", max(1, num_gpus // (t * p * c)))
    b = _number(config, "micro_batch", 1)
    v = _number(config, "virtual_stages", 1) if p > 1 else 1
    schedule = schedule_named(str(config.get("schedule") or ""), p, v)
    zero = config.get("zero_stage")
    zero = (3 if framework.memory.sharded_weights_are_master else 1) if zero is None else int(zero)
    sequence = config.get("sequence_parallel")
    recompute, modules, share = recompute_named(config.get("recompute"), framework)
    expert_tensor = _usual_expert_tensor(t, e, model, framework)
    try:
        plan = Plan(
            tensor_parallel=t, pipeline_parallel=p, context_parallel=c, expert_parallel=e, data_parallel=d,
            virtual_stages=v, schedule=schedule,
            context_parallel_kind=framework.limits.context_parallel_kinds[0],
            expert_tensor_parallel=_number(config, "expert_tensor_parallel", expert_tensor),
            zero_stage=zero,
            shard_group_size=_shard_group(config, d * c) if zero else 1,
            sequence_parallel=t > 1 and (splits_sequence(framework.memory) if sequence is None else sequence),
            micro_batch=b,
            num_microbatches=_microbatches(_number(config, "global_batch") / (d * b), schedule, p),
            recompute=recompute, recompute_modules=modules,
            offload=_offload(config, framework),
            precision=precision_named(str(config.get("precision") or "bf16")),
        )  # fmt: skip
    except ValidationError as problem:
        raise BadInput(f"config: {first_problem(problem, Plan)}") from problem
    return _with_stages(plan, model, framework, share)


def _microbatches(share: float, schedule: Schedule, p: int) -> int:
    """Return the whole number of micro-batches nearest to a replica's share that the schedule can run."""
    step = p if schedule == "interleaved" else 1
    return max(1, round(share / step)) * step


def _shard_group(config: Mapping[str, Any], replicas: int) -> int:
    """Return the ranks that share the state; a group of one is a table's way of saying that all do."""
    group = _number(config, "shard_group_size", replicas)
    return group if group > 1 else replicas


def _offload(config: Mapping[str, Any], framework: FrameworkProfile) -> Offload:
    """What ``cpu_offload`` means: the optimizer, or everything where a framework moves parameters alone."""
    if not config.get("cpu_offload"):
        return "none"
    return "optimizer" if "optimizer" in framework.limits.offloads else "parameters"


def _usual_expert_tensor(t: int, e: int, model: Model, framework: FrameworkProfile) -> int:
    """Return the ranks over which each expert is cut where a row does not say.

    Megatron cuts experts over all tensor ranks unless told otherwise, and expert-parallel recipes tell it so.
    """
    return t if model.is_moe and e == 1 and framework.limits.expert_tensor_parallel else 1


def _with_stages(plan: Plan, model: Model, framework: FrameworkProfile, share: float) -> Plan:
    """Spread the layers as the framework does, and recompute ``share`` of every stage's."""
    stages = default_stages(plan, model, framework.limits.default_split)
    covered = tuple(
        StagePlan(chunk_layers=stage.chunk_layers, recompute_layers=round(share * stage.layers))
        for stage in stages
    )
    return plan.model_copy(update={"stages": covered})
