"""Trainers of which only settings are written: what is written is read back, the rest is refused in words."""

from __future__ import annotations

import itertools

import pytest
from launch_plans import candidates

from planner.api import Question, complete, question, review_files
from planner.errors import BadInput
from planner.frameworks.files import SETTINGS_ONLY, inexpressible, read_text, to_plan, write
from planner.frameworks.launch import with_stages
from planner.frameworks.lint import fix
from planner.frameworks.settings import FILES


@pytest.mark.parametrize("framework", SETTINGS_ONLY)
def test_what_is_written_is_read_back_and_the_rest_refused(framework: str) -> None:
    written = 0
    for plan, request in itertools.islice(candidates(framework, 11), 250):
        if inexpressible(plan, request):
            with pytest.raises(BadInput, match="cannot express this plan"):
                write(plan, request)
            continue
        files = write(plan, request)
        name, _ = FILES[framework]
        launch = read_text(files[name], name)
        assert launch.framework == framework
        assert to_plan(launch, request) == with_stages(plan, request.model)
        assert not launch.unreadable
        written += 1
    assert written >= 5


@pytest.mark.parametrize("framework", SETTINGS_ONLY)
def test_the_plain_plan_has_settings(framework: str) -> None:
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": framework, "global_batch": 64})
    plan = complete({"zero_stage": 3, "shard_group_size": 8, "recompute": "full"}, request)
    name, _ = FILES[framework]
    assert set(write(plan, request)) == {name, "rank_map.csv"}


@pytest.mark.slow
@pytest.mark.parametrize("framework", SETTINGS_ONLY)
def test_a_better_plan_is_written_for_their_files(framework: str, tmp_path) -> None:
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": framework, "global_batch": 64})
    plan = complete({"zero_stage": 3, "shard_group_size": 8, "recompute": "full"}, request)
    name, _ = FILES[framework]
    file = tmp_path / name
    file.write_text(write(plan, request)[name])
    found = review_files([str(file)], Question(model="llama-3-8b", gpus=8), 20.0)
    assert name in fix(found)
