"""Minimal conflicts: infeasible together, feasible without any one member; relaxations work when applied."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.api import known_frameworks, question
from planner.cost.stage import with_stages
from planner.explain.answer import answer, find
from planner.explain.changes import with_hbm_bytes, with_num_gpus
from planner.explain.conflict import HOST, MEMORY, explain_conflict, lifted
from planner.explain.ladders import more_gpus
from planner.explain.lean_space import LeanSpace, plan_at, smallest_cut
from planner.explain.leanest import any_plan, corner_plan, leanest, peak_bytes
from planner.frameworks import load_framework
from planner.report.proof import proof_line
from planner.request import read_pins
from planner.solver import solve
from planner.solver.core import RuleCore
from planner.solver.evaluate import evaluate
from planner.solver.result import PlanResult
from planner.solver.space import FIELDS, Rows
from planner.spec import Plan, PlanRequest


def pinned(request: PlanRequest, **pins: str) -> PlanRequest:
    return request.model_copy(update={"pins": read_pins(pins)})


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        # 8 heads over 3 ranks
        ({"tp": "3"}, {"attention_heads_divide_over_tensor_ranks", "pin:--tp 3"}),
        # nodes of 4 GPUs
        ({"tp": "8"}, {"tensor_ranks_stay_inside_the_fast_domain", "pin:--tp 8"}),
        # 2 x 4 x 4 = 32 GPUs, of which there are 8
        ({"tp": "2", "pp": "4", "dp": "4"}, {"ranks_fill_the_cluster", "pin:--pp 4", "pin:--dp 4"}),
        ({"ep": "2"}, {"expert_parallelism_needs_experts", "pin:--ep 2"}),
    ],
)
def test_conflicts_among_rules(tiny_dense: PlanRequest, pins: dict[str, str], expected: set[str]) -> None:
    request = pinned(tiny_dense, **pins)
    core = RuleCore(request)
    assert set(core.conflict) == expected
    assert not core.is_satisfiable(core.conflict)
    for member in core.conflict:
        assert core.is_satisfiable(name for name in core.conflict if name != member)


def test_a_feasible_request_has_no_conflict(tiny_dense: PlanRequest) -> None:
    assert RuleCore(pinned(tiny_dense, tp="2", pp="2")).conflict == ()


def test_every_member_has_its_numbers_and_the_paragraph_names_them(tiny_dense: PlanRequest) -> None:
    found = explain_conflict(pinned(tiny_dense, tp="3"), seconds=5)
    assert "8 attention heads do not split evenly over 3 tensor ranks" in found.paragraph
    assert found.paragraph.startswith("You asked for --tp 3, but 8 attention heads")
    assert "1, 2, 4 would do" in found.paragraph
    assert all(member.source for member in found.members)


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        # 8 GPUs
        (
            {"tp": "2", "pp": "4", "dp": "4"},
            "You asked for --pp 4 and --dp 4, but 4 pipeline x 4 data ranks need 16 GPUs",
        ),
        ({"dp": "3"}, "3 data ranks do not divide the 8 GPUs of the cluster"),
        # a flat plan has no schedule: that is what the words mean, and no member
        ({"pp": "1", "vpp": "2"}, "schedule none does not run 2 chunks a rank"),
        # 16 sequences: as one micro-batch each, which is the most
        (
            {"pp": "4", "schedule": "1f1b", "dp": "2", "micro-batch": "8"},
            "1 micro-batch through 4 pipeline ranks",
        ),
    ],
)
def test_a_conflict_says_no_more_than_was_asked(
    tiny_dense: PlanRequest, pins: dict[str, str], expected: str
) -> None:
    found = explain_conflict(pinned(tiny_dense, **pins), seconds=5)
    assert expected in found.paragraph
    assert " 1 context" not in found.paragraph
    assert "pipelines_and_only_pipelines_have_a_schedule" not in found.names


def test_a_dropped_pin_is_priced_by_the_best_plan_where_that_keeps_the_others(
    tiny_dense: PlanRequest,
) -> None:
    """The best plan has t=2 or less here: without --pp 3, which no plan can have, --tp is kept by it."""
    best = solve(tiny_dense, top=1).best
    assert best is not None
    request = pinned(tiny_dense, tp=str(best.plan.tensor_parallel), pp="3")
    found = explain_conflict(request, seconds=5, without_pins=best)
    (dropped,) = [each for each in found.relaxations if each.change == "without --pp 3"]
    assert dropped.plan == best
    assert dropped.is_best


def test_relaxations_are_feasible_when_applied(tiny_dense: PlanRequest) -> None:
    found = explain_conflict(pinned(tiny_dense, tp="8"), seconds=5)
    kinds = {relaxation.kind for relaxation in found.relaxations}
    assert kinds == {"pin", "domain", "domain-size"}
    wide = pinned(tiny_dense, tp="8").model_copy(update={"allow_tensor_parallel_across_nodes": True})
    assert solve(wide, top=1).best is not None
    for relaxation in found.relaxations:
        assert relaxation.plan.is_legal
        assert relaxation.plan.fits


def too_small(request: PlanRequest) -> PlanRequest:
    """The request on GPUs with a little less memory than the leanest plan needs."""
    least = leanest(request, 20).plan
    assert least is not None
    return with_hbm_bytes(request, least.peak_memory_bytes * 0.97)


def test_memory_conflict_is_infeasible_and_each_member_necessary(tiny_dense: PlanRequest) -> None:
    request = too_small(pinned(tiny_dense, tp="1", recompute="none"))
    assert solve(request, top=1).best is None
    found = explain_conflict(request, seconds=5)
    assert MEMORY in found.names
    assert "missing" in found.paragraph
    for name in found.names:
        assert solve(lifted(request, name), top=1).best is not None, name


def test_hbm_relaxation_is_enough_and_names_accelerators(tiny_dense: PlanRequest) -> None:
    request = too_small(tiny_dense)
    found = explain_conflict(request, seconds=5)
    hbm = next(relaxation for relaxation in found.relaxations if relaxation.kind == "hbm")
    assert hbm.change.startswith("--hbm ")
    assert "have)" in hbm.sentence
    assert hbm.plan.fits


def test_the_leanest_plan_needs_no_more_than_any_plan_and_no_less_than_the_bound(
    tiny_dense: PlanRequest,
) -> None:
    found = leanest(tiny_dense, 20)
    assert found.plan is not None
    assert found.bound_bytes is not None
    assert found.bound_bytes <= found.plan.peak_memory_bytes
    assert found.plan.is_legal
    fastest = solve(tiny_dense, top=5).plans
    assert all(found.plan.peak_memory_bytes <= plan.peak_memory_bytes for plan in fastest)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed", "nemo", "deepseek"])
def test_the_bounds_are_below_the_price_of_every_setting(tiny_moe: PlanRequest, framework: str) -> None:
    """Of the setting itself, and of all settings of later tables (whose state needs more)."""
    request = tiny_moe.model_copy(update={"framework": load_framework(framework)})
    rest = 0.0
    for table in LeanSpace(request).tables():
        assert np.all(table.bound_bytes >= rest)
        rest = table.rest_bytes
        for index in range(0, len(table.rows), 97):
            peak = peak_bytes(with_stages(plan_at(table.rows, index), request.model), request)
            assert table.bound_bytes[index] <= peak * (1 + 1e-9)
    assert rest == np.inf


def test_every_legal_setting_is_in_some_table(tiny_dense: PlanRequest) -> None:
    """The fastest plans are there, or the same plans with a smaller cut of the batch."""
    rows = [table.rows for table in LeanSpace(tiny_dense).tables()]
    cut = {"micro_batch", "num_microbatches"}
    known = {
        tuple(values)
        for table in rows
        for values in zip(*(table.values(name).tolist() for name in FIELDS if name not in cut), strict=True)
    }
    for found in solve(tiny_dense, top=5).plans:
        assert tuple(getattr(found.plan, name) for name in FIELDS if name not in cut) in known


@given(
    schedule=st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-h2"]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    micro_batch=st.sampled_from([1, 2, 4, 8]),
    zero_stage=st.sampled_from([0, 1]),
)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_smaller_cut_of_the_batch_never_needs_more_memory(
    tiny_dense: PlanRequest, schedule: str, recompute: str, micro_batch: int, zero_stage: int
) -> None:
    """16 sequences a replica, cut into micro-batches of b and of 2 b."""
    sizes = []
    for size in (micro_batch, 2 * micro_batch):
        plan = Plan.model_validate({
            "tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2, "schedule": schedule,
            "micro_batch": size, "num_microbatches": 16 // size, "recompute": recompute,
            "zero_stage": zero_stage, "shard_group_size": 2 if zero_stage else 1, "sequence_parallel": True,
        })  # fmt: skip
        sizes.append(peak_bytes(with_stages(plan, tiny_dense.model), tiny_dense))
    assert sizes[0] <= sizes[1]


def test_of_equal_settings_the_smallest_cut_stays() -> None:
    """Two replica batches, 4 (as 1 x 4, 2 x 2, 4 x 1) and 2 (as 2 x 1): one row of each stays."""
    domains = {"micro_batch": np.array([1, 2, 4]), "num_microbatches": np.array([1, 2, 4])}
    rows = Rows(domains, {"micro_batch": np.array([1, 2, 0, 1]), "num_microbatches": np.array([1, 0, 2, 0])})
    kept = smallest_cut(rows)
    pairs = set(
        zip(kept.values("micro_batch").tolist(), kept.values("num_microbatches").tolist(), strict=True)
    )
    assert pairs == {(1, 4), (2, 1)}


def test_any_plan_agrees_with_the_solver(tiny_dense: PlanRequest) -> None:
    small = too_small(tiny_dense)
    assert any_plan(small, 20).is_impossible
    assert solve(small, top=1).status == "infeasible"
    for plan in (any_plan(tiny_dense, 20).witness, corner_plan(tiny_dense)):
        assert plan is not None
        found = evaluate(plan, tiny_dense)
        assert found.is_legal
        assert found.fits
    assert corner_plan(small) is None


def test_without_time_nothing_is_claimed(tiny_dense: PlanRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One state a table: after the first the time is over, and the states left might still fit."""
    monkeypatch.setattr("planner.explain.lean_space.FIRST_STATES", 1)
    small = too_small(tiny_dense)
    assert len(LeanSpace(small)) > 1
    assert np.min(LeanSpace(small).state_bytes) < small.cluster.usable_hbm_bytes
    verdict = any_plan(small, 0.0, search=False)
    assert not verdict.is_settled
    assert not verdict.is_impossible


