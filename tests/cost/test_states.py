"""Model state: bytes by ZeRO stage and framework, local parameters, hand-computed and by property."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from toys import tiny_dense as make_tiny_dense

from planner.catalog import load_cluster, load_model
from planner.cost import states
from planner.cost.parameters import layer_parameters, total_parameters
from planner.cost.setting import Settings
from planner.cost.stage import ChunkLoad
from planner.cost.states import LocalParameters, state_bytes
from planner.frameworks import load_framework
from planner.spec import LayerKind, MemoryHabits, Model, PlanRequest, Workload

DENSE = LayerKind()


def ask(model: str | Model, framework: str = "megatron", hardware: str = "h100-sxm-80gb") -> PlanRequest:
    return PlanRequest(
        model=load_model(model) if isinstance(model, str) else model,
        cluster=load_cluster(hardware, 64),
        workload=Workload(global_batch=64, seq_length=4096),
        framework=load_framework(framework),
    )


def whole(request: PlanRequest) -> ChunkLoad:
    kinds = request.model.layer_kinds
    return ChunkLoad(layers={kind: kinds.count(kind) for kind in set(kinds)}, embedding=1, head=1)


@pytest.mark.parametrize(
    ("framework", "precision", "stage", "expected"),
    [
        ("megatron", "bf16", 0, 18.0),
        ("megatron", "bf16", 1, 6 + 12 / 16),
        ("megatron", "fp16", 1, 4 + 16 / 16),
        ("deepspeed", "bf16", 1, 4 + 12 / 16),
        ("deepspeed", "bf16", 2, 2 + 14 / 16),
        ("deepspeed", "bf16", 3, 16 / 16),
        ("torchtitan", "bf16", 3, 16 / 16),
        ("torchtitan", "bf16", 2, 2 + 16 / 16),  # whole 16-bit weights stay
        ("megatron-deepspeed", "bf16", 1, 8 + 12 / 16),
        ("nanotron", "bf16", 0, 20.0),  # a 16-bit gradient for the all-reduce beside the fp32 one
        ("nanotron", "bf16", 1, 6 + 12 / 16),
    ],
)
def test_bytes_per_parameter(framework, precision, stage, expected):
    setting = Settings(data_parallel=16, shard_group_size=16, zero_stage=stage, precision=precision)
    assert state_bytes(LocalParameters(1.0), setting, ask("llama-3-8b", framework)).total == approx(expected)


def test_fsdp_under_a_pipeline_keeps_whole_weights_and_gradients():
    setting = Settings(
        data_parallel=16, shard_group_size=16, zero_stage=3, pipeline_parallel=4, schedule="1f1b"
    )
    state = state_bytes(LocalParameters(1.0), setting, ask("llama-3-8b", "torchtitan"))
    assert state.weights_bytes == approx(4 / 16 + 2)
    assert state.gradients_bytes == approx(4 / 16 + 2)
    assert state.optimizer_bytes == approx(8 / 16)


@pytest.mark.parametrize(
    ("framework", "model", "micro_batches", "whole_bytes"),
    [
        ("automodel", "llama-3-8b", 4, 4),
        ("automodel", "llama-3-8b", 1, 0),  # nothing to add up
        ("automodel", "gpt-oss-120b", 4, 0),
        ("accelerate", "mixtral-8x7b", 4, 2),
        ("torchtitan", "llama-3-8b", 4, 0),
    ],
)
def test_deferred_reduction_keeps_whole_gradients(framework, model, micro_batches, whole_bytes):
    setting = Settings(data_parallel=16, shard_group_size=16, zero_stage=3, num_microbatches=micro_batches)
    state = state_bytes(LocalParameters(1.0), setting, ask(model, framework))
    assert state.gradients_bytes == approx(max(4 / 16, whole_bytes))


def test_context_ranks_are_replicas_and_experts_have_their_own():
    setting = Settings(data_parallel=4, context_parallel=2, tensor_parallel=2, expert_parallel=8,
                       zero_stage=1, shard_group_size=8)  # fmt: skip
    dense, expert = states.shard_ranks(setting)
    assert dense == 8  # d c
    assert expert == 2  # t c d / (e etp) = 16/8


def test_hybrid_sharding_divides_by_the_group_only():
    setting = Settings(data_parallel=32, zero_stage=3, shard_group_size=8, expert_parallel=4)
    dense, expert = states.shard_ranks(setting)
    assert (dense, expert) == (8, 2)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "gemma-2-9b", "qwen3-30b-a3b"])
def test_one_rank_holds_the_whole_model(name):
    request = ask(name)
    setting = Settings()
    local = states.load_local_parameters(whole(request), setting, request).total
    padding = (
        states.padded_vocabulary(request, setting) - request.model.vocab_size
    ) * request.model.hidden_size
    matrices = 1 if request.model.tied_embeddings else 2
    assert local == approx(total_parameters(request.model) + matrices * padding, rel=1e-12)


def test_tied_embedding_is_copied_on_the_last_stage_of_a_pipeline():
    request = ask("gemma-2-9b")
    alone = states.head_local_parameters(Settings(), request).total
    apart = states.head_local_parameters(Settings(pipeline_parallel=4, schedule="1f1b"), request).total
    assert apart - alone == states.padded_vocabulary(request, Settings()) * request.model.hidden_size


def test_kv_projections_are_copied_beyond_one_head_a_rank():
    # 8 KV heads of 128 on 16 ranks: half a head each would be 0.5, one is kept.
    request = ask("llama-3-8b")
    eight = states.layer_local_parameters(DENSE, Settings(tensor_parallel=8), request).dense
    sixteen = states.layer_local_parameters(DENSE, Settings(tensor_parallel=16), request).dense
    one_head = 2 * 4096 * 128
    norms = layer_parameters(request.model, DENSE).norms
    assert sixteen - norms == approx((eight - norms - one_head) / 2 + one_head)


def test_latent_down_projections_are_copied():
    request = ask("deepseek-v3")
    kind = request.model.layer_kinds[0]
    model = request.model
    copied = 7168 * (1536 + 512 + 64)
    attention = layer_parameters(model, kind).attention
    two = states.layer_local_parameters(kind, Settings(tensor_parallel=2), request).dense
    mlp = layer_parameters(model, kind).dense_mlp
    norms = layer_parameters(model, kind).norms
    assert two == approx((attention - copied) / 2 + copied + mlp / 2 + norms)


def test_fp8_primary_weights_need_a_transposed_copy_on_hopper_only():
    setting = Settings(precision="fp8")
    hopper = state_bytes(LocalParameters(1.0), setting, ask("llama-3-8b", "nemo"))
    blackwell = state_bytes(LocalParameters(1.0), setting, ask("llama-3-8b", "nemo", "b200-sxm-180gb"))
    assert (hopper.weights_bytes, blackwell.weights_bytes) == (2.0, 1.0)


def test_frozen_weights_have_no_gradients_and_no_optimizer():
    request = ask("llama-3-8b")
    frozen = request.model_copy(
        update={"workload": Workload(global_batch=8, seq_length=8192, frozen_weights=True)}
    )
    assert state_bytes(LocalParameters(1.0), Settings(), frozen).total == 2.0


def test_array_equals_scalars(tiny_moe):
    t, d = np.array([1, 2, 4, 8]), np.array([8, 4, 2, 1])
    many = Settings(
        tensor_parallel=t, data_parallel=d, shard_group_size=d, zero_stage=1, sequence_parallel=t > 1
    )
    array = state_bytes(states.load_local_parameters(whole(tiny_moe), many, tiny_moe), many, tiny_moe).total
    for index in range(4):
        one = Settings(tensor_parallel=int(t[index]), data_parallel=int(d[index]), zero_stage=1,
                       shard_group_size=int(d[index]), sequence_parallel=bool(t[index] > 1))  # fmt: skip
        scalar = state_bytes(
            states.load_local_parameters(whole(tiny_moe), one, tiny_moe), one, tiny_moe
        ).total
        assert array[index] == approx(float(scalar))


habits = st.builds(
    MemoryHabits,
    weight_bytes=st.sampled_from([1.0, 2.0]),
    gradient_bytes=st.sampled_from([2.0, 4.0]),
    optimizer_bytes=st.sampled_from([6.0, 8.0, 12.0]),
    sharded_weights_are_master=st.booleans(),
)


@settings(deadline=None, max_examples=60)
@given(habits=habits, ranks=st.integers(2, 512), parameters=st.floats(1e6, 1e11))
def test_higher_zero_stages_never_hold_more(habits, ranks, parameters):
    request = make_tiny_dense()
    profile = request.framework.model_copy(update={"memory": habits})
    request = request.model_copy(update={"framework": profile})
    totals = [
        float(
            state_bytes(
                LocalParameters(parameters),
                Settings(data_parallel=ranks, shard_group_size=ranks if stage else 1, zero_stage=stage),
                request,
            ).total
        )
        for stage in range(4)
    ]
    assert totals == sorted(totals, reverse=True)


@settings(deadline=None, max_examples=40)
@given(ranks=st.integers(1, 256), factor=st.integers(2, 8))
def test_more_replicas_never_raise_zero_1_state(ranks, factor):
    request = make_tiny_dense()

    def total(d: int) -> float:
        setting = Settings(data_parallel=d, shard_group_size=d, zero_stage=1)
        return float(state_bytes(LocalParameters(1e9, 1e9), setting, request).total)

    assert total(ranks * factor) <= total(ranks)


def test_tensor_ranks_halve_dense_matrices(tiny_dense):
    kind = tiny_dense.model.layer_kinds[0]
    norms = layer_parameters(tiny_dense.model, kind).norms
    one, two = (
        states.layer_local_parameters(kind, Settings(tensor_parallel=t), tiny_dense).dense - norms
        for t in (1, 2)
    )
    assert two == approx(one / 2)
