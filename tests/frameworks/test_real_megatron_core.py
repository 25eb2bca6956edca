"""megatron-core accepts what we write and refuses what we refuse (skipped where it is not installed)."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
from launch_plans import broken, candidates, legal_plans

from planner.frameworks.files import inexpressible
from planner.frameworks.megatron.write import arguments_file

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