def test_host_memory_is_named_where_offload_would_fit_without_it() -> None:
    """GPT-3 175B on 16 GPUs: 16 bytes a parameter, 1.5 times, for half of it is 2.1 TB a node; it has 1."""
    request = question({"model": "175b", "hardware": "a100", "gpus": 16})
    found = explain_conflict(request, seconds=10)
    assert set(found.names) == {HOST, MEMORY}
    assert "2.1 TB of host memory" in found.paragraph
    assert all(relaxation.plan.fits for relaxation in found.relaxations)
    kinds = [relaxation.kind for relaxation in found.relaxations]
    assert {"hbm", "host", "gpus"} <= set(kinds)
    assert "2.1 TB of host memory a node" in found.relaxations[kinds.index("host")].change
    # the fewest GPUs: one node of 8 less does not do
    more = found.relaxations[kinds.index("gpus")]
    count = more.plan.plan.num_gpus
    assert f"--gpus {count}" in more.change
    assert any_plan(with_num_gpus(request, count - 8), 5, search=False).witness is None


def test_another_framework_is_named_where_a_rule_is_the_frameworks(tiny_dense: PlanRequest) -> None:
    """Megatron has no DualPipe; DeepSeek's own code has."""
    others = [load_framework("torchtitan"), load_framework("deepseek")]
    request = pinned(tiny_dense, schedule="dualpipe").model_copy(
        update={"framework": load_framework("megatron")}
    )
    found = explain_conflict(request, seconds=5, frameworks=others)
    changes = {relaxation.kind: relaxation for relaxation in found.relaxations}
    assert changes["framework"].change == "--framework deepseek"
    assert changes["framework"].plan.plan.schedule == "dualpipe"


