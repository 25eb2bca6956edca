"""Launch files of models with state-space and linear-attention layers: written, read back, or refused."""

from __future__ import annotations

import pytest
from launch_plans import BLOCKS, DELTA, request_of, written

from planner.api import pinned_plan
from planner.catalog import load_model
from planner.errors import BadInput
from planner.frameworks import load_framework
from planner.frameworks.files import inexpressible, read_files, read_text, to_plan, write
from planner.frameworks.lint.models import model_of
from planner.frameworks.lint.review import review
from planner.frameworks.megatron.arguments import model_arguments
from planner.frameworks.megatron.hybrid import pattern_text, read_pattern
from planner.request import Question
from planner.spec import Model, Plan

WITHOUT_MIXERS = ("nanotron", "pytorch", "maxtext", "torchtitan")


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("model", [BLOCKS, DELTA], ids=["blocks", "delta"])
def test_what_is_written_is_read_back(framework: str, model: Model) -> None:
    if framework == "megatron-bridge":
        model = model.model_copy(update={"mtp_depth": 0})
    for plan, request in written(framework, model, 12):
        launch = read_files(write(plan, request))
        assert to_plan(launch, request) == plan
        assert not launch.unknown, launch.unknown
        assert not launch.unreadable, launch.unreadable
        assert not launch.deprecated, launch.deprecated
        read = model_of(launch)
        assert read is not None
        assert read.layer_kinds == model.layer_kinds
        for field in (
            "linear_mixer",
            "linear_key_heads",
            "linear_value_head_dim",
            "attention_gate",
            "mtp_depth",
        ):
            assert getattr(read, field) == getattr(model, field)


@pytest.mark.parametrize("framework", WITHOUT_MIXERS)
def test_writers_with_their_own_model_code_refuse(framework: str) -> None:
    plan = Plan()
    request = request_of(plan, DELTA, load_framework(framework), 1024)
    with pytest.raises(BadInput, match="has attention and an MLP in every layer, no state space"):
        write(plan, request)


def test_experts_of_a_latent_width_are_written_where_there_is_a_flag() -> None:
    assert model_arguments(load_model("nemotron-3-super-120b-a12b"))["moe_latent_size"] == 1024
    model = load_model("qwen3-30b-a3b").model_copy(update={"expert_latent_size": 512})
    request = request_of(Plan(), model, load_framework("torchtitan"), 1024)
    assert any("at the hidden width only" in problem for problem in inexpressible(Plan(), request))


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed"])
def test_writers_that_load_the_model_by_name_write_it(framework: str) -> None:
    question = Question(
        model="qwen3.5-9b", gpus=8, framework=framework, pins={"zero": "3", "micro-batch": "1"}
    )
    request = question.request()
    plan = pinned_plan(request)
    files = write(plan, request)
    assert "args.sh" not in files
    read = to_plan(read_files(files), request)
    assert read.model_copy(update={"context_parallel_kind": plan.context_parallel_kind}) == plan


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("kimi-linear-48b-a3b", "Megatron has no Kimi delta attention"),
        ("falcon-h1-7b", "no layer with attention and a linear mixer side by side"),
        ("gemma-4-31b", "has one head size and one number of KV heads for all layers"),
        ("granite-4.0-h-tiny", "counts a Mamba-2 mixer and the MLP behind it as two layers"),
    ],
)
def test_megatron_says_what_it_has_no_words_for(model: str, sentence: str) -> None:
    request = request_of(Plan(), load_model(model), load_framework("megatron"), 1024)
    assert any(sentence in problem for problem in inexpressible(Plan(), request))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"recompute": "full"}, "recomputes no whole layers"),
        ({"pipeline_parallel": 5, "schedule": "1f1b"}, "splits the layers of a hybrid model evenly"),
    ],
)
def test_bridge_says_what_its_hybrid_model_lacks(changes: dict[str, object], sentence: str) -> None:
    plan = Plan(**changes)
    request = request_of(plan, BLOCKS, load_framework("megatron-bridge"), 1024)
    assert any(sentence in problem for problem in inexpressible(plan, request))
    delta = request_of(Plan(), DELTA, load_framework("megatron-bridge"), 1024)
    problems = inexpressible(Plan(context_parallel=2), delta)
    assert "Bridge's gated delta net has no context parallelism" in problems


