"""Practitioners' cases about state on the host, with tests of their own."""

from __future__ import annotations

import pytest
from case_adapter import entries, load_cases, reported_bytes

from planner.api import question
from planner.cost.memory import memory
from planner.cost.offload import host_state_bytes, resident_state
from planner.cost.setting import Settings
from planner.cost.states import LocalParameters
from planner.rules.memory import HOST_BUFFER_FACTOR
from planner.spec.plan import Offload

GIB = 2.0**30
T5_3B = LocalParameters(2851e6)
LARGEST_LAYER = 32e6
"""Of the estimator's example: "2851M total params, 32M largest layer params", 8 GPUs."""


def estimate(number: int) -> tuple[float, float]:
    """What DeepSpeed's estimator says of a row: bytes on a GPU, bytes of the node's host memory."""
    row = load_cases()["ds-965-estimator-3b"]["config"][number]
    return row["gpu_gib"] * GIB, row["cpu_gib"] * GIB


def ours(zero: int, offload: Offload) -> tuple[float, float]:
    """The planner's state of as many parameters: on a GPU, and of 8 GPUs in host memory with buffers."""
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": "deepspeed"})
    setting = Settings(data_parallel=8, zero_stage=zero, shard_group_size=8, offload=offload)
    resident = float(resident_state(T5_3B, setting, request).total)
    return resident, 8 * HOST_BUFFER_FACTOR * float(host_state_bytes(T5_3B, setting, request))


def test_state_with_the_optimizer_on_the_host_is_deepspeeds_estimate() -> None:
    """ZeRO-2 keeps 2 bytes a parameter on the GPU: its gradients leave as well.

    The estimator's host figure is of loading: every process holds fp32 weights, 4 x 8 x 1.5 bytes each.
    The run needs 16 x 1.5, which is the figure of the ZeRO-3 row that loads in parts.
    """
    gpu, host = ours(2, "optimizer")
    assert gpu == pytest.approx(estimate(0)[0], rel=1e-3)
    assert host == pytest.approx(16 * 1.5 * 2851e6)
    assert estimate(0)[1] == pytest.approx(4 * 8 * 1.5 * 2851e6, rel=1e-3)


def test_state_of_zero_2_alone_is_below_deepspeeds_estimate() -> None:
    """The estimator counts whole 16-bit gradients and an fp32 copy of the shard's, 4 P + 16 P / n.

    A run partitions gradients bucket by bucket: 2 P + 14 P / n. The difference is 2 P + 2 P / n.
    """
    gpu, _ = ours(2, "none")
    assert estimate(1)[0] - gpu == pytest.approx((2 + 2 / 8) * 2851e6, rel=2e-3)


@pytest.mark.parametrize("number", [2, 3])
def test_state_with_everything_on_the_host_is_deepspeeds_estimate(number: int) -> None:
    """No state stays; the estimator's 0.12 GiB are the largest layer, 16-bit weights and gradients.

    Without ``zero.Init`` (row 3) loading, not training, needs more of the host.
    """
    gpu, host = ours(3, "parameters")
    assert gpu == 0.0
    assert estimate(number)[0] == pytest.approx(4 * LARGEST_LAYER, rel=0.01)
    assert host == pytest.approx(18 * 1.5 * 2851e6)
    assert host == pytest.approx(estimate(2)[1], rel=1e-3)
    assert host <= estimate(number)[1] * (1 + 1e-3)


def test_state_of_zero_3_with_the_optimizer_on_the_host_is_deepspeeds_estimate() -> None:
    """2 P / n beside the largest layer; 16 x 1.5 bytes a parameter on the host."""
    gpu, host = ours(3, "optimizer")
    assert gpu + 4 * LARGEST_LAYER == pytest.approx(estimate(4)[0], rel=0.01)
    assert host == pytest.approx(estimate(4)[1], rel=1e-3)


def test_a_million_tokens_of_a_32b_model_leave_one_layer_on_the_gpu() -> None:
    """trl-6845-qwen3-32b-1m: 60.8 GB. fp32 state alone would be 65.5 GB a GPU, so it lies on the host.

    Two inputs of layers stay, of 131,072 tokens. The rest is the layer that is recomputed, whose MLP the run
    computed in tiles of 16,384 tokens (PR 6846), which no plan says: its four tensors are an eighth as large.
    """
    case = load_cases()["trl-6845-qwen3-32b-1m"]
    plain, away = entries(case)[0], entries(case, offload="params cpu")[0]
    here, there = (memory(entry.plan, entry.request)[0] for entry in (plain, away))
    assert here.weights_bytes + here.gradients_bytes + here.optimizer_bytes == pytest.approx(65.5e9, rel=0.01)
    assert there.weights_bytes + there.gradients_bytes + there.optimizer_bytes == 0.0
    assert there.activations_bytes == pytest.approx(2 * 131072 * 5120 * 2)
    untiled = reported_bytes(away)
    tiled = untiled - 4 * 131072 * 25600 * 2 * 7 / 8
    assert tiled <= 60.8e9 <= untiled


def test_a_quantised_70b_model_leaves_its_cards() -> None:
    """axolotl-1428-70b-qlora-fsdp: a shard of 17 to 18 GB on each of two cards, nothing with the offload."""
    case = load_cases()["axolotl-1428-70b-qlora-fsdp"]
    away, here = entries(case)[0], entries(case, offload=None)[0]
    assert 17e9 <= memory(here.plan, here.request)[0].weights_bytes <= 18e9
    assert memory(away.plan, away.request)[0].weights_bytes == 0.0
