"""Mixtures of experts. Each function reads one ``model_type``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.catalog.huggingface.config import Config
from planner.catalog.huggingface.shape import Defaults, biases, decoder, order, windows


@dataclass(frozen=True, slots=True)
class _Experts:
    """Class defaults of the DeepSeek family; ``per_token`` None = the key must be there."""

    routed: int
    per_token: int | None
    width: int
    shared: int
    first_dense: int


def mixtral(c: Config) -> dict[str, Any]:
    """Mixtral: every MLP is a mixture; experts have the dense width."""
    shape = decoder(c, Defaults(vocab=32000, mlp=14336, heads=32, kv_heads=8, positions=32768))
    window = c.count("sliding_window") if c.has("sliding_window") else None
    return shape | _local_experts(c, shape, 8, 2) | windows(c, shape["num_layers"], window, 0)


def qwen2_moe(c: Config) -> dict[str, Any]:
    """Qwen 1.5 and 2 MoE: a gated shared expert beside the routed ones."""
    shape = decoder(c, Defaults(vocab=151936, mlp=5632, heads=16, kv_heads=16, positions=32768))
    _refuse_windows(c)
    return (
        shape
        | {"qkv_bias": c.flag("qkv_bias", True), "shared_expert_gate": True}
        | {"shared_expert_ffn_hidden_size": c.count("shared_expert_intermediate_size", 5632)}
        | sparse_experts(c, 60, 4, 1408)
    )


def qwen3_moe(c: Config) -> dict[str, Any]:
    """Qwen 3 MoE: no shared expert, queries and keys normed per head."""
    shape = decoder(c, Defaults(vocab=151936, mlp=6144, heads=32, kv_heads=4, positions=32768))
    _refuse_windows(c)
    experts = sparse_experts(c, 128, 8, 768)
    return shape | biases(c, "attention_bias", False) | {"query_key_norm": "head"} | experts


def olmoe(c: Config) -> dict[str, Any]:
    """OLMoE: 64 small experts, queries and keys normed over all channels."""
    shape = decoder(c, Defaults(vocab=50304, mlp=2048, heads=16, positions=4096))
    return (
        shape
        | biases(c, "attention_bias", False)
        | {"query_key_norm": "full"}
        | _local_experts(c, shape, 64, 8, "num_experts")
    )


def granite_moe(c: Config) -> dict[str, Any]:
    """Granite MoE, with or without a shared expert."""
    shape = decoder(c, Defaults(vocab=32000, mlp=11008, heads=32, positions=2048))
    shared = {"shared_expert_ffn_hidden_size": c.count("shared_intermediate_size", 0, minimum=0)}
    return shape | biases(c, "attention_bias", False) | _local_experts(c, shape, 8, 2) | shared


def gpt_oss(c: Config) -> dict[str, Any]:
    """Read gpt-oss: biases everywhere, sinks, every other layer windowed."""
    shape = decoder(c, Defaults(vocab=201088, mlp=2880, heads=64, kv_heads=8, head_dim=64, positions=131072))
    if c.has("initial_context_length"):
        shape["seq_length"] = c.count("initial_context_length")
    window = c.count("sliding_window", 128)
    return (
        shape
        | biases(c, "attention_bias", True)
        | {"mlp_bias": True, "router_bias": True, "attention_sinks": True}
        | _local_experts(c, shape, 128, 4)
        | windows(c, shape["num_layers"], window, 2)
    )


def llama4(c: Config) -> dict[str, Any]:
    """Llama 4 language model: one routed and one shared expert a token; chunked attention as a window."""
    shape = decoder(c, Defaults(vocab=202048, mlp=8192, heads=40, kv_heads=8, head_dim=128, positions=131072))
    width = shape["ffn_hidden_size"]
    shape["ffn_hidden_size"] = c.count("intermediate_size_mlp", 16384)
    experts = {
        "num_experts": c.count("num_local_experts", 16),
        "experts_per_token": c.count("num_experts_per_tok", 1),
        "expert_ffn_hidden_size": width,
        "shared_expert_ffn_hidden_size": width,
    }
    layers = shape["num_layers"]
    bias = biases(c, "attention_bias", False)
    return shape | bias | experts | _llama4_moe_layers(c, layers) | _llama4_windows(c, layers)


def deepseek_v2(c: Config) -> dict[str, Any]:
    """DeepSeek V2 and V2-Lite: latent attention, shared and routed experts."""
    defaults = Defaults(vocab=102400, mlp=11008, heads=32, positions=2048)
    return _deepseek(c, defaults, _Experts(64, None, 1407, 2, 0))


def deepseek_v3(c: Config) -> dict[str, Any]:
    """DeepSeek V3, R1, Moonlight, Kimi K2: V2 with a router correction and next-token modules."""
    defaults = Defaults(vocab=129280, mlp=18432, heads=128, positions=4096)
    shape = _deepseek(c, defaults, _Experts(256, 8, 2048, 1, 3))
    depth = c.count("num_nextn_predict_layers", c.count("num_mtp_layers", 1, minimum=0), minimum=0)
    return shape | {"router_bias": shape["num_experts"] > 0, "mtp_depth": depth}


def glm4_moe(c: Config) -> dict[str, Any]:
    """GLM-4.5: DeepSeek's experts with grouped attention."""
    shape = decoder(c, Defaults(vocab=151552, mlp=10944, heads=96, kv_heads=8, positions=131072))
    norms = {"query_key_norm": "head" if c.flag("use_qk_norm", False) else "none"}
    depth = c.count("num_nextn_predict_layers", c.count("num_mtp_layers", 1, minimum=0), minimum=0)
    return (
        shape
        | biases(c, "attention_bias", False, output=False)
        | norms
        | _deepseek_experts(c, _Experts(128, 8, 1408, 1, 1))
        | {"router_bias": True, "mtp_depth": depth}
    )


