"""The model catalog: every file, every name, sizes, and what is said about wrong ones."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import files, load_model
from planner.catalog.models import model_summaries, model_summary
from planner.catalog.sizes import parse_size
from planner.cost.parameters import total_parameters
from planner.errors import BadInput
from planner.spec.model import Model

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
ENTRIES = files.entries("models")

REQUIRED = [
    "100b", "7.5b", "13b", "175b", "gpt3", "1t", "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b",
    "llama-3-70b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-4-scout", "llama-4-maverick",
    "gemma-2-2b", "gemma-2-9b", "gemma-2-27b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b",
    "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b",
    "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b", "mixtral-8x22b",
    "deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "gpt-oss-120b", "nemotron-4-15b",
    "nemotron-4-340b", "mpt-7b", "mpt-30b", "opt-175b", "bloom-176b",
]  # fmt: skip


@pytest.mark.parametrize("name", REQUIRED)
def test_required_model_is_there(name: str) -> None:
    assert load_model(name).source


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_is_sourced_and_counts_as_published(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert model.source
    if model.published_parameters:
        assert total_parameters(model) == pytest.approx(model.published_parameters, rel=5e-3)
        if model.published_parameters % 1e5:
            assert total_parameters(model) == model.published_parameters


def test_names_and_aliases_are_unique() -> None:
    names = [name.lower() for entry in ENTRIES for name in (entry, *load_model(entry).aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(CONFIGS.glob("*.json")) if path.stem in ENTRIES],
    ids=lambda path: path.stem,
)
def test_entry_equals_its_config(path: Path) -> None:
    ignored = {"name", "aliases", "source", "notes", "published_parameters", "seq_length"}
    assert load_model(path.stem).model_dump(exclude=ignored) == load_model(path).model_dump(exclude=ignored)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama3-70b", "llama-3-70b"),
        ("Llama-3.3-70B-Instruct", "llama-3-70b"),
        ("meta-llama/Llama-3.1-8B", "llama-3-8b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-2-27b-it", "gemma-2-27b"),
        ("gpt3", "gpt3-175b"),
        ("GPT-3", "gpt3-175b"),
        ("175B", "gpt3-175b"),
        ("1t", "gpt-1t"),
        ("gpt_oss_120b", "gpt-oss-120b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("  mixtral-8x7b ", "mixtral-8x7b"),
    ],
)
def test_natural_spellings(spelling: str, name: str) -> None:
    assert load_model(spelling).name == name


def test_100b_says_what_it_is() -> None:
    model = load_model("100b")
    shape = (model.num_layers, model.hidden_size, model.num_heads, model.ffn_hidden_size, model.vocab_size)
    assert shape == (80, 10240, 80, 40960, 50304)
    assert (model.activation, model.gated_mlp) == ("gelu", False)
    for number in shape:
        assert str(number) in model.notes


def test_bare_size_is_a_llama_shape_and_says_so() -> None:
    model = load_model("33b")
    assert "33b" in model.notes
    assert "assumed" in model.notes
    assert (model.head_dim, model.num_kv_heads, model.vocab_size) == (128, 8, 128256)
    assert model.num_layers % 4 == 0
    assert model.ffn_hidden_size % 256 == 0


@pytest.mark.parametrize(
    ("text", "parameters"),
    [("33b", 33e9), ("1.5T", 1.5e12), ("350m", 350e6), ("33", None), ("b", None), ("1e3b", None)],
)
def test_sizes_are_recognised(text: str, parameters: float | None) -> None:
    assert parse_size(text) == parameters


@settings(deadline=None, max_examples=40)
@given(st.integers(20, 99_999), st.sampled_from(["m", "b"]))
def test_sized_model_has_about_that_size(count: int, unit: str) -> None:
    name = f"{count}{unit}"
    if name in files.names("models"):
        return
    model = load_model(name)
    assert total_parameters(model) == pytest.approx(parse_size(name), rel=0.015)
    assert model.hidden_size == model.num_heads * model.head_dim
    assert 1.0 < model.ffn_hidden_size / model.hidden_size < 5.0


@pytest.mark.parametrize("size", ["1m", "0b", "101t", "999999t"])
def test_absurd_size_is_refused(size: str) -> None:
    with pytest.raises(BadInput, match="outside 10m to 100t"):
        load_model(size)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lama-3-70b", ["unknown model 'lama-3-70b'", "did you mean 'llama-3-70b'", "config.json"]),
        ("", ["unknown model ''"]),
        ("x" * 5000, ["unknown model"]),
        ("nowhere/config.json", ["nowhere/config.json is not a file"]),
        ("nowhere.toml", ["nowhere.toml is not a file"]),
        ("org/unheard-of", ["unknown model 'org/unheard-of'"]),
        ("a\0b.json", ["not a file"]),
        ("b" * 5000 + ".json", ["cannot read"]),
        ("b" * 5000 + ".toml", ["cannot read"]),
    ],
)
def test_unknown_model_is_one_sentence(name: str, words: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        load_model(name)
    message = str(caught.value)
    assert all(word in message for word in words)
    assert "\n" not in message
    assert len(message) < 400


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=30))
def test_any_name_gives_a_model_or_one_sentence(name: str) -> None:
    try:
        assert total_parameters(load_model(name)) > 0
    except BadInput as error:
        assert "\n" not in str(error)


SMALL = """
name = "mine"
num_layers = 2
hidden_size = 8
num_heads = 2
num_kv_heads = 1
head_dim = 4
ffn_hidden_size = 16
vocab_size = 10
"""


def test_own_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL)
    assert load_model(path) == load_model(str(path)) == Model(
        name="mine", num_layers=2, hidden_size=8, num_heads=2, num_kv_heads=1, head_dim=4, ffn_hidden_size=16,
        vocab_size=10,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "activation", "gated"),
    [
        ("", "swiglu", True),
        ('activation = "gelu"', "gelu", False),
        ('activation = "geglu"', "geglu", True),
        ("gated_mlp = false", "gelu", False),
        ('activation = "squared_relu"\ngated_mlp = false', "squared_relu", False),
        ('activation = "relu"\ngated_mlp = true', "relu", True),
    ],
)
def test_gate_and_activation_follow_each_other(
    extra: str, activation: str, gated: bool, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL + extra)
    model = load_model(path)
    assert (model.activation, model.gated_mlp) == (activation, gated)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", ["Invalid value"]),
        (SMALL + "hidden_sise = 3", ["hidden_sise", "did you mean 'hidden_size'"]),
        (SMALL.replace("= 2\n", '= "two"\n', 1), ["num_layers must be a whole number, not 'two'"]),
        (SMALL.replace("num_layers = 2", "num_layers = 0"), ["num_layers must be more than 0, not 0"]),
        (SMALL.replace("num_layers = 2", "num_layers = 1000000"), ["num_layers", "10000"]),
        (
            SMALL.replace("num_kv_heads = 1", "num_kv_heads = 3"),
            ["num_heads 2 is not a multiple of num_kv_heads 3"],
        ),
        (SMALL.replace('name = "mine"', ""), ["name is missing"]),
        (SMALL + 'activation = "swiglu"\ngated_mlp = false', ["swiglu needs a gated MLP"]),
        (SMALL + "num_experts = 4", ["experts_per_token 0"]),
        (SMALL + "num_experts = 4\nexperts_per_token = 1", ["expert_ffn_hidden_size"]),
        (SMALL + "kv_lora_rank = 4", ["qk_nope_head_dim"]),
        (SMALL + "seq_length = " + "9" * 5000, ["mine.toml"]),
        (SMALL + "a = " + "[" * 3000 + "]" * 3000, ["mine.toml"]),
    ],
)
def test_wrong_toml_is_one_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_model(path)
    assert all(word in str(caught.value) for word in [str(path), *words])
    assert "\n" not in str(caught.value)


def test_summary_is_plain_data() -> None:
    row = model_summary(load_model("mixtral-8x7b"))
    assert row["name"] == "mixtral-8x7b"
    assert row["total_parameters"] == 46_702_792_704
    assert row["active_parameters"] == pytest.approx(12.88e9, rel=1e-3)
    assert row["source"]
    assert [row["name"] for row in model_summaries()] == ENTRIES
