"""Routed experts that work at a width of their own (Nemotron 3 Super), by hand."""

from __future__ import annotations

import pytest

from planner.catalog import load_cluster, load_model
from planner.cost.flops import layer_gemms
from planner.cost.layer_comm import expert_comm
from planner.cost.parameters import layer_parameters
from planner.cost.setting import Settings
from planner.frameworks import load_framework
from planner.spec import Model, PlanRequest, Workload

SUPER = load_model("nemotron-3-super-120b-a12b")
EXPERTS = next(kind for kind in SUPER.layer_kinds if kind.moe)
H, LATENT, F, COUNT = 4096, 1024, 2688, 512


def request(model: Model) -> PlanRequest:
    return PlanRequest(
        model=model,
        cluster=load_cluster("h100-sxm-80gb", 16),
        workload=Workload(global_batch=16, seq_length=8192),
        framework=load_framework("megatron"),
    )


def test_experts_are_as_wide_as_what_reaches_them() -> None:
    counts = layer_parameters(SUPER, EXPERTS)
    assert counts.routed_experts == COUNT * 2 * LATENT * F
    # one column and one correction an expert; into the latent width and back
    assert counts.router == H * COUNT + COUNT + 2 * H * LATENT
    assert counts.shared_experts == 2 * H * 5376


def test_products_of_the_experts_and_the_two_projections() -> None:
    gemms = {gemm.name: gemm for gemm in layer_gemms(SUPER, EXPERTS, 8192, Settings(expert_parallel=8))}
    assert (gemms["expert_in"].k, gemms["expert_out"].n) == (LATENT, LATENT)
    assert (gemms["latent_down"].m, gemms["latent_down"].n, gemms["latent_down"].k) == (8192, LATENT, H)
    assert (gemms["latent_up"].n, gemms["latent_up"].k) == (H, LATENT)


def test_a_quarter_of_the_width_is_sent() -> None:
    whole = SUPER.model_copy(update={"expert_latent_size": 0})
    setting = Settings(expert_parallel=16, data_parallel=16)
    sent, all_of_it = (expert_comm(EXPERTS, setting, request(model))[0] for model in (SUPER, whole))
    assert 0.2 * all_of_it < sent < 0.5 * all_of_it


def test_a_width_of_zero_is_the_hidden_one() -> None:
    assert load_model("mixtral-8x7b").expert_input_size == pytest.approx(4096)
