"""Reading config.json: exact totals of real configurations, defaults, and what is said about wrong ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import load_model
from planner.catalog.huggingface import READERS, TEXT_MODEL_TYPES
from planner.cost.parameters import total_parameters
from planner.errors import BadInput
from planner.spec.model import Model

CONFIGS = Path(__file__).parent.parent / "data" / "configs"

EXACT = {
    "bamba-9b": 9_780_235_392,
    "bloom-176b": 176_247_271_424,
    "bloom-7.1b": 7_069_016_064,
    "command-r-35b": 34_980_831_232,
    "command-r-plus-104b": 103_810_674_688,
    "command-r7b": 8_028_033_024,
    "dbrx": 131_596_523_520,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "ernie-4.5-0.3b": 360_748_032,
    "exaone-4-32b": 32_003_216_384,
    "falcon-11b": 10_836_484_096,
    "falcon-180b": 178_557_088_768,
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "falcon-h1-0.5b": 521_411_104,
    "falcon-h1-1.5b": 1_554_863_488,
    "falcon-h1-34b": 33_642_516_224,
    "falcon-h1-7b": 7_585_648_736,
    "falcon-rw-1b": 1_311_625_216,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2b": 2_506_172_416,
    "gemma-3-1b": 999_885_952,
    "gemma-3-27b": 27_009_346_304,
    "gemma-3-4b": 3_880_263_168,
    "gemma-4-31b": 30_697_345_280,
    "gemma-7b": 8_537_680_896,
    "glm-4-9b": 9_400_279_040,
    "glm-4.5": 352_797_829_024,
    "glm-4.5-air": 106_852_251_264,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2-small": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "granite-3-3b-a800m": 3_298_793_472,
    "granite-3-8b": 8_170_848_256,
    "granite-4.0-h-1b": 1_461_538_368,
    "granite-4.0-h-small": 32_207_337_984,
    "granite-4.0-h-tiny": 6_939_037_248,
    "hy3-preview": 295_033_543_488,
    "kimi-linear-48b-a3b": 49_122_681_728,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-4-maverick": 400_711_848_960,
    "llama-4-scout": 107_769_861_120,
    "minimax-m2": 228_689_764_864,
    "ministral-8b": 8_019_808_256,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x22b": 140_630_071_296,
    "mixtral-8x7b": 46_702_792_704,
    "moonlight-16b-a3b": 15_960_110_208,
    "mpt-30b": 29_957_200_896,
    "mpt-7b": 6_649_286_656,
    "nemotron-3-nano-30b-a3b": 31_577_940_288,
    "nemotron-3-super-120b-a12b": 120_668_707_840,
    "nemotron-3-ultra-550b-a55b": 549_308_993_536,
    "nemotron-4-15b": 15_628_775_424,
    "nemotron-4-340b": 341_029_195_776,
    "nemotron-h-47b": 46_791_554_816,
    "nemotron-h-56b": 56_324_350_464,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-nano-12b-v2": 12_310_001_152,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "olmo-2-32b": 32_234_279_936,
    "olmo-2-7b": 7_298_617_344,
    "olmo-3-7b": 7_298_011_136,
    "olmo-7b": 6_888_095_744,
    "olmoe-1b-7b": 6_919_161_856,
    "opt-1.3b": 1_315_758_080,
    "opt-66b": 65_719_701_504,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "pythia-12b": 11_846_072_320,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-122b-a10b": 122_111_526_912,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3.5-9b": 8_953_803_264,
    "seed-oss-36b": 36_151_104_512,
    "smollm3-3b": 3_075_098_624,
    "stablelm-2-1.6b": 1_644_515_328,
    "stablelm-2-12b": 12_142_929_920,
    "starcoder-15b": 15_517_456_384,
    "starcoder2-15b": 15_957_889_024,
    "starcoder2-3b": 3_030_371_328,
    "yi-34b": 34_388_917_248,
}
"""Weights that transformers 5.24 builds from each configuration (see test_parameters_exact.py)."""

SAME_AS = {"granitemoeshared", "kimi_k2", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"}
"""Model types whose reader another model type's configurations already exercise."""


