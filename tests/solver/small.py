"""Random requests small enough for brute force: odd sizes, experts, uneven layers, tight memory, few
choices each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import numpy as np
from reference import settings
from toys import tiny_dense, tiny_moe, toy_cluster, vary

from planner.spec import PlanRequest

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v")


MOST_SETTINGS = 60
"""Settings of a request that brute force is given."""


def small_requests(number: int, first_seed: int = 0) -> Iterator[tuple[int, PlanRequest]]:
    """That many requests with at most ``MOST_SETTINGS`` settings, each with its seed."""
    seeded = ((seed, small_request(seed)) for seed in count(first_seed))
    small = (
        pair
        for pair in seeded
        if sum(1 for _ in islice(settings(pair[1]), MOST_SETTINGS + 1)) <= MOST_SETTINGS
    )
    return islice(small, number)


def small_request(seed: int) -> PlanRequest:
    """One request; the same seed gives the same one."""
    rng = np.random.default_rng(seed)
    is_moe = bool(rng.random() < 0.35)
    layers = int(rng.integers(2, 6))
    heads = int(rng.choice([4, 6, 8]))
    model: dict[str, Any] = {
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": heads // 2,
        "hidden_size": heads * 8,
    }
    if is_moe:
        model |= {"num_experts": int(rng.choice([4, 6])), "num_dense_layers": int(rng.integers(0, 2))}
    gpus = int(rng.choice([1, 2, 3, 4, 6, 8] if not is_moe else [2, 3, 4, 6]))
    batch = int(rng.choice([4, 6, 8, 12]))
    limits = {
        "schedules": ("none", *rng.choice(SCHEDULES, size=2, replace=False).tolist()),
        "zero_stages": tuple(sorted(rng.choice(4, size=2, replace=False).tolist())),
        "zero_stages_with_pipeline": (0, 1, 2, 3) if rng.random() < 0.5 else (0, 1),
        "hybrid_sharding": bool(rng.random() < 0.3),
        "context_parallel_kinds": (str(rng.choice(["ring", "all_gather", "all_to_all"])),),
        "uneven_stages": str(rng.choice(["even", "ends", "any"])),
        "recompute": ("none", *(("full",) if rng.random() < 0.6 else ())),
        "recompute_per_stage": bool(rng.random() < 0.5),
        "partial_recompute": bool(rng.random() < 0.7),
        "offloads": ("none", "optimizer") if rng.random() < 0.3 else ("none",),
        "rank_orders": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")[: 1 + seed % 2],
    }
    base = tiny_moe() if is_moe else tiny_dense()
    bubble = [0.25, 1.0, None][int(rng.integers(3))]
    request = vary(
        base, model=model, limits=limits,
        workload={"global_batch": batch, "seq_length": int(rng.choice([96, 128, 240]))},
    )  # fmt: skip
    cluster = toy_cluster(gpus, gpus_per_node=int(rng.choice([2, 4])))
    request = request.model_copy(update={"cluster": cluster, "max_bubble": bubble, "prefer_simple": False})
    return with_memory(request, float(rng.choice([1.0, 1.0, 1.02, 1.004])))


def with_memory(request: PlanRequest, headroom: float) -> PlanRequest:
    """HBM just above the framework's fixed share where ``headroom`` is tight (1.0: plenty)."""
    if headroom == 1.0:
        return request
    habits = request.framework.memory
    size = (habits.context_bytes + 3 * habits.communicator_bytes) * headroom
    memory = request.cluster.accelerator.memory.model_copy(update={"hbm_bytes": size})
    accelerator = request.cluster.accelerator.model_copy(update={"memory": memory})
    return request.model_copy(
        update={"cluster": request.cluster.model_copy(update={"accelerator": accelerator})}
    )
