"""Reasons, neighbours, sensitivity and comparison on a toy problem."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toys import toy_cluster, vary

from planner.api import complete
from planner.explain.answer import answer
from planner.explain.balance import balanced
from planner.explain.compare import Comparison, compare
from planner.explain.loss import amount, loss_phrase, time_differences
from planner.explain.neighbours import adapted, changed, neighbour_values, why_unchanged
from planner.explain.optimum import RANKED_FIELDS, better_plan
from planner.explain.side_words import Wording, described
from planner.explain.why import reasons
from planner.report.table import answer_text, comparison_text
from planner.rules import check
from planner.solver import solve
from planner.solver.beside import best_below
from planner.solver.evaluate import evaluate
from planner.spec import Plan, PlanRequest
from planner.units import format_bytes


def test_neighbours_follow(tiny_dense: PlanRequest, plan: Plan) -> None:
    assert neighbour_values(plan, "tensor_parallel", tiny_dense) == (1, 4)
    wider = changed(plan, "tensor_parallel", 4, tiny_dense)
    assert wider is not None
    assert (wider.tensor_parallel, wider.data_parallel, wider.num_microbatches) == (4, 1, 16)
    flat = changed(plan, "pipeline_parallel", 1, tiny_dense)
    assert flat is not None
    assert (flat.schedule, flat.data_parallel, flat.num_microbatches) == ("none", 4, 4)
    assert flat.shard_group_size == 4
    assert changed(plan, "tensor_parallel", 3, tiny_dense) is None  # 3 x 2 does not divide 8
    bigger = changed(plan, "micro_batch", 2, tiny_dense)
    assert bigger is not None
    assert bigger.num_microbatches == 4


def test_more_tensor_ranks_split_the_sequence_where_the_framework_can(
    tiny_dense: PlanRequest, plan: Plan
) -> None:
    alone = plan.model_copy(update={"tensor_parallel": 1, "sequence_parallel": False, "data_parallel": 4})
    cannot = vary(tiny_dense, limits={"sequence_parallel": False})
    for request, splits in ((tiny_dense, True), (cannot, False)):
        wider = changed(alone, "tensor_parallel", 2, request)
        assert wider is not None
        assert wider.sequence_parallel == splits
    whole = plan.model_copy(update={"sequence_parallel": False})
    wider = changed(whole, "tensor_parallel", 4, tiny_dense)
    assert wider is not None and not wider.sequence_parallel


def test_adapted_fits_another_batch(tiny_dense: PlanRequest, plan: Plan) -> None:
    workload = tiny_dense.workload.model_copy(update={"global_batch": 32})
    other = adapted(plan, tiny_dense.model_copy(update={"workload": workload}))
    assert other is not None
    assert other.num_microbatches == 16


def test_neighbours_pass_over_values_that_cannot_be(tiny_dense: PlanRequest, plan: Plan) -> None:
    """On 24 GPUs the next larger divisor is 3, over which 8 heads do not divide; 4 is compared."""
    wide = tiny_dense.model_copy(update={"cluster": toy_cluster(24)})
    assert neighbour_values(plan, "tensor_parallel", wide) == (1, 4)
    # t=4 fills the node of 4: what comes next is refused, and named because it ends the range
    four = plan.model_copy(update={"tensor_parallel": 4})
    assert neighbour_values(four, "tensor_parallel", wide) == (2, 6)
    assert neighbour_values(plan, "virtual_stages", wide) == (None, 2)


def test_why_there_is_no_neighbour(tiny_dense: PlanRequest, plan: Plan) -> None:
    """8 GPUs, t=2 p=2: 8 heads do not divide by 3, nor 8 GPUs by 2 x 3; with a batch of 2, t=1 leaves d=4."""
    assert "8 attention heads do not split" in why_unchanged(plan, "tensor_parallel", 3, tiny_dense)
    words = why_unchanged(plan, "pipeline_parallel", 3, tiny_dense)
    assert words == "p=3 does not go with t=2, c=1: 8 GPUs do not divide by their product"
    few = tiny_dense.workload.model_copy(update={"global_batch": 2})
    small = tiny_dense.model_copy(update={"workload": few})
    assert changed(plan, "tensor_parallel", 1, small) is None
    words = why_unchanged(plan, "tensor_parallel", 1, small)
    assert words == "t=1 leaves d=4 replicas, more than the 2 sequences of a step"
    odd = tiny_dense.model_copy(update={"workload": few.model_copy(update={"global_batch": 6})})
    assert "over which 6 sequences do not divide" in why_unchanged(plan, "tensor_parallel", 1, odd)


def test_a_deeper_pipeline_takes_fewer_chunks(tiny_dense: PlanRequest) -> None:
    """4 layers, embedding and loss: 2 ranks can have 3 chunks each, 4 ranks only one."""
    shallow = complete({"pipeline_parallel": 2, "virtual_stages": 2}, tiny_dense)
    deeper = changed(shallow, "pipeline_parallel", 4, tiny_dense)
    assert deeper is not None
    assert (deeper.virtual_stages, deeper.schedule) == (1, "1f1b")


def test_recompute_changes_the_layers_but_not_their_places(tiny_dense: PlanRequest, plan: Plan) -> None:
    full = changed(plan, "recompute", "full", tiny_dense)
    assert full is not None
    assert [stage.chunk_layers for stage in full.stages] == [stage.chunk_layers for stage in plan.stages]
    assert all(stage.recompute_layers == stage.layers for stage in full.stages)
    assert changed(full, "recompute", "none", tiny_dense) == plan


def test_the_best_layout_is_no_slower_than_the_plain_one(tiny_dense: PlanRequest, plan: Plan) -> None:
    spread = balanced(plan, tiny_dense)
    assert spread is not None
    assert sum(stage.layers for stage in spread.stages) == tiny_dense.model.num_layers
    assert evaluate(spread, tiny_dense).is_legal
    assert evaluate(spread, tiny_dense).step_time_s <= evaluate(plan, tiny_dense).step_time_s


def test_other_degrees_are_looked_up_in_the_ranking(tiny_dense: PlanRequest) -> None:
    ranked = solve(tiny_dense, top=6).plans
    best = ranked[0]
    for reason in reasons(best, tiny_dense, ranked=ranked):
        for side in reason.sides if reason.field in RANKED_FIELDS else ():
            same = [
                rank for rank, each in enumerate(ranked, 1) if getattr(each.plan, reason.field) == side.value
            ]
            if same and not side.broken:
                named = (f"plan {same[0]}: ", f"plan {same[0]} (", f"(plan {same[0]})")
                assert any(words in reason.sentence for words in named)
    words = " ".join(reason.sentence for reason in reasons(best, tiny_dense, ranked=ranked))
    assert "there is plan" in words  # the ranking is not said to be proven
    proven = reasons(best, tiny_dense, ranked=ranked, proven=True, seconds=30)
    assert "the best" in " ".join(reason.sentence for reason in proven)


def test_under_the_goal_of_least_memory_a_loss_is_memory(tiny_dense: PlanRequest, plan: Plan) -> None:
    """One sequence more a micro-batch needs memory, of which activations are the part that grows."""
    bigger = changed(plan, "micro_batch", 2, tiny_dense)
    assert bigger is not None
    one, two = evaluate(plan, tiny_dense), evaluate(bigger, tiny_dense)
    words = loss_phrase(one, two, "memory")
    assert words.startswith(f"+{format_bytes(two.peak_memory_bytes - one.peak_memory_bytes)} of memory (")
    assert "activations +" in words
    assert ", step time " in words
    assert loss_phrase(one, one, "memory") == "as lean, step time as before"
    request = tiny_dense.model_copy(update={"goal": "memory"})
    found = {reason.field: reason.sentence for reason in reasons(one, request)}
    assert words in found["micro_batch"]
    assert "error_band_pct" not in found


def test_the_other_rank_order_has_a_price_where_it_differs(tiny_dense: PlanRequest, plan: Plan) -> None:
    """t=2 p=2 d=2 in nodes of 4: sends or gradients stay in the node, and the sentence names both terms."""
    request = vary(tiny_dense, limits={"rank_orders": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")})
    found = {reason.field: reason for reason in reasons(evaluate(plan, request), request)}["rank_order"]
    assert found.sentence.startswith("rank order tp-cp-ep-dp-pp: rank order tp-cp-ep-pp-dp is ")
    assert "pipeline sends" in found.sentence
    [side] = found.sides
    assert side.estimate is not None
    assert float(side.estimate.time.pipeline_comm_s) < float(evaluate(plan, request).time.pipeline_comm_s)
    one_node = request.model_copy(update={"cluster": toy_cluster(8, gpus_per_node=8)})
    assert "rank_order" not in {reason.field for reason in reasons(evaluate(plan, one_node), one_node)}
    assert "rank_order" not in {reason.field for reason in reasons(evaluate(plan, tiny_dense), tiny_dense)}


def test_a_neighbour_without_the_order_takes_the_default(tiny_dense: PlanRequest, plan: Plan) -> None:
    request = vary(tiny_dense, limits={"rank_orders": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")})
    far = plan.model_copy(update={"rank_order": "tp-cp-ep-pp-dp"})
    flat, narrow = (changed(far, field, 1, request) for field in ("pipeline_parallel", "tensor_parallel"))
    assert flat is not None and flat.rank_order == "tp-cp-ep-dp-pp"
    assert narrow is not None and narrow.rank_order == "tp-cp-ep-pp-dp"


def test_every_degree_has_a_reason(tiny_dense: PlanRequest, plan: Plan) -> None:
    found = reasons(evaluate(plan, tiny_dense), tiny_dense)
    fields = [reason.field for reason in found]
    assert {"tensor_parallel", "pipeline_parallel", "data_parallel", "zero_stage", "recompute"} <= set(fields)
    tensor = next(reason for reason in found if reason.field == "tensor_parallel")
    assert tensor.sentence.startswith("t=2 (tensor parallel): t=1 ")
    assert "; t=4 " in tensor.sentence


def test_the_textbook_plan_is_told_beside_a_ranked_plan_without_a_pipeline(
    tiny_dense: PlanRequest, plan: Plan
) -> None:
    flat = complete({"tensor_parallel": 1, "pipeline_parallel": 1, "micro_batch": 2}, tiny_dense)
    priced = [evaluate(plan, tiny_dense), evaluate(flat, tiny_dense)]
    sentence = next(
        reason.sentence
        for reason in reasons(priced[0], tiny_dense, ranked=priced)
        if reason.sentence.startswith("Without a pipeline")
    )
    assert "the best is plan 2" in sentence
    assert f"; t=4 p=1 d=2 ZeRO-{plan.zero_stage}" in sentence  # nodes of 4 GPUs


def test_where_no_pipeline_divides_nothing_the_plan_itself_is_not_told(tiny_dense: PlanRequest) -> None:
    """8 GPUs in nodes of 4: t=4 p=2 trains 3 sequences; without a pipeline two replicas would share them."""
    odd = vary(tiny_dense, workload={"global_batch": 3})
    piped = evaluate(complete({"tensor_parallel": 4, "pipeline_parallel": 2, "micro_batch": 1}, odd), odd)
    assert (piped.plan.data_parallel, piped.plan.num_microbatches) == (1, 3)
    sentence = next(
        reason.sentence for reason in reasons(piped, odd) if reason.sentence.startswith("Without a pipeline")
    )
    assert sentence == ("Without a pipeline: p=1 leaves d=2 replicas, over which 3 sequences do not divide.")


def test_reasons_name_the_rule_and_its_numbers(tiny_dense: PlanRequest) -> None:
    plan = complete({"tensor_parallel": 4}, tiny_dense)
    found = reasons(evaluate(plan, tiny_dense), tiny_dense)
    tensor = next(reason for reason in found if reason.field == "tensor_parallel")
    # nodes of 4 GPUs
    assert "t=8 is not allowed: 8 tensor ranks do not fit evenly into the fast domain of 4" in tensor.sentence


def test_resolved_reasons_are_no_better_than_the_optimum(tiny_dense: PlanRequest) -> None:
    """No best plan with another value beats the best one by more than simplicity may cost."""
    request = vary(tiny_dense, limits={"schedules": ("none", "1f1b"), "offloads": ("none",)})
    request = request.model_copy(update={"cluster": toy_cluster(4)})
    best = solve(request, top=1).best
    assert best is not None
    for side in (side for reason in reasons(best, request, resolve=True, seconds=5) for side in reason.sides):
        assert side.optimum is not None
        assert side.optimum.best is None or side.optimum.best.step_time_s >= best.step_time_s / 1.01


def test_a_plan_that_is_named_again_is_not_spelled_out(tiny_dense: PlanRequest, plan: Plan) -> None:
    wide = evaluate(complete({"tensor_parallel": 4}, tiny_dense), tiny_dense)
    best = evaluate(plan, tiny_dense)
    wording = Wording(best, tiny_dense)
    first, again = (wording.named(wide, later) for later in ("that with t=4", "that with p=1"))
    assert first == f"{described(wide.plan)}: {loss_phrase(best, wide)}"
    assert again == f"that with t=4 ({amount(best, wide)})"
    assert Wording(best, tiny_dense, (best, wide)).named(wide) == f"plan 2: {loss_phrase(best, wide)}"


def test_answer_and_its_text(tiny_dense: PlanRequest) -> None:
    found = answer(tiny_dense, solve(tiny_dense, top=2))
    assert found.exit_code == 0
    text = answer_text(found)
    for part in ("Why plan 1", "Time of a step", "What binds", "Proof: optimal"):
        assert part in text


def test_a_plan_better_than_a_known_one_is_found_below_its_time(tiny_dense: PlanRequest, plan: Plan) -> None:
    """Below the best plan's time there is none; below a poor plan's there is one, within 1 % of the best."""
    best, poor = solve(tiny_dense, top=1).best, evaluate(plan, tiny_dense)
    assert best is not None
    fastest = better_plan(poor, tiny_dense, 5.0, near_pct=0.0)
    assert fastest is not None
    assert fastest.step_time_s <= best.step_time_s * (1 + 1e-6)
    assert better_plan(fastest, tiny_dense, 5.0) is None
    assert best_below(tiny_dense, fastest.step_time_s * 0.999) is None
    near = better_plan(poor, tiny_dense, 5.0)
    first = better_plan(poor, tiny_dense, 5.0, near_pct=100.0)
    assert near is not None
    assert first is not None
    assert near.step_time_s <= fastest.step_time_s / 0.99
    assert first.step_time_s < 0.99 * poor.step_time_s
    assert near.is_legal
    assert near.fits


def test_the_end_of_the_range_of_a_degree_is_told(tiny_dense: PlanRequest, plan: Plan) -> None:
    """8 GPUs in nodes of 4 and 4 layers: t=8 would leave the node, p=8 has more ranks than layers."""
    tensor, pipeline = (reason.sentence for reason in reasons(evaluate(plan, tiny_dense), tiny_dense)[:2])
    assert "t=4 is the most: 8 tensor ranks do not fit evenly into the fast domain of 4" in tensor
    assert pipeline.endswith("p=4 is the most: the model has 4 layers.")
    whole = complete({"tensor_parallel": 4, "micro_batch": 8}, tiny_dense)
    words = {reason.field: reason.sentence for reason in reasons(evaluate(whole, tiny_dense), tiny_dense)}
    assert "t=4 is the most" not in words["tensor_parallel"]  # t=8, the next one, is told to be refused
    assert words["micro_batch"].endswith("b=8 is the most: a replica trains no more sequences.")


def test_plans_within_the_error_band_are_named(tiny_dense: PlanRequest) -> None:
    ranked = solve(tiny_dense, top=3).plans
    words = " ".join(reason.sentence for reason in reasons(ranked[0], tiny_dense, ranked=ranked))
    near = [
        rank
        for rank, each in enumerate(ranked, 1)
        if rank > 1 and each.step_time_s < 1.1 * ranked[0].step_time_s
    ]
    assert near
    assert all(str(rank) in words.rsplit("Error band", 1)[1] for rank in near)


def test_comparison_of_a_plan_with_itself_differs_nowhere(tiny_dense: PlanRequest, plan: Plan) -> None:
    same = compare(plan, plan, tiny_dense)
    assert same.settings == []
    assert same.difference_pct == 0.0
    other = compare(plan, complete({"tensor_parallel": 4}, tiny_dense), tiny_dense)
    sizes = [abs(row.change) for row in other.time]
    assert sizes == sorted(sizes, reverse=True)
    assert "tensor_parallel" in [row[0] for row in other.settings]
    assert "Settings that differ" in comparison_text(other)


def test_a_comparison_says_when_another_kind_of_rank_sets_the_pace(
    tiny_dense: PlanRequest, plan: Plan
) -> None:
    """A flat plan has both ends on its only rank; in the middle of a pipeline of four there is none."""
    deep = complete({"pipeline_parallel": 4}, tiny_dense)
    assert compare(plan, plan, tiny_dense).notes == []
    one, two = evaluate(plan, tiny_dense), evaluate(deep, tiny_dense)
    without = replace(two, time=replace(two.time, embedding_and_loss_s=0.0))
    with_end = replace(one, time=replace(one.time, embedding_and_loss_s=1.0))
    notes = Comparison(tiny_dense, ("A", "B"), with_end, without).notes
    assert "sets the pace" in notes[0]


def test_differences_add_up(tiny_dense: PlanRequest, plan: Plan) -> None:
    one = evaluate(plan, tiny_dense)
    two = evaluate(complete({"tensor_parallel": 4}, tiny_dense), tiny_dense)
    total = sum(row.change for row in time_differences(one.time, two.time))
    assert total == pytest.approx(two.step_time_s - one.step_time_s)


def test_checked_neighbours_agree_with_the_rules(tiny_dense: PlanRequest, plan: Plan) -> None:
    for reason in reasons(evaluate(plan, tiny_dense), tiny_dense):
        for side in reason.sides:
            if side.plan is not None:
                assert bool(side.broken or side.memory) == bool(check(side.plan, tiny_dense))
