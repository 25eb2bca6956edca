"""The textbook chapter's worked examples, recomputed: one test a row, numbered as in the list of examples.

GB is 1e9 bytes; "wire" is bytes that leave one GPU. Where the chapter prints another value, a comment says
why.
"""

from __future__ import annotations

import numpy as np
import pytest
from pytest import approx

from planner.catalog import load_cluster, load_model
from planner.cost import textbook as book
from planner.cost.flops import model_flops_per_token
from planner.cost.goodput import mean_time_between_failures
from planner.cost.memory import memory
from planner.cost.schedule import bubble
from planner.cost.setting import Settings
from planner.cost.split import split_evenly
from planner.cost.states import LocalParameters, StateBytes, state_bytes
from planner.frameworks import load_framework
from planner.spec import Plan, PlanRequest, StagePlan, Workload

GB = 1e9


def request(
    model: str, gpus: int, framework: str = "deepspeed", hardware: str = "h100-sxm-80gb", seq: int = 4096
) -> PlanRequest:
    return PlanRequest(
        model=load_model(model),
        cluster=load_cluster(hardware, gpus),
        workload=Workload(global_batch=2048, seq_length=seq),
        framework=load_framework(framework),
    )


def state(parameters: float, framework: str = "deepspeed", **degrees: int) -> StateBytes:
    """State of so many local parameters, bf16 gradients (deepspeed) or fp32 ones (megatron)."""
    settings = Settings(**degrees)
    return state_bytes(LocalParameters(parameters), settings, request("llama-3-8b", 8, framework))


def test_01_plain_data_parallel_state_of_7_5b():
    whole = state(7.5e9)
    assert whole.total == approx(120 * GB)
    assert (whole.weights_bytes, whole.gradients_bytes) == (approx(15 * GB), approx(15 * GB))
    assert whole.optimizer_bytes == approx(90 * GB)  # 30 master + 30 + 30 moments


def test_02_optimizer_share():
    whole = state(7.5e9)
    assert whole.optimizer_bytes / whole.total == approx(0.75)


def test_03_all_reduce_of_7_5b_gradients():
    # The chapter's "2|theta| bytes" counts elements; 200 GB/s is a whole node of 8 network cards.
    gradients = state(7.5e9).gradients_bytes
    assert 2 * gradients == approx(30 * GB)
    wire = book.ring_all_reduce_wire(gradients, 64)
    assert wire == approx(29.53 * GB, rel=1e-3)
    assert book.transfer_time(30 * GB, 600e9) == approx(0.050)
    assert book.transfer_time(30 * GB, 200e9) == approx(0.150)


def test_04_plain_data_parallel_13b_does_not_fit():
    whole = state(13e9).total
    assert whole == approx(208 * GB)
    assert whole / (80 * GB) == approx(2.6)


@pytest.mark.parametrize(("stage", "expected"), [(1, 31.40625), (2, 16.640625), (3, 1.875)])
def test_05_zero_stages_of_7_5b_on_64(stage, expected):
    sharded = state(7.5e9, data_parallel=64, shard_group_size=64, zero_stage=stage)
    assert sharded.total == approx(expected * GB)
    assert book.zero_bytes_per_parameter(stage, 64) * 7.5e9 == approx(expected * GB)


def test_06_wire_volume_by_zero_stage():
    volumes = [book.zero_wire(1.0, 64, stage) for stage in range(4)]
    assert volumes == approx([2 * 63 / 64] * 3 + [3 * 63 / 64])


def test_07_largest_model_on_eight_gpus():
    assert book.largest_model(80 * GB, 0, 8) == approx(5e9)
    # The chapter's 50B cannot be: 16 x 50 / 8 = 100 GB.
    assert book.largest_model(80 * GB, 3, 8) == approx(40e9)


def test_08_collectives_per_layer():
    # Says both "one forward, one backward" and "4 total": the second is right.
    assert book.tensor_collectives(1) == 4


def test_09_all_reduce_of_a_70b_layer():
    tensor = book.activation_message(32, 2048, 8192)
    assert tensor == approx(1.0737 * GB, rel=1e-4)
    wire = book.ring_all_reduce_wire(tensor, 8)
    assert wire == approx(1.879 * GB, rel=1e-3)
    assert book.transfer_time(wire, 600e9) == approx(3.13e-3, rel=1e-3)
    assert book.transfer_time(wire, 25e9) == approx(75.2e-3, rel=1e-3)


