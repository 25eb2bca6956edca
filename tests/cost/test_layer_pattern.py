"""Which layers a pattern of letters means, and what is said about one that means nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from toys import tiny_hybrid, tiny_moe

from planner.spec import LayerKind, Model
from planner.spec.problems import first_problem

LINEAR = tiny_hybrid().model.model_dump()
EXPERTS = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 128}


def model(**changes: Any) -> Model:
    return Model(**{**LINEAR, **changes})


def test_every_letter_is_a_kind_of_layer() -> None:
    kinds = model(num_layers=7, layer_pattern="ALPM*-E", **EXPERTS, num_dense_layers=1).layer_kinds
    assert kinds == (
        LayerKind(),
        LayerKind(moe=True, mixer="linear"),
        LayerKind(moe=True, mixer="attention+linear"),
        LayerKind(mixer="linear", mlp=False),
        LayerKind(mlp=False),
        LayerKind(mixer="none"),
        LayerKind(moe=True, mixer="none"),
    )


def test_a_unit_repeats_and_windows_are_of_attention_alone() -> None:
    kinds = model(num_layers=6, layer_pattern="LA", sliding_window=16, window_pattern=4).layer_kinds
    linear, windowed, full = LayerKind(mixer="linear"), LayerKind(window=16), LayerKind()
    assert kinds == (linear, windowed, linear, full, linear, windowed)


def test_a_model_without_a_pattern_has_attention_everywhere() -> None:
    assert {kind.mixer for kind in tiny_moe().model.layer_kinds} == {"attention"}
    assert not tiny_moe().model.is_hybrid


def test_an_extra_prediction_module_is_a_whole_attention_layer() -> None:
    assert model(layer_pattern="M-", mtp_depth=1).mtp_kind == LayerKind()
    assert model(layer_pattern="M*E-", mtp_depth=1, **EXPERTS).mtp_kind == LayerKind(moe=True)
    plain = tiny_moe().model.model_copy(update={"mtp_depth": 1})
    assert plain.mtp_kind == plain.layer_kinds[-1]


@pytest.mark.parametrize(("changes", "said"), [
    ({"layer_pattern": "LAX-"}, "layer_pattern has 'X'; its letters are A L P M * - E"),
    ({"layer_pattern": "LAL"}, "layer_pattern of 3 letters does not repeat evenly to num_layers 4"),
    ({"layer_pattern": "LLLLLLLL"}, "layer_pattern of 8 letters does not repeat evenly"),
    ({"layer_pattern": "MEME"}, "layer_pattern has experts (E), and num_experts is missing"),
    ({"linear_mixer": ""}, "layer_pattern has linear layers, and linear_mixer is missing"),
    ({"layer_pattern": "A-"}, "linear_mixer mamba2 needs a layer_pattern with linear layers (L, P or M)"),
    ({"layer_pattern": ""}, "linear_mixer mamba2 needs a layer_pattern with linear layers"),
    ({"linear_key_heads": 0, "linear_value_head_dim": 0},
     "linear_mixer mamba2 needs linear_key_heads and linear_value_head_dim"),
    ({"linear_key_heads": 3}, "linear_value_heads 8 is not a multiple of linear_key_heads 3"),
    ({"attention_gate": True, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
     "attention_gate is not known for multi-head latent attention"),
    ({"linear_mixer": "mamba3"}, "linear_mixer"),
])  # fmt: skip
def test_a_pattern_that_means_nothing_is_refused_in_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as problem:
        model(**changes)
    assert said in first_problem(problem.value, Model)
