"""Random plans for one request at a time: all schedules, uneven stages, recompute, experts, sharding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, get_args

from toys import tiny_dense, tiny_hybrid, tiny_moe, vary

from planner.catalog import load_cluster, load_model
from planner.frameworks import FRAMEWORKS, load_framework
from planner.spec import Plan, PlanRequest, StagePlan, Workload
from planner.spec.plan import SCHEDULES, Offload

MODELS = (
    "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b", "gemma-3-4b", "qwen3-30b-a3b",
    "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "falcon-h1-7b", "kimi-linear-48b-a3b",
    "nemotron-3-super-120b-a12b", "gemma-4-31b",
)  # fmt: skip
MACHINES = ("h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm-180gb", "gb200-nvl72", "mi300x", "tpu-v5p")
KINDS: Any = ("ring", "all_gather", "all_to_all")
RANK_ORDERS: Any = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
TWO_CHUNKS = {"zb-v", "dualpipe-v"}
PLANS_OF_A_REQUEST = 20


@lru_cache(maxsize=256)
def _catalog_request(model: str, machine: str, framework: str) -> PlanRequest:
    cluster = load_cluster(machine, 1024)
    formats: Any = tuple(name for name in ("bf16", "fp16", "fp8") if name in cluster.accelerator.gemm)
    return PlanRequest(
        model=load_model(model),
        cluster=cluster,
        workload=Workload(global_batch=512, seq_length=2048, precisions=formats),
        framework=load_framework(framework),
        max_bubble=None,
    )


def random_request(rng: random.Random) -> PlanRequest:
    """A toy or a published model on a toy or a published machine, with any framework's habits."""
    if rng.random() < 0.4:
        make = rng.choice((tiny_dense, tiny_moe, tiny_hybrid))
        request = vary(make(), model={"num_layers": rng.choice((4, 7, 12))})
    else:
        request = _catalog_request(rng.choice(MODELS), rng.choice(MACHINES), "megatron")
    return request.model_copy(update={"framework": load_framework(rng.choice(list(FRAMEWORKS)))})


def random_plans(rng: random.Random, request: PlanRequest, count: int = PLANS_OF_A_REQUEST) -> list[Plan]:
    """Plans that have a price under the request; most break some rule, which does not matter here."""
    return [_random_plan(rng, request) for _ in range(count)]


def _random_plan(rng: random.Random, request: PlanRequest) -> Plan:
    pick, moe = rng.choice, request.model.is_moe
    p, v, schedule, m = _pipeline(rng, request.model.num_layers)
    c, d = pick((1, 1, 2, 4)), pick((1, 2, 4, 8))
    zero = pick((0, 1, 2, 3))
    recompute = pick(("none", "selective", "full"))
    return Plan(
        tensor_parallel=(t := pick((1, 2, 4, 8))), pipeline_parallel=p, virtual_stages=v, schedule=schedule,
        context_parallel=c, context_parallel_kind=pick(KINDS) if c > 1 else "ring",
        data_parallel=d, expert_parallel=pick((1, 2, 4)) if moe else 1,
        expert_tensor_parallel=pick((1, t)) if moe else 1, zero_stage=zero,
        shard_group_size=pick([n for n in range(1, d * c + 1) if d * c % n == 0]) if zero else 1,
        sequence_parallel=t > 1 and rng.random() < 0.7, micro_batch=pick((1, 2, 4)), num_microbatches=m,
        recompute=recompute, offload=pick(("none", "none", "none", *get_args(Offload))),
        precision=pick(request.workload.precisions), rank_order=RANK_ORDERS[m % 2],
        stages=_stages(rng, request.model.num_layers, p, v, recompute),
    )  # fmt: skip


def _pipeline(rng: random.Random, num_layers: int) -> tuple[int, int, Any, int]:
    """Degree, chunks, schedule and micro-batches that the schedule can run."""
    p = rng.choice([size for size in (1, 1, 2, 3, 4, 6, 8) if size <= num_layers])
    if p == 1:
        return 1, 1, "none", rng.randrange(1, 20)
    schedule: Any = rng.choice([name for name in SCHEDULES if name != "none"])
    if schedule == "interleaved":
        return (
            p,
            rng.choice([v for v in (2, 3) if p * v <= num_layers] or [1]),
            schedule,
            p * rng.randrange(1, 6),
        )
    if schedule in TWO_CHUNKS:
        p = p if 2 * p <= num_layers else 2
        return p, 2, schedule, 2 * p + 2 * rng.randrange(8)
    if schedule == "dualpipe":
        p = 2 if p < 4 else 4
        return p, 1, schedule, 2 * p + 2 * rng.randrange(8)
    return p, 1, schedule, rng.randrange(1, 40)


def _stages(rng: random.Random, layers: int, p: int, v: int, recompute: str) -> tuple[StagePlan, ...]:
    """The layers cut at random places (or evenly), and random numbers of recomputed layers."""
    if rng.random() < 0.3 and layers % (p * v) == 0:
        counts = [layers // (p * v)] * (p * v)
    else:
        cuts = sorted(rng.sample(range(1, layers), p * v - 1))
        counts = [stop - start for start, stop in zip([0, *cuts], [*cuts, layers], strict=True)]
    stages = []
    for rank in range(p):
        held = tuple(counts[rank * v : (rank + 1) * v])
        again = rng.randrange(sum(held) + 1) if recompute != "none" else 0
        stages.append(StagePlan(chunk_layers=held, recompute_layers=again))
    return tuple(stages)


def groups(first: int, count: int) -> Iterator[tuple[PlanRequest, list[Plan]]]:
    """Requests with their plans, by seed."""
    for seed in range(first, first + count):
        rng = random.Random(f"agreement {seed}")
        request = random_request(rng)
        yield request, random_plans(rng, request)