def test_leaner_training_is_offered_where_memory_is_short() -> None:
    """70B on 8 A100 of 40 GB: 16 bytes a parameter are 141 GB a GPU, frozen 16-bit weights 18 GB."""
    found = explain_conflict(question(SEVENTY), seconds=5)
    kinds = {relaxation.kind: relaxation for relaxation in found.relaxations}
    assert kinds["finetune"].change == "--finetune lora"
    assert any_plan(question({**SEVENTY, "finetune": "lora"}), 5).witness is not None
    assert "optimizer" not in kinds
    assert any("leaner optimizer (adam-bf16, adam-8bit)" in sentence for sentence in found.hopeless)
    assert any_plan(question({**SEVENTY, "optimizer": "adam-8bit"}), 5).is_impossible


SEVENTY = {"model": "llama-3-70b", "hardware": "a100-sxm-40gb", "gpus": 8}


def test_a_change_that_is_not_enough_alone_is_named_with_what_it_lacks(tiny_dense: PlanRequest) -> None:
    """8 heads over 3 ranks, and 2 pipeline ranks of 8 GPUs with 3: dropping the second does not help."""
    found = explain_conflict(pinned(tiny_dense, tp="3", pp="3"), seconds=5)
    said = " ".join(found.hopeless)
    alone = [relaxation.change.removeprefix("without ") for relaxation in found.relaxations]
    assert all(f"together with dropping {pin}" not in said for pin in alone)
    assert all(word not in said for word in ("None", "pin:"))


