"""Dense decoders with Llama's key names. Each function reads one ``model_type``."""

from __future__ import annotations

from typing import Any

from planner.catalog.huggingface.config import Config
from planner.catalog.huggingface.shape import Defaults, biases, decoder, order, windows

_LAYER_NORM = {"norm": "layer", "norm_vectors": 2}


def llama(c: Config) -> dict[str, Any]:
    """Llama 1-3 and everything saved as one."""
    shape = decoder(c, Defaults(vocab=32000, mlp=11008, heads=32, positions=2048))
    return shape | biases(c, "attention_bias", False) | {"mlp_bias": c.flag("mlp_bias", False)}


def mistral(c: Config) -> dict[str, Any]:
    """Mistral: every layer windowed unless ``sliding_window`` is null."""
    shape = decoder(c, Defaults(vocab=32000, mlp=14336, heads=32, kv_heads=8, positions=32768))
    return shape | windows(c, shape["num_layers"], _window(c, 4096), 0)


def qwen2(c: Config) -> dict[str, Any]:
    """Qwen 2 and 2.5: bias on queries, keys and values."""
    shape = decoder(c, Defaults(vocab=151936, mlp=22016, heads=32, kv_heads=32, positions=32768))
    return shape | _upper_windows(c, shape["num_layers"]) | {"qkv_bias": True}


def qwen3(c: Config) -> dict[str, Any]:
    """Qwen 3 dense: queries and keys normed per head."""
    defaults = Defaults(vocab=151936, mlp=22016, heads=32, kv_heads=32, head_dim=128, positions=32768)
    shape = decoder(c, defaults) | {"query_key_norm": "head"}
    return shape | biases(c, "attention_bias", False) | _upper_windows(c, shape["num_layers"])


def gemma(c: Config) -> dict[str, Any]:
    """Gemma 1: gated GELU, tied embeddings, wide heads."""
    defaults = Defaults(
        vocab=256000,
        mlp=24576,
        heads=16,
        kv_heads=16,
        head_dim=256,
        positions=8192,
        tied=True,
        activation="gelu",
    )
    key = "hidden_activation" if c.has("hidden_activation") else "hidden_act"
    return decoder(c, defaults, key) | biases(c, "attention_bias", False)


def gemma2(c: Config) -> dict[str, Any]:
    """Gemma 2: four norms a layer, every other layer windowed."""
    shape = decoder(c, _gemma_defaults(256000, 8192), "hidden_activation") | {"norms_per_layer": 4}
    window = windows(c, shape["num_layers"], _window(c, 4096), 2)
    return shape | biases(c, "attention_bias", False) | window


def gemma3(c: Config) -> dict[str, Any]:
    """Gemma 3 language model: as Gemma 2 with normed queries and keys, one full layer in six."""
    shape = decoder(c, _gemma_defaults(262208, 131072), "hidden_activation")
    shape |= {"norms_per_layer": 4, "query_key_norm": "head"}
    pattern = c.count("sliding_window_pattern", 6)
    window = windows(c, shape["num_layers"], _window(c, 4096), pattern)
    return shape | biases(c, "attention_bias", False) | window


def gemma4(c: Config) -> dict[str, Any]:
    """Gemma 4 language model, dense: full-attention layers have wider and fewer heads, without values."""
    shape = decoder(c, _gemma_defaults(262144, 131072), "hidden_activation")
    shape |= {"norms_per_layer": 4, "query_key_norm": "head"} | biases(c, "attention_bias", False)
    defaults = {"hidden_size_per_layer_input": True}
    for key in ("enable_moe_block", "hidden_size_per_layer_input", "num_kv_shared_layers"):
        if c.data.get(key, defaults.get(key)):
            raise c.error(key, "is set or left at its default, which is not supported (false or 0 is)")
    last, window = shape["num_layers"] - 1, windows(c, shape["num_layers"], _window(c, 512), 6)
    if not c.has("layer_types") and window:
        full = {*range(5, shape["num_layers"], 6), last}  # the last layer always looks all the way back
        window = {"sliding_window": window["sliding_window"], **order(tuple(sorted(full)), last + 1)}
    alone = c.flag("attention_k_eq_v", False)
    heads = c.count("num_global_key_value_heads", 0, minimum=0) if alone else 0
    own = {"full_head_dim": c.count("global_head_dim", 512), "full_kv_heads": heads}
    return shape | window | own | {"full_keys_are_values": alone}


