"""Settings that need or exclude others, as the frameworks' own checks have it."""

from __future__ import annotations

import pytest
from launch_plans import legal_plans

from planner.api import question
from planner.errors import BadInput
from planner.frameworks.files import read_files, read_text, to_plan, write
from planner.frameworks.lint.needs import NEEDS, need_findings
from planner.frameworks.megatron.read import known_flags

SCRIPT = "torchrun pretrain_gpt.py --num-layers 8 --seq-length 4096 --max-position-embeddings 4096 {flags}\n"


def told(flags: str) -> list[str]:
    return [entry.message for entry in need_findings(read_text(SCRIPT.format(flags=flags), "run.sh"))]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--overlap-param-gather --use-distributed-optimizer",
            "--overlap-param-gather needs --overlap-grad-reduce",
        ),
        (
            "--overlap-param-gather --overlap-grad-reduce",
            "--overlap-param-gather needs --use-distributed-optimizer or --use-megatron-fsdp "
            "or --optimizer dist_muon",
        ),
        ("--tp-comm-overlap", "--tp-comm-overlap needs --sequence-parallel"),
        (
            "--recompute-granularity full --recompute-method uniform",
            "--recompute-granularity full needs --recompute-num-layers",
        ),
        (
            "--recompute-activations --recompute-method block",
            "--recompute-activations does not go with --recompute-method",
        ),
        ("--bf16 --fp16", "--bf16 does not go with --fp16"),
        ("--max-position-embeddings 2048", "--max-position-embeddings 2048 is less than --seq-length 4096"),
    ],
)
def test_a_setting_without_its_other_is_told(flags: str, message: str) -> None:
    assert told(flags) == [message]


@pytest.mark.parametrize(
    "flags",
    [
        "--overlap-param-gather --overlap-grad-reduce --use-distributed-optimizer",
        "--recompute-granularity selective --bf16",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        "--tp-comm-overlap --sequence-parallel",
    ],
)
def test_a_setting_beside_its_other_is_not_told(flags: str) -> None:
    assert not told(flags)


def test_interleaving_over_two_ranks_overlaps_its_sends() -> None:
    """Megatron-LM arguments.py: without overlapping sends the interleaved schedule takes more than two."""
    chunks = "--num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication"
    two, four = (f"--pipeline-model-parallel-size {ranks} {chunks}" for ranks in (2, 4))
    assert any("does not go with --no-overlap-p2p-communication" in entry for entry in told(two))
    assert not told(four)
    assert not told(two.replace("--no-overlap-p2p-communication", ""))


def test_state_space_layers_are_said_not_to_be_priced() -> None:
    (said,) = told("--hybrid-layer-pattern M-M*M-M*")
    assert said.startswith("--hybrid-layer-pattern: state-space layers are not priced")


def test_ends_that_leave_an_uneven_middle_are_told_by_their_numbers() -> None:
    """48 layers, 7 on the last of 8 stages: 41 are left for 7 (transformer_config.py)."""
    script = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 48 --pipeline-model-parallel-size 8 "
    script += "--decoder-last-pipeline-num-layers 7 --micro-batch-size 1 --global-batch-size 16"
    request = question({"model": "qwen3-30b-a3b", "gpus": 8, "framework": "megatron"})
    with pytest.raises(BadInput) as refused:
        to_plan(read_text(script, "run.sh"), request)
    expected = "48 layers with 7 on the last stage leave 41, not a multiple of the 7 others"
    assert str(refused.value) == expected


def test_deepspeed_takes_one_half_precision() -> None:
    source = '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}, "fp16": {"enabled": %s}}'
    both = list(need_findings(read_text(source % "true", "ds.json")))
    assert [entry.message for entry in both] == ["bf16.enabled does not go with fp16.enabled"]
    assert not list(need_findings(read_text(source % "false", "ds.json")))


def test_megatron_knows_every_flag_of_the_table() -> None:
    names = {
        name.partition("=")[0]
        for need in NEEDS["megatron"]
        for name in (need.setting, *need.needs, *need.excludes)
    }
    assert {f"--{name.replace('_', '-')}" for name in names} <= known_flags()


@pytest.mark.parametrize("framework", ["megatron", "deepspeed"])
def test_written_files_lack_nothing(framework: str) -> None:
    for plan, request in legal_plans(framework, 40):
        assert not list(need_findings(read_files(write(plan, request))))