def hy_v3(c: Config) -> dict[str, Any]:
    """Hy3: one dense layer, then 192 experts with a shared one and DeepSeek's router correction."""
    shape = decoder(
        c, Defaults(vocab=120832, mlp=13312, heads=64, kv_heads=8, head_dim=128, positions=131072)
    )
    width = c.count("moe_intermediate_size", 1536)
    dense = tuple(
        index for index, kind in enumerate(c.items("mlp_layer_types") or ["dense"]) if kind == "dense"
    )
    experts = {
        "num_experts": c.count("num_experts", 192),
        "experts_per_token": c.count("num_experts_per_tok", 8),
        "expert_ffn_hidden_size": width,
        "shared_expert_ffn_hidden_size": width * c.count("num_shared_experts", 1, minimum=0),
        **(
            {"num_dense_layers": len(dense)} if dense == tuple(range(len(dense))) else {"dense_layers": dense}
        ),
        "router_bias": True,
    }
    mlp_bias = {"mlp_bias": c.flag("mlp_bias", False), "query_key_norm": "head"}
    return shape | biases(c, "attention_bias", False) | mlp_bias | experts


def minimax_m2(c: Config) -> dict[str, Any]:
    """MiniMax-M2: 256 experts, queries and keys normed over all channels."""
    shape = decoder(c, Defaults(vocab=200064, mlp=1536, heads=48, kv_heads=8, head_dim=128, positions=196608))
    return shape | {"query_key_norm": "full", "router_bias": True} | _local_experts(c, shape, 256, 8)


def _local_experts(
    c: Config, shape: dict[str, Any], experts: int, per_token: int, key: str = "num_local_experts"
) -> dict[str, Any]:
    """Experts as wide as ``intermediate_size``, in every layer."""
    return {
        "num_experts": c.count(key, experts),
        "experts_per_token": c.count("num_experts_per_tok", per_token),
        "expert_ffn_hidden_size": shape["ffn_hidden_size"],
    }


def sparse_experts(c: Config, experts: int, per_token: int, width: int) -> dict[str, Any]:
    """Qwen's experts: every ``decoder_sparse_step``-th layer, except ``mlp_only_layers``."""
    key = "num_experts" if c.has("num_experts") else "num_local_experts"
    return {
        "num_experts": c.count(key, experts),
        "experts_per_token": c.count("num_experts_per_tok", per_token),
        "expert_ffn_hidden_size": c.count("moe_intermediate_size", width),
        "moe_layer_freq": c.count("decoder_sparse_step", 1),
        "dense_layers": c.indices("mlp_only_layers") or (),
    }


