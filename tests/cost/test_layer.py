"""Layer time by hand on the toy accelerator, and the directions in which every setting moves it."""

from __future__ import annotations

import numpy as np
import pytest
from toys import vary

from planner.catalog import load_cluster
from planner.cost.activations import layer_activation_bytes
from planner.cost.collectives import Group, all_gather_time, all_reduce_time, reduce_scatter_time
from planner.cost.flops import layer_gemms
from planner.cost.kernels import cast_time, gemm_time, memory_bound_time
from planner.cost.layer import UNFUSED, _backward_waits, embedding_time, head_time, layer_time
from planner.cost.layer_comm import context_comm, expert_comm, shard_comm, tensor_comm
from planner.cost.setting import Settings
from planner.cost.work import LayerTime, WorkTime, exposed_time
from planner.spec import PlanRequest
from planner.spec.framework import TimeHabits
from planner.spec.model import LayerKind

DENSE = LayerKind()
MOE = LayerKind(moe=True)


def with_habits(request: PlanRequest, **habits: object) -> PlanRequest:
    time = request.framework.time.model_copy(update=habits)
    return request.model_copy(update={"framework": request.framework.model_copy(update={"time": time})})


def big(request: PlanRequest) -> PlanRequest:
    """Long enough that the host is never the limit."""
    model = request.model.model_copy(update={"hidden_size": 1024, "head_dim": 128, "ffn_hidden_size": 4096})
    workload = request.workload.model_copy(update={"seq_length": 4096})
    return request.model_copy(update={"model": model, "workload": workload})


def test_products_of_a_layer_by_hand(tiny_dense: PlanRequest) -> None:
    # 2 * 4096 tokens, t = 1: qkv (8 + 2*4) heads of 128, out 1024 x 1024, mlp 2 * 4096 columns, back 1024
    request = big(tiny_dense)
    tokens, part = 8192, request.cluster.accelerator
    shapes = [(2048, 1024), (1024, 1024), (8192, 1024), (1024, 4096)]
    expected = sum(gemm_time(tokens, n, k, part) for n, k in shapes)
    forward = layer_time(DENSE, Settings(micro_batch=2), request).forward
    assert forward.gemm_s == pytest.approx(expected)


def test_elementwise_bytes_by_hand(tiny_dense: PlanRequest) -> None:
    # per token: two norms 8h and two residuals 12h, rotary 4 * 12 heads * 128, gated activation 6f
    request = big(tiny_dense)
    moved = 4096 * (20 * 1024 + 4 * 12 * 128 + 6 * 4096)
    expected = memory_bound_time(moved, request.cluster.accelerator, "elementwise", 6)
    assert layer_time(DENSE, Settings(), request).forward.elementwise_s == pytest.approx(expected)


def test_tensor_collectives_by_hand(tiny_dense: PlanRequest) -> None:
    # with SP two all-gathers and two reduce-scatters of 2 s h bytes forward, without two all-reduces
    request, group = big(tiny_dense), Group(4, 1)
    message = 2 * 4096 * 1024
    plain, _ = tensor_comm(DENSE, Settings(tensor_parallel=4), request, 0.0, 0.0)
    assert plain == pytest.approx(2 * all_reduce_time(message, group, request.cluster))
    setting = Settings(tensor_parallel=4, sequence_parallel=True)
    forward, backward = tensor_comm(DENSE, setting, request, 0.0, 0.0)
    both = all_gather_time(message, group, request.cluster) + reduce_scatter_time(
        message, group, request.cluster
    )
    assert forward == pytest.approx(2 * both)
    gather = all_gather_time(message, group, request.cluster)
    assert backward == pytest.approx(2 * (both + gather))  # nothing to hide behind


