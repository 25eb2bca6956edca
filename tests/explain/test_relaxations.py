"""The smallest change of each kind, and plans that fit where equal stages do not."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from planner.api import question
from planner.explain.changes import with_hbm_bytes, with_host_bytes
from planner.explain.ladders import MEMORY, OF_FRAMEWORKS
from planner.explain.lean_layout import lean_layouts
from planner.explain.leanest import any_plan, leanest, peak_bytes
from planner.explain.relaxations import Relaxation, Relaxed, least_host_plan, relaxations
from planner.frameworks import load_framework
from planner.rules import RULES, broken_rules
from planner.rules.memory import host_bytes_per_node
from planner.solver import solve
from planner.solver.evaluate import evaluate
from planner.spec import PlanRequest

BUBBLE = "bubble_stays_within_budget"


@pytest.fixture(autouse=True)
def _plans_as_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes are shown with the plan that proves them: no search for a faster one."""

    def described(found: Any, *_: float) -> Relaxation:
        return Relaxation(found.kind, found.change, evaluate(found.plan, found.changed), found.remark)

    monkeypatch.setattr("planner.explain.relaxations._described", described)


def changes(found: Relaxed) -> dict[str, str]:
    return {each.kind: each.change for each in found.found}


def test_bubble_and_batch_are_the_smallest_that_work() -> None:
    """With 10 chunks of one layer: 7 / (16 x 10) is 4.4 %, and 7 / (72 x 10) the first below 1 %."""
    pins: dict[str, Any] = {"tp": "8", "pp": "8", "max_bubble": 0.01, "global_batch": 16}
    found = relaxations(question({"model": "llama-3-70b", "gpus": 128, **pins}), (BUBBLE,), 10)
    assert changes(found) == {"bubble": "--max-bubble 0.05", "batch": "--global-batch 72"}
    for each in found.found:
        assert each.plan.is_legal


def test_the_nearest_batch_that_pins_divide_is_tried() -> None:
    """1024 does not divide by 3; 1023 = 3 x 341 does."""
    request = question({"model": "100b", "gpus": 512, "micro_batch": "3"})
    found = relaxations(request, ("micro_batch_divides_the_replica_batch",), 10)
    assert changes(found)["batch"] == "--global-batch 1023"


def test_the_nearest_sequence_is_tried_where_the_rule_is_about_division() -> None:
    """Two ring ranks need a multiple of 4: 8192 is nearer than 8188."""
    request = question({"model": "llama-3-8b", "gpus": 48, "seq_length": 8191, "cp": "2"})
    found = relaxations(request, ("sequence_divides_over_context_ranks",), 10)
    assert changes(found) == {"sequence": "--seq-length 8192"}


def test_rules_that_read_the_framework_offer_another() -> None:
    for rule in RULES:
        reads = "request.framework" in inspect.getsource(rule.predicate)
        said = rule.name in OF_FRAMEWORKS
        assert said or not reads, rule.name


def test_a_framework_that_copies_kv_heads_is_offered() -> None:
    """8 KV heads over 16 ranks: torchtitan refuses, Megatron copies each once."""
    request = question({"model": "llama-3-70b", "gpus": 64, "framework": "torchtitan", "tp": "16"})
    wide = request.model_copy(update={"allow_tensor_parallel_across_nodes": True})
    others = [load_framework("megatron")]
    found = relaxations(wide, ("kv_heads_divide_over_tensor_ranks",), 10, frameworks=others)
    assert changes(found) == {"framework": "--framework megatron"}


@pytest.fixture(scope="module")
def deep() -> PlanRequest:
    """70B on 16 pipeline ranks without recompute: the first rank keeps 16 micro-batches in flight."""
    pins = {"pp": "16", "zero": "0", "recompute": "none"}
    return question({"model": "llama-3-70b", "gpus": 16, **pins})