def test_pattern_holds_stages_and_next_token_modules() -> None:
    assert pattern_text(BLOCKS, [4, 2, 6]) == "M-M*|ME|M-M*ME/*E"
    assert read_pattern("M-M*|ME|M-M*ME/*E/*E").counts == (4, 2, 6)
    assert read_pattern("M-M*|ME|M-M*ME/*E/*E").mtp_depth == 2
    assert read_pattern("GE+E").letters == "ME*E"
    assert read_pattern("GE+E").mixer == "gated_delta"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("MX", "has 'X'"), ("M*D", "an indexer restricts"), ("MG", "only one kind"), ("/*E", "has no layers")],
)
def test_a_pattern_that_cannot_be_read_says_why(pattern: str, words: str) -> None:
    launch = read_text(
        f"torchrun pretrain_hybrid.py --hybrid-layer-pattern '{pattern}'", "run.sh", "megatron"
    )
    (problem,) = launch.unreadable
    assert words in problem.sentence


def test_published_hybrids_get_the_flags_of_their_recipes() -> None:
    nano = model_arguments(load_model("nemotron-3-nano-30b-a3b"))
    assert {"mamba_num_heads": 64, "mamba_head_dim": 64, "mamba_state_dim": 128}.items() <= nano.items()
    assert nano["position_embedding_type"] == "none"
    assert "moe_layer_freq" not in nano
    qwen = model_arguments(load_model("qwen3-next-80b-a3b"))
    assert qwen["experimental_attention_variant"] == "gated_delta_net"
    assert qwen["linear_attention_freq"] == 4
    assert qwen["attention_output_gate"] is True


def test_other_layers_than_the_models_are_told() -> None:
    script = "torchrun --nproc-per-node 8 pretrain_hybrid.py --hybrid-layer-pattern M-M*M-M* --bf16 "
    script += "--micro-batch-size 1 --global-batch-size 8 --seq-length 1024 --max-position-embeddings 1024"
    request = request_of(Plan(data_parallel=8), DELTA, load_framework("megatron"), 1024)
    told = [entry.message for entry in review(read_text(script, "run.sh"), request, search_s=0).findings]
    assert "--hybrid-layer-pattern has linear mixers in 4 of 8 layers, delta in 6 of 8" in told


def test_a_recipe_of_bridge_names_or_describes_its_hybrid() -> None:
    recipe = "def nemotron_3_nano_pretrain_8gpu_h100_bf16_config():\n    cfg = base()\n"
    named = model_of(read_text(recipe, "recipe.py", "megatron-bridge"))
    assert named is not None
    assert named.name == "nemotron-3-nano-30b-a3b"
    fields = "model.hybrid_layer_pattern=M-M*-\nmodel.hidden_size=256\nmodel.num_attention_heads=8\n"
    described = model_of(read_text(fields, "overrides.txt", "megatron-bridge"))
    assert described is not None
    assert (described.layer_pattern, described.linear_value_heads) == ("M-M*-", 8)


def test_the_activation_of_the_flags_is_the_models() -> None:
    script = (
        "torchrun pretrain_gpt.py --hidden-size 256 --num-attention-heads 8 --num-layers 4 --squared-relu"
    )
    model = model_of(read_text(script, "run.sh", "megatron"))
    assert model is not None
    assert (model.activation, model.gated_mlp) == ("squared_relu", False)


def test_a_pattern_that_does_not_fit_the_ranks_is_refused() -> None:
    script = "torchrun --nproc-per-node 8 pretrain_hybrid.py --hybrid-layer-pattern 'M-|M*|ME' "
    script += "--pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8"
    request = request_of(Plan(data_parallel=8), BLOCKS, load_framework("megatron"), 1024)
    with pytest.raises(BadInput, match="the pattern has 3 stages, not a multiple of 2 pipeline ranks"):
        to_plan(read_text(script, "run.sh"), request)
