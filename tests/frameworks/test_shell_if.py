"""Branches of a script's ``if``: the chosen one where variables say which, else all of them, marked."""

from __future__ import annotations

import pytest

from planner.frameworks.files import read_files
from planner.frameworks.shell import read_flags
from planner.frameworks.shell_if import decide

SCRIPT = """AC={ac}
PR=${{PR:-bf16}}
if [ $AC = full ]; then
    recompute="--recompute-granularity full --recompute-method uniform"
elif [ "$AC" == sel ]; then
    recompute="--recompute-activations"
else
    if [ $PR = bf16 ]; then nothing=1; fi
    recompute="--log-memory"
fi
if [ $PR = fp16 ]; then
    precision="--fp16"
elif [ $PR = bf16 ]
then
    precision="--bf16"
fi
torchrun pretrain_gpt.py --num-layers 8 $recompute $precision
"""


def names(source: str) -> set[str]:
    return {entry.key for entry in read_flags(source, "run.sh")}


@pytest.mark.parametrize(
    ("ac", "found"),
    [
        ("full", {"--recompute-granularity", "--recompute-method"}),
        ("sel", {"--recompute-activations"}),
        ("none", {"--log-memory"}),
    ],
)
def test_the_branch_that_variables_choose_is_read(ac: str, found: set[str]) -> None:
    assert names(SCRIPT.format(ac=ac)) == {"--num-layers", "--bf16", *found}


def test_a_variable_said_beside_the_script_chooses_its_branch() -> None:
    sources = {"run.sh": SCRIPT.format(ac="full")}
    launch = read_files(sources, "megatron", {"PR": "fp16", "AC": "sel"})
    assert {"fp16", "recompute_activations"} <= set(launch.fields)
    assert not {"bf16", "recompute_granularity"} & set(launch.fields)


def test_all_branches_that_nothing_decides_are_read_and_marked() -> None:
    found = list(read_flags(SCRIPT.format(ac="$1"), "run.sh"))
    branch = {entry.key: entry.branch for entry in found}
    assert branch["--recompute-granularity"] == 3
    assert branch["--recompute-activations"] == 5
    assert branch["--log-memory"] == 7
    assert branch["--bf16"] == branch["--num-layers"] == 0


def test_assignments_in_a_branch_not_taken_change_nothing() -> None:
    source = "TP=4\nif [ $TP -gt 8 ]; then TP=1; fi\nrun.py --tensor-model-parallel-size $TP\n"
    (entry,) = read_flags(source, "run.sh")
    assert (entry.value, entry.branch) == ("4", 0)


@pytest.mark.parametrize(
    ("condition", "verdict"),
    [
        ("[ 4 -gt 1 ]", True),
        ("[ 4 -eq 1 ]", False),
        ("[[ a != b ]]", True),
        ("[ -z  ]", None),
        ("[ $X = a ]", None),
        ("[ -f file ]", None),
        ("[[ model-7b == *7b* ]]", None),
        ("[ a = a ] & & [ 2 -lt 1 ]", False),
        ("[ a = a ] & & [ 1 -lt 2 ]", True),
        ("[ $X = a ] & & [ 1 -lt 2 ]", None),
        ("[ a = b ] | | [ 1 -lt 2 ]", None),
        ("true", None),
    ],
)
def test_what_a_condition_says(condition: str, verdict: bool | None) -> None:
    assert decide(condition.split()) is verdict


def test_an_empty_word_is_told_from_one_that_is_not_known() -> None:
    assert decide(["[", "-z", "", "]"]) is True
    assert decide(["[", "-n", "", "]"]) is False
    assert decide(["[", "-z", "$X", "]"]) is None


def test_an_if_without_end_keeps_what_stands_before_it() -> None:
    assert names("run.py --a 1\nif [ 1 -eq 2 ]; then\nrun.py --b 1\n") == {"--a"}
    assert names("fi\nelse\nrun.py --a 1\n") == {"--a"}