def read(tmp_path: Path, **keys: Any) -> Model:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys))
    return load_model(path)


def refused(tmp_path: Path, **keys: Any) -> str:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, **keys)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "config.json"))
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", sorted(EXACT))
def test_total_is_exact(name: str) -> None:
    assert total_parameters(load_model(CONFIGS / f"{name}.json")) == EXACT[name]


def test_every_configuration_and_reader_is_covered() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(EXACT)
    kinds = {json.loads(path.read_text())["model_type"] for path in CONFIGS.glob("*.json")}
    assert {TEXT_MODEL_TYPES.get(kind, kind) for kind in kinds} | SAME_AS == set(READERS)


SIZES = {
    "num_hidden_layers": 2, "hidden_size": 1536, "n_layer": 2, "n_embd": 1536, "n_layers": 2, "d_model": 1536,
    "num_attention_heads": 24, "num_key_value_heads": 8, "n_head": 24, "n_heads": 24,
    "num_experts_per_tok": 2, "hybrid_override_pattern": "M*", "hidden_size_per_layer_input": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(READERS))
def test_absent_keys_take_the_defaults_of_the_class(kind: str, tmp_path: Path) -> None:
    model = read(tmp_path, model_type=kind, **SIZES)
    assert (model.num_layers, model.hidden_size) == (2, 1536)
    assert model.source == str(tmp_path / "config.json")


@pytest.mark.parametrize("kind", sorted(READERS))
def test_every_reader_names_the_missing_size(kind: str, tmp_path: Path) -> None:
    assert "is missing" in refused(tmp_path, model_type=kind)


def test_kimi_k2_is_read_as_deepseek(tmp_path: Path) -> None:
    data = json.loads((CONFIGS / "deepseek-v3.json").read_text())
    data |= {
        "model_type": "kimi_k2",
        "n_routed_experts": 384,
        "num_attention_heads": 64,
        "vocab_size": 163840,
    }
    data |= {"first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "num_key_value_heads": 64}
    model = read(tmp_path, **data)
    catalog = load_model("kimi-k2")
    assert total_parameters(model) == total_parameters(catalog)
    assert model.layer_kinds == catalog.layer_kinds


def test_granite_with_a_shared_expert(tmp_path: Path) -> None:
    keys = {
        "model_type": "granitemoeshared",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
    }
    model = read(tmp_path, **keys, intermediate_size=32, shared_intermediate_size=48)
    assert model.shared_expert_ffn_hidden_size == 48
    assert model.expert_ffn_hidden_size == 32


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def test_name_is_stated_or_the_folder(tmp_path: Path) -> None:
    assert read(tmp_path, **LLAMA).name == tmp_path.name
    assert read(tmp_path, **LLAMA, _name_or_path="me/mine").name == "me/mine"


def test_folder_with_a_config(tmp_path: Path) -> None:
    model = read(tmp_path, **LLAMA)
    assert load_model(tmp_path) == load_model(str(tmp_path)) == model


@pytest.mark.parametrize(
    ("keys", "seq_length", "is_noted"),
    [
        ({}, 2048, False),
        ({"max_position_embeddings": 4096}, 4096, False),
        ({"max_position_embeddings": 131072}, 8192, True),
        ({"max_position_embeddings": 10**9}, 8192, True),
        (
            {"max_position_embeddings": 131072, "rope_scaling": {"original_max_position_embeddings": 4096}},
            4096,
            True,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"original_max_position_embeddings": 4096},
            },
            4096,
            True,
        ),
    ],
)
def test_training_sequence(keys: dict[str, Any], seq_length: int, is_noted: bool, tmp_path: Path) -> None:
    model = read(tmp_path, **LLAMA, **keys)
    assert model.seq_length == seq_length
    assert (f"{seq_length} tokens" in model.notes) == is_noted


