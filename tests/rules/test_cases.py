"""Practitioners' cases: the planner's verdict on someone's model, hardware and configuration."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from case_adapter import Entry, entries, load_cases, measured_bytes, reported_bytes
from case_truths import DISAGREE, OUT_OF_REACH, TRUTHS, Truth
from case_truths_medium import MEDIUM_TRUTHS
from toys import vary

from planner.catalog import load_accelerator
from planner.catalog.training import with_loss
from planner.cost.linear_mixer import mixer_parameters
from planner.cost.longest import longest_sequence
from planner.cost.memory import memory
from planner.cost.states import head_local_parameters
from planner.cost.step import step_time
from planner.rules import RULES, check, valid_values
from planner.solver.evaluate import evaluate

MEMORY = {"every_stage_fits_in_memory", "offloaded_state_fits_in_host_memory"}
SPECIAL = {
    "hf-blog-2245-70b-estimate", "mbridge-5077-uneven-estimate", "nanotron-261-1b-zero0-zero1",
    "verl-7476-ulysses-noop", "mlm-299-tied-embedding-group", "peak-flops-1276-89", "lf-5545-8b-qlora-52k",
    "ds-2928-idefics80b-vs-bloom", "ds-5770-qwen1.5b-2nodes", "foundry-1153-mi250-gcd",
    "modelzoo-7-qwen3-30b-8b200", "mpt30b-v100-16", "automodel-2589-falcon-h1-tp4", "ds-965-estimator-3b",
}  # fmt: skip
"""Cases with a test of their own below."""


def asked(case_id: str, truth: Truth) -> Entry:
    entry = entries(load_cases()[case_id], **truth.given)[truth.entry]
    request = vary(entry.request, limits=dict(truth.limits))
    return replace(entry, request=request)


def proposed(entry: Entry, field: str, rules: tuple[str, ...]) -> list[tuple[object, ...]]:
    """Valid values of a field: as the violations name them, and under the broken rule by itself."""
    broken = [found for found in check(entry.plan, entry.request) if found.rule in rules]
    alone = [valid_values(field, entry.plan, entry.request, [rule]) for rule in RULES if rule.name in rules]
    return [found.allowed for found in broken if found.field == field] + alone


def is_known(case_id: str, truth: Truth) -> bool:
    """Whether the planner is known to say something else (of the machine that the case names)."""
    return (case_id, truth.entry) in DISAGREE and "gpu" not in truth.given


STATEMENTS = [
    pytest.param(case_id, truth, id=f"{case_id}-{number}")
    for case_id, truths in {**TRUTHS, **MEDIUM_TRUTHS}.items()
    for number, truth in enumerate(truths)
    if not is_known(case_id, truth)
]


@pytest.mark.parametrize(("case_id", "truth"), STATEMENTS)
def test_the_planner_agrees_with_what_happened(case_id: str, truth: Truth) -> None:
    assert_agreement(case_id, truth)


@pytest.mark.parametrize(("case_id", "number"), DISAGREE)
def test_where_a_case_says_something_else_the_planner_says_what_holds(case_id: str, number: int) -> None:
    """The disagreement is still one, and the planner's own verdict is the one that is stated with it."""
    truths = {**TRUTHS, **MEDIUM_TRUTHS}[case_id]
    stated = [truth for truth in truths if truth.entry == number and is_known(case_id, truth)]
    assert stated
    for truth in stated:
        with pytest.raises(AssertionError):
            assert_agreement(case_id, truth)
    assert_agreement(case_id, DISAGREE[case_id, number].verdict)


def assert_agreement(case_id: str, truth: Truth) -> None:
    entry = asked(case_id, truth)
    violations = check(entry.plan, entry.request)
    broken = {violation.rule for violation in violations}
    assert set(truth.breaks) <= broken, [str(violation) for violation in violations]
    if truth.is_legal:
        assert broken <= MEMORY
    if truth.fits is not None:
        assert ("every_stage_fits_in_memory" not in broken) == truth.fits
    for field, values in truth.allowed.items():
        assert values in proposed(entry, field, truth.breaks)
    assert not truth.says or any(truth.says in violation.sentence for violation in violations)
    if truth.is_tight:
        needed = max(float(stage.total) for stage in memory(entry.plan, entry.request))
        assert needed > 0.9 * entry.request.cluster.usable_hbm_bytes
    if truth.matches_peak:
        assert reported_bytes(entry) == pytest.approx(measured_bytes(entry), rel=0.10)
    if truth.longest is not None:
        assert longest_sequence(entry.plan, entry.request) == pytest.approx(truth.longest, rel=0.05)
    if truth.peak_lies_between_losses:
        framework = with_loss(entry.request.framework, "chunked")
        chunked = replace(entry, request=entry.request.model_copy(update={"framework": framework}))
        assert reported_bytes(chunked) < measured_bytes(entry) < reported_bytes(entry)


