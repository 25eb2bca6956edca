"""Models with a linear mixer (state space or linear attention) in some layers; a function a model type."""

from __future__ import annotations

from typing import Any

from planner.catalog.huggingface.config import Config
from planner.catalog.huggingface.experts import router_groups, sparse_experts
from planner.catalog.huggingface.shape import Defaults, biases, decoder

ATTENTION, LINEAR = "full_attention", "linear_attention"
LAYER_TYPES = {"attention": ATTENTION, "mamba": LINEAR, ATTENTION: ATTENTION, LINEAR: LINEAR}
"""Spellings of the two kinds of layers."""
BLOCKS = {**LAYER_TYPES, "mlp": "mlp", "moe": "moe"}
"""Spellings of Nemotron-H's single-block layers."""
BLOCK_LETTERS = {LINEAR: "M", ATTENTION: "*", "mlp": "-", "moe": "E"}

Fields = dict[str, Any]


def qwen3_next(c: Config) -> Fields:
    """Qwen3-Next: three gated delta nets for one gated attention, experts everywhere."""
    shape = _qwen(c, vocab=151936, mlp=5632, kv_heads=2)
    experts = {"shared_expert_gate": True} | sparse_experts(c, 512, 10, 512)
    return (
        shape | experts | {"shared_expert_ffn_hidden_size": c.count("shared_expert_intermediate_size", 512)}
    )


def qwen3_5(c: Config) -> Fields:
    """Qwen3.5 dense: Qwen3-Next's layers with a dense MLP."""
    return _qwen(c, vocab=248320, mlp=12288, kv_heads=4)


def qwen3_5_moe(c: Config) -> Fields:
    """Qwen3.5 with experts in every layer; the config states no dense width."""
    width = c.count("moe_intermediate_size", 512)
    shape = _qwen(c, vocab=248320, mlp=width, kv_heads=2)
    experts = {"shared_expert_gate": True} | sparse_experts(c, 256, 8, 512)
    return (
        shape | experts | {"shared_expert_ffn_hidden_size": c.count("shared_expert_intermediate_size", 512)}
    )


def _qwen(c: Config, vocab: int, mlp: int, kv_heads: int) -> Fields:
    """Attention with an output gate beside gated delta nets; next-token modules where the config has them."""
    defaults = Defaults(vocab=vocab, mlp=mlp, heads=16, kv_heads=kv_heads, head_dim=256, positions=32768)
    shape = decoder(c, defaults) | biases(c, "attention_bias", False)
    step = c.count("full_attention_interval", 4)
    default = [LINEAR if (layer + 1) % step else ATTENTION for layer in range(shape["num_layers"])]
    linear = {
        "linear_mixer": "gated_delta",
        "linear_key_heads": c.count("linear_num_key_heads", 16),
        "linear_value_heads": c.count("linear_num_value_heads", 32),
        "linear_key_head_dim": c.count("linear_key_head_dim", 128),
        "linear_value_head_dim": c.count("linear_value_head_dim", 128),
        "linear_conv_kernel": c.count("linear_conv_kernel_dim", 4),
    }
    return (
        shape
        | {"query_key_norm": "head", "attention_gate": True}
        | {"mtp_depth": c.count("mtp_num_hidden_layers", 0, minimum=0)}
        | _mixed(c, _layer_types(c, shape["num_layers"], default), linear)
    )


def nemotron_h(c: Config) -> Fields:
    """Nemotron-H, Nano v2 and Nemotron 3: every layer is Mamba-2, attention, MLP or experts alone."""
    letters = _block_letters(c)
    shape = {
        "num_layers": len(letters),
        "hidden_size": c.count("hidden_size", 4096),
        "num_heads": c.count("num_attention_heads", 32),
        "num_kv_heads": c.count("num_key_value_heads", 8),
        "head_dim": c.count("head_dim", c.count("attention_head_dim", 128)),
        "ffn_hidden_size": c.count("intermediate_size", 21504),
        "vocab_size": c.count("vocab_size", 131072),
        "seq_length": min(c.count("max_position_embeddings", 4096), 8192),
        "activation": c.activation("mlp_hidden_act", "relu2", gated=False),
        "gated_mlp": False,
        "tied_embeddings": c.flag("tie_word_embeddings", False),
        "mlp_bias": c.flag("mlp_bias", False),
        "mtp_depth": c.count("num_nextn_predict_layers", 0, minimum=0),
    }
    _refuse(c, "use_bias")
    linear = {
        "linear_mixer": "mamba2",
        "linear_key_heads": c.count("n_groups", 8),
        "linear_value_heads": c.count("mamba_num_heads", 128),
        "linear_key_head_dim": c.count("ssm_state_size", 128),
        "linear_value_head_dim": c.count("mamba_head_dim", 64),
        "linear_conv_kernel": c.count("conv_kernel", 4),
        "linear_conv_bias": c.flag("use_conv_bias", True),
    }
    experts = _nemotron_experts(c) if "E" in letters else {}
    return shape | experts | {"layer_pattern": letters} | (linear if "M" in letters else {})


