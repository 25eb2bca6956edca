"""The model that launch files describe is the one that was planned, not a Llama of its size."""

from __future__ import annotations

import pytest

from planner.api import pinned_plan
from planner.catalog.models import load_model
from planner.frameworks.files import write
from planner.frameworks.megatron.arguments import model_arguments
from planner.request import Question


def files_of(framework: str, model: str = "llama-3-8b", **named: str) -> dict[str, str]:
    request = Question(
        model=model, gpus=16, framework=framework, pins={"micro-batch": "1"}, **named
    ).request()
    return write(pinned_plan(request), request)


@pytest.mark.parametrize(
    ("model", "said", "unsaid"),
    [
        # GPT: LayerNorm, a table of positions, biases everywhere
        ("100b", {"normalization": "LayerNorm", "position_embedding_type": "learned_absolute"},
         {"disable_bias_linear", "add_qkv_bias", "qk_layernorm"}),
        ("llama-3-8b",
         {"normalization": "RMSNorm", "position_embedding_type": "rope", "disable_bias_linear": True},
         {"add_qkv_bias", "qk_layernorm"}),
        ("qwen2.5-7b", {"disable_bias_linear": True, "add_qkv_bias": True}, {"qk_layernorm"}),
        ("qwen3-8b", {"disable_bias_linear": True, "qk_layernorm": True}, {"add_qkv_bias"}),
        ("deepseek-v3", {"disable_bias_linear": True, "qk_layernorm": True}, {"add_qkv_bias"}),
        ("gpt-oss-20b", {"disable_bias_linear": True, "add_qkv_bias": True}, {"qk_layernorm"}),
    ],
)  # fmt: skip
def test_megatron_gets_norms_biases_and_positions_of_the_model(
    model: str, said: dict[str, object], unsaid: set[str]
) -> None:
    arguments = model_arguments(load_model(model))
    assert said.items() <= arguments.items()
    assert not unsaid & set(arguments)


def test_bridge_says_the_same_with_its_own_names() -> None:
    lines = files_of("megatron-bridge", "qwen2.5-7b")["overrides.txt"].splitlines()
    assert {"model.add_bias_linear=false", "model.add_qkv_bias=true"} <= set(lines)
    assert 'model.normalization="LayerNorm"' in files_of("megatron-bridge", "100b")["overrides.txt"]


def test_the_deepspeed_fork_gets_kv_heads_norm_and_positions_in_its_own_words() -> None:
    args = files_of("deepspeed")["args.sh"]
    for flag in ("--num-key-value-heads 8", "--normalization rmsnorm", "--use-rotary-position-embeddings"):
        assert f"    {flag}\n" in args
    gpt = files_of("deepspeed", "gpt3-175b")["args.sh"]
    assert "--normalization layernorm" in gpt
    assert "rotary" not in gpt and "key-value" not in gpt and "disable-bias" not in gpt


def test_maxtext_joins_nodes_of_gpus_and_leaves_tpus_to_themselves() -> None:
    on_gpus, on_tpus = files_of("maxtext"), files_of("maxtext", hardware="tpu-v5p")
    exported = (
        'export NNODES NODE_RANK JAX_COORDINATOR_IP="$MASTER_ADDR" JAX_COORDINATOR_PORT="$MASTER_PORT"\n'
    )
    assert on_gpus["torchrun.sh"].index(exported) < on_gpus["torchrun.sh"].index("python3 -m maxtext")
    assert "LIBTPU" not in on_gpus["env.sh"] and "TPU" not in on_gpus["README.md"]
    assert "JAX_COORDINATOR" not in on_tpus["torchrun.sh"]
    assert "TPU VM" in on_tpus["README.md"]
