"""Random plans for launch-file tests: many models, sizes and odd cases, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache

from planner.catalog import load_cluster, load_model
from planner.frameworks import load_framework
from planner.frameworks.files import inexpressible
from planner.frameworks.launch import has_even_stages, schedule_of, stages_of, with_stages
from planner.frameworks.nanotron.split import split_layers
from planner.rules import RULES
from planner.spec import Cluster, FrameworkProfile, Model, Plan, PlanRequest, Workload
from planner.spec.plan import ContextParallelKind

TINY = Model(
    name="tiny",
    num_layers=8,
    hidden_size=256,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    ffn_hidden_size=768,
    vocab_size=1024,
    seq_length=1024,
)
TINY_MOE = TINY.model_copy(
    update={"name": "tiny moe", "num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 256}
)
ODD = TINY.model_copy(
    update={
        "name": "odd 'name'; $(x)",
        "num_layers": 12,
        "hidden_size": 384,
        "num_heads": 12,
        "num_kv_heads": 6,
    }
    | {"ffn_hidden_size": 960, "vocab_size": 5040}
)
BLOCKS = Model(
    name="blocks", num_layers=12, layer_pattern="M-M*ME", linear_mixer="mamba2", linear_key_heads=8,
    linear_value_heads=16, linear_key_head_dim=64, linear_value_head_dim=32, linear_conv_bias=True,
    hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, ffn_hidden_size=768, vocab_size=1024,
    seq_length=1024, num_experts=8, experts_per_token=2, expert_ffn_hidden_size=256, mtp_depth=1,
)  # fmt: skip
DELTA = Model(
    name="delta", num_layers=8, layer_pattern="LLLA", linear_mixer="gated_delta", linear_key_heads=8,
    linear_value_heads=16, linear_key_head_dim=64, linear_value_head_dim=32, attention_gate=True,
    hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, ffn_hidden_size=768, vocab_size=1024,
    seq_length=1024,
)  # fmt: skip
"""Hybrids in Megatron's two ways: a letter for every block; a gated delta net in place of attention."""
CATALOG = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "mixtral-8x7b",
    "deepseek-v3",
    "qwen3-30b-a3b",
    "gpt3-175b",
    "gemma-3-12b",
    "gpt-oss-20b",
)
ABOUT_COST = frozenset(
    {
        "every_stage_fits_in_memory",
        "offloaded_state_fits_in_host_memory",
        "bubble_stays_within_budget",
        "tensor_ranks_stay_inside_the_fast_domain",
        "precision_is_among_the_choices",
        "accelerator_has_the_precision",
    }
)
"""Rules that no framework checks: memory, speed, the accelerator."""


@lru_cache
def models() -> tuple[Model, ...]:
    """Small and published models."""
    return (TINY, TINY_MOE, ODD, *(load_model(name) for name in CATALOG))


@lru_cache
def cluster_of(num_gpus: int) -> Cluster:
    """H100 nodes of 8."""
    return load_cluster("h100-sxm-80gb", num_gpus)


def request_of(plan: Plan, model: Model, profile: FrameworkProfile, seq_length: int) -> PlanRequest:
    """The question to which the plan is an answer."""
    workload = Workload(global_batch=plan.global_batch, seq_length=seq_length, precisions=(plan.precision,))
    return PlanRequest(
        model=model, cluster=cluster_of(plan.num_gpus), workload=workload, framework=profile, max_bubble=None
    )


def broken(plan: Plan, request: PlanRequest) -> list[str]:
    """Names of broken rules that a framework could notice."""
    return [rule.name for rule in RULES if rule.name not in ABOUT_COST and not rule.admits(plan, request)]


def unused_kind(profile: FrameworkProfile) -> ContextParallelKind:
    """What stands for all kinds of context parallelism where there is one context rank."""
    return profile.limits.context_parallel_kinds[0]