def _block_letters(c: Config) -> str:
    """One of Megatron's letters a layer, from the pattern or from the list of block types."""
    blocks = c.words("layers_block_type", BLOCKS)
    if blocks is not None:
        return "".join(BLOCK_LETTERS[BLOCKS[block]] for block in blocks)
    letters = c.text("hybrid_override_pattern")
    if not letters:
        raise c.error("hybrid_override_pattern", "is missing (a letter a layer: M, *, - or E)")
    return letters


def _nemotron_experts(c: Config) -> Fields:
    if c.flag("mlp_bias", False):
        raise c.error("mlp_bias", "is true, which is not supported beside experts")
    return {
        "num_experts": c.count("n_routed_experts", 8),
        "experts_per_token": c.count("num_experts_per_tok", 2),
        "expert_ffn_hidden_size": c.count("moe_intermediate_size", 7688),
        "shared_expert_ffn_hidden_size": c.count("moe_shared_expert_intermediate_size", 7688, minimum=0),
        "expert_latent_size": c.count("moe_latent_size", 0),
        "router_bias": True,
        "router_groups": router_groups(c),
    }


def falcon_h1(c: Config) -> Fields:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, then an MLP."""
    shape = decoder(c, Defaults(vocab=128000, mlp=14336, heads=32, kv_heads=8, positions=8192))
    shape |= biases(c, "attention_bias", False) | {"mlp_bias": c.flag("mlp_bias", False)}
    width = c.count("mamba_d_ssm", 0 if "mamba_d_ssm" in c.data else 1024, minimum=0)
    _refuse(c, "mamba_proj_bias", "projectors_bias")
    return (
        shape
        | _mamba2(c, width or c.count("mamba_expand", 2) * shape["hidden_size"])
        | {"layer_pattern": "P", "linear_output_norm": c.flag("mamba_rms_norm", False)}
    )


def granite_hybrid(c: Config) -> Fields:
    """Granite 4: Mamba-2 or attention, then experts with a shared one, or its MLP alone."""
    shape = decoder(c, Defaults(vocab=32000, mlp=11008, heads=32, positions=2048))
    shared = c.count("shared_intermediate_size", 1024)
    experts = c.count("num_local_experts", 8, minimum=0)
    mlp: Fields = {"ffn_hidden_size": shared}
    if experts:
        mlp = {
            "num_experts": experts,
            "experts_per_token": c.count("num_experts_per_tok", 2),
            "expert_ffn_hidden_size": shape["ffn_hidden_size"],
            "shared_expert_ffn_hidden_size": shared,
        }
    types = _layer_types(c, shape["num_layers"], [LINEAR] * shape["num_layers"])
    _refuse(c, "mamba_proj_bias")
    linear = _mamba2(c, c.count("mamba_expand", 2) * shape["hidden_size"])
    return shape | biases(c, "attention_bias", False) | mlp | _mixed(c, types, linear)


def bamba(c: Config) -> Fields:
    """Bamba: Mamba-2 with attention in the layers of ``attn_layer_indices``."""
    shape = decoder(c, Defaults(vocab=128000, mlp=14336, heads=32, kv_heads=8, positions=8192))
    full = set(c.indices("attn_layer_indices") or ())
    types = [ATTENTION if layer in full else LINEAR for layer in range(shape["num_layers"])]
    shape |= biases(c, "attention_bias", False) | {"mlp_bias": c.flag("mlp_bias", False)}
    _refuse(c, "mamba_proj_bias")
    return shape | _mixed(c, types, _mamba2(c, c.count("mamba_expand", 2) * shape["hidden_size"]))


def _mamba2(c: Config, width: int) -> Fields:
    """Mamba-2 with IBM's key names; heads fill the inner ``width``."""
    heads = c.count("mamba_n_heads", 128)
    if width % heads:
        raise c.error("mamba_n_heads", f"{heads} does not divide the inner width {width}")
    if c.data.get("mamba_d_head", "auto") not in ("auto", None, width // heads):
        raise c.error("mamba_d_head", f"times mamba_n_heads {heads} is not the inner width {width}")
    return {
        "linear_mixer": "mamba2",
        "linear_key_heads": c.count("mamba_n_groups", 1),
        "linear_value_heads": heads,
        "linear_key_head_dim": c.count("mamba_d_state", 256),
        "linear_value_head_dim": width // heads,
        "linear_conv_kernel": c.count("mamba_d_conv", 4),
        "linear_conv_bias": c.flag("mamba_conv_bias", True),
    }


def kimi_linear(c: Config) -> Fields:
    """Kimi Linear: three Kimi delta attentions for one latent attention, DeepSeek's experts."""
    defaults = Defaults(vocab=163840, mlp=9216, heads=32, positions=4096)
    value_dim = c.count("v_head_dim", 128)
    shape = decoder(c, defaults) | {"head_dim": value_dim} | biases(c, "attention_bias", False)
    shape["num_kv_heads"] = shape["num_heads"]
    delta = c.part("linear_attn_config")
    heads = delta.count("num_heads", c.count("linear_num_heads", 32))
    width = delta.count("head_dim", c.count("linear_head_dim", 128))
    kernel = delta.count("short_conv_kernel_size", c.count("linear_conv_kernel_dim", 4))
    linear = {
        "linear_mixer": "kimi_delta",
        "linear_key_heads": heads,
        "linear_value_heads": heads,
        "linear_key_head_dim": width,
        "linear_value_head_dim": width,
        "linear_conv_kernel": kernel,
    }
    latent = {
        "q_lora_rank": c.count("q_lora_rank", 0, minimum=0),
        "kv_lora_rank": c.count("kv_lora_rank", 512),
        "qk_nope_head_dim": c.count("qk_nope_head_dim", 128),
        "qk_rope_head_dim": c.count("qk_rope_head_dim", 64),
        "v_head_dim": value_dim,
    }
    types = _kimi_types(c, delta, shape["num_layers"])
    return shape | latent | _kimi_experts(c) | _mixed(c, types, linear)


def _kimi_types(c: Config, delta: Config, num_layers: int) -> list[str]:
    """Kinds of the layers: ``full_attn_layers`` counts from 1."""
    full = delta.indices("full_attn_layers")
    if full is not None and not c.has("layer_types"):
        return [ATTENTION if layer + 1 in full else LINEAR for layer in range(num_layers)]
    default = [ATTENTION if layer and layer % 4 == 0 else LINEAR for layer in range(num_layers)]
    return _layer_types(c, num_layers, default)


def _kimi_experts(c: Config) -> Fields:
    if c.count("moe_layer_freq", 1) != 1:
        raise c.error("moe_layer_freq", "differs from 1, which is not supported")
    width = c.count("moe_intermediate_size", 1024)
    per_token = "num_experts_per_token" if c.has("num_experts_per_token") else "num_experts_per_tok"
    shared = "num_shared_experts" if c.has("num_shared_experts") else "n_shared_experts"
    return {
        "num_experts": c.count("num_experts", 256),
        "experts_per_token": c.count(per_token, 8),
        "expert_ffn_hidden_size": width,
        "shared_expert_ffn_hidden_size": width * c.count(shared, 1, minimum=0),
        "num_dense_layers": c.count("first_k_dense_replace", 1, minimum=0),
        "router_bias": True,
        "router_groups": router_groups(c, "num_expert_group"),
        "mtp_depth": c.count("num_nextn_predict_layers", 0, minimum=0),
    }


def _layer_types(c: Config, num_layers: int, default: list[str]) -> list[str]:
    """``layer_types`` in one spelling, or the class's default."""
    stated = c.words("layer_types", LAYER_TYPES)
    if stated is None:
        return default
    if len(stated) != num_layers:
        raise c.error("layer_types", f"has {len(stated)} entries for {num_layers} layers")
    return [LAYER_TYPES[kind] for kind in stated]


def _mixed(c: Config, types: list[str], linear: Fields) -> Fields:
    """The pattern of the layers (its shortest repeating unit) and, where one is linear, what that is."""
    letters = "".join("L" if kind == LINEAR else "A" for kind in types)
    if "L" not in letters:
        return {}
    return {"layer_pattern": shortest_unit(letters), **linear}


def shortest_unit(letters: str) -> str:
    """Return the shortest unit that repeats to the letters."""
    lengths = (n for n in range(1, len(letters) + 1) if len(letters) % n == 0)
    return next((letters[:n] for n in lengths if letters[:n] * (len(letters) // n) == letters), letters)


def _refuse(c: Config, *keys: str) -> None:
    """Refuse what the linear layers are priced without."""
    for key in keys:
        if c.data.get(key):
            raise c.error(key, "is set, which is not supported")