def test_every_high_confidence_case_is_accounted_for() -> None:
    high = {case_id for case_id, case in load_cases().items() if case["confidence"] == "high"}
    assert high == set(TRUTHS) | SPECIAL | set(OUT_OF_REACH)


def test_adam_state_of_a_70b_model_takes_16_to_18_bytes_a_parameter() -> None:
    """hf-blog-2245-70b-estimate: 1.13 to 1.27 TB for 70.55 B parameters."""
    entry = entries(load_cases()["hf-blog-2245-70b-estimate"], precision="bf16")[0]
    stage = memory(entry.plan, entry.request)[0]
    state = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    assert 16 * 70.55e9 * 0.99 <= state <= 18 * 70.55e9 * 1.01


def test_memory_is_taken_on_the_heaviest_stage() -> None:
    """mbridge-5077-uneven-estimate: 1, 2, 2 and 3 layers; the average is a third below the last stage."""
    entry = entries(load_cases()["mbridge-5077-uneven-estimate"])[0]
    weights = [float(stage.weights_bytes) for stage in memory(entry.plan, entry.request)]
    assert max(weights) == weights[3] > sum(weights) / 4


@pytest.mark.parametrize("number", [0, 1])
def test_static_memory_of_nanotron(number: int) -> None:
    """nanotron-261-1b-zero0-zero1: 19,910 MiB without ZeRO (20 bytes a parameter), 6,517 MiB with ZeRO-1."""
    entry = entries(load_cases()["nanotron-261-1b-zero0-zero1"])[number]
    stage = memory(entry.plan, entry.request)[0]
    static = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    assert static / 2**20 == pytest.approx(entry.raw["static_mib"], rel=0.10)


def test_checkpoints_shrink_with_the_context_ranks() -> None:
    """verl-7476-ulysses-noop: 64 layers x 4096 tokens x 5120 x 2 bytes = 2.7 GB with 8 ranks."""
    case = load_cases()["verl-7476-ulysses-noop"]
    split, whole = entries(case)[0], entries(case, sp_ulysses=1)[0]
    saved = memory(split.plan, split.request)[0].activations_bytes
    assert saved == pytest.approx(2.7e9, rel=0.10)
    assert memory(whole.plan, whole.request)[0].activations_bytes == pytest.approx(8 * saved)


def test_tied_embeddings_are_held_twice_by_a_pipeline() -> None:
    """mlm-299-tied-embedding-group: vocabulary x hidden / t on the first and on the last stage."""
    case = load_cases()["mlm-299-tied-embedding-group"]
    alone, pipeline = entries(case, pp=1)[0], entries(case, pp=2)[0]
    model = alone.request.model
    matrix = model.vocab_size * model.hidden_size
    assert head_local_parameters(alone.plan, alone.request).total == model.hidden_size
    assert head_local_parameters(pipeline.plan, pipeline.request).total >= matrix


def test_peaks_are_dense_figures() -> None:
    """peak-flops-1276-89: 989 TFLOP/s for H100 SXM and 312 for A100, not the sparse 1,979."""
    assert load_accelerator("h100-sxm-80gb").compute.peak_flop_per_s["bf16"] == pytest.approx(
        989e12, rel=0.001
    )
    assert load_accelerator("a100-sxm-80gb").compute.peak_flop_per_s["bf16"] == pytest.approx(
        312e12, rel=0.001
    )


@pytest.mark.parametrize(("gpus", "state_gb"), [(24, 15.0), (32, 11.25)])
def test_lion_keeps_one_moment(gpus: int, state_gb: float) -> None:
    """mpt30b-v100-16: 12 bytes a parameter, 360 GB: 24 cards of 16 GB hold it, 22 do not."""
    entry = entries(load_cases()["mpt30b-v100-16"], num_gpus=gpus)[0]
    stage = memory(entry.plan, entry.request)[0]
    state = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    assert state == pytest.approx(state_gb * 1e9, rel=0.01)


@pytest.mark.parametrize("ranks", [1, 4])
def test_linear_mixers_stay_whole_where_the_framework_cannot_split_them(ranks: int) -> None:
    """automodel-2589-falcon-h1-tp4: 68 GB in bf16 if nothing shards; four ranks divide all but the mixers."""
    case = load_cases()["automodel-2589-falcon-h1-tp4"]
    entry = entries(case, tp=ranks, dp=1, zero=0, mbs=1, seq_len=512)[0]
    model = entry.request.model
    mixers = model.num_layers * mixer_parameters(model)
    weights = float(memory(entry.plan, entry.request)[0].weights_bytes)
    assert weights == pytest.approx(2 * ((33.64e9 - mixers) / ranks + mixers), rel=0.01)


