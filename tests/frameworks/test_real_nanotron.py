"""nanotron's own loader and layer placement on our YAML (skipped where its repository is not installed).

The release on PyPI does not import, so the repository is installed by pip (``.ci/frameworks FOLDER --slow``).
"""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from child import ask
from launch_plans import broken, candidates, legal_plans

from planner.frameworks.files import inexpressible, write
from planner.frameworks.nanotron.write import config
from planner.spec import Plan, PlanRequest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("nanotron") is None,
        reason="nanotron's repository is not installed (.ci/frameworks FOLDER --slow)",
    ),
]
ENGINES = {
    "none": "OneForwardOneBackwardPipelineEngine",
    "1f1b": "OneForwardOneBackwardPipelineEngine",
    "gpipe": "AllForwardAllBackwardPipelineEngine",
}


def answers(texts: list[str], folder: Path) -> list[dict[str, Any]]:
    """What nanotron says of every file, in order."""
    questions = []
    for index, text in enumerate(texts):
        file = folder / f"{index}.yaml"
        file.write_text(text)
        questions.append({"file": str(file)})
    return ask("nanotron_check.py", questions)


def expected(plan: Plan, request: PlanRequest) -> dict[str, Any]:
    """What the configuration has to hold."""
    return {
        "tensor_parallel": plan.tensor_parallel,
        "pipeline_parallel": plan.pipeline_parallel,
        "data_parallel": plan.data_parallel,
        "context_parallel": plan.context_parallel,
        "engine": ENGINES[plan.schedule],
        "mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
        "recompute": plan.recompute == "full",
        "zero_stage": plan.zero_stage,
        "micro_batch": plan.micro_batch,
        "num_microbatches": plan.num_microbatches,
        "global_batch": plan.global_batch,
        "seq_length": request.workload.seq_length,
        "model": "LlamaConfig",
        "layers": [stage.layers for stage in plan.stages],
    }


def test_it_loads_every_plan_that_we_write(tmp_path: Path) -> None:
    cases = legal_plans("nanotron", 220)
    found = answers([write(plan, request)["nanotron.yaml"] for plan, request in cases], tmp_path)
    wrong = [
        (said, expected(plan, request))
        for said, (plan, request) in zip(found, cases, strict=True)
        if said != expected(plan, request)
    ]
    assert not wrong, wrong[:3]


CAUSES = {
    "num_attention_heads": "attention_heads_divide_over_tensor_ranks",
    "num_key_value_heads": "kv_heads_divide_over_tensor_ranks",
}
"""First words of a complaint, and the rule of ours that has to be broken."""


def test_its_verdict_on_heads_is_ours(tmp_path: Path) -> None:
    """The only rules about degrees that the loader itself knows."""
    random_cases = itertools.islice(candidates("nanotron", 31), 2000)
    cases = [case for case in random_cases if not inexpressible(*case)][:250]
    found = answers([yaml.safe_dump(config(*case)) for case in cases], tmp_path)
    refused = 0
    for said, (plan, request) in zip(found, cases, strict=True):
        rules = set(broken(plan, request))
        if "complaint" in said:
            cause = next(rule for words, rule in CAUSES.items() if words in said["complaint"])
            assert cause in rules, (said, plan)
            refused += 1
        else:
            assert not {"attention_heads_divide_over_tensor_ranks"} & rules, (rules, plan)
    assert len(cases) >= 200
    assert refused >= 10


def test_it_refuses_keys_that_it_does_not_know(tmp_path: Path) -> None:
    plan, request = legal_plans("nanotron", 1)[0]
    settings = config(plan, request)
    settings["parallelism"]["virtual_stages"] = 2
    (said,) = answers([yaml.safe_dump(settings)], tmp_path)
    assert "virtual_stages" in said["complaint"]