def _refuse_windows(c: Config) -> None:
    if c.flag("use_sliding_window", False):
        raise c.error("use_sliding_window", "is true, which is not supported for a mixture of experts")


def _llama4_moe_layers(c: Config, num_layers: int) -> dict[str, Any]:
    """``moe_layers``, or every ``interleave_moe_layer_step``-th layer."""
    step = c.count("interleave_moe_layer_step", 1)
    listed = c.indices("moe_layers")
    if listed is None or listed == tuple(range(step - 1, num_layers, step)):
        return {"moe_layer_freq": step}
    return {"dense_layers": tuple(index for index in range(num_layers) if index not in set(listed))}


def _llama4_windows(c: Config, num_layers: int) -> dict[str, Any]:
    """Chunked attention on the layers with rotary positions (three in four)."""
    if "attention_chunk_size" in c.data and not c.has("attention_chunk_size"):
        return {}
    chunk = c.count("attention_chunk_size", 8192)
    rotary = c.items("no_rope_layers")
    if rotary and not c.has("layer_types"):
        full = tuple(index for index, uses_rope in enumerate(rotary[:num_layers]) if not uses_rope)
        return {"sliding_window": chunk, **order(full, num_layers)}
    return windows(c, num_layers, chunk, c.count("no_rope_layer_interval", 4))


def _deepseek(c: Config, defaults: Defaults, experts: _Experts) -> dict[str, Any]:
    """Shape with latent attention; without ``q_lora_rank`` queries are projected in one step."""
    if c.flag("mlp_bias", False):
        raise c.error("mlp_bias", "is true, which is not supported for DeepSeek models")
    value_dim = c.count("v_head_dim", 128)
    shape = decoder(c, defaults) | {"head_dim": value_dim}
    shape["num_kv_heads"] = shape["num_heads"]
    has_query_rank = c.has("q_lora_rank") or "q_lora_rank" not in c.data
    latent = {
        "q_lora_rank": c.count("q_lora_rank", 1536) if has_query_rank else 0,
        "kv_lora_rank": c.count("kv_lora_rank", 512),
        "qk_nope_head_dim": c.count("qk_nope_head_dim", 128),
        "qk_rope_head_dim": c.count("qk_rope_head_dim", 64),
        "v_head_dim": value_dim,
    }
    return shape | biases(c, "attention_bias", False) | latent | _deepseek_experts(c, experts)


def _deepseek_experts(c: Config, defaults: _Experts) -> dict[str, Any]:
    """Routed and shared experts after ``first_k_dense_replace`` dense layers; null: dense."""
    if "n_routed_experts" in c.data and not c.has("n_routed_experts"):
        return {"num_experts": 0}
    if c.count("moe_layer_freq", 1) != 1:
        raise c.error("moe_layer_freq", "differs from 1, which is not supported")
    width = c.count("moe_intermediate_size", defaults.width)
    is_shared = c.has("n_shared_experts") or "n_shared_experts" not in c.data
    return {
        "num_experts": c.count("n_routed_experts", defaults.routed),
        "experts_per_token": c.count("num_experts_per_tok", defaults.per_token),
        "expert_ffn_hidden_size": width,
        "shared_expert_ffn_hidden_size": (
            width * c.count("n_shared_experts", defaults.shared, minimum=0) if is_shared else 0
        ),
        "num_dense_layers": c.count("first_k_dense_replace", defaults.first_dense, minimum=0),
        "router_groups": router_groups(c),
    }


def router_groups(c: Config, key: str = "n_group") -> tuple[int, int] | None:
    """``n_group`` groups of experts, of which a token uses ``topk_group``; greedy V2 routers ignore both."""
    if not c.has(key) or not c.has("topk_group") or c.data.get("topk_method") == "greedy":
        return None
    groups = c.count(key), c.count("topk_group")
    return groups if groups[1] < groups[0] else None
