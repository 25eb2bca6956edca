"""What most decoders say with the same keys: widths, heads, embeddings, windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.catalog.huggingface.config import Config

MAX_SEQ_LENGTH = 8192
"""Training sequence assumed when a config only states how far its positions reach."""

MAX_POSITIONS = 10**12
"""Far above any stated context length (Llama 4 Scout: 10 M)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the transformers configuration class fills in when a key is absent."""

    vocab: int
    mlp: int
    heads: int
    kv_heads: int | None = None
    """None: as many as query heads."""
    head_dim: int | None = None
    """None: hidden width over heads."""
    positions: int
    tied: bool = False
    activation: str = "silu"
    gated: bool = True


def decoder(c: Config, defaults: Defaults, activation_key: str = "hidden_act") -> dict[str, Any]:
    """Shape of a decoder with Llama's key names, as fields of ``Model``."""
    hidden = c.count("hidden_size")
    heads = c.count("num_attention_heads", defaults.heads)
    return {
        "num_layers": c.count("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": c.count("num_key_value_heads", defaults.kv_heads or heads),
        "head_dim": _head_dim(c, hidden, heads, defaults.head_dim),
        "ffn_hidden_size": c.count("intermediate_size", defaults.mlp),
        "vocab_size": c.count("vocab_size", defaults.vocab),
        "seq_length": seq_length(c, "max_position_embeddings", defaults.positions),
        "activation": c.activation(activation_key, defaults.activation, defaults.gated),
        "gated_mlp": defaults.gated,
        "tied_embeddings": c.flag("tie_word_embeddings", defaults.tied),
    }


def _head_dim(c: Config, hidden: int, heads: int, default: int | None) -> int:
    if c.has("head_dim"):
        return c.count("head_dim")
    return default or equal_head_dim(c, "hidden_size", hidden, heads)


def equal_head_dim(c: Config, key: str, hidden: int, heads: int) -> int:
    """Width of one head where heads fill the hidden width."""
    if hidden % heads:
        raise c.error(
            key, f"{hidden} is not a multiple of the {heads} attention heads, and no head_dim is given"
        )
    return hidden // heads


def seq_length(c: Config, key: str, default: int) -> int:
    """Training sequence length: the original one where positions were stretched, at most 8192 otherwise."""
    for scaling in ("rope_scaling", "rope_parameters"):
        part = c.part(scaling)
        if part.has("original_max_position_embeddings"):
            return part.count("original_max_position_embeddings")
    return min(c.count(key, default, maximum=MAX_POSITIONS), MAX_SEQ_LENGTH)


def biases(c: Config, key: str, default: bool, output: bool = True) -> dict[str, bool]:
    """Bias of the attention projections, the output projection's included unless ``output`` is false."""
    present = c.flag(key, default)
    return {"qkv_bias": present, "attention_output_bias": present and output}


def windows(c: Config, num_layers: int, window: int | None, pattern: int) -> dict[str, Any]:
    """Sliding windows: from ``layer_types`` where given, else one full layer in ``pattern`` (0 = none).

    Parameters
    ----------
    c
        The configuration.
    num_layers
        Layers of the model.
    window
        Look-back of the windowed layers; None = every layer sees everything. [token]
    pattern
        The class's default order of layers.
    """
    if window is None:
        return {}
    kinds = c.words("layer_types", ("full_attention", "sliding_attention", "chunked_attention"))
    if kinds is None:
        return {"sliding_window": window, "window_pattern": pattern}
    if len(kinds) != num_layers:
        raise c.error("layer_types", f"has {len(kinds)} entries for {num_layers} layers")
    full = tuple(index for index, kind in enumerate(kinds) if kind == "full_attention")
    if len(full) == num_layers:
        return {}
    return {"sliding_window": window, **order(full, num_layers)}


def order(full: tuple[int, ...], num_layers: int) -> dict[str, Any]:
    """Pattern of the full-attention layers if they are evenly spaced, else their indices."""
    step = full[0] + 1 if full else 0
    if full == (tuple(range(step - 1, num_layers, step)) if step else ()):
        return {"window_pattern": step}
    return {"full_attention_layers": full}
