"""What lives on the host, by hand and by property: its bytes, what stays, and the copies."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import tiny_dense as make_tiny_dense
from toys import vary

from planner.api import question
from planner.catalog.training import with_fine_tuning, with_optimizer
from planner.cost.layer import head_time, layer_time
from planner.cost.memory import host_bytes, memory
from planner.cost.offload import Copies, host_state_bytes, optimizer_offload_time, resident_state
from planner.cost.setting import Settings
from planner.cost.states import LocalParameters, head_local_parameters, layer_local_parameters
from planner.cost.step import step_time
from planner.cost.work import LayerTime, WorkTime
from planner.spec import Model, Plan, PlanRequest, StagePlan
from planner.spec.model import LayerKind
from planner.spec.plan import Offload

ONE = LocalParameters(8.0)
"""Eight parameters over eight ranks: one a rank."""
DENSE = LayerKind()


def asked(framework: str, model: str = "llama-3-8b") -> PlanRequest:
    return question({"model": model, "gpus": 8, "framework": framework, "global_batch": 64})


def sharded(zero: int, offload: Offload, **more: Any) -> Settings:
    return Settings(data_parallel=8, zero_stage=zero, shard_group_size=8, offload=offload, **more)


RESIDENT = [
    # 16-bit weights, gradients and 12 bytes of optimizer: (2 + 2 + 12) of one, whole weights below ZeRO-3
    ("deepspeed", 3, "none", 16.0),
    ("deepspeed", 3, "optimizer", 2.0),
    ("deepspeed", 3, "parameters", 0.0),
    ("deepspeed", 2, "optimizer", 16.0),
    # ZeRO-1 reduces its gradients at the end of the step: they wait on the GPU, whole
    ("deepspeed", 1, "optimizer", 32.0),
    # Megatron keeps whole fp32 gradients: 6 of eight
    ("megatron", 1, "optimizer", 48.0),
    # below ZeRO-2 no weights are sharded: only the optimizer leaves
    ("torchtitan", 0, "parameters", 64.0),
    # fp32 shards 4 + 4 + 8; under ZeRO-2 whole 16-bit weights stay beside them
    ("torchtitan", 3, "none", 16.0),
    ("torchtitan", 3, "parameters", 0.0),
    ("torchtitan", 2, "parameters", 16.0),
]


@pytest.mark.parametrize(("framework", "zero", "offload", "expected"), RESIDENT)
def test_state_that_stays_by_hand(framework: str, zero: int, offload: Offload, expected: float) -> None:
    assert resident_state(ONE, sharded(zero, offload), asked(framework)).total == pytest.approx(expected)


ON_HOST = [
    ("deepspeed", "none", 0.0),
    ("deepspeed", "activations", 0.0),
    ("deepspeed", "optimizer", 16.0),  # 12 and an fp32 gradient
    ("deepspeed", "parameters", 18.0),  # and the 16-bit weight
    ("torchtitan", "parameters", 16.0),  # the shard is the fp32 master
    ("torchtitan", "parameters+activations", 16.0),
]


@pytest.mark.parametrize(("framework", "offload", "expected"), ON_HOST)
def test_state_on_the_host_by_hand(framework: str, offload: Offload, expected: float) -> None:
    assert host_state_bytes(ONE, sharded(3, offload), asked(framework)) == pytest.approx(expected)


def test_weights_trained_in_16_bits_take_half_of_the_host() -> None:
    """2 of weights, 2 of gradients and two moments of 2; plain SGD has no moments at all."""
    for name, expected in (("pure-adam", 8.0), ("pure-sgd", 4.0)):
        request = asked("accelerate")
        pure = request.model_copy(update={"framework": with_optimizer(request.framework, name)})
        assert host_state_bytes(ONE, sharded(3, "parameters"), pure) == pytest.approx(expected)


def test_frozen_weights_on_the_host_are_no_more_than_themselves() -> None:
    request = asked("accelerate")
    quantised = request.model_copy(update={"workload": with_fine_tuning(request.workload, "qlora")})
    assert host_state_bytes(ONE, sharded(3, "parameters"), quantised) == pytest.approx(0.52)
    assert resident_state(ONE, sharded(3, "parameters"), quantised).total == 0.0
    assert optimizer_offload_time(ONE, sharded(3, "parameters"), quantised) == 0.0


def test_whole_gradients_wait_on_the_gpu_where_their_reduction_does() -> None:
    """Accelerate adds up over micro-batches without synchronising: 2 bytes of all eight parameters."""
    request = asked("accelerate")
    at_once = resident_state(ONE, sharded(3, "parameters"), request)
    later = resident_state(ONE, sharded(3, "parameters", num_microbatches=4), request)
    assert (at_once.gradients_bytes, later.gradients_bytes) == (0.0, 16.0)


def test_a_pipeline_of_fsdp_keeps_whole_weights_and_gradients() -> None:
    piped = sharded(3, "parameters", pipeline_parallel=2, num_microbatches=4)
    state = resident_state(ONE, piped, asked("torchtitan"))
    assert (state.weights_bytes, state.gradients_bytes, state.optimizer_bytes) == (16.0, 16.0, 0.0)


def with_link(request: PlanRequest, bytes_per_s: float) -> PlanRequest:
    host = request.cluster.accelerator.host.model_copy(update={"pcie_bytes_per_s": bytes_per_s})
    accelerator = request.cluster.accelerator.model_copy(update={"host": host})
    return vary(request, cluster={"accelerator": accelerator})


def test_a_layers_shard_travels_before_both_passes_and_its_gradient_after_one() -> None:
    """DeepSpeed over a link that hides nothing: 2 bytes up, twice; 2 bytes down beside the second."""
    request = asked("deepspeed")
    shard = layer_local_parameters(DENSE, sharded(3, "none"), request).total / 8
    plain = layer_time(DENSE, sharded(3, "none"), request)
    slow = with_link(request, 2.0 * shard / 100.0)  # 100 s each way
    priced = layer_time(DENSE, sharded(3, "parameters"), slow)
    assert priced.forward.offload_s == pytest.approx(100.0 - plain.forward.total)
    backward = plain.backward_input.total + plain.backward_weight.total
    assert priced.backward_input.offload_s == pytest.approx(100.0 - backward)
    fast = layer_time(DENSE, sharded(3, "parameters"), with_link(request, 1e15))
    assert fast.total.total == pytest.approx(plain.total.total)


def test_fsdp_copies_fp32_shards_and_under_zero_2_once_a_step() -> None:
    request = asked("torchtitan")
    shard = layer_local_parameters(DENSE, sharded(3, "none"), request).total / 8
    slow = with_link(request, 4.0 * shard / 100.0)
    plain = layer_time(DENSE, sharded(3, "none"), request)
    assert layer_time(DENSE, sharded(3, "parameters"), slow).forward.offload_s == pytest.approx(
        100.0 - plain.forward.total
    )
    kept = layer_time(DENSE, sharded(2, "parameters"), slow)
    assert kept.forward.offload_s == 0.0
    # gradients leave all the same: 4 bytes down
    assert kept.backward_input.offload_s > 90.0
    once = optimizer_offload_time(ONE, sharded(2, "parameters"), with_link(request, 1.0))
    every = optimizer_offload_time(ONE, sharded(3, "parameters"), with_link(request, 1.0))
    assert (once, every) == (28.0 + 4.0, 28.0)


def test_the_heads_shard_travels_as_well() -> None:
    request = asked("deepspeed")
    shard = head_local_parameters(sharded(3, "none"), request).total / 8
    slow = with_link(request, 2.0 * shard / 100.0)
    plain, priced = (head_time(sharded(3, kind), slow) for kind in ("none", "parameters"))
    assert priced.forward.offload_s == pytest.approx(100.0 - plain.forward.total)


def test_adam_on_the_host_reads_and_writes_28_bytes_a_parameter() -> None:
    """With ``optimizer`` 6 more cross the link around it."""
    request = with_link(asked("deepspeed"), 1.0)
    times = [
        optimizer_offload_time(ONE, sharded(3, kind), request)
        for kind in ("none", "activations", "optimizer", "parameters", "parameters+activations")
    ]
    assert times == [0.0, 0.0, 34.0, 28.0, 28.0]


def test_copies_of_either_way_run_at_once_and_recompute_hides_more() -> None:
    work = LayerTime(
        forward=WorkTime(gemm_s=3.0),
        backward_input=WorkTime(gemm_s=3.0),
        backward_weight=WorkTime(gemm_s=3.0),
        recompute=WorkTime(recompute_s=3.0),
    )
    shown = Copies(forward_up=4.0, forward_down=5.0, backward_up=8.0, backward_down=2.0).beside(work)
    assert (shown.forward.offload_s, shown.backward_input.offload_s, shown.recompute.offload_s) == (2, 2, -2)
    long = Copies(backward_up=20.0).beside(work)
    assert (long.backward_input.offload_s, long.recompute.offload_s) == (14.0, -3.0)


def test_parameters_and_activations_share_the_link() -> None:
    """Up together in the backward pass, in opposite ways in the forward one."""
    request = vary(asked("deepspeed"), limits={"activation_offload_recompute": ("full",)})
    shard = layer_local_parameters(DENSE, sharded(3, "none"), request).total / 8
    slow = with_link(request, 2.0 * shard / 100.0)
    alone, inputs, both = (
        layer_time(DENSE, sharded(3, kind, recompute="full"), slow)
        for kind in ("parameters", "activations", "parameters+activations")
    )
    saved_s = inputs.forward.offload_s + inputs.forward.total - inputs.forward.offload_s
    assert both.forward.offload_s == pytest.approx(max(alone.forward.offload_s, inputs.forward.offload_s))
    assert both.backward_input.offload_s > alone.backward_input.offload_s
    assert saved_s > 0


def test_copies_that_wait_in_the_layers_own_stream_hide_nothing() -> None:
    """Transformers' offload of checkpoints: 2 bytes of every token and hidden element, each way."""
    request = with_link(asked("accelerate"), 1e9)
    plain, away = (layer_time(DENSE, sharded(3, kind, recompute="full"), request)
                   for kind in ("none", "activations"))  # fmt: skip
    copy_s = 2.0 * request.workload.seq_length * 4096 / 1e9
    assert away.forward.total - plain.forward.total == pytest.approx(copy_s)
    assert away.backward_input.total - plain.backward_input.total == pytest.approx(copy_s)


