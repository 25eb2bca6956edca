"""megatron-core accepts what we write and refuses what we refuse (skipped where it is not installed)."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
from launch_plans import TINY, TINY_MOE, broken, candidates, legal_plans, request_of

from planner.frameworks import load_framework
from planner.frameworks.files import inexpressible
from planner.frameworks.launch import with_stages
from planner.frameworks.megatron.write import arguments_file
from planner.spec import Plan
from planner.spec.plan import FAR_REPLICAS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed (.ci/frameworks)"
    ),
]

NOT_TOLD = frozenset(
    {
        # seen only when training: the schedule, the forward pass, Transformer Engine, the data loader
        "microbatches_fill_interleaved_rounds",
        "sequence_divides_over_sequence_ranks",
        "sequence_divides_over_context_ranks",
        "experts_with_tensor_ranks_need_sequence_parallelism",
        "heads_divide_over_all_to_all_ranks",
        # arithmetic of low-precision products, checked by Transformer Engine
        "low_precision_rows_are_aligned",
        "low_precision_widths_are_aligned",
        # megatron-core divides these only where a layer of the kind exists on the rank
        "hidden_size_divides_over_tensor_ranks",
        # sizes of a plan, not of megatron-core
        "ranks_fill_the_cluster",
        "shard_group_divides_the_replicas",
        "inner_stages_hold_layers",
        "every_stage_holds_something",
    }
)
"""Rules that are stricter than megatron-core 0.16.1's own checks before the first step."""


def test_it_accepts_every_plan_that_we_write() -> None:
    import mcore_check

    complaints = []
    for plan, request in legal_plans("megatron", 220):
        complaint = mcore_check.verdict(arguments_file(plan, request), plan.num_gpus, plan=plan)
        if complaint is not None:
            complaints.append((request.model.name, plan, complaint))
    assert not complaints, complaints[:3]


def test_its_groups_are_ours_with_replicas_far_apart() -> None:
    """Every rank of every legal plan in the other order, in megatron-core's groups and in the rank map."""
    import mcore_check

    far = [pair for pair in legal_plans("megatron", 220) if pair[0].rank_order == FAR_REPLICAS]
    assert len(far) >= 5
    for plan, request in far:
        source = arguments_file(plan, request)
        assert "--use-tp-pp-dp-mapping" in source
        stages = list(range(plan.pipeline_parallel))
        assert mcore_check.verdict(source, plan.num_gpus, stages, plan) is None


@pytest.mark.parametrize(
    ("context", "experts", "accepts"), [(1, 0, True), (2, 0, False), (2, 4, True), (1, 4, False)]
)
def test_it_refuses_far_replicas_where_experts_have_others(context: int, experts: int, accepts: bool) -> None:
    """t2 d2 p2: a dense model with context ranks, and 4 expert ranks over 2 or 4 ranks of a replica."""
    import mcore_check

    model = TINY_MOE if experts else TINY
    plan = Plan(
        tensor_parallel=2, context_parallel=context, data_parallel=2, pipeline_parallel=2, schedule="1f1b",
        expert_parallel=max(experts, 1), sequence_parallel=True, num_microbatches=4, rank_order=FAR_REPLICAS,
    )  # fmt: skip
    plan = with_stages(plan, model)
    request = request_of(plan, model, load_framework("megatron"), 1024)
    about_order = {"far_replicas_hold_every_expert", "far_replicas_go_with_context_ranks"}
    complaint = mcore_check.verdict(arguments_file(plan, request), plan.num_gpus, plan=plan)
    assert (complaint is None) == accepts, complaint
    assert bool(about_order & set(broken(plan, request))) != accepts


def test_its_verdict_on_random_settings_is_ours() -> None:
    """Legal here exactly when accepted there, but for the rules that it does not check."""
    import mcore_check

    compared, refused, disagreements = 0, 0, []
    for plan, request in itertools.islice(candidates("megatron", 11), 1500):
        rules = set(broken(plan, request))
        if inexpressible(plan, request) or (rules and rules <= NOT_TOLD):
            continue
        complaint = mcore_check.verdict(arguments_file(plan, request), plan.num_gpus)
        compared += 1
        refused += complaint is not None
        if bool(rules - NOT_TOLD) != (complaint is not None):
            disagreements.append((request.model.name, sorted(rules), complaint, plan))
        if compared == 300:
            break
    assert compared >= 200
    assert refused >= 50
    assert not disagreements, disagreements[:3]