def test_the_leanest_layout_gives_the_last_ranks_more_layers(deep: PlanRequest) -> None:
    found = leanest(deep, 10).plan
    assert found is not None
    even, lean = lean_layouts(found.plan.model_copy(update={"stages": ()}), deep)
    layers = [stage.layers for stage in lean.stages]
    assert sum(layers) == 80
    assert layers == sorted(layers)
    assert peak_bytes(lean, deep) < 0.7 * peak_bytes(even, deep)
    assert peak_bytes(lean, deep) == pytest.approx(found.peak_memory_bytes)


def test_with_a_little_less_hbm_than_said_nothing_fits(deep: PlanRequest) -> None:
    found = leanest(deep, 10).plan
    assert found is not None
    needed = found.peak_memory_bytes
    assert any_plan(with_hbm_bytes(deep, needed), 10).witness is not None
    assert any_plan(with_hbm_bytes(deep, needed * 0.97), 10).is_impossible


@pytest.mark.parametrize("framework", ["megatron", "maxtext"])
def test_lean_layouts_are_layouts_of_the_framework(tiny_dense: PlanRequest, framework: str) -> None:
    request = tiny_dense.model_copy(update={"framework": load_framework(framework)})
    found = solve(request, top=3).plans
    assert found
    for each in found:
        for plan in lean_layouts(each.plan.model_copy(update={"stages": ()}), request):
            assert set(broken_rules(plan, request)) <= {MEMORY}


def test_accelerators_of_the_same_vendor_are_named_first() -> None:
    request = question({"model": "llama-3-70b", "hardware": "tpu-v5e", "gpus": 16, "tp": "8"})
    plan = leanest(request, 10).plan
    assert plan is not None
    hbm = next(each for each in relaxations(request, (MEMORY,), 0, plan.plan).found if each.kind == "hbm")
    assert hbm.remark.startswith(" (as tpu-v5p, tpu-v7x, ")


def test_a_smaller_reserve_is_offered_where_the_user_keeps_one(deep: PlanRequest) -> None:
    usable = deep.cluster.usable_hbm_bytes
    plan = leanest(deep, 10).plan
    assert plan is not None
    big = with_hbm_bytes(deep, 200e9)
    cluster = big.cluster.model_copy(update={"reserved_hbm_bytes": 200e9 - usable})
    found = relaxations(big.model_copy(update={"cluster": cluster}), (MEMORY,), 0, plan.plan)
    left = np.floor((200e9 - plan.peak_memory_bytes) / 1e8) / 10
    assert changes(found)["reserve"] == f"--hbm-reserve {left:g}GB"


def test_host_memory_is_about_the_least_that_works() -> None:
    request = question({"model": "llama-3-70b", "hardware": "v100", "gpus": 32})
    plan = least_host_plan(request, np.inf)
    assert plan is not None
    needed = host_bytes_per_node(plan, request)
    assert any_plan(with_host_bytes(request, needed), 10, search=False).witness is not None
    assert any_plan(with_host_bytes(request, needed / 1.1), 10, search=False).witness is None


def test_what_is_not_enough_is_said_once() -> None:
    """405B: more HBM does not help where offloaded state has to lie on the host."""
    offloaded = question(
        {"model": "405b", "hardware": "a100", "gpus": 8, "framework": "deepspeed", "offload": "optimizer"}
    )
    said = relaxations(offloaded, (MEMORY,), 10).hopeless
    assert said[0] == "More HBM would be enough only together with dropping --offload optimizer."
    (others,) = [sentence for sentence in said if "None of these" in sentence]
    assert others.startswith(
        "None of these would be enough alone: shorter sequences (down to 1,024 tokens); "
    )


def test_a_number_of_recomputed_layers_that_makes_no_room_is_not_the_last() -> None:
    """70B over 5 stages of 16 GB chips: only a stage of 17 layers, all recomputed, holds enough."""
    machine: dict[str, Any] = {"hardware": "tpu-v5e", "gpus": 40, "framework": "megatron"}
    request = question({"model": "llama-3-70b", "global_batch": 512, **machine})
    best = solve(request, top=1).best
    assert best is not None
    assert best.fits
    assert any_plan(request, 10, search=False).witness is not None
