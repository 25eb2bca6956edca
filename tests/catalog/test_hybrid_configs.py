"""Configurations with state-space and linear-attention layers: patterns, mixers, and what cannot be said."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import load_model
from planner.catalog.huggingface import INEXPRESSIBLE
from planner.errors import BadInput
from planner.spec.model import Model

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
WIDTHS = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}


def read(tmp_path: Path, **keys: Any) -> Model:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys))
    return load_model(path)


@pytest.mark.parametrize(
    ("name", "pattern", "mixer", "attention_layers"),
    [
        ("bamba-9b", "", "mamba2", 3),
        ("falcon-h1-7b", "P", "mamba2", 44),
        ("granite-4.0-h-tiny", "LLLLLALLLL", "mamba2", 4),
        ("kimi-linear-48b-a3b", "", "kimi_delta", 7),
        ("nemotron-3-nano-30b-a3b", "", "mamba2", 6),
        ("nemotron-h-56b", "", "mamba2", 10),
        ("qwen3-next-80b-a3b", "LLLA", "gated_delta", 12),
        ("qwen3.5-27b", "LLLA", "gated_delta", 16),
    ],
)
def test_layers_of_published_hybrids(name: str, pattern: str, mixer: str, attention_layers: int) -> None:
    model = load_model(CONFIGS / f"{name}.json")
    assert model.linear_mixer == mixer
    assert sum(kind.has_attention for kind in model.layer_kinds) == attention_layers
    if pattern:
        assert model.layer_pattern == pattern


def test_blocks_and_pattern_of_nemotron_say_the_same(tmp_path: Path) -> None:
    blocks = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    stated = {"model_type": "nemotron_h", **WIDTHS}
    by_letters = read(tmp_path, **stated, hybrid_override_pattern="M*-E")
    by_names = read(tmp_path, **stated, layers_block_type=[blocks[letter] for letter in "M*-E"])
    assert by_letters == by_names
    assert [kind.is_single_block for kind in by_letters.layer_kinds] == [True] * 4


def test_experts_of_nemotron_count_only_where_the_pattern_has_them(tmp_path: Path) -> None:
    stated = {"model_type": "nemotron_h", **WIDTHS, "n_routed_experts": 4}
    assert not read(tmp_path, **stated, hybrid_override_pattern="M*-").is_moe
    assert read(tmp_path, **stated, hybrid_override_pattern="M*E").num_experts == 4


def test_full_attention_of_gemma_4_has_heads_of_its_own() -> None:
    model = load_model(CONFIGS / "gemma-4-31b.json")
    windowed, full = (model.seen_by(kind) for kind in (model.layer_kinds[0], model.layer_kinds[5]))
    assert (windowed.head_dim, windowed.num_kv_heads, windowed.kv_projections) == (256, 16, 2)
    assert (full.head_dim, full.num_kv_heads, full.kv_projections) == (512, 4, 1)
    assert model.fewest_kv_heads == 4


def test_granite_without_linear_layers_or_experts_is_a_dense_transformer(tmp_path: Path) -> None:
    model = read(
        tmp_path, model_type="granitemoehybrid", **WIDTHS, num_hidden_layers=2, num_local_experts=0,
        shared_intermediate_size=96, layer_types=["attention"] * 2,
    )  # fmt: skip
    assert not model.is_hybrid
    assert not model.is_moe
    assert model.ffn_hidden_size == 96


def test_layers_of_kimi_linear_count_from_one(tmp_path: Path) -> None:
    attention = {"full_attn_layers": [2], "head_dim": 16, "num_heads": 4}
    model = read(
        tmp_path, model_type="kimi_linear", **WIDTHS, num_hidden_layers=3, linear_attn_config=attention
    )
    assert model.layer_pattern == "LAL"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern is missing"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*X"}, "layer_pattern has 'X'"),
        ({"model_type": "nemotron_h", "layers_block_type": ["mamba", "conv"]}, "holds 'conv'; known are"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "ME", "use_bias": True},
         "use_bias is set, which is not supported"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "ME", "mlp_bias": True},
         "mlp_bias is true, which is not supported beside experts"),
        ({"model_type": "qwen3_next", "num_hidden_layers": 2, "layer_types": ["full_attention"]},
         "layer_types has 1 entries for 2 layers"),
        ({"model_type": "qwen3_5_text", "num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
         "layer_types holds 'sliding_attention'; known are"),
        ({"model_type": "falcon_h1", "num_hidden_layers": 1, "mamba_d_ssm": 100, "mamba_n_heads": 3},
         "mamba_n_heads 3 does not divide the inner width 100"),
        ({"model_type": "bamba", "num_hidden_layers": 1, "mamba_n_heads": 4, "mamba_d_head": 5},
         "mamba_d_head times mamba_n_heads 4 is not the inner width 128"),
        ({"model_type": "bamba", "num_hidden_layers": 1, "mamba_n_heads": 4, "mamba_proj_bias": True},
         "mamba_proj_bias is set, which is not supported"),
        ({"model_type": "gemma4_text", "num_hidden_layers": 2}, "hidden_size_per_layer_input is set or left"),
        ({"model_type": "gemma4", "text_config": {"num_hidden_layers": 2, "enable_moe_block": 1, **WIDTHS}},
         "text_config.enable_moe_block is set"),
        ({"model_type": "kimi_linear", "num_hidden_layers": 1, "moe_layer_freq": 2},
         "moe_layer_freq differs from 1"),
    ],
)  # fmt: skip
def test_wrong_hybrid_is_one_sentence(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, **WIDTHS, **keys)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", sorted(INEXPRESSIBLE))
def test_what_cannot_be_said_is_named(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, model_type=kind, **WIDTHS)
    assert f"model_type {kind!r} is not supported: {INEXPRESSIBLE[kind]} cannot be said" in str(caught.value)


def test_what_cannot_be_said_is_named_inside_a_multimodal_model_too(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'step3p5' is not supported: its windowed layers"):
        read(tmp_path, model_type="step3p7", text_config={"model_type": "step3p5"})
