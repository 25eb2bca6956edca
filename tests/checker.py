"""An independent check of a returned plan, from the definitions alone: no solver, no rule and no shared
helper.

Arithmetic that every legal plan satisfies under every framework, and the prices of the cost module. What
only some
frameworks demand is left to the rules' own tests.
"""

from __future__ import annotations

from typing import Any

from planner.cost.memory import memory
from planner.cost.step import step_time
from planner.spec import Plan, PlanRequest

CHUNKS = {"none": 1, "gpipe": 1, "1f1b": 1, "zb-h1": 1, "zb-h2": 1, "dualpipe": 1, "zb-v": 2, "dualpipe-v": 2}


def faults(plan: Plan, request: PlanRequest) -> list[str]:
    """Everything that is wrong with a plan; empty for a sound one."""
    statements: dict[str, Any] = {
        **_degrees(plan, request),
        **_batch(plan, request),
        **_model(plan, request),
        **_stages(plan, request),
        **_framework(plan, request),
    }
    found = [sentence for sentence, holds in statements.items() if not holds]
    for pin in request.pins:
        value = plan.num_gpus if pin.field == "num_gpus" else getattr(plan, pin.field)
        if not pin.admits(value):
            found.append(f"pin {pin.option or pin.field} refuses {value}")
    usable = request.cluster.accelerator.memory.hbm_bytes - request.cluster.reserved_hbm_bytes
    for rank, stage in enumerate(memory(plan, request)):
        if stage.total > usable:
            found.append(f"rank {rank} needs {stage.total:.3e} of {usable:.3e} bytes")
    return found


def price_faults(plan: Plan, request: PlanRequest, step_time_s: float, peak_bytes: float) -> list[str]:
    """Whether the reported figures are the cost module's."""
    time = float(step_time(plan, request).total)
    peak = max(float(stage.total) for stage in memory(plan, request))
    found = []
    if abs(time - step_time_s) > 1e-6:
        found.append(f"reported {step_time_s} s, priced {time} s")
    if abs(peak - peak_bytes) > 1.0:
        found.append(f"reported {peak_bytes} bytes, priced {peak} bytes")
    return found


def _degrees(plan: Plan, request: PlanRequest) -> dict[str, bool]:
    t, c, p, d = plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel, plan.data_parallel
    used, gpus = t * c * p * d, request.cluster.num_gpus
    inner = plan.expert_parallel * plan.expert_tensor_parallel
    shards, default = plan.shard_group_size, plan.rank_order == "tp-cp-ep-dp-pp"
    return {
        "ranks fill the cluster": used == gpus or (request.allow_idle and used <= gpus),
        "expert ranks divide t c d": (t * c * d) % inner == 0,
        "no expert ranks without experts": request.model.num_experts > 0 or inner == 1,
        "shard group divides the replicas": (c * d) % shards == 0,
        "ZeRO 0 does not shard": plan.zero_stage > 0 or shards == 1,
        "sequence parallel needs tensor ranks": t > 1 or not plan.sequence_parallel,
        "replicas far apart: stages and replicas there are": default or min(p, d) > 1,
        "replicas far apart: each holds all experts": default or not request.model.is_moe or inner == t * c,
    }


def _batch(plan: Plan, request: PlanRequest) -> dict[str, bool]:
    low = request.workload.global_batch
    high = request.workload.global_batch_max or low
    batch = plan.data_parallel * plan.micro_batch * plan.num_microbatches
    return {
        "batch is as asked": low <= batch <= high,
        "precision was allowed": plan.precision in request.workload.precisions,
    }


def _model(plan: Plan, request: PlanRequest) -> dict[str, bool]:
    model, t, c = request.model, plan.tensor_parallel, plan.context_parallel
    return {
        "heads over t": model.num_heads % t == 0,
        "hidden over t": model.hidden_size % t == 0,
        "KV heads over t, or copies": model.is_mla
        or model.num_kv_heads % t == 0
        or t % model.num_kv_heads == 0,
        "experts over e": model.num_experts % plan.expert_parallel == 0,
        "sequence over c": request.workload.seq_length % c == 0,
    }


def _stages(plan: Plan, request: PlanRequest) -> dict[str, bool]:
    chunks = CHUNKS.get(plan.schedule, plan.virtual_stages)
    held = [stage.layers for stage in plan.stages]
    recomputed = [stage.recompute_layers for stage in plan.stages]
    return {
        "a schedule exactly with a pipeline": (plan.schedule == "none") == (plan.pipeline_parallel == 1),
        "chunks suit the schedule": plan.virtual_stages == chunks,
        "one stage plan a rank": len(plan.stages) == plan.pipeline_parallel,
        "one count a chunk": all(len(stage.chunk_layers) == plan.virtual_stages for stage in plan.stages),
        "all layers are held": sum(held) == request.model.num_layers,
        "no rank is empty": min(held, default=0) > 0,
        "recomputed layers are held": all(r <= n for r, n in zip(recomputed, held, strict=True)),
        "recompute says what stages do": (plan.recompute == "none") == (sum(recomputed) == 0),
    }


def _framework(plan: Plan, request: PlanRequest) -> dict[str, bool]:
    limits = request.framework.limits
    held = [stage.layers for stage in plan.stages]
    middle = held if limits.uneven_stages == "even" else held[1:-1]
    return {
        "schedule exists": plan.schedule == "none" or plan.schedule in limits.schedules,
        "ZeRO stage exists": plan.zero_stage in limits.zero_stages,
        "ZeRO stage goes with the pipeline": plan.pipeline_parallel == 1
        or plan.zero_stage in limits.zero_stages_with_pipeline,
        "layout can be written": limits.uneven_stages == "any" or len(set(middle)) <= 1,
        "rank order exists": plan.rank_order in limits.rank_orders,
        "offload exists": plan.offload == "none" or plan.offload in limits.offloads,
        "parameters that leave are sharded": not plan.offload.startswith("parameters")
        or plan.zero_stage in limits.parameter_offload_zero_stages,
        "activations leave beside the recompute that goes with it": not plan.offload.endswith("activations")
        or plan.recompute in limits.activation_offload_recompute,
        "HSDP exists": limits.hybrid_sharding
        or plan.shard_group_size in {1, plan.data_parallel * plan.context_parallel},
    }