def random_plan(rng: random.Random, model: Model, profile: FrameworkProfile) -> Plan:
    """A plan that is mostly sensible and not always legal."""
    limits = profile.limits
    pick = rng.choice
    t, c = pick((1, 1, 2, 4, 8)), pick((1, 1, 1, 2, 4))
    p, d = pick((1, 1, 2, 3, 4, 8)), pick((1, 2, 3, 4, 8))
    p = min(p, limits.max_pipeline_parallel or p)
    c = min(c, limits.max_context_parallel or c)
    v = pick((1, 1, 2, 3)) if p > 1 and "interleaved" in limits.schedules else 1
    schedule = schedule_of(p, v)
    others = [name for name in limits.schedules if name in {"gpipe", "zb-v", "dualpipe-v"}]
    if p > 1 and others and rng.random() < 0.4:
        schedule = pick(others)
        v = 1 if schedule == "gpipe" else 2
    zero = pick(limits.zero_stages)
    group = d * c if zero else 1
    if zero and limits.hybrid_sharding and rng.random() < 0.3 and group > 1:
        group = pick([size for size in range(2, group + 1) if group % size == 0])
    moe = model.is_moe
    recompute = pick(("none", *limits.recompute))
    e = pick((1, 2, 4, 8)) if moe and limits.expert_parallel else 1
    plan = Plan(
        tensor_parallel=t,
        pipeline_parallel=p,
        virtual_stages=v,
        schedule=schedule,
        data_parallel=d,
        context_parallel=c,
        context_parallel_kind=pick(limits.context_parallel_kinds) if c > 1 else unused_kind(profile),
        expert_parallel=e,
        expert_tensor_parallel=pick((1, t)) if moe and (limits.expert_tensor_parallel or e == 1) else 1,
        zero_stage=zero,
        shard_group_size=group,
        sequence_parallel=t > 1 and rng.random() < 0.7,
        micro_batch=pick((1, 1, 2, 4)),
        num_microbatches=pick((1, 2, 4, 8, 12, 16)) * (p if rng.random() < 0.6 else 1),
        recompute=recompute,
        offload=pick(limits.offloads) if limits.offloads and rng.random() < 0.2 else "none",
        precision=pick(limits.precisions) if rng.random() < 0.2 else "bf16",
    )
    if p > 1 and d > 1:
        plan = plan.model_copy(update={"rank_order": pick(limits.rank_orders)})
    return with_layout(rng, plan, model, profile)


def with_layout(rng: random.Random, plan: Plan, model: Model, profile: FrameworkProfile) -> Plan:
    """Give the plan stages: even, or moved a little where the framework can say so."""
    if profile.name == "nanotron" and plan.pipeline_parallel > 1:
        counts = split_layers(model, plan.pipeline_parallel)
        return plan.model_copy(update={"stages": stages_of(counts, plan)})
    plan = with_stages(plan, model)
    stages = plan.pipeline_parallel * plan.virtual_stages
    if profile.limits.uneven_stages == "any" and stages > 1 and rng.random() < 0.4:
        counts = [model.num_layers // stages] * stages
        counts[0] += model.num_layers % stages
        if counts[-1] > 1:
            counts[-1], counts[0] = counts[-1] - 1, counts[0] + 1
        plan = plan.model_copy(update={"stages": stages_of(counts, plan)})
    if plan.recompute == "full" and profile.limits.partial_recompute and rng.random() < 0.5:
        first = max(1, min(min(stage.chunk_layers) for stage in plan.stages) // 2)
        stages_now = [
            stage.model_copy(
                update={"recompute_layers": sum(min(first, chunk) for chunk in stage.chunk_layers)}
            )
            for stage in plan.stages
        ]
        plan = plan.model_copy(update={"stages": tuple(stages_now)})
    return plan


def candidates(framework: str, seed: int) -> Iterator[tuple[Plan, PlanRequest]]:
    """Random plans of a framework without end, legal or not."""
    rng = random.Random(f"{framework} {seed}")
    profile = load_framework(framework)
    while True:
        model = rng.choice(models())
        plan = random_plan(rng, model, profile)
        seq_length = rng.choice((1024, 2048, 4096, 1536))
        yield plan, request_of(plan, model, profile, seq_length)


@lru_cache
def legal_plans(framework: str, count: int, seed: int = 1) -> tuple[tuple[Plan, PlanRequest], ...]:
    """So many different legal plans that the framework can express."""
    found: list[tuple[Plan, PlanRequest]] = []
    seen = set()
    for plan, request in candidates(framework, seed):
        if (
            (plan, request.model.name) not in seen
            and not broken(plan, request)
            and not inexpressible(plan, request)
        ):
            seen.add((plan, request.model.name))
            found.append((plan, request))
            if len(found) == count:
                break
    return tuple(found)


__all__ = [
    "ABOUT_COST", "ODD", "TINY", "TINY_MOE", "broken", "candidates", "cluster_of", "has_even_stages",
    "legal_plans", "models", "random_plan", "request_of",
]  # fmt: skip


def written(framework: str, model: Model, count: int) -> Iterator[tuple[Plan, PlanRequest]]:
    """Random legal plans that the framework can express."""
    rng, profile = random.Random(f"{framework} {model.name}"), load_framework(framework)
    while count:
        plan = random_plan(rng, model, profile)
        request = request_of(plan, model, profile, 1024)
        if not broken(plan, request) and not inexpressible(plan, request):
            count -= 1
            yield plan, request
