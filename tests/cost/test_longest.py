"""The longest sequence that fits: on the edge of the memory, of lengths that the ranks divide."""

from __future__ import annotations

from typing import Any

import pytest

from planner.api import complete, question
from planner.cost.longest import longest_sentence, longest_sequence
from planner.cost.memory import memory
from planner.frameworks import FRAMEWORKS
from planner.solver.evaluate import evaluate
from planner.spec import Plan, PlanRequest


def _asked(**said: Any) -> PlanRequest:
    return question({"model": "llama-3-8b", "gpus": 8, "seq_length": 500_000, **said})


def _peak_bytes(plan: Plan, **said: Any) -> float:
    return max(float(stage.total) for stage in memory(plan, _asked(**said)))


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "maxtext"])
def test_it_is_the_last_length_that_fits(framework: str) -> None:
    request = _asked(framework=framework)
    plan = complete({}, request).model_copy(update={"micro_batch": 1, "recompute": "none"})
    longest = longest_sequence(plan, request)
    usable = request.cluster.usable_hbm_bytes
    assert longest % 64 == 0
    if longest:
        assert _peak_bytes(plan, framework=framework, seq_length=longest) <= usable
    assert _peak_bytes(plan, framework=framework, seq_length=longest + 64) > usable


def test_it_is_a_length_that_context_and_sequence_ranks_divide() -> None:
    request = _asked(gpus=24, gpus_per_node=8, framework="megatron")
    plan = Plan(tensor_parallel=8, context_parallel=3, sequence_parallel=True, data_parallel=1)
    assert longest_sequence(plan, request) % (2 * 3 * 8) == 0


def test_what_fits_at_its_own_length_fits_up_to_it() -> None:
    request = _asked(seq_length=4096, framework="torchtitan")
    plan = complete({"zero_stage": 3, "shard_group_size": 8}, request)
    assert longest_sequence(plan, request) == 4096


def test_estimates_that_do_not_fit_say_it() -> None:
    request = _asked(framework="torchtitan")
    plan = Plan(data_parallel=8, zero_stage=3, shard_group_size=8, micro_batch=2)
    tokens = longest_sequence(plan, request)
    said = f"Sequences of up to {tokens} tokens fit (2 in a micro-batch)."
    assert said in evaluate(plan, request).notes
    fitting = request.model_copy(
        update={"workload": request.workload.model_copy(update={"seq_length": tokens})}
    )
    assert not any("tokens fit" in note for note in evaluate(plan, fitting).notes)


def test_state_that_does_not_fit_leaves_no_length() -> None:
    request = _asked(model="llama-3-70b", framework="torchtitan", gpus=1)
    assert longest_sentence(Plan(), request) == "no length of the sequences makes it fit"
