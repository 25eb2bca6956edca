"""How frameworks spread layers over stages when a plan leaves them open."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import load_model
from planner.cost.split import default_stages, split_by_cost, split_by_load, split_evenly
from planner.spec import Model, Plan


def nanotron(layers: int, hidden: int, ffn: int, tied: bool) -> Model:
    return Model(
        name="bench", num_layers=layers, hidden_size=hidden, num_heads=32, num_kv_heads=32,
        head_dim=hidden // 32, ffn_hidden_size=ffn, vocab_size=131072, tied_embeddings=tied,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (32, 8, [4] * 8),
        (126, 16, [7] + [8] * 14 + [7]),  # 126 = 128 - 2: embedding and head count as layers
        (62, 32, [1] + [2] * 30 + [1]),
        (61, 16, [4] * 13 + [3] * 3),
        (5, 1, [5]),
    ],
)
def test_even_split(layers, stages, expected):
    assert split_evenly(layers, stages) == expected


@pytest.mark.parametrize(
    ("model", "stages", "first"),
    [
        # In layers, the head weighs 4.0 (1.3B), 3.6 (3.6B) and 2.2 (8.9B); a stage stops at its share.
        (nanotron(16, 2048, 8192, True), 2, 10),
        (nanotron(16, 2048, 8192, True), 4, 5),
        (nanotron(16, 2048, 8192, True), 8, 3),
        (nanotron(28, 3072, 8192, True), 2, 16),
        (nanotron(28, 3072, 8192, True), 16, 2),
        (nanotron(32, 4096, 14336, False), 4, 9),
        (nanotron(32, 4096, 14336, False), 8, 5),
        (nanotron(32, 4096, 14336, False), 16, 3),
    ],
)
def test_split_by_cost_matches_the_memory_of_published_runs(model, stages, first):
    # Reserved memory of rank 0 divided by a layer's gives these counts in the published sweep.
    assert split_by_cost(model, stages)[0] == first


@pytest.mark.parametrize(
    ("schedule", "virtual_stages", "expected"),
    [
        # Megatron-Bridge's recipe: embedding and 4, fourteen times 4, then 1 with MTP and loss.
        ("1f1b", 1, [4] * 15 + [1]),
        # Under DualPipe rank 0 holds stages 0 and 15: 4 + 1 layers, head and MTP weigh as much as 4 + 4.
        ("dualpipe", 1, [4] * 15 + [1]),
    ],
)
def test_no_stage_of_deepseek_v3_is_left_without_layers(schedule, virtual_stages, expected):
    model = load_model("deepseek-v3")
    plan = Plan(pipeline_parallel=16, virtual_stages=virtual_stages, schedule=schedule)
    assert [stage.layers for stage in default_stages(plan, model, "even")] == expected


def test_a_heavy_head_leaves_its_stage_one_layer():
    model = load_model("glm-4.5-air")  # 46 layers; head and MTP weigh more than 3 of them
    plan = Plan(pipeline_parallel=8, virtual_stages=2, schedule="interleaved")
    counts = split_by_load(model, plan)
    assert sum(counts) == 46
    assert min(counts) == counts[-1] == 1


def test_recomputed_layers_follow_the_plan():
    model = load_model("llama-3-8b")
    plan = Plan(pipeline_parallel=4, schedule="1f1b", recompute="full")
    assert [stage.recompute_layers for stage in default_stages(plan, model, "even")] == [8, 8, 8, 8]
    plain = plan.model_copy(update={"recompute": "none"})
    assert {stage.recompute_layers for stage in default_stages(plain, model, "even")} == {0}


def test_chunks_of_an_interleaved_rank():
    model = load_model("llama-3-8b")
    plan = Plan(pipeline_parallel=4, virtual_stages=2, schedule="interleaved")
    assert [stage.chunk_layers for stage in default_stages(plan, model, "even")] == [(4, 4)] * 4


@settings(deadline=None, max_examples=60)
@given(
    layers=st.integers(1, 130),
    p=st.integers(1, 16),
    v=st.integers(1, 4),
    rule=st.sampled_from(["even", "cost"]),
)
def test_every_layer_is_held_once(layers, p, v, rule):
    model = nanotron(layers, 1024, 4096, True)
    schedule = "none" if p == 1 else ("interleaved" if v > 1 else "1f1b")
    plan = Plan(pipeline_parallel=p, virtual_stages=v if p > 1 else 1, schedule=schedule)
    stages = default_stages(plan, model, rule)
    assert len(stages) == p
    assert sum(stage.layers for stage in stages) == layers
    assert all(count >= 0 for stage in stages for count in stage.chunk_layers)
