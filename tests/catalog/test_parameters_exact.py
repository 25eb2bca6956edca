"""Parameter counts equal those of the real architectures, to the parameter.

Each configuration in ``tests/data/configs`` is built by ``transformers`` on the meta device (no memory, no
weights) and counted. A tied matrix is one parameter there and counted once here. DeepSeek-V3's
``e_score_correction_bias`` is a buffer in transformers and a stored weight of every checkpoint: it counts.
Next-token (MTP) modules are not part of these classes, nor of ``total_parameters`` by default.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import load_model
from planner.catalog.huggingface import READERS
from planner.cost.parameters import total_parameters

torch = pytest.importorskip("torch", reason="exact counts need the models-test extra (torch, transformers)")
transformers = pytest.importorskip(
    "transformers", reason="exact counts need the models-test extra (torch, transformers)"
)

CONFIGS = sorted((Path(__file__).parent.parent / "data" / "configs").glob("*.json"))

pytestmark = pytest.mark.filterwarnings("ignore")


def language_config(data: dict[str, Any]) -> Any:
    """Return the transformers configuration of the language model alone."""
    nested = data.get("text_config")
    data = dict(nested or data)
    if data["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers release has no {data['model_type']}")
    return transformers.CONFIG_MAPPING[data.pop("model_type")](**data)


def reference_count(data: dict[str, Any]) -> int:
    """Weights of the model that transformers builds from a configuration."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(language_config(data))
    model.tie_weights()
    weights = sum(parameter.numel() for parameter in model.parameters())
    corrections = sum(
        b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")
    )
    return weights + corrections


def test_there_are_enough_configurations() -> None:
    assert len(CONFIGS) >= 30


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_total_equals_transformers(path: Path) -> None:
    assert total_parameters(load_model(path)) == reference_count(json.loads(path.read_text()))


SMALL = {
    "num_hidden_layers": 4, "hidden_size": 1536, "n_layer": 4, "n_embd": 1536, "n_layers": 4, "d_model": 1536,
    "num_attention_heads": 24, "num_key_value_heads": 8, "n_head": 24, "n_heads": 24,
    "num_experts_per_tok": 2, "pad_token_id": 0, "hybrid_override_pattern": "M-*E", "mamba_n_heads": 24,
    "mamba_d_ssm": 1536, "hidden_size_per_layer_input": 0,
}  # fmt: skip
"""Keys of all families side by side: each class takes its own and keeps its defaults for the rest."""

