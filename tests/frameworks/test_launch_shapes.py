"""Shapes of public launch scripts: what they say is read, and what they say otherwise is not fatal."""

from __future__ import annotations

import pytest
from launch_plans import TINY, TINY_MOE, request_of

from planner.frameworks import load_framework
from planner.frameworks.files import read_files, read_text, to_plan
from planner.frameworks.lint import lint, model_of
from planner.frameworks.shell import read_flags
from planner.spec import Model, Plan


def plan_of(source: str, path: str, model: Model = TINY, num_gpus: int = 8) -> Plan:
    launch = read_text(source, path)
    profile = load_framework(launch.framework)
    request = request_of(Plan(data_parallel=num_gpus, num_microbatches=8), model, profile, 1024)
    return to_plan(launch, request)


def test_options_of_the_script_itself_are_not_flags_of_the_run() -> None:
    source = """
while [[ $# -gt 0 ]]; do
  case "$1" in
    --data-dir|--data)
      DATA="$2"; shift 2 ;;
    --verbose) VERBOSE=1 ;;
  esac
done
torchrun train.py --num-layers 4
"""
    assert [entry.key for entry in read_flags(source, "run.sh")] == ["--num-layers"]


def test_a_flag_and_its_value_in_one_pair_of_quotes() -> None:
    source = 'ARGS=(--bf16)\nARGS+=(\n  "--fp8-format hybrid"\n  "--fp8-param-gather"\n)\nrun.py ${ARGS[@]}\n'
    found = {entry.key: (entry.value, entry.line) for entry in read_flags(source, "run.sh")}
    assert found["--fp8-format"] == ("hybrid", 3)
    assert found["--fp8-param-gather"] == (True, 4)


def test_a_profiler_in_front_is_no_unknown_key() -> None:
    source = "nsys profile --sample=none --trace=cuda,nvtx torchrun pretrain_gpt.py --num-layers 8 --bf16\n"
    assert not read_text(source, "run.sh").unknown


def test_auto_in_a_deepspeed_file_is_left_to_hugging_face() -> None:
    source = """{
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3}
}"""
    plan = plan_of(source, "ds.json")
    assert (plan.zero_stage, plan.precision, plan.global_batch) == (3, "bf16", 64)
    assert not read_text(source, "ds.json").unreadable


MEGATRON_DEEPSPEED = """
ZERO_STAGE=1
DEEPSPEED_ARGS=" --deepspeed --zero-stage ${ZERO_STAGE}"
GPT_ARGS=" --tensor-model-parallel-size 1 --pipeline-model-parallel-size 3 --num-layers 8 --hidden-size 256
  --num-attention-heads 8 --micro-batch-size 1 --global-batch-size 8 --seq-length 1024 --bf16"
python -m torch.distributed.run pretrain_gpt.py $GPT_ARGS $DEEPSPEED_ARGS
"""


def test_megatron_deepspeed_scripts_have_uneven_stages() -> None:
    """Eight layers over three ranks: DeepSpeed's own JSON says even stages, the fork balances by itself."""
    launch = read_text(MEGATRON_DEEPSPEED, "run.slurm")
    assert launch.framework == "megatron-deepspeed"
    profile = load_framework(launch.framework)
    request = request_of(Plan(data_parallel=6, num_microbatches=8), TINY, profile, 1024)
    assert not [entry for entry in lint(launch, request) if entry.severity == "error"]
    both = read_files({"run.slurm": MEGATRON_DEEPSPEED, "ds.json": '{"zero_optimization": {"stage": 1}}'})
    assert both.framework == "deepspeed"


NEMO_YAML = """
trainer:
  num_nodes: 2
  devices: 8
  precision: bf16-mixed
model:
  micro_batch_size: 2
  global_batch_size: 64
  encoder_seq_length: 1024
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  sequence_parallel: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  activations_checkpoint_num_layers: 1
"""
NEMO_RECIPE = """
from nemo.collections import llm

def recipe():
    recipe = llm.llama3_8b.pretrain_recipe(num_nodes=2, num_gpus_per_node=8)
    recipe.trainer.strategy.tensor_model_parallel_size = 2
    recipe.trainer.strategy.pipeline_model_parallel_size = 2
    recipe.trainer.strategy.sequence_parallel = True
    recipe.data.micro_batch_size = 2
    recipe.data.global_batch_size = 64
    recipe.data.seq_length = compute()
    return recipe
"""
BRIDGE_SCRIPT = """#!/bin/bash
TP=2; PP=2
# model.tensor_model_parallel_size=16 was too slow
python run_recipe.py --recipe llama3_8b_pretrain_config \\
    model.tensor_model_parallel_size=$TP "model.pipeline_model_parallel_size=${PP}" \\
    model.sequence_parallel=True train.micro_batch_size=2 train.global_batch_size=64 \\
    dataset.blend=[[${PATHS%,}] mixed_precision=bf16_with_fp8_current_scaling_mixed
"""


