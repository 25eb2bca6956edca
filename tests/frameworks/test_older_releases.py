"""Files of older releases: a value under a name that has gone still means what it meant."""

from __future__ import annotations

import pytest

from planner.api import question
from planner.errors import BadInput
from planner.frameworks.files import read_files, read_text, to_plan
from planner.frameworks.lint import adopt, lint
from planner.frameworks.lint.models import named_model
from planner.frameworks.torchtitan.registry import configurations
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


TOKENS = (
    "torchrun --nproc_per_node 8 --nnodes 1 -m torchtitan.train --module llama3 --config llama3_8b"
    " --training.max_context_length 4096 --training.num_tokens_per_microbatch_per_dp_rank 8192"
    " --parallelism.pipeline_parallel_degree PP --parallelism.num_pp_microbatches 4\n"
)


@pytest.mark.parametrize(("pp", "passes"), [(1, 1), (2, 4)])
def test_torchtitans_batch_in_tokens_is_whole_sequences(pp: int, passes: int) -> None:
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": "torchtitan"})
    launch = read_text(TOKENS.replace("PP", str(pp)), "run.sh")
    plan = to_plan(launch, adopt(launch, request))
    assert (plan.micro_batch, plan.num_microbatches, plan.global_batch) == (2, passes, 2 * passes * 8 // pp)
    with_steps = TOKENS.replace("PP", str(pp)).strip() + " --training.num_tokens_per_train_step 524288\n"
    assert to_plan(read_text(with_steps, "run.sh"), adopt(launch, request)).global_batch == 128


def test_tokens_that_are_no_whole_sequences_are_named_with_those_that_are() -> None:
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": "torchtitan"})
    launch = read_text(TOKENS.replace("PP", "1").replace("8192", "10000"), "run.sh")
    with pytest.raises(BadInput, match="10000 tokens are not whole sequences of 4096: 8192 or 12288 are"):
        to_plan(launch, adopt(launch, request))


NAMED = "NGPU=8 MODULE=llama3 CONFIG=llama3_70b ./run_train.sh"


def test_a_named_torchtitan_configuration_brings_its_batch_and_the_command_wins() -> None:
    launch = read_text(f"{NAMED} --parallelism.tensor_parallel_degree 4\n", "run.sh")
    request = question({"model": "llama-3-70b", "gpus": 8, "framework": "torchtitan"})
    plan = to_plan(launch, adopt(launch, request))
    assert (plan.tensor_parallel, plan.micro_batch, plan.recompute) == (4, 8, "full")
    assert adopt(launch, request).workload.seq_length == 8192
    assert adopt(launch, request).framework.memory.loss_peak_bytes == 10 / 8  # the logits of one chunk


@pytest.mark.parametrize(
    ("flags", "batch", "length"),
    [
        ("--training.local_batch_size 2", 2, 8192),
        ("--training.seq_len 4096", 8, 4096),
        ("--training.max_context_length 32768", 2, 32768),  # as many tokens
        ("--training.num_tokens_per_microbatch_per_dp_rank 16384", 2, 8192),
    ],
)
def test_what_a_command_says_of_the_batch_takes_the_place_of_the_configurations(
    flags: str, batch: int, length: int
) -> None:
    launch = read_text(f"{NAMED} {flags}\n", "run.sh")
    request = adopt(launch, question({"model": "llama-3-70b", "gpus": 8, "framework": "torchtitan"}))
    assert (to_plan(launch, request).micro_batch, request.workload.seq_length) == (batch, length)


def test_every_named_torchtitan_configuration_is_a_run_that_can_be_priced() -> None:
    for name, table in configurations().items():
        gpus = 8 * max(1, table.get("ep", 1) // 8 * table.get("tp", 1))
        launch = read_text(f"NGPU=8 MODULE=m CONFIG={name} ./run_train.sh\n", "run.sh")
        model = named_model(launch)
        assert model is not None, name
        request = question({"model": model, "gpus": gpus, "framework": "torchtitan"})
        assert to_plan(launch, adopt(launch, request)).micro_batch == table["batch"]


def test_a_configuration_of_ones_own_says_where_its_batch_stands() -> None:
    request = question({"model": "llama-3-8b", "gpus": 8, "framework": "torchtitan"})
    with pytest.raises(BadInput, match="the batch stands in the configuration mine: add --training"):
        to_plan(read_text("MODULE=m CONFIG=mine NGPU=8 ./run_train.sh\n", "run.sh"), request)