def windows(model: Model) -> list[int | None]:
    return [kind.window for kind in model.layer_kinds]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"model_type": "llama"}, [None] * 4),
        ({"model_type": "mistral"}, [4096] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [None] * 4),
        ({"model_type": "gemma2"}, [4096, None, 4096, None]),
        ({"model_type": "gpt_oss", "sliding_window": 7}, [7, None, 7, None]),
        ({"model_type": "olmo3"}, [4096, 4096, 4096, None]),
        ({"model_type": "exaone4", "sliding_window_pattern": "LG"}, [4096, None, 4096, None]),
        ({"model_type": "exaone4", "sliding_window": None}, [None] * 4),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, [4096, 4096, None, 4096]),
        ({"model_type": "qwen2", "sliding_window": 9}, [None] * 4),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3},
            [None, None, None, 4096],
        ),
        ({"model_type": "llama4_text", "attention_chunk_size": 8}, [8, 8, 8, None]),
        ({"model_type": "llama4_text", "attention_chunk_size": None}, [None] * 4),
        ({"model_type": "llama4_text", "no_rope_layers": [0, 1, 1, 1]}, [None, 8192, 8192, 8192]),
        (
            {
                "model_type": "gemma2",
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            },
            [None, 4096, 4096, None],
        ),
        ({"model_type": "gemma2", "layer_types": ["full_attention"] * 4}, [None] * 4),
    ],
)
def test_sliding_windows(keys: dict[str, Any], expected: list[int | None], tmp_path: Path) -> None:
    assert windows(read(tmp_path, **{**LLAMA, **keys})) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"model_type": "mixtral"}, [True] * 4),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, [False, True, False, True]),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0, 2]}, [False, True, False, True]),
        ({"model_type": "llama4_text", "interleave_moe_layer_step": 2}, [False, True, False, True]),
        ({"model_type": "llama4_text", "moe_layers": [0, 3]}, [True, False, False, True]),
        ({"model_type": "deepseek_v3"}, [False, False, False, True]),
        ({"model_type": "deepseek_v3", "n_routed_experts": None}, [False] * 4),
    ],
)
def test_mixture_layers(keys: dict[str, Any], expected: list[bool], tmp_path: Path) -> None:
    model = read(tmp_path, **{**LLAMA, **keys})
    assert [kind.moe for kind in model.layer_kinds] == expected


def test_nested_language_model_is_read_and_noted() -> None:
    model = load_model(CONFIGS / "gemma-3-27b.json")
    assert model.num_layers == 62
    assert "language model" in model.notes


