"""FLOPs: published GFLOP per token, per-GPU shapes under every degree."""

from __future__ import annotations

import pytest

from planner.catalog import load_model
from planner.cost.flops import expert_tokens, layer_gemms, mfu, model_flops_per_token
from planner.cost.setting import Settings
from planner.spec import PlanRequest
from planner.spec.model import LayerKind, Model


@pytest.mark.parametrize(
    ("name", "seq_length", "gigaflop"),
    [  # Megatron-Bridge and NeMo performance pages, causal attention counted half
        ("llama-3-8b", 4096, 48.2), ("llama-3-8b", 8192, 51.5), ("llama-3-8b", 131072, 148.0),
        ("llama-3-70b", 4096, 433.1), ("llama-3-70b", 8192, 449.2), ("llama-3.1-405b", 8192, 2524.0),
        ("gpt3-175b", 2048, 1061.9),
    ],
)  # fmt: skip
def test_published_gigaflop_per_token(name: str, seq_length: int, gigaflop: float) -> None:
    assert model_flops_per_token(load_model(name), seq_length) / 1e9 == pytest.approx(gigaflop, rel=2e-3)


def test_deepseek_v3_counts_router_and_mtp() -> None:
    # 250.45 GFLOP per token without MTP (router in), 260.64 with it (tpu-recipes and Megatron-Bridge)
    model = load_model("deepseek-v3")
    plain = model.model_copy(update={"mtp_depth": 0})
    assert model_flops_per_token(plain, 4096) / 1e9 == pytest.approx(250.45, rel=2e-3)
    assert model_flops_per_token(model, 4096) / 1e9 == pytest.approx(260.64, rel=4e-3)


def test_a_window_cuts_attention_alone() -> None:
    # w = 128 of s = 8192: mean context 128 - 128 * 127 / 16384 = 127.0 instead of 4096
    model = load_model("llama-3-8b")
    windowed = model.model_copy(update={"sliding_window": 128, "window_pattern": 0})
    saved = 3 * 32 * 2 * 32 * 256 * (4096 - (128 - 128 * 127 / 16384))
    difference = model_flops_per_token(model, 8192) - model_flops_per_token(windowed, 8192)
    assert difference == pytest.approx(saved, rel=1e-9)


def test_mfu_of_a_published_run() -> None:
    # Llama 3.1 405B at 326 tokens/s/GPU and 2524 GFLOP/token: 822 TFLOP/s
    model = load_model("llama-3.1-405b")
    assert mfu(model, 8192, 326, 989e12) * 989 == pytest.approx(822, rel=2e-3)


def test_shapes_under_tensor_parallelism(tiny_dense: PlanRequest) -> None:
    # h 64, 8 heads and 4 KV heads of 8, f 256 gated, t = 2: qkv 4*8 + 2*2*8 = 64 columns, mlp 2 * 128
    gemms = layer_gemms(tiny_dense.model, LayerKind(), 100, Settings(tensor_parallel=2))
    shapes = {gemm.name: (gemm.m, float(gemm.n), float(gemm.k)) for gemm in gemms}
    assert shapes == {
        "qkv": (100, 64.0, 64.0), "attention_out": (100, 64.0, 32.0), "mlp_in": (100, 256.0, 64.0),
        "mlp_out": (100, 64.0, 128.0),
    }  # fmt: skip


def test_kv_heads_are_copied_beyond_one_a_rank(tiny_dense: PlanRequest) -> None:
    # t = 8: one query head and one (copied) KV head of 8 each: 8 + 2 * 8 columns
    gemms = layer_gemms(tiny_dense.model, LayerKind(), 100, Settings(tensor_parallel=8))
    assert float(gemms[0].n) == 24.0


def test_expert_rows_follow_the_groups(tiny_moe: PlanRequest) -> None:
    # 100 tokens, t = 2, k = 2, e = 4 of E = 8: each rank sends 100 rows, gets 100 for 2 experts
    setting = Settings(tensor_parallel=2, expert_parallel=4)
    assert expert_tokens(tiny_moe.model, 100, setting) == pytest.approx(50.0)
    experts = [g for g in layer_gemms(tiny_moe.model, LayerKind(moe=True), 100, setting) if g.expert]
    assert [float(g.count) for g in experts] == [2.0, 2.0]
    assert sum(float(g.m * g.count) for g in experts[:1]) == pytest.approx(100.0)


@pytest.mark.parametrize(
    "degrees", [{}, {"tensor_parallel": 2}, {"expert_parallel": 4}, {"expert_tensor_parallel": 2}]
)
def test_flops_of_all_ranks_add_up_to_the_layers(tiny_moe: PlanRequest, degrees: dict[str, int]) -> None:
    # work of one rank times the ranks that share it equals the unsplit layer (experts: k rows a token)
    model, kind = tiny_moe.model, LayerKind(moe=True)
    whole = sum(g.flop for g in layer_gemms(model, kind, 64, Settings()) if g.expert)
    setting = Settings(**degrees)
    part = sum(g.flop for g in layer_gemms(model, kind, 64, setting) if g.expert)
    assert float(part) * setting.tensor_parallel == pytest.approx(float(whole))


def test_frozen_weights_have_no_weight_gradients() -> None:
    """2 layers, h 8, 2 heads of 4, 2 KV heads, ungated MLP 16, vocabulary 32, 16 tokens.

    Matrices 2 x (4 x 64 + 2 x 128) + 32 x 8 = 1280 weights: 2 x 1280 FLOP forward, as many for inputs.
    Attention 2 layers x 2 x 2 heads x (4 + 4) x 16/2 = 512 FLOP forward, twice that backward as before.
    """
    model = Model(
        name="m", num_layers=2, hidden_size=8, num_heads=2, num_kv_heads=2, head_dim=4, ffn_hidden_size=16,
        vocab_size=32, seq_length=16, activation="gelu",
    )  # fmt: skip
    assert model_flops_per_token(model, 16) == 3 * (2 * 1280 + 512)
    assert model_flops_per_token(model, 16, frozen_weights=True) == 2 * 2 * 1280 + 3 * 512
    assert mfu(model, 16, 10.0, 1e6, frozen_weights=True) == pytest.approx((5120 + 1536) * 1e-5)
