"""What is written is read back: every framework, many plans."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from launch_plans import TINY, candidates, legal_plans, models, random_plan, request_of

from planner.errors import BadInput
from planner.frameworks import load_framework
from planner.frameworks.detect import detect
from planner.frameworks.files import WRITERS, inexpressible, read_files, to_plan, write
from planner.frameworks.launch import with_stages
from planner.spec import Plan, StagePlan
from planner.spec.ranks import coordinates, groups

PLANS = 60


@pytest.mark.parametrize("framework", WRITERS)
def test_what_is_written_is_read_back(framework: str) -> None:
    for plan, request in legal_plans(framework, PLANS):
        files = write(plan, request)
        launch = read_files(files)
        assert launch.framework == framework
        assert to_plan(launch, request) == plan
        assert not launch.unknown, launch.unknown
        assert not launch.unreadable, launch.unreadable
        assert not launch.deprecated, launch.deprecated


@pytest.mark.parametrize("framework", WRITERS)
def test_the_plans_cover_the_dimensions(framework: str) -> None:
    limits = load_framework(framework).limits
    seen = Counter()
    for plan, _ in legal_plans(framework, 2 * PLANS):
        seen.update(
            name
            for name in ("tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel")
            if getattr(plan, name) > 1
        )
    expected = {"tensor_parallel", "data_parallel"}
    expected |= {"pipeline_parallel"} if limits.max_pipeline_parallel != 1 else set()
    expected |= {"context_parallel"} if limits.max_context_parallel != 1 else set()
    assert expected <= set(seen)


@pytest.mark.parametrize("framework", WRITERS)
def test_nothing_is_dropped_in_silence(framework: str) -> None:
    """A plan is either written and read back whole, or refused with words; never something between."""
    stream = candidates(framework, 7)
    refused = 0
    for _ in range(80):
        plan, request = next(stream)
        problems = inexpressible(plan, request)
        if problems:
            refused += 1
            with pytest.raises(BadInput, match="cannot express this plan"):
                write(plan, request)
            continue
        read = to_plan(read_files(write(plan, request)), request)
        assert read == plan
    assert refused


@pytest.mark.parametrize("framework", WRITERS)
def test_stages_of_another_shape_are_refused_in_a_sentence(framework: str) -> None:
    """Too few ranks, too many, too few layers; and a chunk more than the plan says."""
    for plan, request in legal_plans(framework, 6):
        layers = request.model.num_layers
        for counts in ([(layers - 1,)], [(layers,), (0,)] * 5, [(layers - 1, 1)], [(1, 0)] * 3):
            if [len(each) for each in counts] == [plan.virtual_stages] * plan.pipeline_parallel:
                counts = [(layers + 1, *counts[0][1:]), *counts[1:]]
            stages = tuple(StagePlan(chunk_layers=each) for each in counts)
            other = plan.model_copy(update={"stages": stages})
            assert inexpressible(other, request)
            with pytest.raises(BadInput, match="stages"):
                write(other, request)


@pytest.mark.parametrize("framework", WRITERS)
def test_the_folder_has_everything_to_start(framework: str) -> None:
    plan, request = legal_plans(framework, 5)[0]
    files = write(plan, request)
    assert {"torchrun.sh", "slurm.sh", "env.sh", "rank_map.csv", "README.md"} <= set(files)
    version = load_framework(framework).version
    assert version in files["README.md"]
    assert len(files["rank_map.csv"].splitlines()) == plan.num_gpus + 1
    assert any(detect(text, name, strict=False) == framework for name, text in files.items())


def test_rank_map_follows_the_order_of_megatron() -> None:
    # order tp-cp-ep-dp-pp: rank 13 of t2 c2 d2 p2 is pipeline 1, data 1, context 0, tensor 1 (8 + 4 + 0 + 1)
    plan = Plan(tensor_parallel=2, context_parallel=2, data_parallel=2, pipeline_parallel=2, schedule="1f1b")
    coordinate = list(coordinates(plan, 8))[13]
    assert (coordinate.tensor, coordinate.context, coordinate.data, coordinate.pipeline) == (1, 0, 1, 1)
    assert (coordinate.node, coordinate.local_rank) == (1, 5)


def test_rank_map_with_replicas_far_apart() -> None:
    # order tp-cp-ep-pp-dp: rank 13 of t2 c2 p2 d2 is data 1, pipeline 1, context 0, tensor 1 (8 + 4 + 0 + 1)
    plan = Plan(
        tensor_parallel=2, context_parallel=2, data_parallel=2, pipeline_parallel=2, schedule="1f1b",
        expert_parallel=4, rank_order="tp-cp-ep-pp-dp",
    )  # fmt: skip
    coordinate = list(coordinates(plan, 8))[13]
    assert (coordinate.tensor, coordinate.context, coordinate.pipeline, coordinate.data) == (1, 0, 1, 1)
    assert groups(plan, "pipeline")[:2] == [[0, 4], [1, 5]]
    assert groups(plan, "data")[:2] == [[0, 8], [1, 9]]
    assert groups(plan, "expert") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert groups(plan, "expert_data")[0] == [0, 8]


@pytest.mark.parametrize(
    ("framework", "key"),
    [("megatron", "--use-tp-pp-dp-mapping"), ("megatron-bridge", "dist.use_tp_pp_dp_mapping=true")],
)
def test_the_order_is_written_where_it_is_not_the_default(framework: str, key: str) -> None:
    far = [pair for pair in legal_plans(framework, 60) if pair[0].rank_order == "tp-cp-ep-pp-dp"]
    assert far
    for plan, request in far:
        text = "".join(write(plan, request).values())
        assert key in text
        near = plan.model_copy(update={"rank_order": "tp-cp-ep-dp-pp"})
        assert key not in "".join(write(near, request).values())


def test_the_order_of_a_single_axis_is_read_as_the_default() -> None:
    plan = Plan(data_parallel=2, zero_stage=1, shard_group_size=2, num_microbatches=2)
    request = request_of(plan, TINY, load_framework("megatron"), 1024)
    sources = write(with_stages(plan, TINY), request)
    sources["args.sh"] = sources["args.sh"].replace("--sequence", "--use-tp-pp-dp-mapping --sequence", 1)
    sources["args.sh"] += "\nMEGATRON_ARGS+=(--use-tp-pp-dp-mapping)\n"
    launch = read_files(sources)
    assert launch.get("rank_order") == "tp-cp-ep-pp-dp"
    assert to_plan(launch, request).rank_order == "tp-cp-ep-dp-pp"


def test_expert_groups_are_carved_out_of_one_pipeline_rank() -> None:
    # t2 d4, ep 4, etp 1: the 8 ranks of a stage are two blocks of four expert ranks (expert grid etp-ep-dp)
    plan = Plan(tensor_parallel=2, data_parallel=4, expert_parallel=4)
    assert groups(plan, "expert") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups(plan, "expert_data") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups(plan, "tensor") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups(plan, "data") == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize("framework", WRITERS)
def test_hostile_names_stay_inside_comments_and_quotes(framework: str) -> None:
    hostile = TINY.model_copy(update={"name": 'a\n$(touch /tmp/x)`id`"\'; rm -rf ~ \x1b[31m """'})
    profile = load_framework(framework)
    rng = random.Random(5)
    for _ in range(500):
        plan = random_plan(rng, hostile, profile)
        request = request_of(plan, hostile, profile, 1024)
        if not inexpressible(plan, request):
            break
    for name, text in write(plan, request).items():
        for line in text.splitlines():
            if "touch /tmp/x" in line and name != "README.md":
                assert line.startswith("#") or name.endswith(".py"), (name, line)
        assert "\x1b" not in text
        if name.endswith(".py"):
            compile(text, name, "exec")


def test_every_model_of_the_set_is_written_for_megatron() -> None:
    profile = load_framework("megatron")
    for model in models():
        plan = with_stages(Plan(data_parallel=2, zero_stage=1, shard_group_size=2, num_microbatches=2), model)
        request = request_of(plan, model, profile, 2048)
        assert to_plan(read_files(write(plan, request)), request) == plan
