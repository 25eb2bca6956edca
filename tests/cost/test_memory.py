"""Peak memory against published figures, and by property."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from toys import tiny_dense as make_tiny_dense
from toys import tiny_moe as make_tiny_moe

from planner.catalog import load_cluster, load_model
from planner.cost.memory import (
    activation_multiple,
    layer_activation_bytes,
    layer_state_bytes,
    memory,
    merge_loads,
    stage_memory,
    without_waiting,
)
from planner.cost.setting import Settings
from planner.cost.stage import ChunkLoad, chunk_loads, with_stages
from planner.frameworks import load_framework
from planner.rules import check
from planner.spec import LayerKind, Plan, PlanRequest, StagePlan, Workload
from planner.validate.memory import habits_of_run

GIB = 2**30
LLAMA_70B = ("llama-3-70b", {"num_layers": 12})
LLAMA_405B = ("llama-3.1-405b", {"num_layers": 4, "num_kv_heads": 16})
DEEPSEEK_V3 = ("deepseek-v3", {"num_layers": 4, "num_dense_layers": 1, "mtp_depth": 0})
DEEPSEEK_V2 = ("deepseek-v2", {"num_layers": 4, "num_dense_layers": 1, "mtp_depth": 0})

SIMUMAX = [
    (LLAMA_70B, {"p": 2, "d": 4}, 4096, 66.55),
    (LLAMA_70B, {"t": 2, "d": 4}, 4096, 60.68),
    (LLAMA_70B, {"t": 4, "d": 2}, 4096, 39.07),
    (LLAMA_70B, {"t": 8}, 4096, 28.29),
    (LLAMA_405B, {"p": 2, "d": 4}, 4096, 87.08),
    (LLAMA_405B, {"t": 2, "d": 4}, 4096, 81.59),
    (LLAMA_405B, {"t": 4, "d": 2}, 4096, 52.89),
    (LLAMA_405B, {"t": 8}, 4096, 38.57),
    (LLAMA_70B, {"t": 2, "c": 4}, 32768, 68.43),
    (LLAMA_70B, {"t": 2, "c": 4}, 131072, 112.67),
    (LLAMA_70B, {"c": 8}, 32768, 104.51),
    (LLAMA_70B, {"c": 8}, 131072, 147.99),
    (LLAMA_405B, {"t": 2, "c": 4}, 32768, 87.03),
    (LLAMA_405B, {"c": 8}, 32768, 139.22),
    (LLAMA_405B, {"t": 2, "c": 4}, 131072, 118.13),
    (DEEPSEEK_V3, {"d": 8, "e": 8}, 4096, 104.30),
    (DEEPSEEK_V2, {"d": 8, "e": 8}, 4096, 45.63),
    (DEEPSEEK_V3, {"d": 4, "e": 4, "p": 2}, 4096, 114.00),
    (DEEPSEEK_V2, {"d": 4, "e": 4, "p": 2}, 4096, 44.70),
]
"""SimuMax on 8 B200: Megatron-LM, Transformer Engine, fused loss, distributed optimizer; allocated GiB."""


def ask(
    model: str,
    changes: dict[str, object],
    seq: int,
    framework: str = "megatron",
    hardware: str = "b200-sxm-180gb",
) -> PlanRequest:
    shape = load_model(model)
    data = {**shape.model_dump(), **changes}
    return PlanRequest(
        model=type(shape).model_validate(data),
        cluster=load_cluster(hardware, 8),
        workload=Workload(global_batch=8, seq_length=seq),
        framework=load_framework(framework),
    )


def layout(t: int = 1, p: int = 1, d: int = 1, c: int = 1, e: int = 1, m: int = 8) -> Plan:
    return Plan(
        tensor_parallel=t, pipeline_parallel=p, data_parallel=d, context_parallel=c, expert_parallel=e,
        context_parallel_kind="all_to_all", schedule="1f1b" if p > 1 else "none", sequence_parallel=t > 1,
        zero_stage=1, shard_group_size=d * c, num_microbatches=m,
    )  # fmt: skip


@pytest.mark.parametrize(("model", "degrees", "seq", "measured_gib"), SIMUMAX)
def test_allocated_memory_of_published_megatron_runs(model, degrees, seq, measured_gib):
    ranks = memory(layout(**degrees), ask(*model, seq))
    allocated = max(float(rank.allocated_bytes) for rank in ranks) / GIB
    assert allocated == approx(measured_gib, rel=0.02)


@pytest.mark.parametrize(
    ("gpus", "batch", "precision", "month", "reserved_bytes", "tolerance"),
    [
        (128, 2, "bf16", "202412", 62.0 * GIB, 0.06),  # torchtitan; blocks compiled, the loss not yet
        (128, 2, "fp8", "202412", 61.8 * GIB, 0.06),
        (8, 2, "bf16", "202412", 77.0 * GIB, 0.06),
        (32, 2, "fp8", "202506", 47.96 * GIB, 0.02),  # torchtitan on H200, loss compiled
        (64, 2, "fp8", "202506", 46.96 * GIB, 0.02),
        (8, 1, "bf16", "2025", 47.65e9, 0.10),  # torchao docs, loss compiled
    ],
)
def test_reserved_memory_of_published_fsdp_runs(gpus, batch, precision, month, reserved_bytes, tolerance):
    # Llama 3 8B, sequences of 8192 tokens, per-operator recompute, compiled.
    request = ask("llama-3-8b", {}, 8192, "torchtitan", "h100-sxm-80gb")
    habits = habits_of_run(request.framework.memory, True, month)
    framework = request.framework.model_copy(update={"memory": habits})
    request = request.model_copy(update={"framework": framework})
    plan = Plan(data_parallel=gpus, zero_stage=3, shard_group_size=gpus, micro_batch=batch,
                recompute="selective", precision=precision)  # fmt: skip
    assert memory(plan, request)[0].reserved_bytes == approx(reserved_bytes, rel=tolerance)


def test_old_megatron_without_fused_attention():
    # Zero Bubble paper, table 4: 6.2B GPT, 8 stages of [3, 4, ..., 4, 3] layers, micro-batch 3, 1F1B: 39 GB.
    megatron = load_framework("megatron")
    habits = megatron.memory.model_copy(update={"fused_attention": False})
    request = ask("gpt3-6.7b", {"num_layers": 30, "vocab_size": 50304}, 1024, hardware="a100-sxm-80gb")
    request = request.model_copy(update={"framework": megatron.model_copy(update={"memory": habits})})
    stages = tuple(StagePlan(chunk_layers=(count,)) for count in (3, 4, 4, 4, 4, 4, 4, 3))
    plan = Plan(pipeline_parallel=8, schedule="1f1b", micro_batch=3, num_microbatches=24, stages=stages)
    assert max(rank.allocated_bytes for rank in memory(plan, request)) / 1e9 == approx(39, rel=0.06)


def test_terms_sum_and_counters_nest(tiny_dense):
    plan = layout(t=2, p=2, d=2)
    for rank in memory(plan, tiny_dense):
        assert rank.total == approx(sum(rank.as_dict().values()))
        assert rank.allocated_bytes < rank.reserved_bytes < rank.total


def test_memory_is_linear_in_the_layers(tiny_dense):
    setting = layout(t=2, d=4)
    kind = LayerKind()
    three, four, five = (
        stage_memory(ChunkLoad(layers={kind: count}), setting, tiny_dense, 0) for count in (3, 4, 5)
    )
    step = layer_state_bytes(kind, setting, tiny_dense)
    assert four.weights_bytes - three.weights_bytes == approx(step.weights_bytes)
    assert five.activations_bytes - four.activations_bytes == approx(
        four.activations_bytes - three.activations_bytes
    )
    saved = layer_activation_bytes(kind, setting, tiny_dense).plain
    assert four.activations_bytes - three.activations_bytes == approx(saved)


def test_recomputed_layers_are_priced_one_by_one(tiny_dense):
    setting = Settings(recompute="full", micro_batch=2)
    kind = LayerKind()
    layer = layer_activation_bytes(kind, setting, tiny_dense)
    for count in range(5):
        load = ChunkLoad(layers={kind: 4}, recompute_layers=count)
        saved = stage_memory(load, setting, tiny_dense, 0).activations_bytes
        assert saved == approx((4 - count) * layer.plain + count * layer.recomputed)


def test_micro_batches_in_flight():
    assert activation_multiple(layout(p=4, m=8), 0) == 4
    assert activation_multiple(layout(p=4, m=8), 3) == 1
    assert activation_multiple(layout(p=4, m=2), 0) == 2
    # Interleaving raises rank 0 by (p - 1)/(p v): (2 x 3 + (v - 1) 4 + 1)/v = 11/2 chunks-worth for v = 2.
    interleaved = Settings(pipeline_parallel=4, virtual_stages=2, schedule="interleaved", num_microbatches=16)
    assert activation_multiple(interleaved, 0) == 5.5


def test_dualpipe_holds_two_models(tiny_dense):
    one = Settings(pipeline_parallel=2, schedule="1f1b", num_microbatches=8)
    two = Settings(pipeline_parallel=2, virtual_stages=2, schedule="dualpipe", num_microbatches=8)
    load = ChunkLoad(layers={LayerKind(): 2})
    assert stage_memory(load, two, tiny_dense, 0).weights_bytes == approx(
        2 * stage_memory(load, one, tiny_dense, 0).weights_bytes
    )


def test_merge_loads_adds_up():
    kind = LayerKind()
    merged = merge_loads(
        [ChunkLoad(layers={kind: 2}, embedding=1), ChunkLoad(layers={kind: 3}, head=1, mtp=1)]
    )
    assert (merged.layers[kind], merged.embedding, merged.head, merged.mtp) == (5, 1, 1, 1)


def test_optimizer_offload_leaves_the_gpu(tiny_dense):
    plan = layout(d=8)
    kept, moved = (
        memory(plan.model_copy(update={"offload": how}), tiny_dense)[0] for how in ("none", "optimizer")
    )
    assert moved.optimizer_bytes == 0
    assert kept.optimizer_bytes > 0


def test_array_equals_scalars(tiny_moe):
    t, d = np.array([1, 2, 4]), np.array([8, 4, 2])
    load = ChunkLoad(layers={LayerKind(): 1, LayerKind(moe=True): 3}, embedding=1, head=1)
    many = Settings(
        tensor_parallel=t, data_parallel=d, shard_group_size=d, zero_stage=1, sequence_parallel=t > 1
    )
    array = stage_memory(load, many, tiny_moe, 0)
    for index in range(3):
        one = Settings(tensor_parallel=int(t[index]), data_parallel=int(d[index]), zero_stage=1,
                       shard_group_size=int(d[index]), sequence_parallel=bool(t[index] > 1))  # fmt: skip
        for name, value in stage_memory(load, one, tiny_moe, 0).items():
            assert np.broadcast_to(getattr(array, name), 3)[index] == approx(float(value)), name


@settings(deadline=None, max_examples=40)
@given(
    moe=st.booleans(),
    t=st.sampled_from([1, 2, 4]),
    d=st.sampled_from([1, 2, 8]),
    b=st.integers(1, 4),
    recompute=st.sampled_from(["none", "full"]),
)
def test_peak_never_grows_with_replicas_or_recompute_and_grows_with_the_batch(moe, t, d, b, recompute):
    request = make_tiny_moe() if moe else make_tiny_dense()
    plan = layout(t=t, d=d).model_copy(update={"micro_batch": b, "recompute": recompute})

    def peak(**changes: object) -> float:
        changed = plan.model_copy(update=changes)
        return max(float(rank.allocated_bytes) for rank in memory(changed, request))

    assert peak(micro_batch=b + 1) > peak()
    assert peak(data_parallel=2 * d, shard_group_size=2 * d) <= peak() * (1 + 1e-12)
    assert peak(recompute="full") <= peak(recompute="none") * (1 + 1e-12)


def test_activation_offload_keeps_two_layers(tiny_dense):
    plan = layout(m=1)
    kept, moved = (
        memory(plan.model_copy(update={"offload": how}), tiny_dense)[0] for how in ("none", "activations")
    )
    assert moved.activations_bytes == approx(kept.activations_bytes * 2 / 4)  # of four layers


def test_gpipe_keeps_every_micro_batch_and_its_logits(tiny_dense):
    loads = {"layers": {LayerKind(): 2}, "head": 1}
    piped = Settings(pipeline_parallel=2, schedule="1f1b", num_microbatches=8)
    flushed = Settings(pipeline_parallel=2, schedule="gpipe", num_microbatches=8)
    one, all_ = (stage_memory(ChunkLoad(**loads), setting, tiny_dense, 1) for setting in (piped, flushed))
    assert all_.activations_bytes == approx(8 * one.activations_bytes)
    logits = 128 * 512 * tiny_dense.framework.memory.loss_saved_bytes
    assert all_.loss_bytes - one.loss_bytes == approx(7 * logits)


def test_sharded_weights_are_gathered_unit_by_unit(tiny_dense):
    # ZeRO-3: two layers and the ends in 16 bits, and the fp32 gradients of two layers under reduction.
    setting = Settings(data_parallel=8, zero_stage=3, shard_group_size=8)
    load = ChunkLoad(layers={LayerKind(): 4})
    layer = float(layer_state_bytes(LayerKind(), Settings(), tiny_dense).weights_bytes) / 2
    three = stage_memory(load, setting, tiny_dense, 0)
    two = stage_memory(load, Settings(data_parallel=8, zero_stage=2, shard_group_size=8), tiny_dense, 0)
    assert three.transient_bytes - two.transient_bytes == approx(2 * 2 * layer + 2 * 4 * layer)


def test_dualpipe_holds_both_ends_of_the_pipe(tiny_dense):
    # Rank r holds stages r and p-1-r: p - r micro-batches in flight of the one, r + 1 of the other.
    plan = Plan(pipeline_parallel=4, schedule="dualpipe", num_microbatches=16)
    request = tiny_dense.model_copy(update={"framework": load_framework("any")})
    ranks = memory(plan, request)
    assert [rank.total for rank in ranks] == approx([rank.total for rank in reversed(ranks)])
    loads = [merge_loads(chunks) for chunks in chunk_loads(plan, request.model)]
    one = plan.model_copy(update={"schedule": "1f1b", "num_microbatches": 1})
    own, other = (stage_memory(loads[rank], one, request, rank) for rank in (1, 2))
    assert ranks[1].weights_bytes == approx(own.weights_bytes + other.weights_bytes)
    assert ranks[1].activations_bytes == approx(3 * own.activations_bytes + 2 * other.activations_bytes)


@pytest.mark.parametrize(
    ("model", "gpus", "sequences", "hardware", "framework", "plan"),
    [
        # Llama 3 report, section 3.3: table 4, 8K stage on 16,384 GPUs.
        ("llama-3.1-405b", 16384, 2048, "h100-sxm-80gb", "meta-llama3", {
            "tensor_parallel": 8, "sequence_parallel": True, "pipeline_parallel": 16, "virtual_stages": 8,
            "schedule": "interleaved", "data_parallel": 128, "zero_stage": 2, "shard_group_size": 128,
            "num_microbatches": 16}),
        # DeepSeek-V3 report, section 3.2.
        ("deepseek-v3", 2048, 15360, "h800-sxm-80gb", "deepseek", {
            "pipeline_parallel": 16, "schedule": "dualpipe", "data_parallel": 128, "expert_parallel": 64,
            "zero_stage": 1, "shard_group_size": 128, "num_microbatches": 120, "precision": "fp8",
            "recompute": "selective"}),
    ],
)  # fmt: skip
def test_published_runs_of_in_house_frameworks_are_legal_and_fit(
    model, gpus, sequences, hardware, framework, plan
):
    known = load_model(model)
    request = PlanRequest(
        model=known, cluster=load_cluster(hardware, num_gpus=gpus), framework=load_framework(framework),
        workload=Workload(
            seq_length=known.seq_length, global_batch=sequences,
            precisions=(plan.get("precision", "bf16"),),
        ),
    )  # fmt: skip
    assert check(with_stages(Plan(**plan), known), request) == ()


def test_with_zero_the_second_gradient_of_nanotron_lives_in_the_backward_pass_only():
    request = ask("llama-3-8b", {}, 4096, "nanotron", "h100-sxm-80gb")
    resident, passing = (
        memory(Plan(data_parallel=8, zero_stage=stage, shard_group_size=8 if stage else 1), request)[0]
        for stage in (0, 1)
    )
    parameters = resident.weights_bytes / 2
    assert resident.gradients_bytes == approx(6 * parameters)
    assert passing.gradients_bytes == approx(4 * parameters)
    assert passing.transient_bytes - resident.transient_bytes == approx(2 * parameters)


def test_what_waits_for_its_stream_fills_the_room_that_is_left_and_no_more():
    request = ask("llama-3-8b", {}, 4096, "nanotron", "h100-sxm-80gb")
    plan = Plan(tensor_parallel=8, micro_batch=1, num_microbatches=8, sequence_parallel=True)
    waiting = memory(plan, request)[0]
    needed = memory(plan, without_waiting(request))[0]
    # 80 T h bytes: every gathered tensor is whole on each tensor rank.
    assert waiting.framework_bytes - needed.framework_bytes == approx(80 * 4096 * 4096)
    for share in (0.5, 0.0):
        room = share * (waiting.total - needed.total)
        memory_ = request.cluster.accelerator.memory.model_copy(
            update={"hbm_bytes": float(needed.total) + room}
        )
        accelerator = request.cluster.accelerator.model_copy(update={"memory": memory_})
        full = request.model_copy(
            update={"cluster": request.cluster.model_copy(update={"accelerator": accelerator})}
        )
        held = float(memory(plan, full)[0].total)
        assert held <= full.cluster.usable_hbm_bytes
        assert held == approx(full.cluster.usable_hbm_bytes)
