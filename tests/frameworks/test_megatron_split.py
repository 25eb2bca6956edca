"""Megatron's pipeline split: layouts with multi-token prediction, ends of their own, nearest numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.api import question
from planner.errors import BadInput
from planner.frameworks.files import read_text, to_plan
from planner.frameworks.launch import flow_counts
from planner.frameworks.lint import lint
from planner.frameworks.megatron.layout import layout_counts, layout_stages, mtp_problem
from planner.frameworks.megatron.split import nearest_ends

SCRIPT = "torchrun --nproc-per-node 8 --nnodes {nodes} pretrain_gpt.py --bf16 --micro-batch-size 1 "
SCRIPT += "--global-batch-size 4096 --seq-length 1024 --max-position-embeddings 1024 {flags}\n"


def refused(flags: str, model: str = "llama-3-8b", gpus: int = 64) -> str:
    request = question({"model": model, "gpus": gpus, "framework": "megatron"})
    with pytest.raises(BadInput) as caught:
        to_plan(read_text(SCRIPT.format(nodes=gpus // 8, flags=flags), "run.sh"), request)
    return str(caught.value)


def test_a_stage_of_its_own_for_mtp_is_no_empty_stage() -> None:
    """Megatron-LM's own layout of DeepSeek-V3: 61 layers, one MTP layer before the loss, 32 stages."""
    flags = '--pipeline-model-parallel-size 16 --pipeline-model-parallel-layout "Et*3|(tt|)*29m|L" '
    flags += "--expert-model-parallel-size 16 --mtp-num-layers 1"
    request = question({"model": "deepseek-v3", "gpus": 256, "framework": "megatron"})
    launch = read_text(SCRIPT.format(nodes=32, flags=flags), "run.sh")
    counts = flow_counts(to_plan(launch, request))
    assert counts == [3, *[2] * 29, 0, 0]
    (said,) = [entry for entry in lint(launch, request) if "without layers" in entry.message]
    assert said.severity == "warning"
    assert "Stage 30 the MTP layers (priced on the last stage) alone and stage 31 the head" in said.message


@pytest.mark.parametrize(
    ("stages", "mtp_layers", "problem"),
    [
        ("Et|t|t|tmL", 1, None),
        ("Et|tm|t|L", None, "decoder layers stand before MTP layers"),
        ("Et|t|m|tL", 1, "decoder layers stand before MTP layers"),
        ("Et|t|m|mL", 2, "MTP layers stand on one stage together"),
        ("Et|t|t|tmL", 2, "it places 1 MTP layers, and mtp_num_layers is 2"),
        ("Et|t|t|tmL", 0, "it places 1 MTP layers, and mtp_num_layers is 0"),
        ("Et|t|t|tL", 1, "it places 0 MTP layers, and mtp_num_layers is 1"),
        ("Et|tm|L|", None, "MTP layers stand in the last chunk of a pipeline rank"),
        ("Et|t|m|L", 1, None),
    ],
)
def test_where_mtp_layers_may_stand(stages: str, mtp_layers: int | None, problem: str | None) -> None:
    """megatron-core validate_layer_layout, over two pipeline ranks with two chunks each."""
    assert mtp_problem(stages.split("|"), 2, mtp_layers) == problem


def test_a_layout_that_is_none_is_said_instead_of_an_even_split() -> None:
    layout = "E|(t|)*30m|m|LL|L"
    said = refused(f'--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout "{layout}"')
    assert said == (
        f"--pipeline-model-parallel-layout '{layout}': "
        "a layout has one E at its beginning and one L at its end"
    )


def test_layouts_of_bridge_may_be_lists() -> None:
    rows = [["embedding", *["decoder"] * 16], [*["decoder"] * 16, "loss"]]
    source = f"model:\n  pipeline_model_parallel_size: 2\n  pipeline_model_parallel_layout: {rows}\n"
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": "megatron-bridge"})
    assert flow_counts(to_plan(read_text(source, "a.yaml"), request)) == [16, 16]
    wrong = read_text(source.replace("loss", "lose"), "a.yaml")
    assert "'lose' is none of embedding, decoder, mtp, loss" in wrong.unreadable[0].sentence