@pytest.mark.parametrize(
    ("source", "path", "recompute", "precision"),
    [
        (NEMO_YAML, "conf.yaml", "full", "bf16"),
        (NEMO_RECIPE, "recipe.py", "none", "bf16"),
        (BRIDGE_SCRIPT, "run.sh", "none", "fp8"),
    ],
)
def test_nemo_and_bridge_as_people_write_them(source: str, path: str, recompute: str, precision: str) -> None:
    launch = read_text(source, path)
    assert launch.framework == "megatron-bridge"
    plan = plan_of(source, path, num_gpus=16)
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel) == (2, 2, 4)
    assert (plan.micro_batch, plan.num_microbatches, plan.sequence_parallel) == (2, 8, True)
    assert (plan.recompute, plan.precision, plan.zero_stage) == (recompute, precision, 1)


def test_settings_of_a_python_recipe_keep_their_lines() -> None:
    launch = read_text(NEMO_RECIPE, "recipe.py")
    assert launch.fields["tensor_parallel"].line == 6
    assert launch.fields["launcher.nodes"].value == 2


MAXTEXT_SCRIPT = """#!/bin/bash
export OUTPUT_PATH=gs://bucket
EXECUTABLE=train.py
FSDP=4
for ARGUMENT in "$@"; do IFS='=' read -r KEY VALUE <<< "$ARGUMENT"; export "$KEY"="$VALUE"; done
python3 -m maxtext.trainers.pre_train.train base.yml base_output_directory=$OUTPUT_PATH \\
    per_device_batch_size=2 ici_fsdp_parallelism=$FSDP ici_tensor_parallelism=2 remat_policy=full
"""


def test_maxtext_scripts_with_variables_of_their_own() -> None:
    launch = read_text(MAXTEXT_SCRIPT, "run.sh")
    assert launch.framework == "maxtext"
    assert not launch.unknown
    plan = plan_of(MAXTEXT_SCRIPT, "run.sh")
    # two sequences a device on eight devices are 16, over four replicas 4
    assert (plan.tensor_parallel, plan.data_parallel, plan.micro_batch) == (2, 4, 4)


def test_experts_are_as_wide_as_the_mlp_unless_said() -> None:
    source = (
        "pretrain_gpt.py --num-layers 8 --hidden-size 256 --num-attention-heads 8 --ffn-hidden-size 512 "
        "--swiglu --num-experts 4\n"
    )
    model = model_of(read_text(source, "run.sh"))
    assert model is not None
    assert (model.expert_ffn_hidden_size, model.experts_per_token) == (512, 2)


def test_tensor_ranks_split_experts_where_there_are_no_expert_ranks() -> None:
    source = "[parallelism]\ntensor_parallel_degree = 2\n[training]\nlocal_batch_size = 2\n"
    assert plan_of(source, "x.toml", TINY_MOE).expert_tensor_parallel == 2
    assert plan_of(source, "x.toml", TINY).expert_tensor_parallel == 1
    parted = source.replace("[training]", "expert_parallel_degree = 4\n[training]")
    assert plan_of(parted, "x.toml", TINY_MOE).expert_tensor_parallel == 1


def test_a_program_in_quotes_and_variables_of_a_sourced_file() -> None:
    main = """#!/bin/bash
source ./sizes.sh
srun --nodes=2 bash -c "python pretrain_gpt.py --tensor-model-parallel-size ${TP} \\
    --num-layers 8 --micro-batch-size 1 --global-batch-size 8 --bf16"
"""
    launch = read_files({"run/main.sh": main, "run/sizes.sh": 'TP=4\nNAME="a b"\n'})
    assert (launch.get("tensor_parallel"), launch.fields["tensor_parallel"].line) == (4, 3)
    alone = read_files({"run/main.sh": main})
    assert [entry.found.value for entry in alone.unreadable] == ["${TP}"]


def test_defaults_in_quotes_are_values() -> None:
    found = {
        entry.key: entry.value for entry in read_flags("N=${N:-\"8\"}\nrun --n $N --m ${M:-'4'}\n", "x.sh")
    }
    assert found == {"--n": "8", "--m": "4"}
