"""torchtitan's own configuration code accepts what we write (0.3.0 or 0.2.2, whichever is installed)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
from pathlib import Path

import pytest
from child import ask
from launch_plans import broken, candidates, legal_plans

from planner.frameworks.files import inexpressible, write
from planner.spec import Plan, PlanRequest


def is_installed() -> bool:
    return importlib.util.find_spec("torchtitan") is not None


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("torchtitan") is None,
        reason="torchtitan is not installed (.ci/frameworks --slow)",
    ),
]


NOT_SEEN = frozenset(
    {
        # the forward pass and empty model parts come after the configuration
        "shard_groups_divide_the_expert_replicas",
        "experts_divide_over_expert_ranks",
        "mlp_width_divides_over_tensor_ranks",
        "hidden_size_divides_over_tensor_ranks",
        "every_stage_holds_something",
        "inner_stages_hold_layers",
        "sequence_divides_over_sequence_ranks",
        "sequence_divides_over_context_ranks",
        # kernels refuse widths and rows that they cannot align, not the configuration
        "low_precision_widths_are_aligned",
        "low_precision_rows_are_aligned",
        # GPipe itself runs with fewer micro-batches than stages
        "microbatches_cover_the_pipeline",
        "dualpipe_has_enough_microbatches",
    }
)
"""Rules stricter than the configuration code of 0.3.0."""


def is_old() -> bool:
    return importlib.metadata.version("torchtitan").startswith("0.2")


def verdicts(cases: list[tuple[Plan, PlanRequest]], folder: Path) -> list[str | None]:
    questions = []
    for number, (plan, request) in enumerate(cases):
        here = folder / str(number)
        here.mkdir()
        for name, text in write(plan, request).items():
            (here / name).write_text(text)
        questions.append({"folder": str(here), "world": plan.num_gpus})
    return ask("torchtitan_check.py", questions)


def is_written(plan: Plan, request: PlanRequest) -> bool:
    if inexpressible(plan, request):
        return False
    return ("train.toml" if is_old() else "plan_cfg.py") in write(plan, request)


def test_it_accepts_every_plan_that_we_write(tmp_path: Path) -> None:
    cases = [case for case in legal_plans("torchtitan", 300) if is_written(*case)][:220]
    assert len(cases) >= 200
    complaints = [
        (said, plan) for said, (plan, _) in zip(verdicts(cases, tmp_path), cases, strict=True) if said
    ]
    assert not complaints, complaints[:3]


SEEN_IN_TRAINING_BY_OLD = frozenset(
    {"attention_heads_divide_over_tensor_ranks", "kv_heads_divide_over_tensor_ranks"}
)
"""0.2.2 looks at heads only when it trains."""
CAUSES = {
    "must divide n_kv_heads": "kv_heads_divide_over_tensor_ranks",
    "must divide n_heads": "attention_heads_divide_over_tensor_ranks",
    "DualPipeV requires": "dualpipe_has_enough_microbatches",
    "greater than or equal to the number of stages": "microbatches_cover_the_pipeline",
    "Interleaved": "microbatches_fill_interleaved_rounds",
    "mesh": "expert_ranks_divide_the_replicas",
    "product of mesh_sizes": "shard_groups_divide_the_expert_replicas",
}
"""Words of a complaint, and the rule of ours that has to be among the broken ones."""


def test_its_verdict_on_random_settings_is_ours(tmp_path: Path) -> None:
    """The same settings are refused, for the same reason; what it looks at only in training is listed."""
    every = [case for case in itertools.islice(candidates("torchtitan", 23), 1200) if is_written(*case)]
    illegal = [case for case in every if broken(*case)]
    cases = [*every[:150], *illegal[:150]]
    not_seen = NOT_SEEN | (SEEN_IN_TRAINING_BY_OLD if is_old() else frozenset())
    refused = 0
    for said, (plan, request) in zip(verdicts(cases, tmp_path), cases, strict=True):
        rules = set(broken(plan, request))
        refused += said is not None
        if said is not None:
            causes = {rule for words, rule in CAUSES.items() if words in said}
            assert causes & rules, (said, rules, plan)
        else:
            assert rules <= not_seen, (rules, plan)
    assert len(cases) >= 200
    assert refused >= 20