def test_one_rank_has_no_ends_of_its_own() -> None:
    """transformer_config.py: ends on the only rank have to hold every layer."""
    assert refused("--decoder-last-pipeline-num-layers 1") == (
        "32 layers with 1 on the last stage leave 31, and there are no others"
    )
    both = "--decoder-last-pipeline-num-layers 16 --decoder-first-pipeline-num-layers 16"
    assert refused(both).endswith("are two stages of one")
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": "megatron"})
    whole = SCRIPT.format(nodes=1, flags="--decoder-last-pipeline-num-layers 32")
    assert flow_counts(to_plan(read_text(whole, "run.sh"), request)) == [32]


def test_layers_that_do_not_divide_are_told_the_nearest_ends() -> None:
    """GLM-4.5 and Qwen3.5-397B over 8 ranks: the splits that their recipes were given."""
    assert nearest_ends(92, 8, 1) == (10, 12, 10)
    assert nearest_ends(60, 8, 4) == (4, 8, 8)
    assert nearest_ends(94, 8, 1) == (11, 12, 11)
    assert nearest_ends(5, 2, 1) is None
    said = refused("--pipeline-model-parallel-size 8 --num-layers 92 --hidden-size 4096")
    assert said.endswith(
        "uneven ones --decoder-first-pipeline-num-layers 10 and --decoder-last-pipeline-num-layers 10 "
        "(12 between) or --pipeline-model-parallel-layout"
    )


def test_ends_are_spelled_as_the_file_would() -> None:
    source = "model:\n  num_layers: 92\n  pipeline_model_parallel_size: 8\n"
    request = question({"model": "llama-3-8b", "gpus": 64, "framework": "megatron-bridge"})
    with pytest.raises(BadInput, match="num_layers_in_first_pipeline_stage 10 and num_layers_in_last_pip"):
        to_plan(read_text(source, "a.yaml"), request)


@given(st.integers(1, 130), st.integers(1, 16), st.integers(1, 5))
def test_nearest_ends_hold_every_layer_and_no_better_ones_exist(layers: int, p: int, v: int) -> None:
    found = nearest_ends(layers, p, v)
    every = [
        (first, inner, layers - first - inner * (p - 2))
        for inner in range(v, layers + 1, v)
        for first in range(v, layers + 1, v)
        if p > 2 and layers - first - inner * (p - 2) >= v and (layers - first) % v == 0
    ]
    assert (found is None) == (not every)
    if found is not None:
        assert found in every
        assert max(found) == min(max(way) for way in every)


def test_optimizer_instances_divide_the_replicas_of_experts() -> None:
    """parallel_state.py: experts over 4 ranks, each split over 2, leave one replica of each on 8 GPUs."""
    flags = "--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 4 "
    flags += "--use-distributed-optimizer --num-distributed-optimizer-instances 2"
    said = refused(flags, "mixtral-8x7b", 8)
    assert said == (
        "1 expert data replicas are not a multiple of 2 distributed-optimizer instances; 1 would do"
    )


def test_as_many_instances_as_replicas_shard_nothing() -> None:
    flags = "--tensor-model-parallel-size 4 --use-distributed-optimizer "
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": "megatron"})
    launch = read_text(
        SCRIPT.format(nodes=1, flags=flags + "--num-distributed-optimizer-instances 2"), "a.sh"
    )
    plan = to_plan(launch, request)
    assert (plan.zero_stage, plan.shard_group_size) == (0, 1)


@pytest.mark.parametrize(
    ("size", "batch", "problem"),
    [
        (5, 5, None),
        (4, 8, None),
        (6, 10, None),
        (3, 8, "(nearest: 4)"),
        (5, 8, "(nearest: 4)"),
        (9, 8, "(nearest: 8)"),
        (4, 3, "a round has 4 to 3, the last one 4 or all"),
    ],
)
def test_rounds_of_interleaving_may_be_longer_than_the_pipeline(
    size: int, batch: int, problem: str | None
) -> None:
    """schedules.py, over 4 ranks: p <= round <= m, and the last round is whole or has p at least."""
    flags = "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
    flags += f"--microbatch-group-size-per-virtual-pipeline-stage {size}"
    request = question({"model": "llama-3-8b", "gpus": 4, "framework": "megatron"})
    script = SCRIPT.format(nodes=1, flags=flags).replace("4096 --seq", f"{batch} --seq")
    found = [
        entry.message for entry in lint(read_text(script, "run.sh"), request) if "round" in entry.message
    ]
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]


