"""Decoders with their own key names: GPT-2, GPT-NeoX, OPT, BLOOM, MPT, Falcon, DBRX."""

from __future__ import annotations

from typing import Any

from planner.catalog.huggingface.config import Config
from planner.catalog.huggingface.shape import Defaults, biases, decoder, equal_head_dim, seq_length

_ALL_BIASES = {"qkv_bias": True, "attention_output_bias": True, "mlp_bias": True}
_LAYER_NORM = {"norm": "layer", "norm_vectors": 2}


def gpt2(c: Config) -> dict[str, Any]:
    """GPT-2: learned positions, biases everywhere, tied embeddings."""
    hidden, heads = c.count("n_embd"), c.count("n_head", 12)
    positions = c.count("n_positions", 1024)
    return {
        "num_layers": c.count("n_layer"),
        **_heads(c, "n_embd", hidden, heads),
        "ffn_hidden_size": c.count("n_inner", 4 * hidden),
        "vocab_size": c.count("vocab_size", 50257),
        "seq_length": positions,
        "learned_positions": positions,
        **_mlp(c, "activation_function", "gelu_new"),
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        **_ALL_BIASES,
        **_LAYER_NORM,
    }


def gpt_bigcode(c: Config) -> dict[str, Any]:
    """StarCoder 1 and SantaCoder: GPT-2 with one KV head."""
    return gpt2(c) | ({"num_kv_heads": 1} if c.flag("multi_query", True) else {})


def gpt_neox(c: Config) -> dict[str, Any]:
    """GPT-NeoX and Pythia: rotary, biases everywhere, attention beside the MLP."""
    defaults = Defaults(vocab=50432, mlp=24576, heads=64, positions=2048, activation="gelu", gated=False)
    parallel = c.flag("use_parallel_residual", True)
    shape = decoder(c, defaults) | biases(c, "attention_bias", True)
    shape["num_kv_heads"] = shape["num_heads"]
    return shape | {"mlp_bias": True, "parallel_block": parallel} | _LAYER_NORM


def opt(c: Config) -> dict[str, Any]:
    """OPT: learned positions with two spare rows, ReLU."""
    hidden, heads = c.count("hidden_size"), c.count("num_attention_heads", 12)
    if c.count("word_embed_proj_dim", hidden) != hidden:
        raise c.error("word_embed_proj_dim", f"differs from hidden_size {hidden}, which is not supported")
    if not c.flag("do_layer_norm_before", True) or c.flag("_remove_final_layer_norm", False):
        raise c.error("do_layer_norm_before", "is false (norms after the block), which is not supported")
    positions, has_bias = c.count("max_position_embeddings", 2048), c.flag("enable_bias", True)
    affine = c.flag("layer_norm_elementwise_affine", True)
    return {
        "num_layers": c.count("num_hidden_layers"),
        **_heads(c, "hidden_size", hidden, heads),
        "ffn_hidden_size": c.count("ffn_dim", 3072),
        "vocab_size": c.count("vocab_size", 50272),
        "seq_length": positions,
        "learned_positions": positions + 2,
        **_mlp(c, "activation_function", "relu"),
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        "qkv_bias": has_bias,
        "attention_output_bias": has_bias,
        "mlp_bias": has_bias,
        "norm": "layer",
        "norm_vectors": 2 if affine else 0,
    }


def bloom(c: Config) -> dict[str, Any]:
    """BLOOM: ALiBi, a norm after the embedding, biases everywhere."""
    hidden = c.count("n_embed") if c.has("n_embed") else c.count("hidden_size")
    layers = c.count("n_layer") if c.has("n_layer") else c.count("num_hidden_layers")
    heads = c.count("n_head") if c.has("n_head") else c.count("num_attention_heads", 8)
    return {
        "num_layers": layers,
        **_heads(c, "hidden_size", hidden, heads),
        "ffn_hidden_size": 4 * hidden,
        "vocab_size": c.count("vocab_size", 250880),
        "seq_length": c.count("seq_length", 2048),
        "activation": "gelu",
        "gated_mlp": False,
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        "embedding_norm": True,
        **_ALL_BIASES,
        **_LAYER_NORM,
    }