def phi3(c: Config) -> dict[str, Any]:
    """Phi-3 and Phi-4: Llama with fused projections; every layer windowed where a window is set."""
    shape = decoder(c, Defaults(vocab=32064, mlp=8192, heads=32, positions=4096))
    return shape | windows(c, shape["num_layers"], _window(c, None), 0)


def olmo(c: Config) -> dict[str, Any]:
    """OLMo 1: layer norms without parameters."""
    shape = decoder(c, Defaults(vocab=50304, mlp=11008, heads=32, positions=2048))
    return shape | biases(c, "attention_bias", False) | {"norm": "layer", "norm_vectors": 0}


def olmo2(c: Config) -> dict[str, Any]:
    """OLMo 2: queries and keys normed over all channels."""
    shape = decoder(c, Defaults(vocab=50304, mlp=11008, heads=32, positions=2048))
    return shape | biases(c, "attention_bias", False) | {"query_key_norm": "full"}


def olmo3(c: Config) -> dict[str, Any]:
    """OLMo 3: OLMo 2 with three windowed layers in four."""
    shape = olmo2(c)
    return shape | windows(c, shape["num_layers"], _window(c, 4096), 4)


def cohere(c: Config) -> dict[str, Any]:
    """Command R: attention and MLP side by side after one norm without shift."""
    shape = decoder(c, Defaults(vocab=256000, mlp=22528, heads=64, positions=8192, tied=True))
    norms = "full" if c.flag("use_qk_norm", False) else "none"
    parallel = {"norm": "layer", "norms_per_layer": 1, "parallel_block": True, "query_key_norm": norms}
    return shape | biases(c, "attention_bias", False) | parallel


def cohere2(c: Config) -> dict[str, Any]:
    """Command R7B and A: as Command R with three windowed layers in four."""
    shape = cohere(c)
    pattern = c.count("sliding_window_pattern", 4)
    return shape | windows(c, shape["num_layers"], _window(c, 4096), pattern)


def granite(c: Config) -> dict[str, Any]:
    """Granite 3: Llama's matrices; its multipliers cost nothing."""
    return llama(c)


def nemotron(c: Config) -> dict[str, Any]:
    """Nemotron-4 and Minitron: squared ReLU, layer norms with shift."""
    defaults = Defaults(vocab=256000, mlp=24576, heads=48, positions=4096, activation="relu2", gated=False)
    mlp_bias = {"mlp_bias": c.flag("mlp_bias", False)}
    return decoder(c, defaults) | biases(c, "attention_bias", False) | mlp_bias | _LAYER_NORM


def starcoder2(c: Config) -> dict[str, Any]:
    """StarCoder 2: GELU without gate, biases everywhere, layer norms with shift."""
    defaults = Defaults(
        vocab=49152,
        mlp=12288,
        heads=24,
        kv_heads=2,
        positions=4096,
        tied=True,
        activation="gelu",
        gated=False,
    )
    shape = decoder(c, defaults) | biases(c, "use_bias", True) | {"mlp_bias": c.flag("use_bias", True)}
    return shape | _LAYER_NORM | windows(c, shape["num_layers"], _window(c, None), 0)