def test_relaxations_say_what_to_type_with_the_batch_that_was_meant() -> None:
    """On 10 GPUs the default batch would be another one: 5 x 2^k instead of the 512 of 8 GPUs."""
    request = question({"model": "llama-3-8b", "gpus": 8})
    words, changed = more_gpus(request).at(10)
    assert words == f"--gpus 10 --global-batch {request.workload.global_batch}"
    assert changed.workload == request.workload
    assert more_gpus(request).at(16)[0] == "--gpus 16"


def test_a_part_of_a_node_grows_to_the_usual_node() -> None:
    """One H100, then two: one node of two, not two nodes of one."""
    one = question({"model": "llama-3-8b", "gpus": 1})
    assert with_num_gpus(one, 2).cluster == question({"model": "llama-3-8b", "gpus": 2}).cluster


@pytest.mark.slow
def test_deepseek_v3_on_64_gpus_is_refused_within_seconds() -> None:
    request = question({"model": "deepseek-v3", "gpus": 64})
    start = time.process_time()
    result = find(request, 1, 20.0)
    found = answer(request, result, frameworks=known_frameworks).conflict
    assert time.process_time() - start < 8.0
    assert result.status == "infeasible"
    assert found is not None
    assert set(found.names) == {HOST, MEMORY}
    assert {"hbm", "host", "gpus", "finetune"} <= {relaxation.kind for relaxation in found.relaxations}
    assert any("shorter sequences" in sentence for sentence in found.hopeless)


def test_where_no_single_change_works_a_pair_is_offered(tiny_dense: PlanRequest) -> None:
    """8 heads over 3 ranks, and experts of a dense model: each pin excludes every plan alone."""
    found = explain_conflict(pinned(tiny_dense, tp="3", ep="2"), seconds=5)
    assert [relaxation.kind for relaxation in found.relaxations] == ["pair"]
    assert "without --tp 3" in found.relaxations[0].change
    assert "without --ep 2" in found.relaxations[0].change


def test_a_search_without_a_plan_hands_back_one_that_fits(
    tiny_dense: PlanRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.solver.solve", lambda *_, **__: PlanResult(status="time-limit"))
    result = find(tiny_dense, 1, 5.0)
    assert result.status == "feasible"
    assert result.gap_pct is None
    assert result.best is not None
    assert result.best.is_legal
    assert result.best.fits
    assert "not known" in proof_line(result, tiny_dense)