def test_10_one_ffn_product_on_one_of_eight():
    # The chapter's 30.7 TFLOP is the whole width: dividing by 8 was written, not done.
    flop = book.gemm_flop(32 * 2048, 28672 / 8, 8192)
    assert flop == approx(3.85e12, rel=1e-3)
    assert book.compute_time(flop, 989e12) == approx(3.89e-3, rel=1e-3)


def test_11_communication_over_mlp_compute():
    compute = 3 * book.compute_time(book.gemm_flop(32 * 2048, 28672 / 8, 8192), 989e12)
    reduce = book.transfer_time(book.ring_all_reduce_wire(book.activation_message(32, 2048, 8192), 8), 600e9)
    assert compute == approx(11.7e-3, rel=3e-3)
    assert reduce / compute == approx(0.27, abs=0.005)  # 10 % follows from row 10's slip


def test_12_all_tensor_collectives_of_a_step():
    count, tensor = book.tensor_collectives(80), book.activation_message(32, 2048, 8192)
    assert count * tensor == approx(343.6 * GB, rel=1e-3)
    wire = count * book.ring_all_reduce_wire(tensor, 8)
    assert wire == approx(601 * GB, rel=1e-3)
    assert book.transfer_time(count * tensor, 600e9) == approx(0.573, rel=1e-3)
    assert book.transfer_time(wire, 600e9) == approx(1.00, rel=3e-3)  # the ring factor 2(t-1)/t was left out


@pytest.mark.parametrize(
    ("m", "ideal", "share", "used"),
    [(1, 7, 0.875, 0.125), (4, 1.75, 0.636, 0.364), (32, 0.219, 0.179, 0.821)],
)
def test_13_bubble_of_eight_stages(m, ideal, share, used):
    # Utilisation is m/(m + p - 1), not 1 - (p - 1)/m.
    assert book.bubble_over_ideal(8, m) == approx(ideal, abs=5e-4)
    assert book.bubble_share(8, m) == approx(share, abs=5e-4)
    assert book.utilisation(8, m) == approx(used, abs=5e-4)
    assert bubble("1f1b", 1.0, 1.0, 1.0, 8, 1, m) / (3.0 * m) == approx(book.bubble_over_ideal(8, m))


def test_14_175b_in_eight_stages_does_not_fit():
    # The chapter counts 43.75 GB of weights only and finds room.
    local = state(175e9 / 8, data_parallel=8, shard_group_size=8, zero_stage=1)
    assert local.weights_bytes == approx(43.75 * GB)
    assert local.gradients_bytes == approx(43.75 * GB)
    assert local.optimizer_bytes == approx(32.8 * GB, rel=1e-3)
    assert local.total == approx(120.3 * GB, rel=1e-3)
    asked = request("gpt3-175b", 64, "deepspeed", "a100-sxm-80gb", 2048)
    plan = Plan(
        pipeline_parallel=8,
        schedule="1f1b",
        data_parallel=8,
        zero_stage=1,
        shard_group_size=8,
        num_microbatches=256,
    )
    missing = max(float(rank.total) for rank in memory(plan, asked)) - asked.cluster.usable_hbm_bytes
    assert missing > 35 * GB


def test_15_hand_off_between_stages():
    size = book.activation_message(4, 2048, 12288)
    assert size == approx(201.3e6, rel=1e-3)
    assert book.transfer_time(size, 25e9) == approx(8.05e-3, rel=1e-3)


def test_16_mlp_forward_of_a_175b_layer():
    one = book.gemm_flop(4 * 2048, 4 * 12288, 12288)
    assert one == approx(9.9e12, rel=2e-3)
    # The chapter's 32 ms is one of the two products.
    assert book.compute_time(one, 312e12) == approx(31.7e-3, rel=2e-3)
    assert book.compute_time(2 * one, 312e12) == approx(63.4e-3, rel=2e-3)