def test_plain_sgd_keeps_weights_and_gradients_only() -> None:
    """torchtune-389-7b-16gb: 8 bytes a parameter in fp32, 54 GB; Adam 108 GB."""
    adam, sgd = (
        memory(entry.plan, entry.request)[0] for entry in entries(load_cases()["torchtune-389-7b-16gb"])[:2]
    )
    for stage, state_gb in ((adam, 107.8), (sgd, 53.9)):
        state = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
        assert state == pytest.approx(state_gb * 1e9, rel=0.01)


def test_logits_of_a_long_sequence_alone_take_more_than_two_copies() -> None:
    """lf-5545-8b-qlora-52k: fp32 logits 51974 x 128256 x 4 = 26.7 GB, two or three times that at the peak."""
    entry = entries(load_cases()["lf-5545-8b-qlora-52k"])[0]
    stage = memory(entry.plan, entry.request)[0]
    assert stage.loss_bytes + stage.transient_bytes >= 1.9 * 26.7e9


def over_network(entry: Entry, bytes_per_s: float) -> Entry:
    """The same question with another network between the nodes, per GPU and direction."""
    links = entry.request.cluster.links
    slow = tuple(link.model_copy(update={"bytes_per_s": bytes_per_s}) for link in links[1:])
    return replace(entry, request=vary(entry.request, cluster={"links": (links[0], *slow)}))


def seconds(entry: Entry) -> float:
    return float(step_time(entry.plan, entry.request).total)


def utilisation(entry: Entry) -> float:
    return evaluate(entry.plan, entry.request).mfu


@pytest.mark.parametrize("number", range(4))
def test_step_time_of_qwen3_235b_on_256_h800(number: int) -> None:
    """pai-658-qwen3-235b-256h800: 42.5 and 43.5 s for 4096 sequences, 22.4 and 22.9 s for 2048."""
    entry = entries(load_cases()["pai-658-qwen3-235b-256h800"])[number]
    assert seconds(entry) == pytest.approx(entry.raw["step_s"], rel=0.20)


def test_zero_3_across_ethernet_is_ranked_behind_zero_1() -> None:
    """ds-5770-qwen1.5b-2nodes: weight gathers over a slow link."""
    case = load_cases()["ds-5770-qwen1.5b-2nodes"]
    ethernet = 1.25e9 / 2  # 10 Gb/s shared by a node's two GPUs
    by_stage = {stage: over_network(entries(case, zero=stage, seq_len=512)[1], ethernet) for stage in (1, 3)}
    assert seconds(by_stage[3]) > seconds(by_stage[1])
    one_node = entries(case, seq_len=512)[0]
    assert seconds(by_stage[3]) > 2.0 * seconds(one_node)


def test_tensor_and_pipeline_parallelism_beat_zero_3_on_slow_networks() -> None:
    """ds-2928-idefics80b-vs-bloom: 90 TFLOP/s on 340 Gb/s a node against 150 on 140 Gb/s effective."""
    case = load_cases()["ds-2928-idefics80b-vs-bloom"]
    zero_3, three_dimensional = entries(case, num_gpus=384, gbs=2048 * 3, seq_len=2048)
    assert utilisation(over_network(zero_3, 340e9 / 8 / 8)) < utilisation(
        over_network(three_dimensional, 140e9 / 8 / 8)
    )


def test_one_die_of_an_mi250_is_half_an_a100() -> None:
    """foundry-1153-mi250-gcd: 1602 against 3700 tokens/s (7 B), 753 against 1613 (13.3 B)."""
    pairs = entries(load_cases()["foundry-1153-mi250-gcd"], zero=3, seq_len=2048, gbs=256, recompute="full")
    for fast, slow in (pairs[:2], pairs[2:]):
        rates = [
            entry.plan.global_batch * 2048 / seconds(entry) / entry.plan.num_gpus for entry in (slow, fast)
        ]
        assert rates[0] / rates[1] == pytest.approx(0.5, abs=0.15)


def test_small_experts_at_micro_batch_one_stay_near_ten_per_cent() -> None:
    """modelzoo-7-qwen3-30b-8b200: at most 10 % of a B200's peak, which the planner's error band reaches."""
    entry = entries(load_cases()["modelzoo-7-qwen3-30b-8b200"])[0]
    priced = evaluate(entry.plan, entry.request)
    assert priced.mfu / (1 + priced.error_band_pct / 100) <= 0.10
    assert priced.time.host_s == max(asdict(priced.time).values())  # kernels too small for their launches
