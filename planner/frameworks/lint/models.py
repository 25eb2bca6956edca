"""The model that files name or describe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.catalog import load_model
from planner.errors import BadInput
from planner.frameworks.launch import Found, LaunchFile
from planner.spec.model import MAX_LAYERS, Model

DECORATION = re.compile(
    r"[-_](mcore|torch[-_]dist|bnb[-_]4bit|4bit|awq|gptq|fp8|bf16|hf|it|base|instruct|chat|thinking|\d{4})$",
    re.IGNORECASE,
)
"""What conversions, formats and dates append to a checkpoint's name without another shape."""
LLAMA_SHAPED = frozenset({"maxtext", "nanotron", "torchtitan"})
"""Frameworks whose models have gated MLPs and heads of their own where a file does not say (nanotron's
``LlamaConfig``, MaxText's ``base.yml``, torchtitan's ``Transformer``); Megatron's are GPT's."""
DEFAULT_VOCABULARY = 128_256
"""Llama 3's, for files that leave the vocabulary to the tokenizer."""
GPT2 = "GPT2BPETokenizer"
TOKENIZERS = {GPT2: 50_257, "Llama2Tokenizer": 32_000, "Llama3Tokenizer": 128_256}
"""Tokenizers of Megatron-LM that have one vocabulary."""

LINEAR_DEFAULTS: dict[str, dict[str, Any]] = {
    "": {},
    "mamba2": {
        "linear_key_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 64,
        "linear_conv_bias": True,
    },
    "gated_delta": {
        "linear_key_heads": 16,
        "linear_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}
"""Sizes of linear mixers that megatron-core assumes where flags say none (``transformer_config.py``); a
Mamba-2's heads fill twice the hidden width."""


def said_layers(launch: LaunchFile) -> dict[str, Any]:
    """Return the kinds of the layers as Megatron's flags say them, as fields of ``Model``; empty: unsaid."""
    pattern = launch.get("hybrid_pattern")
    if pattern is not None:
        fields = {"num_layers": len(pattern.letters), "layer_pattern": pattern.letters}
        return fields | {"linear_mixer": pattern.mixer, "mtp_depth": pattern.mtp_depth}
    linear = launch.get("linear_layers")
    if launch.get("attention_variant") != "gated_delta_net" or linear is None:
        return {}
    layers = launch.get("model.num_layers", 0)
    if layers > MAX_LAYERS:
        return {}
    if isinstance(linear, int):
        linear = [int(bool((layer + 1) % linear)) for layer in range(layers)] if linear else []
    return {"layer_pattern": "".join("AL"[kind] for kind in linear), "linear_mixer": "gated_delta"}


def layers_differ(launch: LaunchFile, model: Model) -> tuple[Found, str] | None:
    """Return the setting whose layers are not the model's, and what it says of them."""
    at, said = launch.place("hybrid_pattern", "linear_layers"), said_layers(launch)
    if at is None or not said:
        return None
    letters, own = said["layer_pattern"], model.layer_pattern or "A"
    own *= model.num_layers // len(own)
    if letters == own and said["linear_mixer"] == model.linear_mixer:
        return None
    theirs = f"{sum(letter in 'LM' for letter in letters)} of {len(letters)}"
    ours = f"{sum(kind.has_linear for kind in model.layer_kinds)} of {model.num_layers}"
    order = " in another order" if theirs == ours else ""
    return at, f"{at.key} has linear mixers in {theirs} layers, {model.name} in {ours}{order}"


def named_model(launch: LaunchFile) -> Model | None:
    """Return the model of the catalog that a file names, None where it names none of them."""
    parts = [launch.get("named_family"), launch.get("named_flavor")]
    return _by_name(launch.get("named_model") or "-".join(part for part in parts if part))


def _by_name(name: str) -> Model | None:
    """The model of the catalog that a checkpoint's name or path means."""
    name = (Path(name).name if name.startswith(("/", ".", "~", "$")) else name).rstrip("/")
    while name:
        try:
            return load_model(name)
        except BadInput:
            shorter = DECORATION.sub("", name)
            name = shorter if shorter != name else ""
    return None


def model_of(launch: LaunchFile, name: str = "from the launch file") -> Model | None:
    """Return the model that a file names or describes, None when it does not say enough."""
    named = named_model(launch)
    if named is not None:
        return named
    said = {
        key.removeprefix("model."): found.value for key, found in launch.fields.items() if "model." in key
    }
    if not said.get("num_heads") or not said.get("hidden_size"):
        return None
    pattern = launch.get("moe_layers")
    if isinstance(pattern, list) and 1 in pattern:
        said["num_dense_layers"] = pattern.index(1)
    hybrid = said_layers(launch)
    try:
        return Model(
            **({"name": name} | _defaults(launch, said, hybrid.get("linear_mixer", "")) | said | hybrid)
        )
    except ValidationError:
        return None


def _defaults(launch: LaunchFile, said: dict[str, Any], mixer: str) -> dict[str, Any]:
    """What the framework assumes of a model that its files leave unsaid, as fields of ``Model``."""
    heads, hidden = said["num_heads"], said["hidden_size"]
    is_llama = launch.framework in LLAMA_SHAPED
    vocabulary = _vocabulary(launch)
    assumed = "vocab_size" not in said and vocabulary is None
    defaults = {
        "source": ", ".join(launch.paths),
        "num_kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn_hidden_size": 4 * hidden,
        "vocab_size": vocabulary or DEFAULT_VOCABULARY,
        "notes": f"No vocabulary in the files: {DEFAULT_VOCABULARY} assumed." if assumed else "",
        "gated_mlp": is_llama,
        "activation": "swiglu" if said.get("gated_mlp", is_llama) else "gelu",
        "tied_embeddings": not is_llama,
        "seq_length": launch.get("seq_length", 4096),
    }
    if said.get("num_experts"):  # Megatron's own defaults
        defaults |= {
            "experts_per_token": 2,
            "expert_ffn_hidden_size": said.get("ffn_hidden_size", 4 * hidden),
        }
    defaults |= LINEAR_DEFAULTS[mixer]
    if mixer == "mamba2":
        width = said.get("linear_value_head_dim", defaults["linear_value_head_dim"])
        defaults["linear_value_heads"] = 2 * hidden // width
    return defaults


def _vocabulary(launch: LaunchFile) -> int | None:
    """The vocabulary of the tokenizer that Megatron's arguments name; pairs of other files are unknown."""
    said = {entry.key.lstrip("-").replace("-", "_"): str(entry.value) for entry in launch.found}
    kind, files = said.get("tokenizer_type", ""), said.get("merge_file", "") + said.get("vocab_file", "")
    if "gpt2" in files or (kind in TOKENIZERS and not files):
        return TOKENIZERS[GPT2 if files else kind]
    name = next((said[key] for key in ("tokenizer_model", "tokenizer_name_or_path") if key in said), "")
    model = _by_name(name) if kind == "HuggingFaceTokenizer" else None
    return None if model is None else model.vocab_size


def unknown_model(launch: LaunchFile) -> str | None:
    """Return a sentence about the model that files name and the catalog lacks, None where they name none."""
    at = launch.place("named_model", "named_flavor")
    if at is None or named_model(launch) is not None:
        return None
    return (
        f"{at.place}: the catalog has no model {at.value}: say one of its shape with --model "
        "(a name of plan-parallel models, a config.json, or a size such as 30b)"
    )