def test_scaled_formats_are_gathered_in_their_own_width(tiny_dense: PlanRequest) -> None:
    request = with_habits(big(tiny_dense), low_precision_gathers=True)
    group, cluster = Group(4), request.cluster
    wide = Settings(tensor_parallel=4, sequence_parallel=True, precision="bf16")
    low = Settings(tensor_parallel=4, sequence_parallel=True, precision="fp8")
    message = 2 * request.model.hidden_size * request.workload.seq_length
    saved = all_gather_time(message, group, cluster) - all_gather_time(message / 2, group, cluster)
    full, halved = (tensor_comm(DENSE, setting, request, 0.0, 0.0) for setting in (wide, low))
    assert full[0] - halved[0] == pytest.approx(2 * saved)  # one gather a pair forward, two backward
    assert full[1] - halved[1] == pytest.approx(4 * saved)
    frozen = request.model_copy(
        update={"workload": request.workload.model_copy(update={"frozen_weights": True})}
    )
    assert tensor_comm(DENSE, low, frozen, 0.0, 0.0)[0] == pytest.approx(full[0])


def test_each_further_cast_is_paid_per_product(tiny_dense: PlanRequest) -> None:
    plain = big(tiny_dense).model_copy(update={"cluster": load_cluster("h100", 8)})
    thrice, low = with_habits(plain, casts_per_product=3.0), Settings(precision="fp8")
    one, three = (layer_time(DENSE, low, request).forward.gemm_s for request in (plain, thrice))
    gemms = layer_gemms(plain.model, DENSE, plain.workload.seq_length, low)
    casts = sum(cast_time(gemm.m, gemm.k, plain.cluster.accelerator, "fp8", gemm.count) for gemm in gemms)
    assert three - one == pytest.approx(2 * casts / plain.framework.time.kernel_efficiency)
    wide = Settings(precision="bf16")
    assert layer_time(DENSE, wide, thrice).total.total == layer_time(DENSE, wide, plain).total.total


def test_fused_experts_neither_permute_nor_cast_nor_wait_for_the_host(tiny_moe: PlanRequest) -> None:
    plain = big(tiny_moe).model_copy(update={"cluster": load_cluster("b200", 16)})
    fused = with_habits(plain, block_scaled_expert_efficiency=plain.framework.time.expert_kernel_efficiency)
    before, after = (layer_time(MOE, Settings(precision="mxfp8"), request) for request in (plain, fused))
    assert after.forward.gemm_s < before.forward.gemm_s
    assert after.forward.elementwise_s < before.forward.elementwise_s
    assert after.total.total < before.total.total
    wide = Settings(precision="bf16")
    assert layer_time(MOE, wide, fused).total.total == layer_time(MOE, wide, plain).total.total


def test_experts_without_a_gate_are_not_fused(tiny_moe: PlanRequest) -> None:
    plain = vary(big(tiny_moe), model={"gated_mlp": False, "activation": "squared_relu"})
    plain = plain.model_copy(update={"cluster": load_cluster("b200", 16)})
    fused, setting = with_habits(plain, block_scaled_expert_efficiency=0.7), Settings(precision="mxfp8")
    assert layer_time(MOE, setting, fused).total.total == layer_time(MOE, setting, plain).total.total


def test_backward_collectives_hide_behind_gradient_products(tiny_dense: PlanRequest) -> None:
    request, setting = big(tiny_dense), Settings(tensor_parallel=4, sequence_parallel=True)
    _, exposed = tensor_comm(DENSE, setting, request, 0.0, 0.0)
    _, hidden = tensor_comm(DENSE, setting, request, 1.0, 1.0)
    assert hidden < exposed


def test_exposed_time_by_hand() -> None:
    habits = TimeHabits(overlap_fraction=0.5, overlap_slowdown=0.2)
    # 3 s behind 4 s of work: 2 s hide (half of the work), 1 s shows, and the hidden 2 s cost 0.4
    assert exposed_time(3.0, 4.0, habits) == pytest.approx(1.4)
    assert exposed_time(3.0, 4.0, habits, overlaps=False) == 3.0
    assert exposed_time(0.0, 4.0, habits) == 0.0


