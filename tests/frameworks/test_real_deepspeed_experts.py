"""DeepSpeed's own rules for experts beside tensor and pipeline ranks are ours, and so are its groups."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
from launch_plans import broken, candidates

from planner.cost.offload import OF_STATE
from planner.frameworks.files import inexpressible
from planner.spec import Plan
from planner.spec.ranks import groups

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed (.ci/frameworks)"
    ),
]
CAUSES = {
    "must divide the stage size": "expert_ranks_divide_the_replicas",
    "supports pp_size=1 only": "experts_and_tensor_ranks_go_with_the_pipeline",
    "mutually exclusive": "experts folded into tensor ranks do not go with Ulysses",
    "offload with AutoEP": "experts folded into tensor ranks do not go with offload",
}
"""Words of a complaint, and our rule or our words on the same."""


def complaint(plan: Plan) -> str | None:
    from deepspeed.module_inject.auto_ep_folding import build_folding_spec, validate_folding_global

    try:
        spec = build_folding_spec(
            world_size=plan.num_gpus,
            pp_size=plan.pipeline_parallel,
            tp_size=plan.tensor_parallel,
            ep_size=plan.expert_parallel,
        )
        validate_folding_global(
            spec, sp_size=plan.context_parallel, zero_offload_optimizer=plan.offload in OF_STATE
        )
    except ValueError as error:
        return str(error)
    return None


def test_its_verdict_on_experts_is_ours() -> None:
    compared = refused = 0
    for plan, request in itertools.islice(candidates("deepspeed", 41), 4000):
        if plan.expert_parallel == 1:
            continue
        ours = " ".join([*broken(plan, request), *inexpressible(plan, request)])
        said = complaint(plan)
        assert (said is not None) == any(cause in ours for cause in CAUSES.values()), (said, ours, plan)
        if said:
            assert next(cause for words, cause in CAUSES.items() if words in said) in ours, (said, ours)
        compared, refused = compared + 1, refused + (said is not None)
    assert compared >= 200
    assert refused >= 50


def test_its_groups_of_experts_are_those_of_the_rank_map() -> None:
    from deepspeed.module_inject.auto_ep_folding import build_folding_spec, expected_folding_group_tables

    compared = 0
    for plan, _ in itertools.islice(candidates("deepspeed", 43), 2000):
        if plan.expert_parallel == 1 or plan.context_parallel > 1 or complaint(plan):
            continue
        spec = build_folding_spec(
            world_size=plan.num_gpus,
            pp_size=plan.pipeline_parallel,
            tp_size=plan.tensor_parallel,
            ep_size=plan.expert_parallel,
        )
        theirs = expected_folding_group_tables(spec)
        for ours, table in (
            ("tensor", theirs.tp_groups),
            ("data", theirs.dense_dp_groups),
            ("expert", theirs.ep_groups),
            ("expert_data", theirs.edp_groups),
        ):
            assert sorted(map(tuple, table)) == sorted(map(tuple, groups(plan, ours))), (ours, plan)
        compared += 1
    assert compared >= 100