def test_17_microbatches_for_a_bubble_budget():
    assert book.microbatches_for_bubble(8, 0.25) == 4 * 7
    assert book.microbatches_for_bubble(8, 0.20) == 5 * 7
    assert book.microbatches_for_bubble(8, 0.25, virtual_stages=4) == 7
    # 4p is under 25 % of the ideal time and under 20 % of the whole step.
    assert book.bubble_over_ideal(8, 32) < 0.25
    assert book.bubble_share(8, 32) < 0.20


def test_18_pointwise_activations_of_13b():
    # The 10 of 10 s b h is bytes already; the chapter doubles it again.
    layer = book.pointwise_activations(4, 4096, 5120)
    assert layer == approx(0.839 * GB, rel=1e-3)
    assert 40 * layer == approx(33.6 * GB, rel=2e-3)
    assert 40 * layer / 8 == approx(4.19 * GB, rel=2e-3)


def test_19_layer_activations_with_and_without_sequence_parallelism():
    # 34 already contains the 10.
    assert book.layer_activations(4, 4096, 5120, tensor_parallel=8) == approx(1.09 * GB, rel=1e-3)
    assert book.layer_activations(4, 4096, 5120, 8, sequence_parallel=True) == approx(0.357 * GB, rel=2e-3)


def test_20_keys_and_values_of_a_long_sequence():
    full = book.key_value_bytes(131072, 64, 128)
    assert full == approx(4.295 * GB, rel=1e-3)
    split = book.key_value_bytes(131072, 64, 128, context_parallel=8)
    assert split == approx(0.537 * GB, rel=1e-3)
    assert 80 * split == approx(42.95 * GB, rel=1e-3)
    assert 80 * split / 8 == approx(5.37 * GB, rel=1e-3)
    assert book.key_value_bytes(131072, 8, 128) == approx(full / 8)  # the real model has 8 KV heads


def test_21_ring_traffic_per_layer():
    wire = book.ring_attention_wire(131072, 64, 128, 8)
    assert wire == approx(3.76 * GB, rel=1e-3)
    assert book.transfer_time(wire, 600e9) == approx(6.26e-3, rel=1e-3)
    # t = 8 and c = 8 are 64 GPUs on 8 nodes: that ring crosses the network.
    assert book.transfer_time(wire, 25e9) == approx(150e-3, rel=5e-3)


def test_22_ring_attention_is_not_bit_identical():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((64, 32)).astype(np.float32) for _ in range(3))
    once, ring = book.blockwise_attention(q, k, v, 1), book.blockwise_attention(q, k, v, 8)
    assert np.allclose(once, ring, atol=1e-5)  # exact in real arithmetic
    assert not np.array_equal(once, ring)  # another order of summation


def test_23_llama3_splits_the_sequence_in_zigzag():
    assert book.zigzag_chunks(4) == [(0, 7), (1, 6), (2, 5), (3, 4)]
    # Equal causal work: positions i and 2c - 1 - i of a triangle add up to the same.
    assert {first + second for first, second in book.zigzag_chunks(16)} == {31}


def test_24_70b_state_with_zero_1():
    # The chapter shards the optimizer over d but not over t.
    degrees = {"data_parallel": 32, "shard_group_size": 32, "zero_stage": 1}
    low = state(70e9 / 8, **degrees)
    assert low.weights_bytes == approx(17.5 * GB)
    assert low.optimizer_bytes == approx(3.28 * GB, rel=1e-3)
    assert low.total == approx(38.3 * GB, rel=1e-3)
    assert state(70e9 / 8, "megatron", **degrees).total == approx(55.8 * GB, rel=1e-3)


def test_25_70b_gradient_sync():
    # 140/32 = 4.4 GB is the shard, not the traffic.
    wire = book.ring_all_reduce_wire(17.5 * GB, 32)
    assert wire == approx(33.9 * GB, rel=1e-3)
    assert book.transfer_time(wire, 25e9) == approx(1.36, rel=5e-3)


def test_26_70b_compute_per_step():
    # The chapter's 200-250 ms is off by two orders.
    flop = book.training_flop(70e9, 2048 * 4096)
    assert flop == approx(3.52e18, rel=1e-3)
    assert book.compute_time(flop, 256 * 989e12, 0.45) == approx(31, rel=5e-3)
    exact = model_flops_per_token(load_model("llama-3-70b"), 4096) * 2048 * 4096
    assert exact == approx(flop, rel=0.05)