def mpt(c: Config) -> dict[str, Any]:
    """MPT: ALiBi or learned positions, no biases unless ``no_bias`` is false."""
    hidden, heads, attention = c.count("d_model"), c.count("n_heads", 16), c.part("attn_config")
    positions, has_bias = c.count("max_seq_len", 2048), not c.flag("no_bias", True)
    is_learned = c.flag("learned_pos_emb", True) and not attention.flag("alibi", True)
    is_multi_query = attention.text("attn_type", "multihead_attention") == "multiquery_attention"
    return {
        "num_layers": c.count("n_layers"),
        **_heads(c, "d_model", hidden, heads),
        "num_kv_heads": 1 if is_multi_query else attention.count("kv_n_heads", heads),
        "ffn_hidden_size": c.count("expansion_ratio", 4) * hidden,
        "vocab_size": c.count("vocab_size", 50368),
        "seq_length": positions,
        "learned_positions": positions if is_learned else 0,
        "activation": "gelu",
        "gated_mlp": False,
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        "qkv_bias": has_bias,
        "attention_output_bias": has_bias,
        "mlp_bias": has_bias,
        "query_key_norm": "full" if attention.flag("qk_ln", False) else "none",
        "norm": "layer",
        "norm_vectors": 2 if has_bias else 1,
    }


def falcon(c: Config) -> dict[str, Any]:
    """Falcon: 7B (multi-query), 40B and 180B (grouped, two norms), RW (sequential blocks)."""
    hidden = c.count("n_embed") if c.has("n_embed") else c.count("hidden_size")
    layers = c.count("n_layer") if c.has("n_layer") else c.count("num_hidden_layers")
    heads = c.count("n_head") if c.has("n_head") else c.count("num_attention_heads", 71)
    is_new, has_bias = c.flag("new_decoder_architecture", False), c.flag("bias", False)
    is_parallel = is_new or c.flag("parallel_attn", True)
    if is_new:
        kv_heads, norms = c.count("num_kv_heads", heads), c.count("num_ln_in_parallel_attn", 2)
    else:
        kv_heads = 1 if c.flag("multi_query", True) else heads
        norms = 1 if is_parallel else 2
    return {
        "num_layers": layers,
        **_heads(c, "hidden_size", hidden, heads),
        "num_kv_heads": kv_heads,
        "ffn_hidden_size": c.count("ffn_hidden_size", 4 * hidden),
        "vocab_size": c.count("vocab_size", 65024),
        "seq_length": seq_length(c, "max_position_embeddings", 2048),
        **_mlp(c, "activation", "gelu"),
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        "qkv_bias": has_bias,
        "attention_output_bias": has_bias,
        "mlp_bias": has_bias,
        "parallel_block": is_parallel,
        "norms_per_layer": norms,
        **_LAYER_NORM,
    }


def dbrx(c: Config) -> dict[str, Any]:
    """DBRX: sixteen gated experts, layer norms without shift."""
    attention, mlp = c.part("attn_config"), c.part("ffn_config")
    hidden, heads = c.count("d_model"), c.count("n_heads", 16)
    width = mlp.count("ffn_hidden_size", 3584)
    return {
        "num_layers": c.count("n_layers"),
        **_heads(c, "d_model", hidden, heads),
        "num_kv_heads": attention.count("kv_n_heads", 1),
        "ffn_hidden_size": width,
        "vocab_size": c.count("vocab_size", 32000),
        "seq_length": c.count("max_seq_len", 2048),
        "activation": mlp.part("ffn_act_fn").activation("name", "silu", gated=True),
        "num_experts": mlp.count("moe_num_experts", 4),
        "experts_per_token": mlp.count("moe_top_k", 1),
        "expert_ffn_hidden_size": width,
        "norm": "layer",
    }


def _heads(c: Config, key: str, hidden: int, heads: int) -> dict[str, int]:
    """Plain multi-head attention: heads fill the hidden width."""
    head_dim = equal_head_dim(c, key, hidden, heads)
    return {"hidden_size": hidden, "num_heads": heads, "num_kv_heads": heads, "head_dim": head_dim}


def _mlp(c: Config, key: str, default: str) -> dict[str, Any]:
    return {"activation": c.activation(key, default, gated=False), "gated_mlp": False}
