"""Saved activations of a layer, hand-computed per token, with and without recompute, by framework style."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from toys import tiny_dense as make_tiny_dense

from planner.catalog import load_cluster, load_model
from planner.cost import activations
from planner.cost.activations import (
    RECOMPUTE_DROPS,
    default_modules,
    layer_activation_bytes,
    layer_saved_bytes,
)
from planner.cost.setting import Settings
from planner.cost.textbook import layer_activations
from planner.frameworks import load_framework
from planner.spec import LayerKind, MemoryHabits, PlanRequest, Workload

DENSE, MOE = LayerKind(), LayerKind(moe=True)


def ask(model: str, seq: int = 4096, framework: str = "megatron") -> PlanRequest:
    return PlanRequest(
        model=load_model(model),
        cluster=load_cluster("h100-sxm-80gb", 8),
        workload=Workload(global_batch=8, seq_length=seq),
        framework=load_framework(framework),
    )


def with_habits(request: PlanRequest, **changes: object) -> PlanRequest:
    memory = MemoryHabits(**changes)
    return request.model_copy(update={"framework": request.framework.model_copy(update={"memory": memory})})


def per_token(request: PlanRequest, kind: LayerKind, **setting: object) -> float:
    tokens = request.workload.seq_length
    return float(layer_saved_bytes(kind, Settings(**setting), request).total) / tokens


@pytest.mark.parametrize(
    ("model", "kilobytes"), [("llama-3-8b", 139.3), ("llama-3-70b", 274.7), ("llama-3.1-405b", 520.7)]
)
def test_llama_layers_with_fused_attention(model, kilobytes):
    # 8h + 4ad + 4gd + 4a + 6f, for example 8B: 32768 + 16384 + 4096 + 128 + 86016 = 139392 bytes a token.
    assert per_token(ask(model), DENSE) / 1e3 == approx(kilobytes, abs=0.1)


def test_gpt_layer_is_32_hidden_states_and_34_with_dropout():
    request = ask("gpt3-175b", 2048)
    h, heads = 12288, 96
    assert per_token(request, DENSE) == approx(32 * h + 4 * heads)
    dropped = with_habits(request, dropout_mask_bytes=2.0)
    assert per_token(dropped, DENSE) == approx(34 * h + 4 * heads)


def test_unfused_scores_are_the_textbook_term():
    # With the row statistics left out, the sum is s b h (34 + 5 a s/h).
    request = with_habits(ask("gpt3-175b", 2048), fused_attention=False, dropout_mask_bytes=2.0)
    whole = per_token(request, DENSE) - 4 * 96
    assert whole * 2048 == approx(layer_activations(1, 2048, 12288, unfused_heads=96))


def test_tensor_parallelism_divides_the_tensor_region_only():
    # Token region 8h + 2h of masks, tensor region 24h, as in s b h (10 + 24/t).
    request = with_habits(ask("gpt3-175b", 2048), dropout_mask_bytes=2.0)
    plain = per_token(request, DENSE, tensor_parallel=8) - 4 * 96 / 8
    assert plain * 2048 == approx(layer_activations(1, 2048, 12288, tensor_parallel=8))
    shared = per_token(request, DENSE, tensor_parallel=8, sequence_parallel=True)
    assert shared == approx((34 * 12288 + 4 * 96) / 8)


def test_fp8_keeps_products_inputs_in_one_byte():
    # 11h + 4gd + 5f + 4a with ad = h: norm outputs 2h -> 1h each, the projection's input is an extra 1h copy.
    assert per_token(ask("llama-3-8b"), DENSE, precision="fp8") == approx(
        11 * 4096 + 4 * 1024 + 5 * 14336 + 4 * 32
    )


def test_all_to_all_keeps_the_attention_output_twice():
    request = ask("llama-3-70b")
    ring = per_token(request, DENSE, context_parallel=4, context_parallel_kind="ring")
    regrouped = per_token(request, DENSE, context_parallel=4, context_parallel_kind="all_to_all")
    assert regrouped - ring == approx(2 * 8192 / 4)


def test_eager_style_copies_rotary_results_and_the_gate():
    # Queries, keys and values twice (2 x (2ad + 4gd)) and 2f more, as nanotron's sweep shows: 22h + 8f.
    request = with_habits(ask("llama-2-7b"), activation_style="unfused")
    assert per_token(request, DENSE) == approx(22 * 4096 + 8 * 11008 + 4 * 32)


def test_mixture_of_experts_layer_by_hand():
    # Mixtral 8x7B: 8h + 4ad + 4gd + 4a, router 12E, experts' input 2hk, products 4fk, activation 2fk.
    h, f, k = 4096, 14336, 2
    expected = 8 * h + 4 * h + 4 * 1024 + 4 * 32 + 12 * 8 + 2 * h * k + 6 * f * k
    assert per_token(ask("mixtral-8x7b"), MOE) == approx(expected)


def test_latent_attention_layer_by_hand():
    # DeepSeek-V3, dense layer: 8h, compressed 4q + 4k + 2r, queries and keys 2a(n + r) each, values 2av,
    # output 2av, statistics 4a, MLP 6f.
    a, qk, v = 128, 192, 128
    expected = 8 * 7168 + 4 * 1536 + 4 * 512 + 2 * 64 + 4 * a * qk + 4 * a * v + 4 * a + 6 * 18432
    assert per_token(ask("deepseek-v3"), DENSE) == approx(expected)


def test_full_recompute_keeps_the_input():
    request = ask("llama-3-8b")
    layer = layer_activation_bytes(DENSE, Settings(recompute="full"), request)
    assert layer.recomputed == 2 * 4096 * 4096
    # The recomputed layer is live during its own backward pass.
    assert layer.transient > layer.plain - layer.recomputed


@pytest.mark.parametrize(
    ("tensor_parallel", "sequence_parallel", "bytes_per_token"),
    [
        (1, False, 4 * 14336),  # gradients of gate and up, wider than the hidden state: 2 * 2 * f
        (8, False, 2 * 4096),  # 2 * 2 * f / 8 is less than one whole hidden state
        (8, True, 4 * 4096),  # the gathered input and its gradient, both whole before the reduce-scatter
    ],
)
def test_backward_transient_by_hand(tensor_parallel, sequence_parallel, bytes_per_token):
    setting = Settings(tensor_parallel=tensor_parallel, sequence_parallel=sequence_parallel)
    assert layer_activation_bytes(DENSE, setting, ask("llama-3-8b")).transient == bytes_per_token * 4096


@pytest.mark.parametrize(("model", "hidden_states"), [("llama-3-8b", 28), ("qwen3-4b", 38)])
def test_eager_layers_keep_as_much_as_was_measured(model, hidden_states):
    # Published for Hugging Face's blocks, in hidden states of 16 bits a token and layer.
    request = ask(model, framework="deepspeed")
    kept = per_token(request, DENSE)
    assert kept / (2 * request.model.hidden_size) == approx(hidden_states, rel=0.015)


def test_written_out_norms_keep_six_bytes_an_element():
    request = ask("llama-3-8b")
    plain, eager = (per_token(with_habits(request, eager_norm_bytes=each), DENSE) for each in (0.0, 6.0))
    assert eager - plain == approx(2 * 6 * 4096)  # two norms a layer
    gpt = ask("gpt3-175b")  # a layer norm is one kernel everywhere
    assert per_token(with_habits(gpt, eager_norm_bytes=6.0), DENSE) == per_token(gpt, DENSE)


def test_selective_recompute_drops_what_it_names():
    request = ask("llama-3-8b")
    tokens, f = 4096, 14336
    kept = layer_activation_bytes(DENSE, Settings(recompute="selective", recompute_modules=("mlp",)), request)
    assert kept.plain - kept.recomputed == approx(tokens * 6 * f)
    named = Settings(recompute="selective", recompute_modules=("core_attn",))
    core = layer_activation_bytes(DENSE, named, request)
    assert core.recomputed == core.plain  # a fused kernel never kept the scores


def test_default_modules_are_those_of_the_model():
    assert default_modules(ask("llama-3-8b")) == ("layernorm", "mlp")
    assert default_modules(ask("deepseek-v3")) == ("layernorm", "mla_up_proj", "moe_act", "mlp")
    request = ask("llama-3-8b")
    layer = layer_activation_bytes(DENSE, Settings(recompute="selective"), request)
    # Norm outputs 2 x 2h, and gate, up and product of the MLP, 3 x 2f.
    assert layer.plain - layer.recomputed == approx(4096 * (4 * 4096 + 6 * 14336))


def test_compiled_blocks_keep_no_output_that_nobody_reads():
    request = ask("llama-3-8b", framework="torchtitan")
    compiled = with_habits(request, compiled_blocks=True, selective_modules=("op",))
    eager, fused = (
        layer_activation_bytes(DENSE, Settings(recompute="selective"), one) for one in (request, compiled)
    )
    assert eager.recomputed - fused.recomputed == approx(4096 * 2 * 4096)  # the last product's output, 2 T h


def test_fp8_storage_of_the_deepseek_report():
    bf16, fp8 = Settings(), Settings(precision="fp8")
    request = ask("deepseek-v3", framework="deepseek")
    tokens, attention = 4096, 128 * 128
    wide, narrow = (layer_saved_bytes(DENSE, one, request) for one in (bf16, fp8))
    # Gate and up in one byte each, not two; the attention output once in 12 bits; 4 bytes of statistics.
    assert narrow.mlp_hidden == approx(wide.mlp_hidden / 2)
    assert narrow.attention_core == approx(tokens * (1.5 * attention + 4 * 128))


def test_per_operator_recompute_of_torchtitan():
    # Input, residual, queries, half of keys and values, output and statistics, one of the two first products:
    # 4h + 2ad + 2gd + 2ad + 4a + 2f.
    request = ask("llama-3-8b", framework="torchtitan")
    fused = with_habits(request, selective_modules=("op",))
    layer = layer_activation_bytes(DENSE, Settings(recompute="selective"), fused)
    assert layer.recomputed / 4096 == approx(4 * 4096 + 4 * 4096 + 2 * 1024 + 4 * 32 + 2 * 14336)


def test_per_operator_recompute_repeats_the_products_of_experts():
    # Kept of a layer of V2-Lite (16 heads of 192 and 128, two shared experts of 1408): input and residual
    # 2 x 2h; queries 2 x 16 x 192; half of keys and values 16 x 320; output and statistics; latent vectors
    # 4 x 512 + 2 x 64; the router's 12 x 64; one shared product 2 x 2816. Nothing of the routed experts.
    request = ask("deepseek-v2-lite", framework="torchtitan")
    layer = layer_activation_bytes(MOE, Settings(recompute="selective", expert_parallel=8), request)
    expected = (
        4 * 2048 + 2 * 16 * 192 + 16 * 320 + 2 * 16 * 128 + 4 * 16 + 4 * 512 + 2 * 64 + 12 * 64 + 2 * 2816
    )
    assert layer.recomputed / 4096 == approx(expected)


def test_scores_before_the_experts_keep_the_tokens_twice():
    request = ask("deepseek-v2-lite", framework="torchtitan")
    after = with_habits(request, keeps_unweighted_tokens=False)
    both, once = (layer_saved_bytes(MOE, Settings(), one) for one in (request, after))
    assert both.total - once.total == approx(4096 * 6 * 2 * 2048)  # six copies of each token, 2h bytes each


def test_every_dropped_part_exists():
    request = ask("mixtral-8x7b")
    parts = dict(layer_saved_bytes(MOE, Settings(), request).items())
    assert {part for drops in RECOMPUTE_DROPS.values() for part in drops} <= set(parts)


def test_loss_by_framework():
    # 8192 tokens, V = 128256: bf16 logits are 1.96 GiB, Megatron's native loss 6 bytes a logit.
    request = with_habits(ask("llama-3-8b", 8192), loss_peak_bytes=6.0)
    logits = 8192 * 128256
    assert activations.loss_bytes(Settings(), request) == approx(6 * logits + 4 * 4096 * 8192)


def test_dummy_gradients_of_70b_at_two_ranks():
    # Published: 1.8 GiB with the output layer; one 16-bit tensor per local matrix shape.
    request = ask("llama-3-70b")
    layer = activations.dummy_gradient_bytes(DENSE, Settings(tensor_parallel=2), request)
    assert layer == approx(2 * (855_638_016 / 2))  # attention 2h(a + g)d = 150,994,944 and 3hf = 704,643,072
    assert (layer + 2 * 128256 * 8192 / 2) / 2**30 == approx(1.78, abs=0.01)


@settings(deadline=None, max_examples=40)
@given(
    t=st.sampled_from([1, 2, 4, 8]),
    b=st.integers(1, 8),
    recompute=st.sampled_from(["none", "selective", "full"]),
    modules=st.sets(st.sampled_from(sorted(RECOMPUTE_DROPS))),
    sequence=st.booleans(),
)
def test_recompute_never_keeps_more(t, b, recompute, modules, sequence):
    request = make_tiny_dense()
    setting = Settings(tensor_parallel=t, micro_batch=b, recompute=recompute,
                       recompute_modules=tuple(sorted(modules)), sequence_parallel=sequence)  # fmt: skip
    layer = layer_activation_bytes(DENSE, setting, request)
    assert 0 < layer.recomputed <= layer.plain
    assert layer.transient >= 0


def test_array_equals_scalars(tiny_moe):
    t, b = np.array([1, 2, 4]), np.array([1, 2, 3])
    array = layer_saved_bytes(
        MOE, Settings(tensor_parallel=t, micro_batch=b, sequence_parallel=t > 1), tiny_moe
    )
    for index in range(3):
        one = Settings(tensor_parallel=int(t[index]), micro_batch=int(b[index]), sequence_parallel=index > 0)
        assert array.total[index] == approx(float(layer_saved_bytes(MOE, one, tiny_moe).total))
