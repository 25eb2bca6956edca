"""Files of older releases: a value under a name that has gone still means what it meant."""

from __future__ import annotations

import pytest

from planner.api import question
from planner.errors import BadInput
from planner.frameworks.files import read_files, read_text, to_plan
from planner.frameworks.lint import adopt, lint
from planner.spec import Plan

TITAN_2024 = """
[model]
name = "llama3"
flavor = "8B"

[training]
batch_size = 4
seq_len = 8192
data_parallel_degree = -1
tensor_parallel_degree = 2

[experimental]
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "interleaved_1f1b"
pipeline_parallel_microbatches = MICRO
context_parallel_degree = 2
"""


def _plan(micro_batches: int) -> Plan:
    request = question({"model": "llama-3-8b", "gpus": 32, "framework": "torchtitan"})
    launch = read_text(TITAN_2024.replace("MICRO", str(micro_batches)), "train.toml")
    return to_plan(launch, adopt(launch, request))


def test_torchtitans_settings_of_2024_are_the_run_that_they_were() -> None:
    plan = _plan(2)
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.context_parallel) == (2, 4, 2)
    assert (plan.data_parallel, plan.schedule) == (2, "interleaved")
    assert (plan.micro_batch, plan.num_microbatches) == (2, 2)


def test_torchtitans_number_of_micro_batches_divides_the_local_batch() -> None:
    with pytest.raises(BadInput, match="a local batch of 4 sequences does not split into 3 micro-batches"):
        _plan(3)


@pytest.mark.parametrize(("schedule", "does"), [("Interleaved1F1B", [3]), ("1F1B", [9, 10, 11])])
def test_layers_a_stage_that_fill_the_ranks_are_named(schedule: str, does: list[int]) -> None:
    said = f'pipeline_parallel_schedule = "{schedule}"\npipeline_parallel_layers_per_stage = LAYERS'
    source = f"[parallelism]\npipeline_parallel_degree = 4\n{said}\n[training]\nlocal_batch_size = 4\n"
    request = question({"model": "llama-3-8b", "gpus": 4, "framework": "torchtitan"})
    with pytest.raises(BadInput, match=f"layers_per_stage {', '.join(map(str, does))} would do"):
        to_plan(read_text(source.replace("LAYERS", "4"), "train.toml"), request)
    for layers in does:
        launch = read_text(source.replace("LAYERS", str(layers)), "train.toml")
        assert to_plan(launch, request).pipeline_parallel == 4


def test_the_new_name_is_told_for_each_old_one() -> None:
    launch = read_text(TITAN_2024.replace("MICRO", "2"), "train.toml")
    request = question({"model": "llama-3-8b", "gpus": 32, "framework": "torchtitan"})
    told = [found for found in lint(launch, request) if found.rule == "deprecated-key"]
    assert [found.line for found in told] == [7, 9, 10, 13, 14, 15, 16]
    assert "write parallelism.pipeline_parallel_microbatch_size" in told[-2].message


SCRIPT = (
    'CONFIG_FILE="train_configs/llama3_8b.toml" ./run_train.sh --training.seq_len 32768 --training.compile\n'
)
TOML = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'


@pytest.mark.parametrize("order", [("run.sh", "train.toml"), ("train.toml", "run.sh")])
def test_flags_of_a_torchtitan_command_win_over_its_file(order: tuple[str, ...]) -> None:
    sources = {"run.sh": SCRIPT, "train.toml": TOML}
    launch = read_files({name: sources[name] for name in order})
    assert (launch.get("seq_length"), launch.get("local_batch")) == (32768, 2)


def test_a_torchtitan_command_alone_names_the_file_that_it_needs() -> None:
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": "torchtitan"})
    with pytest.raises(
        BadInput, match=r"the batch stands in train_configs/llama3_8b\.toml: name it together"
    ):
        to_plan(read_text(SCRIPT, "run.sh"), request)
    said = SCRIPT.replace("--training.compile", "--training.local_batch_size 1")
    assert to_plan(read_text(said, "run.sh"), request).micro_batch == 1
