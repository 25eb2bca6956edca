"""Reading what people have: bash, layouts, TOML, JSON, YAML, and text that is none of these."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_plans import TINY, legal_plans, request_of

from planner.api import question
from planner.errors import BadInput
from planner.frameworks import FRAMEWORKS, load_framework
from planner.frameworks.detect import detect
from planner.frameworks.files import WRITERS, read_files, read_text, to_plan, write
from planner.frameworks.launch import whole
from planner.frameworks.lint import lint, model_of
from planner.frameworks.megatron.layout import layout_counts, layout_stages, layout_text
from planner.frameworks.megatron.read import moe_layers
from planner.frameworks.nanotron.split import split_layers
from planner.frameworks.shell import read_flags
from planner.frameworks.text_formats import json_settings, toml_settings, yaml_settings
from planner.spec import Plan


def flags(source: str) -> dict[str, object]:
    return {entry.key: entry.value for entry in read_flags(source, "x.sh")}


def test_bash_in_the_shapes_that_people_use() -> None:
    source = """#!/bin/bash
TP=8   # tensor
PP=${PP:-4}
export NNODES=2
WORLD=$((8 * NNODES))
GPT_ARGS="
  --tensor-model-parallel-size $TP \\
  --pipeline-model-parallel-size ${PP} \\
  --world $WORLD
"
MOE+=(
  --moe-layer-freq '([0]*3+[1]*58)'   # three dense layers
  --rampup-batch-size 16 16 1000
)
if [ "$DEBUG" == 1 ]; then
  EXTRA="$EXTRA --sequence-parallel"
fi
torchrun --nproc_per_node 8 pretrain_gpt.py $GPT_ARGS ${MOE[@]} \\
   --pipeline-model-parallel-layout "Et*3|t*4|L" --lr=1e-4 --bf16 $EXTRA 2>&1 | tee log.txt