def test_ring_hops_hide_behind_attention(tiny_dense: PlanRequest) -> None:
    request, setting = big(tiny_dense), Settings(context_parallel=4)
    shown, _ = context_comm(DENSE, setting, request, 0.0, 0.0)
    hidden, _ = context_comm(DENSE, setting, request, 1.0, 1.0)
    assert 0 < hidden < shown
    assert context_comm(DENSE, Settings(), request, 0.0, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
def test_other_context_kinds_are_exposed(tiny_dense: PlanRequest, kind: str) -> None:
    setting = Settings(context_parallel=4, context_parallel_kind=kind)  # type: ignore[arg-type]
    forward, backward = context_comm(DENSE, setting, big(tiny_dense), 1.0, 1.0)
    assert 0 < forward <= backward


def test_expert_traffic_grows_with_the_group_and_can_be_hidden(tiny_moe: PlanRequest) -> None:
    request = big(tiny_moe)
    small, large = (expert_comm(MOE, Settings(expert_parallel=e), request)[0] for e in (2, 8))
    assert 0 < small < large  # 8 ranks span two nodes
    half = with_habits(request, expert_comm_hidden_fraction=0.5)
    assert expert_comm(MOE, Settings(expert_parallel=8), half)[0] == pytest.approx(large / 2)
    paired = expert_comm(MOE, Settings(expert_parallel=8, schedule="dualpipe"), request)[0]
    assert paired == pytest.approx(0.1 * large)
    once = with_habits(request, deduplicates_dispatch=True)
    assert expert_comm(MOE, Settings(expert_parallel=8), once)[0] < large
    assert expert_comm(DENSE, Settings(expert_parallel=8), request) == (0.0, 0.0)


def test_sharding_repeats_only_from_zero_2_on(tiny_dense: PlanRequest) -> None:
    def setting(stage: int) -> Settings:
        return Settings(data_parallel=8, zero_stage=stage, shard_group_size=8)

    assert shard_comm(DENSE, setting(1), tiny_dense) == (0.0, 0.0)
    gather, reduce = shard_comm(DENSE, setting(2), tiny_dense)
    assert gather == 0.0 < reduce
    assert min(shard_comm(DENSE, setting(3), tiny_dense)) > 0.0


def test_full_recompute_repeats_the_forward_pass(tiny_dense: PlanRequest) -> None:
    request = big(tiny_dense)
    layer = layer_time(DENSE, Settings(recompute="full"), request)
    work = layer.forward.total - layer.forward.host_s
    assert layer.recompute.recompute_s == pytest.approx(work)
    assert layer.recompute.total == layer.recompute.recompute_s
    assert layer_time(DENSE, Settings(), request).recompute.total == 0.0


def test_recomputing_the_mlp_repeats_its_tensor_collectives(tiny_dense: PlanRequest) -> None:
    setting = Settings(
        tensor_parallel=4, sequence_parallel=True, recompute="selective", recompute_modules=("mlp",)
    )
    layer = layer_time(DENSE, setting, tiny_dense)
    assert layer.forward.tensor_comm_s > 0
    alone = layer.recompute.recompute_s - layer.forward.tensor_comm_s / 2  # one of two pairs of collectives
    products = layer.forward.gemm_s * 2 / 3
    assert 0 < alone < products + layer.forward.elementwise_s


@pytest.mark.parametrize("module", ["core_attn", "mlp", "moe_act", "layernorm", "moe", "op", "elementwise"])
def test_selective_recompute_costs_less_than_full(tiny_moe: PlanRequest, module: str) -> None:
    request = big(tiny_moe)
    kind = MOE if module == "moe" else DENSE
    full = layer_time(kind, Settings(recompute="full"), request).recompute.recompute_s
    setting = Settings(recompute="selective", recompute_modules=(module,))
    assert 0 < layer_time(kind, setting, request).recompute.recompute_s < full


def test_per_operator_recompute_repeats_every_product_of_the_experts(tiny_moe: PlanRequest) -> None:
    # every second plain product, all grouped ones, all elementwise work: with experts that cost nothing
    # (a million times the rate) half of the products is left
    request = big(tiny_moe)
    setting = Settings(micro_batch=2, recompute="selective", recompute_modules=("op",))
    fast = with_habits(request, expert_kernel_efficiency=1e6)
    with_experts, without = (layer_time(MOE, setting, one) for one in (request, fast))
    experts = with_experts.forward.gemm_s - without.forward.gemm_s
    repeated = with_experts.recompute.recompute_s - without.recompute.recompute_s
    assert experts > 0
    assert repeated == pytest.approx(experts)
    plain = without.recompute.recompute_s - without.forward.elementwise_s
    assert plain == pytest.approx(without.forward.gemm_s / 2, rel=1e-5)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_offloaded_activations_pay_the_host_link_where_the_layer_is_too_short(
    tiny_dense: PlanRequest, recompute: str
) -> None:
    request = big(tiny_dense)
    setting = Settings(micro_batch=2, recompute=recompute)
    offloaded = Settings(micro_batch=2, recompute=recompute, offload="activations")
    plain = layer_time(DENSE, setting, request)
    saved = layer_activation_bytes(DENSE, setting, request)
    kept = saved.plain if recompute == "none" else saved.recomputed
    # a link on which the copies take three forward passes: two of them are exposed
    slow = with_link(request, kept / (3.0 * plain.forward.total))
    priced = layer_time(DENSE, offloaded, slow)
    assert priced.forward.offload_s == pytest.approx(2.0 * plain.forward.total)
    backward = plain.backward_input.total + plain.backward_weight.total + plain.recompute.total
    exposed = max(3.0 * plain.forward.total - backward, 0.0)
    shown = priced.backward_input.offload_s + priced.recompute.offload_s
    assert shown == pytest.approx(exposed)
    quick = layer_time(DENSE, offloaded, with_link(request, kept / (0.5 * plain.forward.total)))
    assert quick.total.total == pytest.approx(plain.total.total)


def with_link(request: PlanRequest, bytes_per_s: float) -> PlanRequest:
    host = request.cluster.accelerator.host.model_copy(update={"pcie_bytes_per_s": bytes_per_s})
    accelerator = request.cluster.accelerator.model_copy(update={"host": host})
    return request.model_copy(
        update={"cluster": request.cluster.model_copy(update={"accelerator": accelerator})}
    )


def test_attention_without_a_fused_kernel_is_slower(tiny_dense: PlanRequest) -> None:
    request = big(tiny_dense)
    fused = layer_time(DENSE, Settings(), request).forward.attention_s
    unfused = with_habits(request, attention_kernel=UNFUSED)
    plain = layer_time(DENSE, Settings(), unfused).forward.attention_s
    assert plain > 2 * fused
    odd = unfused.model_copy(update={"model": unfused.model.model_copy(update={"head_dim": 124})})
    assert layer_time(DENSE, Settings(), odd).forward.attention_s > 2 * plain  # off the tensor cores


def test_the_host_sets_the_floor_of_small_layers(tiny_dense: PlanRequest) -> None:
    # 60 launches of 6 us forward and twice that backward outlast the toy layer of 128 tokens
    layer = layer_time(DENSE, Settings(), tiny_dense)
    assert layer.forward.total == pytest.approx(60 * 6e-6)
    assert layer.backward_input.total + layer.backward_weight.total == pytest.approx(120 * 6e-6)
    graphs = with_habits(tiny_dense, launch_factor=0.0)
    assert layer_time(DENSE, Settings(), graphs).forward.host_s == 0.0


def test_launches_slow_down_when_the_pipeline_spans_nodes(tiny_dense: PlanRequest) -> None:
    request = with_habits(tiny_dense, cross_node_launch_growth=0.5)
    inside = layer_time(DENSE, Settings(pipeline_parallel=2, tensor_parallel=2), request).forward.total
    across = layer_time(DENSE, Settings(pipeline_parallel=2, tensor_parallel=4), request).forward.total
    assert across == pytest.approx((1 + 0.5 * 4**1.25) * inside)


def test_frozen_weights_have_no_weight_gradients(tiny_dense: PlanRequest) -> None:
    request = big(tiny_dense)
    frozen = request.model_copy(
        update={"workload": request.workload.model_copy(update={"frozen_weights": True})}
    )
    assert layer_time(DENSE, Settings(), frozen).backward_weight.total == 0.0
    assert head_time(Settings(), frozen).backward_weight.total == 0.0


@pytest.mark.parametrize(("gradient_bytes", "ratio"), [(4.0, 1.0), (2.0, 1.2)])
def test_an_fp32_sum_is_paid_once(tiny_dense: PlanRequest, gradient_bytes: float, ratio: float) -> None:
    """By its bytes where gradients are fp32; by the framework's slow-down where they have 16 bits."""
    request = big(tiny_dense)
    part = request.cluster.accelerator
    curves = {"bf16": part.gemm["bf16"].model_copy(update={"launch_s": 0.0})}
    cluster = request.cluster.model_copy(update={"accelerator": part.model_copy(update={"gemm": curves})})
    memory = request.framework.memory.model_copy(update={"gradient_bytes": gradient_bytes})
    framework = request.framework.model_copy(update={"memory": memory})
    request = request.model_copy(update={"cluster": cluster, "framework": framework})
    slow, plain = (
        layer_time(DENSE, Settings(), with_habits(request, weight_gradient_slowdown=factor))
        for factor in (1.2, 1.0)
    )
    assert slow.backward_weight.gemm_s == pytest.approx(ratio * plain.backward_weight.gemm_s, rel=1e-3)


def test_a_sixteen_bit_sum_is_read_and_written(tiny_dense: PlanRequest) -> None:
    """Half the bytes of an fp32 sum where the product adds to it; nothing but the slow-down elsewhere."""
    request = big(tiny_dense)
    memory = request.framework.memory
    seconds = {}
    for width, adds in ((4.0, False), (2.0, True), (2.0, False)):
        habits = memory.model_copy(update={"gradient_bytes": width})
        framework = request.framework.model_copy(update={"memory": habits})
        changed = with_habits(
            request.model_copy(update={"framework": framework}),
            adds_into_gradients=adds, weight_gradient_slowdown=1.0,
        )  # fmt: skip
        seconds[width, adds] = float(layer_time(DENSE, Settings(), changed).backward_weight.gemm_s)
    assert seconds[2.0, False] < seconds[2.0, True] < seconds[4.0, False]


def test_low_precision_speeds_up_products_alone(tiny_dense: PlanRequest) -> None:
    request = big(tiny_dense)
    wide, narrow = (layer_time(DENSE, Settings(precision=p), request).forward for p in ("bf16", "fp8"))  # type: ignore[arg-type]
    assert narrow.gemm_s < wide.gemm_s
    assert narrow.attention_s == wide.attention_s
    assert narrow.elementwise_s == wide.elementwise_s
    assert head_time(Settings(precision="fp8"), request).total == head_time(Settings(), request).total


def test_arrays_equal_the_loop_over_scalars(tiny_moe: PlanRequest) -> None:
    request = big(tiny_moe)
    t, b = np.array([1, 2, 4]), np.array([1, 2, 3])
    arrays = layer_time(MOE, Settings(tensor_parallel=t, micro_batch=b, sequence_parallel=t > 1), request)
    for index in range(3):
        setting = Settings(
            tensor_parallel=int(t[index]), micro_batch=int(b[index]), sequence_parallel=bool(t[index] > 1)
        )
        one = layer_time(MOE, setting, request)
        for name, value in one.total.items():
            assert np.broadcast_to(getattr(arrays.total, name), 3)[index] == pytest.approx(value), name


def test_ends_of_the_model(tiny_dense: PlanRequest) -> None:
    request = big(tiny_dense)
    assert embedding_time(Settings(), request).total.tensor_comm_s == 0.0
    assert embedding_time(Settings(tensor_parallel=2), request).forward.tensor_comm_s > 0.0
    one, two = (head_time(Settings(tensor_parallel=t), request).forward.embedding_and_loss_s for t in (1, 2))
    assert 0.4 * one < two < one


def test_phases_are_linear() -> None:
    layer = LayerTime(forward=WorkTime(gemm_s=1.0), recompute=WorkTime(recompute_s=2.0))
    twice = layer * 2 + layer
    assert (twice.forward.gemm_s, twice.recompute.recompute_s) == (3.0, 6.0)


@pytest.mark.parametrize("of_input", [0.1, 1.0, 1.9, 3.0])
@pytest.mark.parametrize("of_weight", [0.1, 1.0, 1.9, 3.0])
def test_a_backward_pass_takes_its_work_or_its_launches(
    tiny_dense: PlanRequest, of_input: float, of_weight: float
) -> None:
    """With launches of 1: 2 at least, and no gradient ends earlier because its own work grew."""
    waits = _backward_waits(1.0, of_input, of_weight, tiny_dense)
    assert of_input + of_weight + sum(map(float, waits)) == pytest.approx(max(2.0, of_input + of_weight))
    longer = _backward_waits(1.0, of_input + 0.5, of_weight, tiny_dense)
    assert of_input + 0.5 + float(longer[0]) >= of_input + float(waits[0])
