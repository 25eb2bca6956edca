"""Random requests small enough for brute force: odd sizes, experts, uneven layers, tight memory, few
choices each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import numpy as np
from reference import settings
from toys import tiny_dense, tiny_moe, toy_cluster, vary

from planner.spec import Model, PlanRequest

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v")


MOST_SETTINGS = 60
"""Settings of a request that brute force is given."""


def small_requests(
    number: int, first_seed: int = 0, make: Callable[[int], PlanRequest] | None = None
) -> Iterator[tuple[int, PlanRequest]]:
    """That many requests with at most ``MOST_SETTINGS`` settings, each with its seed."""
    seeded = ((seed, (make or small_request)(seed)) for seed in count(first_seed))
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


def hybrid_request(seed: int) -> PlanRequest:
    """``small_request`` with layers of every kind: linear mixers, blocks alone, experts, in random order."""
    request, rng = small_request(seed), np.random.default_rng(seed)
    layers, heads = request.model.num_layers + 1, request.model.num_heads
    letters = list("ALPM*-E" if request.model.is_moe else "ALPM*-")
    pattern = "".join(rng.choice(letters, size=layers).tolist())
    hybrid = {
        "num_layers": layers,
        "layer_pattern": "M" + pattern[1:],
        "linear_mixer": str(rng.choice(["mamba2", "gated_delta", "kimi_delta"])),
        "linear_key_heads": heads // 2,
        "linear_value_heads": heads,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "attention_gate": bool(rng.random() < 0.5),
    }
    limits = {
        "linear_tensor_parallel": bool(rng.random() < 0.5),
        "linear_context_parallel": bool(rng.random() < 0.5),
    }
    model = Model(**{**request.model.model_dump(), **hybrid})
    return vary(request, limits=limits).model_copy(update={"model": model})


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
