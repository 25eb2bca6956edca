"""Parameter counts against published totals and against counts done by hand."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import load_model
from planner.cost.parameters import (
    active_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    total_parameters,
)
from planner.spec.model import LayerKind, Model


def tiny(**changes: Any) -> Model:
    """Two layers, hidden 8, two heads of 4, one KV head, MLP 16, vocabulary 10."""
    shape = {
        "name": "tiny",
        "num_layers": 2,
        "hidden_size": 8,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 4,
        "ffn_hidden_size": 16,
        "vocab_size": 10,
    }
    return Model(**{**shape, **changes})


DENSE, MOE = LayerKind(), LayerKind(moe=True)
SPARSE = {"num_experts": 4, "experts_per_token": 2, "expert_ffn_hidden_size": 6}


def test_llama_layer_by_hand() -> None:
    # q 8x8, k and v 8x4 each, o 8x8: 64 + 64 + 64 = 192; MLP 3 matrices 8x16 = 384; two norms of 8.
    layer = layer_parameters(tiny(), DENSE)
    assert layer.as_dict() == {
        "attention": 192,
        "linear_mixer": 0,
        "dense_mlp": 384,
        "routed_experts": 0,
        "shared_experts": 0,
        "router": 0,
        "norms": 16,
    }
    # Two layers of 592, two tables of 80, a final norm of 8.
    assert total_parameters(tiny()) == 2 * 592 + 160 + 8


def test_gpt_layer_is_12_h_squared_plus_13_h() -> None:
    # Narayanan et al. 2021, equation 2: 12 h^2 + 13 h a layer; table V h, positions s h, final norm 2 h.
    model = load_model("gpt3-175b")
    h = model.hidden_size
    assert layer_parameters(model, DENSE).total == 12 * h * h + 13 * h
    assert total_parameters(model) == 96 * (12 * h * h + 13 * h) + (51200 + 2048) * h + 2 * h
    assert total_parameters(model.model_copy(update={"vocab_size": 50257})) == 174_604_259_328


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("gpt3-175b", 174_615_846_912),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("gemma-2-2b", 2_614_341_888),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-2-27b", 27_227_128_320),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_630_071_296),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v2", 235_741_434_880),
        ("deepseek-v3", 671_026_419_200),
    ],
)
def test_total_equals_published_checkpoint(name: str, total: int) -> None:
    assert total_parameters(load_model(name)) == total


@pytest.mark.parametrize(
    ("name", "active"),
    [("mixtral-8x7b", 12.880e9), ("mixtral-8x22b", 39.16e9), ("qwen3-30b-a3b", 3.353e9),
     ("qwen3-235b-a22b", 22.19e9), ("deepseek-v3", 37.55e9)],
)  # fmt: skip
def test_active_parameters(name: str, active: float) -> None:
    assert active_parameters(load_model(name)) == pytest.approx(active, rel=5e-4)


def test_dense_model_is_all_active() -> None:
    model = load_model("llama-3-8b")
    assert active_parameters(model) == total_parameters(model)


def test_deepseek_v3_parts() -> None:
    model = load_model("deepseek-v3")
    layer = layer_parameters(model, MOE)
    # arXiv:2412.19437 with its config: attention 187,107,328 a layer with its two latent norms.
    assert layer.attention + model.q_lora_rank + model.kv_lora_rank == 187_107_328
    assert layer.routed_experts == 256 * 3 * 7168 * 2048
    assert layer.shared_experts == 3 * 7168 * 2048
    assert layer.router == 7168 * 256 + 256
    # One more mixture layer, a 14336 -> 7168 projection, three norms: 11.61 B.
    assert mtp_parameters(model) == layer.total + 2 * 7168**2 + 3 * 7168
    assert mtp_parameters(model) == pytest.approx(11.61e9, rel=1e-3)
    assert total_parameters(model, include_mtp=True) - total_parameters(model) == mtp_parameters(model)


def test_latent_attention_by_hand() -> None:
    # h=8, a=2, q rank 6, kv rank 5, nope 3, rope 1, value 4.
    latent = {
        "q_lora_rank": 6,
        "kv_lora_rank": 5,
        "qk_nope_head_dim": 3,
        "qk_rope_head_dim": 1,
        "v_head_dim": 4,
    }
    # down 8x6, up 6x(2x4); down 8x(5+1), up 5x2x(3+4); out (2x4)x8.
    layer = layer_parameters(tiny(**latent), DENSE)
    assert layer.attention == 48 + 48 + 48 + 70 + 64
    assert layer.norms == 2 * 8 + 6 + 5
    # Without a query rank: one 8x(2x4) projection and no query norm.
    layer = layer_parameters(tiny(**{**latent, "q_lora_rank": 0}), DENSE)
    assert layer.attention == 64 + 48 + 70 + 64
    assert layer.norms == 2 * 8 + 5


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({"qkv_bias": True}, 16),  # 8 + 4 + 4
        ({"attention_output_bias": True}, 8),
        ({"mlp_bias": True}, 2 * 16 + 8),
        ({"gated_mlp": False}, -8 * 16),
        ({"gated_mlp": False, "mlp_bias": True}, -8 * 16 + 16 + 8),
        ({"norms_per_layer": 4}, 16),
        ({"norm_vectors": 2}, 16),
        ({"norm_vectors": 0}, -16),
        ({"query_key_norm": "head"}, 8),  # a scale of 4 for queries, one for keys
        ({"query_key_norm": "full"}, 12),  # 2 x 4 and 1 x 4
        ({"attention_sinks": True}, 2),
        ({"parallel_block": True}, 0),
        ({"sliding_window": 4}, 0),
    ],
)
def test_each_extra_of_a_layer(changes: dict[str, Any], extra: int) -> None:
    assert layer_parameters(tiny(**changes), DENSE).total == layer_parameters(tiny(), DENSE).total + extra


def test_mixture_layer_by_hand() -> None:
    model = tiny(**SPARSE, shared_expert_ffn_hidden_size=5, shared_expert_gate=True, router_bias=True)
    layer = layer_parameters(model, MOE)
    assert layer.routed_experts == 4 * 3 * 8 * 6
    assert layer.shared_experts == 3 * 8 * 5 + 8
    assert layer.router == 8 * 4 + 4
    assert layer.dense_mlp == 0
    # Two of four experts idle in each of two layers.
    assert total_parameters(model) - active_parameters(model) == 2 * 2 * 3 * 8 * 6


def test_ends_of_the_model() -> None:
    model = tiny(learned_positions=7, embedding_norm=True, norm_vectors=2)
    assert embedding_parameters(model) == (10 + 7) * 8 + 16
    assert head_parameters(model) == 10 * 8 + 16


def test_tied_matrix_is_counted_once() -> None:
    assert total_parameters(tiny()) - total_parameters(tiny(tied_embeddings=True)) == 10 * 8
    assert head_parameters(tiny()) == head_parameters(tiny(tied_embeddings=True))


@settings(deadline=None, max_examples=50)
@given(
    layers=st.integers(1, 40),
    dense=st.integers(0, 45),
    freq=st.integers(1, 5),
    listed=st.sets(st.integers(0, 39), max_size=5),
)
def test_total_is_the_sum_over_layers(layers: int, dense: int, freq: int, listed: set[int]) -> None:
    model = tiny(
        **SPARSE, num_layers=layers, num_dense_layers=dense, moe_layer_freq=freq, dense_layers=tuple(listed)
    )
    kinds = [
        LayerKind(moe=i >= dense and (i - dense + 1) % freq == 0 and i not in listed) for i in range(layers)
    ]
    assert list(model.layer_kinds) == kinds
    ends = embedding_parameters(model) + head_parameters(model)
    assert total_parameters(model) == ends + sum(layer_parameters(model, kind).total for kind in kinds)


@settings(deadline=None, max_examples=50)
@given(layers=st.integers(1, 30), pattern=st.integers(0, 7))
def test_windows_follow_the_pattern(layers: int, pattern: int) -> None:
    model = tiny(num_layers=layers, sliding_window=4, window_pattern=pattern)
    for index, kind in enumerate(model.layer_kinds):
        is_full = pattern > 0 and (index + 1) % pattern == 0
        assert kind.window == (None if is_full else 4)


def test_listed_full_layers_replace_the_pattern() -> None:
    model = tiny(num_layers=4, sliding_window=4, full_attention_layers=(0, 3))
    assert [kind.window for kind in model.layer_kinds] == [None, 4, 4, None]