def test_27_405b_weights_per_gpu():
    total = 405e9
    assert 2 * total / (8 * 8) == approx(12.66 * GB, rel=1e-3)
    assert 2 * total / (8 * 16) == approx(6.33 * GB, rel=1e-3)  # the chapter prints 12.6 for both
    assert load_model("llama-3.1-405b").num_layers == 126


def test_28_100b_on_512():
    degrees = {"data_parallel": 64, "shard_group_size": 64, "zero_stage": 1}
    assert state(100e9 / 8, **degrees).total == approx(52.3 * GB, rel=1e-3)
    assert state(100e9 / 8, "megatron", **degrees).total == approx(77.3 * GB, rel=1e-3)
    activations = 80 * book.layer_activations(1, 4096, 10240, 8, sequence_parallel=True)
    assert activations == approx(14.3 * GB, rel=3e-3)
    # Fits in 80 GB only with bf16 gradients (or ZeRO-2, or recompute).
    assert state(100e9 / 8, **degrees).total + activations < 80 * GB
    assert state(100e9 / 8, "megatron", **degrees).total + activations > 80 * GB


def test_29_llama3_405b_layouts():
    main = Plan(tensor_parallel=8, pipeline_parallel=16, schedule="interleaved", virtual_stages=8,
                data_parallel=128, num_microbatches=16)  # fmt: skip
    assert main.num_gpus == 16384
    assert main.global_batch * 8192 == approx(16.8e6, rel=2e-3)
    half = Plan(
        tensor_parallel=8, pipeline_parallel=16, schedule="1f1b", data_parallel=64, num_microbatches=32
    )
    assert (half.num_gpus, half.global_batch) == (8192, main.global_batch)
    long = Plan(
        tensor_parallel=8, pipeline_parallel=16, schedule="1f1b", context_parallel=16, data_parallel=8
    )
    assert long.num_gpus == 16384
    mfu = 400e12 / load_cluster("h100-sxm-80gb", 16384).accelerator.compute.peak_flop_per_s["bf16"]
    assert mfu == approx(0.41, abs=0.006)
    # m = 16 breaks m >= 4(p - 1) = 60 and works because the schedule is interleaved.
    assert book.bubble_over_ideal(16, 16) > 0.9
    assert book.bubble_over_ideal(16, 16, virtual_stages=8) < 0.12


def test_30_llama3_interruptions():
    # 466 in all, 419 unexpected (148 of them faulty GPUs): one every three hours.
    assert mean_time_between_failures(16384) / 3600 == approx(54 * 24 / 419)
    assert mean_time_between_failures(16384) / 3600 == approx(3.09, abs=0.005)


def test_31_deepseek_v3_layout():
    model = load_model("deepseek-v3")
    plan = Plan(pipeline_parallel=16, schedule="dualpipe", virtual_stages=2, data_parallel=128,
                expert_parallel=64, zero_stage=1, shard_group_size=128, num_microbatches=120)  # fmt: skip
    assert plan.num_gpus == 2048
    assert plan.global_batch == 15360
    assert (model.num_layers, model.num_experts, model.experts_per_token) == (61, 256, 8)
    assert [kind.moe for kind in model.layer_kinds][:4] == [False, False, False, True]
    assert model.num_experts // plan.expert_parallel == 4
    assert split_evenly(61, 16) == [4] * 13 + [3] * 3  # 61/16 is uneven


@pytest.mark.parametrize(("chips", "data", "model"), [(512, 512, 1), (4096, 1024, 4), (6144, 768, 8)])
def test_32_gemma2_sharding(chips, data, model):
    assert Plan(tensor_parallel=model, data_parallel=data).num_gpus == chips


def test_33_1t_in_32_stages():
    assert book.microbatches_for_bubble(32, 0.25) == 124
    assert book.bubble_share(32, 128) < 0.20
    # Interleaving relaxes it.
    assert book.microbatches_for_bubble(32, 0.25, virtual_stages=4) == 31


def test_stage_plans_of_a_row_hold_every_layer():
    stages = tuple(StagePlan(chunk_layers=(count,)) for count in split_evenly(61, 16))
    assert sum(stage.layers for stage in stages) == 61