def stablelm(c: Config) -> dict[str, Any]:
    """StableLM 2: gated SiLU with layer norms; one norm where attention runs beside the MLP."""
    if c.flag("qk_layernorm", False):
        raise c.error("qk_layernorm", "is true, which is not supported")
    parallel = c.flag("use_parallel_residual", False)
    shape = decoder(c, Defaults(vocab=50304, mlp=6912, heads=32, kv_heads=32, positions=4096))
    block = {"parallel_block": parallel, "norms_per_layer": 1 if parallel else 2}
    return shape | {"qkv_bias": c.flag("use_qkv_bias", False)} | block | _LAYER_NORM


def smollm3(c: Config) -> dict[str, Any]:
    """SmolLM 3: Llama's matrices, one layer in four without positions."""
    shape = decoder(c, Defaults(vocab=128256, mlp=11008, heads=16, kv_heads=4, positions=32768, tied=True))
    if c.flag("use_sliding_window", False):
        raise c.error("use_sliding_window", "is true, which is not supported")
    return shape | biases(c, "attention_bias", False) | {"mlp_bias": c.flag("mlp_bias", False)}


def seed_oss(c: Config) -> dict[str, Any]:
    """Seed-OSS: bias on queries, keys and values, wide attention."""
    defaults = Defaults(vocab=155136, mlp=27648, heads=80, kv_heads=8, head_dim=128, positions=524288)
    bias = {"qkv_bias": c.flag("attention_bias", True), "mlp_bias": c.flag("mlp_bias", False)}
    return decoder(c, defaults) | bias | {"attention_output_bias": c.flag("attention_out_bias", False)}


def glm4(c: Config) -> dict[str, Any]:
    """GLM-4 dense: four norms a layer, bias on queries, keys and values."""
    defaults = Defaults(vocab=151552, mlp=13696, heads=32, kv_heads=2, head_dim=128, positions=131072)
    return decoder(c, defaults) | biases(c, "attention_bias", True, output=False) | {"norms_per_layer": 4}


def exaone4(c: Config) -> dict[str, Any]:
    """EXAONE 4: queries and keys normed per head; windows spelt "LLLG" (one full layer in four)."""
    shape = decoder(c, Defaults(vocab=102400, mlp=16384, heads=32, kv_heads=32, positions=2048))
    stated = c.data.get("sliding_window_pattern")
    pattern = len(stated) if isinstance(stated, str) else c.count("sliding_window_pattern", 4)
    order = windows(c, shape["num_layers"], _window(c, 4096), pattern)
    return shape | {"query_key_norm": "head"} | order


def ernie(c: Config) -> dict[str, Any]:
    """ERNIE 4.5 dense: Llama's matrices with one switch for all biases."""
    defaults = Defaults(
        vocab=103424, mlp=3072, heads=16, kv_heads=2, head_dim=128, positions=131072, tied=True
    )
    return decoder(c, defaults) | biases(c, "use_bias", False) | {"mlp_bias": c.flag("use_bias", False)}


def _gemma_defaults(vocab: int, positions: int) -> Defaults:
    return Defaults(
        vocab=vocab, mlp=9216, heads=8, kv_heads=4, head_dim=256, positions=positions, tied=True,
        activation="gelu",
    )  # fmt: skip


def _window(c: Config, default: int | None) -> int | None:
    """``sliding_window``: absent means the class's default, null means none."""
    if "sliding_window" in c.data and c.data["sliding_window"] is None:
        return None
    return c.count("sliding_window") if c.has("sliding_window") else default


def _upper_windows(c: Config, num_layers: int) -> dict[str, Any]:
    """Qwen's windows, used only when ``use_sliding_window`` is true: layers from ``max_window_layers`` on."""
    if not c.flag("use_sliding_window", False):
        return {}
    window = _window(c, 4096)
    if window is None or c.has("layer_types"):
        return windows(c, num_layers, window, 0)
    first = min(c.count("max_window_layers", 28, minimum=0), num_layers)
    return {"sliding_window": window, "full_attention_layers": tuple(range(first))}