def test_multimodal_wrapper_of_a_known_model(tmp_path: Path) -> None:
    text = {**LLAMA, "model_type": "qwen3"}
    model = read(tmp_path, model_type="some_vlm", text_config=text, tie_word_embeddings=True)
    assert model.query_key_norm == "head"
    assert model.tied_embeddings


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": None}, ["model_type is missing", "known are bamba"]),
        ({"model_type": 3}, ["model_type must be text, not 3"]),
        ({"model_type": "lama"}, ["'lama' is not supported", "did you mean 'llama'", "mixtral"]),
        ({"model_type": "nope"}, ["'nope' is not supported", "known: bamba"]),
        ({"hidden_size": None}, ["hidden_size is missing"]),
        ({"hidden_size": "64"}, ["hidden_size must be a whole number, not '64'"]),
        ({"hidden_size": True}, ["hidden_size must be a whole number, not True"]),
        ({"hidden_size": 64.5}, ["hidden_size must be a whole number, not 64.5"]),
        ({"hidden_size": float("nan")}, ["hidden_size must be a whole number, not nan"]),
        ({"hidden_size": 0}, ["hidden_size must be between 1 and"]),
        ({"hidden_size": 10**30}, ["hidden_size must be between 1 and", "a huge number"]),
        ({"hidden_size": {"a": 1}}, ["hidden_size must be a whole number, not a table"]),
        ({"num_hidden_layers": 99_999}, ["num_layers must be at most 10,000, not 99999"]),
        ({"num_attention_heads": 5}, ["hidden_size 64 is not a multiple of the 5 attention heads"]),
        ({"num_key_value_heads": 3}, ["num_heads 4 is not a multiple of num_kv_heads 3"]),
        ({"hidden_act": "tanh"}, ["hidden_act 'tanh' is not one of gelu"]),
        ({"hidden_act": "relu"}, ["hidden_act 'relu' is not known in a gated MLP"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings must be true or false, not 'yes'"]),
        ({"rope_scaling": 3}, ["rope_scaling must be a table, not 3"]),
        ({"model_type": "gemma2", "layer_types": "all"}, ["layer_types must be a list"]),
        (
            {"model_type": "gemma2", "layer_types": ["full_attention"]},
            ["layer_types has 1 entries for 4 layers"],
        ),
        ({"model_type": "gemma2", "layer_types": ["mamba"] * 4}, ["layer_types holds 'mamba'"]),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [-1]}, ["mlp_only_layers must list layer indices"]),
        ({"model_type": "qwen3_moe", "num_experts_per_tok": 999}, ["experts_per_token 999"]),
        ({"model_type": "qwen3_moe", "use_sliding_window": True}, ["use_sliding_window is true"]),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, ["word_embed_proj_dim differs"]),
        ({"model_type": "opt", "do_layer_norm_before": False}, ["do_layer_norm_before is false"]),
        ({"model_type": "smollm3", "use_sliding_window": True}, ["use_sliding_window is true"]),
        ({"model_type": "stablelm", "qk_layernorm": True}, ["qk_layernorm is true"]),
        ({"model_type": "exaone4", "sliding_window_pattern": []}, ["sliding_window_pattern must be"]),
        ({"model_type": "deepseek_v2"}, ["num_experts_per_tok is missing"]),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2}, ["moe_layer_freq differs from 1"]),
        ({"model_type": "deepseek_v3", "mlp_bias": True}, ["mlp_bias is true"]),
        ({"model_type": "gemma3", "text_config": {"hidden_size": "x"}}, ["text_config.hidden_size"]),
        ({"model_type": "gemma3", "text_config": 4}, ["text_config must be a table"]),
    ],
)
def test_wrong_key_is_one_sentence(keys: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    message = refused(tmp_path, **{**LLAMA, **keys})
    assert all(word in message for word in words)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "no JSON object"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"\x7fELF\x01\x00", "not JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"hidden_size": ' + b"9" * 10_000 + b"}", "not JSON"),
        (b" " * 10_000_001, "larger than 10 MB"),
    ],
)
def test_broken_file_is_one_sentence(content: bytes, word: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=word) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted({key for path in CONFIGS.glob("*.json") for key in json.loads(path.read_text())})


READ_LISTS = ("layer_types", "layers_block_type")
"""Lists of words whose entries decide the layers."""


@settings(deadline=None, max_examples=300)
@given(
    name=st.sampled_from(sorted(EXACT)),
    junk=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=4),
    dropped=st.sets(st.sampled_from(KEYS), max_size=4),
)
def test_any_damage_gives_a_model_or_one_sentence(
    name: str, junk: dict[str, Any], dropped: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = json.loads((CONFIGS / f"{name}.json").read_text()) | junk
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_text(json.dumps({key: value for key, value in data.items() if key not in dropped}))
    try:
        model = load_model(path)
    except BadInput as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
    else:
        assert total_parameters(model) > 0


@pytest.mark.parametrize("name", sorted(EXACT))
def test_lists_of_what_is_no_word_are_refused_by_their_key(name: str, tmp_path: Path) -> None:
    data = json.loads((CONFIGS / f"{name}.json").read_text())
    listed = [key for key, value in data.items() if isinstance(value, list) and {*map(type, value)} == {str}]
    for key in listed:
        for entry in ({}, [], None, 1):
            path = tmp_path / "config.json"
            path.write_text(json.dumps(data | {key: [entry, *data[key][1:]]}))
            if key in READ_LISTS:
                with pytest.raises(BadInput, match=f"{key} holds .*; known are "):
                    load_model(path)
            else:
                load_model(path)
