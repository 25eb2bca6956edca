"""What a conflict says: the rule that explains most, the ways that are closed, in the smallest numbers."""

from __future__ import annotations

from typing import Any

import pytest

from planner.api import question
from planner.explain.conflict import Conflict, explain_conflict
from planner.explain.members import together
from planner.explain.relaxations import Relaxed
from planner.solver.core import RuleCore
from planner.spec import PlanRequest

SEVENTY = {"model": "llama-3-70b", "gpus": 64}


def conflict_alone(request: PlanRequest, monkeypatch: pytest.MonkeyPatch) -> Conflict:
    """The conflict without the search for what helps."""
    monkeypatch.setattr("planner.explain.conflict.relaxations", lambda *_, **__: Relaxed())
    return explain_conflict(request, seconds=5)


def test_the_rule_that_explains_most_comes_first_and_the_others_close_ways_around_it() -> None:
    said = together(["The bubble is 187 %", "Megatron has none", "8 are not enough."], ["--pp 16"])
    assert said == (
        "You asked for --pp 16, but the bubble is 187 %. The other ways are closed too: megatron has none; "
        "8 are not enough."
    )
    assert together(["Ranks", "Rows"], []) == "Ranks. The other way is closed too: rows."
    assert together([], ["--tp 1", "--tp 2"]) == "You asked for --tp 1 and --tp 2: nothing is all of that."


def test_a_small_batch_in_a_deep_pipeline_is_about_its_bubble(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 sequences are 8 micro-batches at most: (16 - 1) / 8 = 187.5 % of the ideal time."""
    request = question({"model": "llama-3-70b", "gpus": 128, "pp": "16", "global_batch": 8})
    said = conflict_alone(request, monkeypatch).paragraph
    assert said.startswith(
        "You asked for --pp 16, but a global batch of 8 is 8 micro-batches at most, and 8 micro-batches "
        "through 16 pipeline ranks (1f1b) leave a bubble of 187.5 % of the ideal time; the budget is 25 %"
    )
    first, others = said.split(" The other ways are closed too: ")
    assert "megatron has no schedule zb-h2" in others
    assert "the interleaved schedule over 16 ranks" in others
    assert "interleaved" not in first


def test_numbers_are_the_smallest_that_break_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 / (16 v) <= 1 % needs v = 44: that many chunks are too many, not the 76 that are possible as well."""
    pins: dict[str, Any] = {"tp": "8", "pp": "8", "max_bubble": 0.01, "global_batch": 16}
    found = conflict_alone(question({"model": "llama-3-70b", "gpus": 128, **pins}), monkeypatch)
    assert "too few for 8 pipeline ranks of 44 chunks each" in found.paragraph


@pytest.mark.parametrize(
    ("asked", "rule", "pins"),
    [
        # 8 replicas x 8 micro-batches of 4 are 256 of 512; with 8 sequences each they would be 512
        (
            {**SEVENTY, "micro_batch": "4", "num_microbatches": "8", "dp": "8", "global_batch": 512},
            "microbatches_make_up_the_global_batch",
            {"pin:--micro-batch 4", "pin:--num-microbatches 8", "pin:--dp 8"},
        ),
        # 81 ranks are more than the GPUs, but more GPUs would not help: there are 80 layers
        ({**SEVENTY, "pp": "81"}, "every_stage_holds_something", {"pin:--pp 81"}),
        # six fields: the rule's table is small where only divisors of the experts are in it
        (
            {"model": "minimax-m2", "gpus": 32, "ep": "256"},
            "expert_ranks_divide_the_replicas",
            {"pin:--ep 256"},
        ),
    ],
)
def test_every_member_is_found_and_needed(asked: dict[str, Any], rule: str, pins: set[str]) -> None:
    core = RuleCore(question(asked))
    assert {name for name in core.conflict if name.startswith("pin:")} == pins
    assert rule in core.conflict
    for member in core.conflict:
        assert core.is_satisfiable(name for name in core.conflict if name != member), member


def test_definitions_are_no_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """That ZeRO-0 has no shard group is what the words mean."""
    request = question({"model": "llama-3-8b", "gpus": 16, "framework": "accelerate", "zero": "0", "tp": "2"})
    found = conflict_alone(request, monkeypatch)
    assert "unsharded_state_has_no_shard_group" not in found.names
    assert found.paragraph.startswith(
        "You asked for --zero 0 and --tp 2, but accelerate does not combine 8 unsharded replicas (ZeRO-0) "
        "with 2 tensor ranks."
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            {**SEVENTY, "framework": "nanotron", "zero": "3"},
            "You asked for --zero 3, but nanotron has no ZeRO-3, it has 0, 1.",
        ),
        (
            {**SEVENTY, "framework": "deepspeed", "zero": "3", "pp": "4"},
            "You asked for --zero 3 and --pp 4, but ZeRO-3 does not go with 4 pipeline ranks in deepspeed "
            "(with a pipeline: 0, 1).",
        ),
        (
            {**SEVENTY, "framework": "accelerate", "pp": "4"},
            "You asked for --pp 4, but accelerate runs no pipeline parallelism, and the plan has 4 pipeline "
            "ranks; 1 would do.",
        ),
    ],
)
def test_a_conflict_of_one_rule_is_one_sentence(
    asked: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert conflict_alone(question(asked), monkeypatch).paragraph == expected


def test_numbers_are_those_of_other_pins_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 layers hold no 40 chunks on one rank either, but there are to be two."""
    asked = {"model": "llama-3-8b", "gpus": 64, "framework": "automodel", "vpp": "40", "pp": "2"}
    said = conflict_alone(question(asked), monkeypatch).paragraph
    assert said.startswith("You asked for --vpp 40, but 32 layers")
    assert said.endswith("are too few for 2 pipeline ranks of 40 chunks each.")


def test_the_leanest_plan_is_free_of_what_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """70B unsharded on 16 GPUs: 20 bytes a parameter are 88 GB, whatever the pipeline and the recompute."""
    pins: dict[str, Any] = {"pp": "16", "zero": "0", "recompute": "none", "max_bubble": 0.05}
    found = conflict_alone(question({"model": "llama-3-70b", "gpus": 16, **pins}), monkeypatch)
    assert found.paragraph.startswith(
        "You asked for --zero 0, but even without --pp 16 and --recompute none the leanest plan found"
    )
    assert found.least_memory is not None
    assert found.least_memory.plan.pipeline_parallel == 16