NOT_BUILT_ALONE = {"dbrx", "kimi_k2", "ministral", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"}
"""No causal models of their own in transformers, or (DBRX, Ministral) none that builds from defaults."""

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in sorted(set(READERS) - NOT_BUILT_ALONE)),
    *((kind, {"attention_bias": True}) for kind in (
        "llama", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "olmo3", "cohere", "cohere2",
        "granite", "nemotron", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared", "llama4_text",
        "deepseek_v2", "deepseek_v3", "glm4_moe", "smollm3",
    )),
    *((kind, {"attention_bias": True}) for kind in (
        "bamba", "falcon_h1", "granitemoehybrid", "hy_v3", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text",
    )),
    ("bamba", {"mlp_bias": True, "attn_layer_indices": [1, 3], "mamba_conv_bias": False}),
    ("falcon_h1", {"mlp_bias": True, "mamba_rms_norm": True, "mamba_n_groups": 2}),
    ("falcon_h1", {"mamba_d_ssm": None, "tie_word_embeddings": True}),
    ("granitemoehybrid", {"num_local_experts": 0, "shared_intermediate_size": 512}),
    ("granitemoehybrid", {"layer_types": ["mamba", "attention", "mamba", "mamba"]}),
    ("granitemoehybrid", {"layer_types": ["attention"] * 4}),
    ("hy_v3", {"num_shared_experts": 2, "mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}),
    ("gemma4_text", {"attention_k_eq_v": True, "num_global_key_value_heads": 4, "num_hidden_layers": 12}),
    ("gemma4_text", {"global_head_dim": 128, "attention_bias": True, "tie_word_embeddings": False}),
    ("kimi_linear", {"q_lora_rank": 256, "first_k_dense_replace": 2}),
    ("kimi_linear", {"linear_attn_config": {
        "full_attn_layers": [2, 4], "kda_layers": [1, 3], "head_dim": 64, "num_heads": 8,
        "short_conv_kernel_size": 3,
    }}),
    ("nemotron_h", {"hybrid_override_pattern": "M*-M", "mlp_bias": True, "use_conv_bias": False}),
    ("nemotron_h", {"layers_block_type": ["attention", "moe", "mamba", "moe"], "n_routed_experts": 4}),
    ("nemotron_h", {"moe_latent_size": 256, "moe_shared_expert_intermediate_size": 512}),
    ("nemotron_h", {"ssm_state_size": 64, "n_groups": 2, "mamba_num_heads": 32, "mamba_head_dim": 32}),
    ("qwen3_next", {"full_attention_interval": 2, "mlp_only_layers": [1], "linear_num_value_heads": 16}),
    ("qwen3_5_text", {"linear_key_head_dim": 64, "linear_num_key_heads": 8, "linear_conv_kernel_dim": 3}),
    ("qwen3_5_moe_text", {"layer_types": ["full_attention", "linear_attention"] * 2, "num_experts": 6}),
    ("llama", {"mlp_bias": True, "tie_word_embeddings": True, "head_dim": 32}),
    ("granite", {"mlp_bias": True}),
    ("nemotron", {"mlp_bias": True}),
    ("smollm3", {"mlp_bias": True, "tie_word_embeddings": False}),
    ("seed_oss", {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}),
    ("glm4", {"attention_bias": False, "head_dim": 64}),
    ("ernie4_5", {"use_bias": True}),
    ("stablelm", {"use_qkv_bias": True, "use_parallel_residual": True}),
    ("gpt_bigcode", {"multi_query": False}),
    ("ministral", {"head_dim": 32}),
    ("mistral", {"head_dim": 32, "tie_word_embeddings": True}),
    ("gemma2", {"tie_word_embeddings": False}),
    ("qwen2_moe", {"decoder_sparse_step": 2, "qkv_bias": False}),
    ("qwen2_moe", {"mlp_only_layers": [0, 3]}),
    ("qwen3_moe", {"decoder_sparse_step": 3, "mlp_only_layers": [2], "head_dim": 128}),
    ("cohere", {"use_qk_norm": True}),
    ("deepseek_v2", {"q_lora_rank": None, "attention_bias": True, "first_k_dense_replace": 2}),
    ("deepseek_v3", {"q_lora_rank": None, "n_shared_experts": 3, "first_k_dense_replace": 4}),
    ("glm4_moe", {"use_qk_norm": True, "first_k_dense_replace": 2, "head_dim": 64}),
    ("llama4_text", {"interleave_moe_layer_step": 2}),
    ("llama4_text", {"moe_layers": [0, 3]}),
    ("granitemoeshared", {"shared_intermediate_size": 512}),
    ("gpt_oss", {"attention_bias": False}),
    ("gpt_neox", {"attention_bias": False, "tie_word_embeddings": True}),
    ("gpt2", {"n_inner": 1000, "tie_word_embeddings": False}),
    ("opt", {"enable_bias": False}),
    ("opt", {"layer_norm_elementwise_affine": False, "max_position_embeddings": 100}),
    ("starcoder2", {"use_bias": False}),
    ("falcon", {"bias": True}),
    ("falcon", {"multi_query": False, "parallel_attn": False, "bias": True}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 8, "bias": True}),
    ("falcon", {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 512}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 8, "num_ln_in_parallel_attn": 2}),
    ("bloom", {"tie_word_embeddings": False}),
    ("dbrx", {
        "attn_config": {"kv_n_heads": 6, "rope_theta": 10000},
        "ffn_config": {"moe_num_experts": 3, "ffn_hidden_size": 64},
    }),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes"), VARIANTS)
def test_defaults_and_switches_equal_transformers(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    data = {"model_type": kind, **SMALL, **changes}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data))
    assert total_parameters(load_model(path)) == reference_count(data)