def test_only_the_inputs_of_recomputed_layers_lie_on_the_host() -> None:
    """32 inputs of 8,192 tokens of 4,096 elements of 2 bytes; two of them are on the GPU."""
    request = vary(asked("accelerate"), workload={"seq_length": 8192})
    plan = Plan(data_parallel=8, zero_stage=3, shard_group_size=8, num_microbatches=8, recompute="full",
                offload="activations",
                stages=(StagePlan(chunk_layers=(32,), recompute_layers=32),))  # fmt: skip
    one = 8192 * 4096 * 2
    assert host_bytes(plan, request) == pytest.approx(32 * one)
    assert memory(plan, request)[0].activations_bytes == pytest.approx(2 * one)


STATED: tuple[Offload, ...] = ("none", "optimizer", "parameters", "parameters+activations")


@settings(deadline=None, max_examples=40)
@given(
    master=st.booleans(),
    gradients=st.booleans(),
    zero=st.sampled_from([2, 3]),
    d=st.sampled_from([1, 2, 8]),
    b=st.integers(1, 3),
    m=st.integers(1, 3),
)
def test_the_more_leaves_the_less_stays_and_the_longer_it_takes(
    master: bool, gradients: bool, zero: int, d: int, b: int, m: int
) -> None:
    request = make_tiny_dense()
    habits = request.framework.memory.model_copy(
        update={"sharded_weights_are_master": master, "offloads_gradients": gradients}
    )
    request = vary(request, framework={"memory": habits})
    plan = Plan(data_parallel=d, zero_stage=zero, shard_group_size=d, micro_batch=b, num_microbatches=m,
                stages=(StagePlan(chunk_layers=(4,)),))  # fmt: skip
    plans = [plan.model_copy(update={"offload": kind}) for kind in STATED]
    states = [resident_state(LocalParameters(1e9), one, request).total for one in plans]
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(states))
    on_host = [host_bytes(one, request) for one in plans]
    assert all(after >= before for before, after in itertools.pairwise(on_host))
    plain_s, *others_s = (float(step_time(one, request).total) for one in plans)
    assert all(seconds >= plain_s for seconds in others_s)


def test_a_model_of_7b_on_one_card_of_24_gb_trains_with_its_state_on_the_host() -> None:
    """6.7e9 parameters of 18 bytes, with buffers: 182 GB of the host, and less than 24 GB of the card."""
    request = question(
        {"model": "llama-2-7b", "hardware": "rtx-4090", "gpus": 1, "framework": "deepspeed",
         "global_batch": 8, "seq_length": 2048}
    )  # fmt: skip
    model: Model = request.model
    plan = Plan(zero_stage=3, num_microbatches=8, recompute="full", offload="parameters",
                stages=(StagePlan(chunk_layers=(32,), recompute_layers=32),))  # fmt: skip
    assert 1.5 * host_bytes(plan, request) == pytest.approx(27 * 6.74e9, rel=0.01)
    assert memory(plan, request)[0].total < 24e9
    assert memory(plan.model_copy(update={"offload": "optimizer"}), request)[0].total > 12e9
    assert model.num_layers == 32
