"""Full-attention layers with heads of their own among windowed ones (Gemma 4), by hand."""

from __future__ import annotations

import pytest

from planner.catalog import load_cluster, load_model
from planner.cost.flops import layer_gemms
from planner.cost.parameters import layer_parameters
from planner.cost.setting import Settings
from planner.cost.states import layer_local_parameters
from planner.frameworks import load_framework
from planner.rules.architecture import kv_heads_divide_over_tensor_ranks
from planner.spec import Plan, PlanRequest, Workload

GEMMA = load_model("gemma-4-31b")
WINDOWED, FULL = GEMMA.layer_kinds[0], GEMMA.layer_kinds[5]
H = 5376


def request(framework: str = "megatron") -> PlanRequest:
    return PlanRequest(
        model=GEMMA,
        cluster=load_cluster("h100-sxm-80gb", 8),
        workload=Workload(global_batch=8, seq_length=4096),
        framework=load_framework(framework),
    )


def test_weights_follow_the_layer() -> None:
    # 32 heads of 256 with 16 KV heads; 32 heads of 512 with 4 KV heads and no values
    assert layer_parameters(GEMMA, WINDOWED).attention == H * (32 + 2 * 16) * 256 + 32 * 256 * H
    assert layer_parameters(GEMMA, FULL).attention == H * (32 + 4) * 512 + 32 * 512 * H
    # four norms over the hidden width, one of queries and one of keys
    assert layer_parameters(GEMMA, FULL).norms == 4 * H + 2 * 512


def test_products_follow_the_layer() -> None:
    for kind, columns in ((WINDOWED, (32 + 2 * 16) * 256), (FULL, (32 + 4) * 512)):
        qkv = layer_gemms(GEMMA, kind, 4096, Settings(tensor_parallel=2))[0]
        assert (qkv.n, qkv.k) == (columns / 2, H)


def test_a_rank_beyond_the_kv_heads_holds_a_copy_of_one() -> None:
    # 8 ranks share 4 KV heads of 512: queries and output divide, each rank holds one key head
    held = layer_local_parameters(FULL, Settings(tensor_parallel=8), request()).total
    attention = 2 * H * 32 * 512 / 8 + H * 512
    mlp = 3 * H * 21504 / 8
    assert held == pytest.approx(attention + mlp + 4 * H + 2 * 512)


def test_the_fewest_kv_heads_bound_the_tensor_ranks() -> None:
    over_eight = Plan(tensor_parallel=8)
    assert kv_heads_divide_over_tensor_ranks.admits(over_eight, request())
    assert not kv_heads_divide_over_tensor_ranks.admits(over_eight, request("torchtitan"))
    assert kv_heads_divide_over_tensor_ranks.admits(Plan(tensor_parallel=4), request("torchtitan"))
