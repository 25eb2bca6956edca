"""Layers with a linear mixer: hand-computed weights, FLOPs and bytes, and laws of any pattern of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest import approx
from toys import tiny_dense, tiny_hybrid, vary

from planner.cost import linear_mixer
from planner.cost.activations import layer_activation_bytes, layer_saved_bytes
from planner.cost.confidence import OTHER_BAND_PCT, error_band_pct, outside_calibration
from planner.cost.flops import layer_gemms, model_flops_per_token
from planner.cost.layer import layer_time
from planner.cost.layer_comm import context_comm, tensor_comm
from planner.cost.parameters import layer_parameters, total_parameters
from planner.cost.setting import Settings
from planner.cost.states import layer_local_parameters
from planner.cost.step import step_time
from planner.spec import LayerKind, Model, PlanRequest
from planner.validate.measured import read_rows, to_case

CALIBRATION = Path(__file__).parents[1] / "data" / "measured" / "calibration.jsonl"

LINEAR, PARALLEL = LayerKind(mixer="linear"), LayerKind(mixer="attention+linear")
MAMBA_ALONE, ATTENTION_ALONE = LayerKind(mixer="linear", mlp=False), LayerKind(mlp=False)
MLP_ALONE = LayerKind(mixer="none")
KINDS = (LayerKind(), LINEAR, PARALLEL, MAMBA_ALONE, ATTENTION_ALONE, MLP_ALONE)
MIXERS = ("mamba2", "gated_delta", "kimi_delta")


def hybrid(mixer: str = "mamba2", **model: Any) -> PlanRequest:
    """Hidden 64; 4 key heads (groups) and 8 value heads of width 16 each; convolution of 4 with bias."""
    return vary(tiny_hybrid(), model={"linear_mixer": mixer, **model})


def shape(**changes: Any) -> dict[str, Any]:
    return {**tiny_hybrid().model.model_dump(), **changes}


def test_mamba_weights_by_hand() -> None:
    # In: z and x 128 each, B and C 64 each, step 8: 64 x 392. Out: 128 x 64. Convolution: 256 channels x
    # (4 + bias). Decay, step and skip of 8 heads; norm of 128.
    mixer = 64 * 392 + 128 * 64 + 256 * 5 + 3 * 8 + 128
    model = hybrid().model
    assert layer_parameters(model, MAMBA_ALONE).as_dict()["linear_mixer"] == mixer
    assert layer_parameters(model, MAMBA_ALONE).norms == 64  # one norm of the stream, not two
    assert layer_parameters(hybrid(linear_output_norm=False).model, MAMBA_ALONE).linear_mixer == mixer - 128
    assert layer_parameters(hybrid(linear_conv_bias=False).model, MAMBA_ALONE).linear_mixer == mixer - 256


def test_gated_delta_weights_by_hand() -> None:
    # In: q and k 64 each, v and z 128 each, two numbers for each of 8 heads: 64 x 400. Convolution over q, k,
    # v: 256 channels. Decay and step of 8 heads; norm of one head.
    model = hybrid("gated_delta", linear_conv_bias=False).model
    assert layer_parameters(model, LINEAR).linear_mixer == 64 * 400 + 128 * 64 + 256 * 4 + 16 + 16


def test_kimi_weights_by_hand() -> None:
    # q and k 64, v 128: 64 x 256; decay 64 -> 16 -> 64, gate 64 -> 16 -> 128, write strength 64 x 4.
    model = hybrid("kimi_delta", linear_conv_bias=False).model
    gates = 64 * 16 + 16 * 64 + 64 * 16 + 16 * 128 + 64 * 4
    assert layer_parameters(model, LINEAR).linear_mixer == (
        64 * 256 + gates + 128 * 64 + 256 * 4 + 4 + 64 + 16
    )


def test_a_gated_attention_has_twice_the_queries() -> None:
    plain, gated = hybrid().model, hybrid(attention_gate=True).model
    more = (
        layer_parameters(gated, ATTENTION_ALONE).attention
        - layer_parameters(plain, ATTENTION_ALONE).attention
    )
    assert more == 64 * 64
    names = {gemm.name: gemm.n for gemm in layer_gemms(gated, ATTENTION_ALONE, 8, Settings())}
    assert names["qkv"] == 2 * 64 + 2 * 32


@pytest.mark.parametrize("mixer", MIXERS)
def test_products_have_the_weights_of_the_matrices(mixer: str) -> None:
    model = hybrid(mixer).model
    matrices = sum(one.rows * one.columns for one in linear_mixer.projections(model))
    gemms = layer_gemms(model, MAMBA_ALONE, 1, Settings())
    assert sum(gemm.flop for gemm in gemms) == 2 * matrices
    split = layer_gemms(model, MAMBA_ALONE, 1, Settings(tensor_parallel=4))
    copied = sum(
        2 * one.rows * one.columns for one in linear_mixer.projections(model) if one.split == "copied"
    )
    assert sum(gemm.flop for gemm in split) == approx((2 * matrices - copied) / 4 + copied)


def test_scan_flops_by_hand() -> None:
    # Mamba-2, chunks of 256: scores 256 x 16 in 4 groups; per head 256 x 16 and 4 x 16 x 16.
    assert linear_mixer.scan_flop_per_token(hybrid().model) == 4 * 4096 + 8 * (4096 + 1024)
    # Delta rule, chunks of 64: 64 x 5 x 16, 64^2 / 3, 6 x 16 x 16 a value head.
    delta = 8 * (64 * 80 + 4096 / 3 + 1536)
    assert linear_mixer.scan_flop_per_token(hybrid("gated_delta").model) == approx(delta)


def test_scan_flops_are_near_what_megatron_counts() -> None:
    # num_floating_point_operations: 7 d_inner d_state for Mamba-2, 8 a_v d_v^2 for the delta rule.
    nemotron = Model(**shape(linear_key_heads=8, linear_value_heads=64, linear_key_head_dim=128,
                             linear_value_head_dim=64))  # fmt: skip
    assert linear_mixer.scan_flop_per_token(nemotron) == approx(7 * 4096 * 128, rel=0.15)
    qwen = Model(**shape(linear_mixer="gated_delta", linear_key_heads=16, linear_value_heads=32,
                         linear_key_head_dim=128, linear_value_head_dim=128))  # fmt: skip
    assert linear_mixer.scan_flop_per_token(qwen) == approx(8 * 32 * 128**2, rel=0.15)


def test_model_flops_are_those_of_the_layers() -> None:
    model = hybrid().model
    seen = {letter: Model(**shape(num_layers=4, layer_pattern=f"{letter}M")) for letter in "ALP*-"}
    flops = {letter: model_flops_per_token(one, 128) for letter, one in seen.items()}
    base = model_flops_per_token(Model(**shape(num_layers=2, layer_pattern="M")), 128)
    head = 6.0 * model.hidden_size * model.vocab_size
    alone = (base - head) / 2  # of one layer M
    layer = {letter: (total - head) / 2 - alone for letter, total in flops.items()}
    assert layer["A"] == approx(layer["*"] + layer["-"])
    assert layer["L"] == approx(alone + layer["-"])
    assert layer["P"] == approx(alone + layer["*"] + layer["-"])


def test_a_longer_sequence_costs_attention_but_not_the_scan() -> None:
    scan, attention = (Model(**shape(layer_pattern=letter, linear_mixer=mixer))
                       for letter, mixer in (("M", "mamba2"), ("*", "")))  # fmt: skip
    assert model_flops_per_token(scan, 4096) == model_flops_per_token(scan, 128)
    assert model_flops_per_token(attention, 4096) > model_flops_per_token(attention, 128)


@pytest.mark.parametrize("mixer", MIXERS)
def test_parts_alone_have_the_parameters_of_the_whole(mixer: str) -> None:
    model = hybrid(mixer).model
    sizes = {kind: layer_parameters(model, kind).total for kind in KINDS}
    assert sizes[LayerKind()] == sizes[ATTENTION_ALONE] + sizes[MLP_ALONE]
    assert sizes[LINEAR] == sizes[MAMBA_ALONE] + sizes[MLP_ALONE]
    assert sizes[PARALLEL] == sizes[LINEAR] + sizes[ATTENTION_ALONE] - model.hidden_size
    pattern = Model(**shape(linear_mixer=mixer))
    assert total_parameters(pattern) == (sum(sizes[kind] for kind in pattern.layer_kinds) + 2 * 512 * 64 + 64)


def test_tensor_ranks_split_a_mixer_or_copy_it() -> None:
    request = hybrid("kimi_delta")
    whole = float(layer_local_parameters(MAMBA_ALONE, Settings(), request).total)
    copied = linear_mixer.copied_parameters(request.model) + request.model.hidden_size
    four = Settings(tensor_parallel=4)
    assert layer_local_parameters(MAMBA_ALONE, four, request).total == approx((whole - copied) / 4 + copied)
    kept = vary(request, limits={"linear_tensor_parallel": False})
    assert layer_local_parameters(MAMBA_ALONE, four, kept).total == whole
    one, many = (layer_time(MAMBA_ALONE, each, kept).forward for each in (Settings(), four))
    assert (many.gemm_s, many.scan_s) == (one.gemm_s, one.scan_s)
    saved = [float(layer_saved_bytes(MAMBA_ALONE, each, kept).linear_scan) for each in (Settings(), four)]
    assert saved[0] == saved[1]


@pytest.mark.parametrize(("kind", "pairs"), [
    (LayerKind(), 2), (LINEAR, 2), (PARALLEL, 2), (MAMBA_ALONE, 1), (ATTENTION_ALONE, 1), (MLP_ALONE, 1),
])  # fmt: skip
def test_every_half_of_a_layer_has_one_pair_of_tensor_collectives(kind: LayerKind, pairs: int) -> None:
    request, setting = hybrid(), Settings(tensor_parallel=4)
    one = tensor_comm(MLP_ALONE, setting, request, 0.0, 0.0)
    assert tensor_comm(kind, setting, request, 0.0, 0.0) == approx((pairs * one[0], pairs * one[1]))


def test_a_copied_mixer_needs_tensor_collectives_only_where_the_sequence_is_split() -> None:
    request = vary(hybrid(), limits={"linear_tensor_parallel": False})
    assert tensor_comm(MAMBA_ALONE, Settings(tensor_parallel=4), request, 0.0, 0.0) == (0.0, 0.0)
    split = Settings(tensor_parallel=4, sequence_parallel=True)
    assert tensor_comm(MAMBA_ALONE, split, request, 0.0, 0.0)[0] > 0


def test_context_ranks_trade_tokens_for_heads_whatever_attention_does() -> None:
    request = hybrid()
    kinds = ("ring", "all_gather", "all_to_all")
    times = {
        context_comm(MAMBA_ALONE, Settings(context_parallel=2, context_parallel_kind=kind), request, 0.0, 0.0)
        for kind in kinds
    }  # fmt: skip
    assert len(times) == 1
    assert min(times)[0] > 0
    assert context_comm(MLP_ALONE, Settings(context_parallel=2), request, 0.0, 0.0) == (0.0, 0.0)
    assert context_comm(MAMBA_ALONE, Settings(), request, 0.0, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("mixer", MIXERS)
def test_context_ranks_share_the_work_of_the_scan(mixer: str) -> None:
    long = vary(hybrid(mixer), workload={"seq_length": 65536})
    one, two = (
        float(layer_time(MAMBA_ALONE, Settings(context_parallel=c), long).forward.scan_s) for c in (1, 2)
    )
    assert two == approx(one / 2, rel=0.05)


def test_what_mamba_keeps_by_hand() -> None:
    # Per token in 16 bits: 392 made by the first product; 128 out of the scan, 128 after its gate; the
    # input and its norm 64 each.
    saved = layer_saved_bytes(MAMBA_ALONE, Settings(), hybrid())
    assert saved.total / 128 == 2 * (392 + 128 + 128) + 2 * 64 + 2 * 64


def test_what_a_delta_rule_keeps_by_hand() -> None:
    # Before the scan: convolution's input 256, gate 128. In it: q and k of 8 heads, v, fp32 decay and 16-bit
    # step of 8 heads, 64 of a chunk's matrix for each. After it: 128 and 128.
    saved = layer_saved_bytes(MAMBA_ALONE, Settings(), hybrid("gated_delta"))
    assert saved.linear_inputs / 128 == 2 * (256 + 128)
    assert saved.linear_scan / 128 == 2 * (128 + 128 + 128 + 64 * 8) + 4 * 8 + 2 * 8
    assert saved.linear_output / 128 == 2 * (128 + 128)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("kind", KINDS)
def test_full_recompute_keeps_the_input_alone(kind: LayerKind, mixer: str) -> None:
    request = hybrid(mixer)
    layer = layer_activation_bytes(kind, Settings(recompute="full"), request)
    assert layer.recomputed == 2 * 64 * 128
    assert layer.plain > layer.recomputed
    assert layer_time(kind, Settings(recompute="full"), request).recompute.total > 0


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_array_of_settings_is_priced_like_each_of_them(kind: LayerKind, mixer: str) -> None:
    request = hybrid(mixer)
    many = Settings(tensor_parallel=np.array([1, 2, 4]), context_parallel=np.array([1, 2, 1]))
    together = layer_time(kind, many, request)
    kept = layer_activation_bytes(kind, many, request)
    for index, (t, c) in enumerate(((1, 1), (2, 2), (4, 1))):
        one = Settings(tensor_parallel=t, context_parallel=c)
        assert np.broadcast_to(together.total.total, 3)[index] == approx(
            layer_time(kind, one, request).total.total
        )
        alone = layer_activation_bytes(kind, one, request)
        assert np.broadcast_to(kept.transient, 3)[index] == approx(float(alone.transient))


def test_only_linear_layers_scan() -> None:
    request = hybrid()
    for kind in KINDS:
        forward = layer_time(kind, Settings(), request).forward
        assert (forward.scan_s > 0) == kind.has_linear
        assert (forward.attention_s > 0) == kind.has_attention


def test_a_dense_model_spelled_in_letters_is_the_same() -> None:
    plain = tiny_dense()
    spelled = vary(plain, model={"layer_pattern": "A"})
    assert spelled.model.layer_kinds == plain.model.layer_kinds
    assert model_flops_per_token(spelled.model, 128) == model_flops_per_token(plain.model, 128)


def test_no_run_calibrates_a_linear_mixer_but_nemotrons() -> None:
    setting = Settings(precision="bf16")
    assert "layers of gated delta net" in str(outside_calibration(hybrid("gated_delta"), setting))
    assert "layers of Mamba-2 other than Nemotron's" in str(outside_calibration(hybrid(), setting))
    assert error_band_pct(hybrid(), setting) >= OTHER_BAND_PCT


def test_published_runs_of_nemotron_h_are_met() -> None:
    # The runs that the rate of Mamba-2's scan was fitted on: 64 to 1024 H100.
    rows = [row for row in read_rows(CALIBRATION) if "Nemotron-H 56B" in row["model"]["name"]]
    assert len(rows) == 5
    for row in rows:
        case = to_case(row)
        assert case.request.model.kind_counts[MAMBA_ALONE] == 54
        seconds = float(step_time(case.plan, case.request).total)
        assert seconds == approx(row["measured"]["step_time_s"], rel=0.05)


def test_published_runs_of_nemotron_3_super_took_no_part_and_are_near() -> None:
    rows = [row for row in read_rows(CALIBRATION) if row["model"]["name"].startswith("Nemotron-3-Super")]
    assert len(rows) == 19
    for row in rows:
        case = to_case(row)
        seconds = float(step_time(case.plan, case.request).total)
        assert seconds == approx(row["measured"]["step_time_s"], rel=0.25)
