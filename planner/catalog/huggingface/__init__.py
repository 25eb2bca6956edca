"""Hugging Face ``config.json`` to ``Model``: one reader function for each ``model_type``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.catalog import files
from planner.catalog.huggingface import classic, dense, experts, hybrid
from planner.catalog.huggingface.config import Config
from planner.errors import BadInput, did_you_mean
from planner.spec.model import Model

Reader = Callable[[Config], dict[str, Any]]

READERS: dict[str, Reader] = {
    "bamba": hybrid.bamba,
    "bloom": classic.bloom,
    "cohere": dense.cohere,
    "cohere2": dense.cohere2,
    "dbrx": classic.dbrx,
    "deepseek_v2": experts.deepseek_v2,
    "deepseek_v3": experts.deepseek_v3,
    "ernie4_5": dense.ernie,
    "exaone4": dense.exaone4,
    "falcon": classic.falcon,
    "falcon_h1": hybrid.falcon_h1,
    "gemma": dense.gemma,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3,
    "gemma4_text": dense.gemma4,
    "glm4": dense.glm4,
    "glm4_moe": experts.glm4_moe,
    "gpt2": classic.gpt2,
    "gpt_bigcode": classic.gpt_bigcode,
    "gpt_neox": classic.gpt_neox,
    "gpt_oss": experts.gpt_oss,
    "granite": dense.granite,
    "granitemoe": experts.granite_moe,
    "granitemoehybrid": hybrid.granite_hybrid,
    "granitemoeshared": experts.granite_moe,
    "hy_v3": experts.hy_v3,
    "kimi_k2": experts.deepseek_v3,
    "kimi_linear": hybrid.kimi_linear,
    "llama": dense.llama,
    "llama4_text": experts.llama4,
    "minimax_m2": experts.minimax_m2,
    "ministral": dense.mistral,
    "mistral": dense.mistral,
    "mixtral": experts.mixtral,
    "mpt": classic.mpt,
    "nemotron": dense.nemotron,
    "nemotron_h": hybrid.nemotron_h,
    "olmo": dense.olmo,
    "olmo2": dense.olmo2,
    "olmo3": dense.olmo3,
    "olmoe": experts.olmoe,
    "opt": classic.opt,
    "phi3": dense.phi3,
    "qwen2": dense.qwen2,
    "qwen2_5_vl_text": dense.qwen2,
    "qwen2_moe": experts.qwen2_moe,
    "qwen3": dense.qwen3,
    "qwen3_5_moe_text": hybrid.qwen3_5_moe,
    "qwen3_5_text": hybrid.qwen3_5,
    "qwen3_moe": experts.qwen3_moe,
    "qwen3_next": hybrid.qwen3_next,
    "qwen3_vl_moe_text": experts.qwen3_moe,
    "qwen3_vl_text": dense.qwen3,
    "seed_oss": dense.seed_oss,
    "smollm3": dense.smollm3,
    "stablelm": dense.stablelm,
    "starcoder2": dense.starcoder2,
}
"""Reader of every supported ``model_type``."""

TEXT_MODEL_TYPES = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Model type of a nested ``text_config`` that does not name its own."""

MAMBA_1 = "its Mamba-1 layers (a scan with its own decay in every channel)"
INEXPRESSIBLE = {
    "deepseek_v32": "its attention, which an indexer restricts to some of the tokens,",
    "deepseek_v4": "its attention, which compresses and selects tokens,",
    "falcon_mamba": MAMBA_1,
    "glm_moe_dsa": "its attention, which an indexer restricts to some of the tokens,",
    "jamba": MAMBA_1,
    "lfm2": "its layers of short convolutions alone",
    "lfm2_moe": "its layers of short convolutions alone",
    "mamba": MAMBA_1,
    "mamba2": "a model without attention",
    "minimax": "its lightning attention",
    "recurrent_gemma": "its RG-LRU layers",
    "rwkv": "its RWKV layers",
    "step3p5": "its windowed layers, which have more heads than the others,",
    "zamba": MAMBA_1,
    "zamba2": "its attention block, which several layers share,",
}
"""Model types that no ``Model`` describes, and what of them has no counterpart here."""


def read_config(path: Path) -> Model:
    """Return the model that a ``config.json``, or the folder that holds it, describes.

    Raises
    ------
    BadInput
        Not a readable JSON object, an unknown architecture, or a key that is missing or has a wrong value.
    """
    file = path / "config.json" if files.is_folder(path) else path
    config = _text_part(Config(file, _read_json(file)))
    fields = READERS[config.text("model_type")](config)
    name = _name(config, file)
    notes = [_nested_note(config), _sequence_note(config, fields["seq_length"])]
    data = {"name": name, "source": str(file), "notes": " ".join(filter(None, notes)), **fields}
    return files.validated(Model, data, str(file))


def _read_json(path: Path) -> dict[str, Any]:
    text = files.read_text(path)
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise BadInput(f"{path} is nested too deeply") from error
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {str(error)[:120]}") from error
    if not isinstance(data, dict):
        raise BadInput(f"{path} holds no JSON object")
    return data


def _text_part(config: Config) -> Config:
    """Return the part that describes the language model, with a known ``model_type``."""
    kind = config.text("model_type")
    if not kind:
        raise config.error("model_type", f"is missing; known are {', '.join(sorted(READERS))}")
    if kind in READERS:
        return config
    nested = config.part("text_config")
    if nested.data:
        nested_kind = nested.text("model_type") or TEXT_MODEL_TYPES.get(kind, "")
        if nested_kind in READERS:
            shared = {"tie_word_embeddings": config.data.get("tie_word_embeddings")}
            data = {**shared, **nested.data, "model_type": nested_kind}
            return Config(config.path, data, nested.section)
    for inner in (kind, nested.text("model_type")):
        if inner in INEXPRESSIBLE:
            raise config.error(
                "model_type", f"{inner!r} is not supported: {INEXPRESSIBLE[inner]} cannot be said"
            )
    known = sorted({*READERS, *TEXT_MODEL_TYPES})
    raise config.error(
        "model_type",
        f"{kind[:60]!r} is not supported{did_you_mean(kind[:60], known)} (known: {', '.join(known)})",
    )


def _name(config: Config, path: Path) -> str:
    """Return the checkpoint's name, the folder's, or the file's."""
    stated = config.data.get("_name_or_path")
    if isinstance(stated, str) and 0 < len(stated) <= 100:
        return stated
    return path.resolve().parent.name if path.name == "config.json" else path.stem


def _nested_note(config: Config) -> str:
    return "Only the language model of this multimodal model is planned." if config.section else ""


def _sequence_note(config: Config, seq_length: int) -> str:
    """Say that positions reach further than the assumed training sequence."""
    reach = config.data.get("max_position_embeddings")
    if isinstance(reach, int) and reach > seq_length:
        return f"The config allows {reach} positions; {seq_length} tokens a sequence are assumed."
    return ""