"""
    found = flags(source)
    assert found["--tensor-model-parallel-size"] == "8"
    assert found["--pipeline-model-parallel-size"] == "4"
    assert found["--world"] == "16"
    assert found["--moe-layer-freq"] == "([0]*3+[1]*58)"
    assert found["--rampup-batch-size"] == ["16", "16", "1000"]
    assert found["--sequence-parallel"] is True
    assert found["--nproc_per_node"] == "8"
    assert found["--pipeline-model-parallel-layout"] == "Et*3|t*4|L"
    assert found["--lr"] == "1e-4"
    assert found["--bf16"] is True


def test_expr_is_arithmetic() -> None:
    source = "GPUS=8\ntrain.py --accumulate $(expr 64 / $GPUS) --rows $(expr $GPUS \\* 3)\n"
    assert {entry.key: entry.value for entry in read_flags(source, "run.sh")} == {
        "--accumulate": "8",
        "--rows": "24",
    }


def test_yaml_values_may_be_empty_or_come_from_the_environment() -> None:
    source = "a:\nb: ${RANKS:8}\nc: ${oc.env:DEGREE,4}\nd: run-${NAME:x}.yaml\ne: ${other.key}\n"
    source += 'f: {g: "${h}", i: "${f.g}"}\nh: 2048\n'
    found = {entry.key: entry.value for entry in yaml_settings(source, "a.yaml")}
    assert found == {
        "a": None, "b": 8, "c": 4, "d": "run-x.yaml", "e": "${other.key}",
        "f.g": 2048, "f.i": 2048, "h": 2048,
    }  # fmt: skip


def test_each_tier_of_maxtext_may_leave_one_axis_open() -> None:
    """base.yml: the devices of a slice fill the ici axes, the slices the dcn axes."""
    source = "model_name: llama2-7b\nici_fsdp_parallelism: -1\nici_tensor_parallelism: 4\n"
    source += "dcn_data_parallelism: -1\nper_device_batch_size: 1\n"
    request = question({"model": "llama-2-7b", "gpus": 32, "framework": "maxtext"})
    plan = to_plan(read_text(source, "a.yaml"), request)  # 4 nodes of 8: 2 x 4 in a node, 4 replicas
    assert (plan.tensor_parallel, plan.shard_group_size, plan.data_parallel) == (4, 2, 8)
    with pytest.raises(BadInput, match="more than one axis is -1: ici_fsdp, ici_tensor"):
        to_plan(read_text(source.replace("parallelism: 4", "parallelism: -1"), "a.yaml"), request)


def test_flags_keep_their_lines() -> None:
    source = 'A="\n--one 1 \\\n--two 2\n"\nrun --three \\\n  3 --four\n'
    assert [(entry.key, entry.line) for entry in read_flags(source, "x.sh")] == [
        ("--one", 2), ("--two", 3), ("--three", 5), ("--four", 6),
    ]  # fmt: skip


def test_nothing_in_a_script_is_executed() -> None:
    assert flags("X=$(rm -rf /)\nrun --a $X --b `id`\n")["--a"] == "$(rm -rf /)"


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(lambda counts: sum(counts) > 0),
    st.integers(0, 2),
)
def test_layouts_read_back(counts: list[int], mtp: int) -> None:
    assert layout_counts(layout_stages(layout_text(counts, mtp))) == counts


def test_layouts_repeat_and_nest() -> None:
    # (t*2|)*3 is three stages of two layers; with E in front and L behind: 2, 2, 2, 1
    assert layout_counts(layout_stages("E(t*2|)*3,tL")) == [2, 2, 2, 1]
    with pytest.raises(ValueError, match="one E at its beginning"):
        layout_stages("t*4|t*4L")
    with pytest.raises(ValueError, match="more than"):
        layout_stages("E" + "(" * 5 + "t" + ")*9999" * 5 + "L")


def test_patterns_of_expert_layers() -> None:
    assert moe_layers("([0]*3+[1]*2)") == [0, 0, 0, 1, 1]
    assert moe_layers("2") == 2
    for wrong in ("__import__('os')", "[1]*10**9", "open('x')", "[[1]]*2"):
        with pytest.raises(ValueError, match="must be"):
            moe_layers(wrong)


def test_lines_of_structured_files() -> None:
    toml = toml_settings(
        "# x\n[training]\nseq_len = 8\n\n[parallelism]\ntensor_parallel_degree = 2\n", "a.toml"
    )
    assert [(entry.key, entry.line) for entry in toml] == [
        ("training.seq_len", 3), ("parallelism.tensor_parallel_degree", 6),
    ]  # fmt: skip
    found = yaml_settings("parallelism:\n  dp: 2\n  tp: 4\n", "a.yaml")
    assert [(entry.key, entry.value, entry.line) for entry in found] == [
        ("parallelism.dp", 2, 2), ("parallelism.tp", 4, 3),
    ]  # fmt: skip
    assert json_settings('{\n "a": {\n  "b": 1}}', "a.json")[0].line == 3


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (yaml_settings, "a: !!python/object/apply:os.system ['id']\n", "could not determine a constructor"),
        (yaml_settings, "- 1\n", "a YAML mapping is expected"),
        (json_settings, "{", "not JSON"),
        (json_settings, "[1]", "a JSON object is expected"),
        (toml_settings, "a = ", "not TOML"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(read: object, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read(text, "file")  # type: ignore[operator]


@pytest.mark.parametrize("framework", WRITERS)
@given(text=st.text(max_size=300))
@settings(deadline=None, max_examples=40)
def test_any_text_is_read_or_refused(framework: str, text: str) -> None:
    try:
        launch = read_text(text, "file", framework)
        to_plan(launch, request_of(Plan(), TINY, load_framework(framework), 1024))
    except BadInput as error:
        assert str(error)


@pytest.mark.parametrize("framework", WRITERS)
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_spoilt_settings_are_read_or_refused(framework: str, data: st.DataObject) -> None:
    """One number of a good file is replaced by something odd: a sentence, or a plan, never a traceback."""
    plan, request = legal_plans(framework, 20)[data.draw(st.integers(0, 19))]
    files = {
        name: text
        for name, text in write(plan, request).items()
        if name.endswith((".json", ".yaml", ".yml", ".toml", ".txt"))
        or name in {"args.sh", "train.py", "plan_cfg.py"}
    }
    name = data.draw(st.sampled_from(sorted(files)))
    if name == "train.py" and framework != "pytorch":
        return
    numbers = list(re.finditer(r"(?<=[ =:])\d+\b", files[name]))
    spot = data.draw(st.sampled_from(numbers))
    odd = data.draw(st.sampled_from(["0", "-1", "3", "7", "1e400", "99999999", '"x"', "[]", "true", "auto"]))
    spoilt = files[name][: spot.start()] + odd + files[name][spot.end() :]
    try:
        launch = read_files({name: spoilt}, framework)
        to_plan(launch, request)
        lint(launch, request)
    except BadInput as error:
        assert str(error)


def test_unrecognised_files_name_the_option() -> None:
    with pytest.raises(BadInput, match="name it with --framework"):
        detect("hello", "x.txt")


def test_whole_numbers() -> None:
    assert whole("12") == 12
    assert whole(3.0) == 3
    for wrong in ("x", 1.5, True, None, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="whole number"):
            whole(wrong)


def test_nanotron_places_layers_by_cost() -> None:
    # TINY: layer 4 * 256 * 256 + 3 * 768 * 256 = 851968, head 1024 * 256 = 262144, in all 7077888.
    # Half is 3538944: a rank is left when its sum passes that, after 5 layers (4259840).
    assert split_layers(TINY, 2) == [5, 3]
    assert split_layers(TINY, 1) == [8]


NANOTRON = """
parallelism: {dp: 1, pp: 2, tp: 1, pp_engine: 1f1b}
tokens: {micro_batch_size: 1, sequence_length: 128, batch_accumulation_per_replica: 4}
model:
  model_config: {hidden_size: 64, intermediate_size: 128, num_attention_heads: 4, num_hidden_layers: 2,
    num_key_value_heads: 4, vocab_size: VOCABULARY}