def test_a_shell_may_leave_backslashes_in_a_layout() -> None:
    assert mtp_problem([], 1, 0) is None
    assert layout_counts(layout_stages(r"Et*2\|\(tt\|\)*2tL")) == [2, 2, 2, 1]


def test_batches_on_the_way_to_the_last_divide_as_well() -> None:
    """num_microbatches_calculator.py: 8 replicas, one sequence each."""
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": "megatron"})

    def found(flags: str) -> list[str]:
        script = SCRIPT.format(nodes=1, flags=flags).replace("--global-batch-size 4096", "")
        launch = read_text(script, "run.sh")
        assert to_plan(launch, request).global_batch == 64
        return [entry.message for entry in lint(launch, request) if "multiple" in entry.message]

    assert not found('--step-batch-size-schedule "0:16 200B:32 400B:64"')
    (said,) = found('--step-batch-size-schedule "0:12 200B:32 400B:64"')
    assert said.endswith("batches of 12 are not a multiple of micro-batch 1 x 8 replicas = 8")
    (said,) = found("--global-batch-size 64 --rampup-batch-size 16 12 1000")
    assert said.startswith("--rampup-batch-size: batches of 12 are not")
    assert not found("--global-batch-size 64 --rampup-batch-size 16 16 1000")


def test_layers_that_divide_with_embedding_and_loss_are_told_so() -> None:
    """Llama 3.1 405B: 126 layers are 128 with both."""
    said = refused(
        "--pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 8", "llama-3.1-405b"
    )
    assert said == (
        "126 layers are not a multiple of 8 pipeline ranks x 8 chunks; "
        "--account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split make it 128, "
        "uneven ones --pipeline-model-parallel-layout"
    )


def test_layers_a_virtual_stage_divide_what_is_counted() -> None:
    """arguments.py counts embedding and loss before it divides by ranks and by layers a virtual stage."""
    flags = "--pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 2 "
    counted = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    request = question({"model": "llama-3.1-405b", "gpus": 64, "framework": "megatron"})
    plan = to_plan(read_text(SCRIPT.format(nodes=8, flags=flags + counted), "run.sh"), request)
    assert plan.virtual_stages == 8
    assert sum(flow_counts(plan)) == 126
    assert "126 layers are not a multiple of 8 pipeline ranks x 1 chunks" in refused(flags, "llama-3.1-405b")


def test_a_recipe_may_count_embedding_and_loss_as_layers() -> None:
    source = "cfg = llama31_405b_pretrain_config()\ncfg.model.pipeline_model_parallel_size = 8\n"
    source += "cfg.model.virtual_pipeline_model_parallel_size = 8\ncfg.train.global_batch_size = 64\n"
    request = question({"model": "llama-3.1-405b", "gpus": 64, "framework": "megatron-bridge"})
    launch = read_text(source, "run.py", "megatron-bridge")
    counts = flow_counts(to_plan(launch, request))
    assert (counts[0], counts[-1], sum(counts)) == (1, 1, 126)
    (said,) = [entry for entry in lint(launch, request) if "taken to count" in entry.message]
    assert said.severity == "warning"
    other = source.replace("parallel_size = 8", "parallel_size = 5")
    with pytest.raises(BadInput, match="126 layers are not a multiple of 5"):
        to_plan(
            read_text(other, "run.py", "megatron-bridge"),
            question({"model": "llama-3.1-405b", "gpus": 40, "framework": "megatron-bridge"}),
        )


def test_recipes_of_bridge_keep_experts_whole() -> None:
    """Every mixture of experts among them sets one expert-tensor rank; megatron-core alone has t."""
    source = "cfg = {start}\ncfg.model.tensor_model_parallel_size = 2\ncfg.model.sequence_parallel = True\n"
    source += "cfg.model.expert_model_parallel_size = 8\ncfg.train.global_batch_size = 64\n"
    request = question({"model": "qwen3-30b-a3b", "gpus": 16, "framework": "megatron-bridge"})
    starts = {
        "qwen3_30b_a3b_pretrain_config()": 1,
        'AutoBridge.from_hf_pretrained("Qwen/Qwen3-30B-A3B").to_megatron_provider()': 2,
    }
    for start, expected in starts.items():
        launch = read_text(source.format(start=start), "run.py", "megatron-bridge")
        assert launch.get("named_model") is not None
        assert to_plan(launch, request).expert_tensor_parallel == expected