"""


@pytest.mark.parametrize(
    ("vocabulary", "rules"), [(600, {"stage-without-layers"}), (6_000, {"inner_stages_hold_layers"})]
)
def test_nanotron_runs_a_last_rank_with_the_head_alone(vocabulary: int, rules: set[str]) -> None:
    """A layer costs 4 x 64 x 64 + 3 x 128 x 64 = 40,960, a head 64 a word: 38,400 or 384,000.

    Half of all is 60,160: the second layer passes it and the head follows on the next rank. Half of the
    larger sum is 232,960, which neither layer reaches: the head joins them, and nothing is left.
    """
    launch = read_text(NANOTRON.replace("VOCABULARY", str(vocabulary)), "tiny.yaml")
    model = model_of(launch)
    assert model is not None
    request = question({"model": model, "gpus": 2, "framework": "nanotron"})
    found = {
        entry.rule for entry in lint(launch, request) if entry.rule in rules or entry.severity == "error"
    }
    assert found == rules


def test_a_stage_of_the_loss_alone_runs_in_megatron() -> None:
    script = "torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 6 --hidden-size 512 "
    script += "--num-attention-heads 8 --pipeline-model-parallel-size 4 --micro-batch-size 1 "
    script += "--global-batch-size 16 --seq-length 1024 --bf16 --pipeline-model-parallel-layout LAYOUT"
    for layout, severity in (("Et|tt|ttt|L", "warning"), ("Et|ttttt||L", "error")):
        launch = read_text(script.replace("LAYOUT", f"'{layout}'"), "run.sh")
        model = model_of(launch)
        found = lint(launch, question({"model": model, "gpus": 4, "framework": "megatron"}))
        told = [entry.severity for entry in found if "layers" in entry.rule]
        assert told == [severity], (layout, found)


def test_every_framework_loads_under_all_its_names() -> None:
    seen: dict[str, str] = {}
    for name in FRAMEWORKS:
        profile = load_framework(name)
        assert profile.name == name
        for alias in (name, *profile.aliases):
            assert load_framework(alias.upper().replace("-", "_")).name == name
            assert seen.setdefault(alias, name) == name
    with pytest.raises(BadInput, match="did you mean 'megatron'"):
        load_framework("megatrn")
