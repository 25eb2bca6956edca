"""Grading: known mistakes are named, plans are judged by rules, memory and loss."""

from __future__ import annotations

import pytest

from planner.errors import BadInput
from planner.practice.bank import find
from planner.practice.grade import answer, explain, grade, optimum
from planner.practice.plan_text import plan_words, read_plan
from planner.practice.question import Design
from planner.spec import PlanRequest


@pytest.mark.parametrize(
    ("ident", "text", "words"),
    [
        ("12.1.1/1", "105 GB", "gradients are missing"),
        ("12.1.1/1", "240 GB", "Bytes counted twice"),
        ("12.1.1/1", "111.76 GB", "GiB against GB"),
        ("12.1.1/1", "0.12 GB", "A factor of 1000"),
        ("12.1.1/1", "15 GB", "weights alone"),
        ("12.1.1/1", "-3", "more than zero"),
        ("12.1.1/1", "500", "Too large"),
        ("12.1.1/1+1", "30 GB", "nominal"),
        ("12.2.2/1", "78.1%", "not the utilisation"),
        ("12.2.2/1", "78", "not the utilisation"),
        ("12.2.2/1", "21.9 %", "relative to the ideal"),
        ("12.3.2/1", "5.37 GB", "grouped-query"),
        ("12.4.2/3", "128", "4 p"),
        ("12.2.1/4", "512", "4 p"),
    ],
)
def test_known_mistakes_are_named(ident: str, text: str, words: str) -> None:
    found = grade(find(ident), text)
    assert not found.right
    assert words in found.message


@pytest.mark.parametrize(
    ("ident", "text"),
    [
        ("12.1.1/1", "120"), ("12.1.1/1", "111.76 GiB"), ("12.1.1/1", "1.2e11 bytes"), ("12.2.2/1", "82%"),
        ("12.2.2/1", "0.82"), ("12.2.2/1", "82"), ("12.2.2/1", "32/39"), ("12.1.2/3", "b"),
        ("12.1.2/3", "B)"), ("12.4.2/3", "124"),
    ],
)  # fmt: skip
def test_right_answers_in_many_forms(ident: str, text: str) -> None:
    assert grade(find(ident), text).right


def test_an_exact_count_has_no_tolerance() -> None:
    assert not grade(find("12.4.2/3"), "125").right


def test_a_wrong_letter_says_why_and_another_is_refused() -> None:
    assert grade(find("12.3.2/3"), "a").message.startswith("Not a: The sums run in another order")
    with pytest.raises(BadInput, match="a, b, c, d"):
        grade(find("12.3.2/3"), "e")


@pytest.fixture(scope="module")
def design() -> PlanRequest:
    key = find("12.4.1/1").key
    assert isinstance(key, Design)
    return key.request


def test_the_optimum_is_graded_as_right(design: PlanRequest) -> None:
    best = optimum(design)
    assert best.is_legal and best.fits
    found = grade(find("12.4.1/1"), plan_words(best.plan))
    assert found.right and found.score == pytest.approx(1.0)
    assert "0.0 % over the optimum" in found.message
    assert answer(find("12.4.1/1")) == plan_words(best.plan)
    assert explain(find("12.4.1/1")).substitution.startswith(plan_words(best.plan))


def test_a_slow_plan_loses_with_a_reason() -> None:
    # Full recomputation is an extra forward pass: a third more work than the optimum has.
    found = grade(find("12.4.1/1"), "t=4 p=4 d=32 zero=1 b=1 recompute=full")
    assert not found.right
    assert 0.6 < found.score < 0.91
    assert "It loses in recompute +" in found.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t=8 p=1 d=64 zero=1 b=1", "are missing"),  # memory: fp32 gradients and whole activations
        ("t=8 p=1 d=32", "512"),  # half of the GPUs
        ("t=8 p=64 d=1 m=2048", "layers"),
    ],
)
def test_impossible_plans_are_refused_with_the_rule(text: str, words: str) -> None:
    found = grade(find("12.4.1/1"), text)
    assert not found.right and found.score == 0.0
    assert "is not possible" in found.message and words in found.message


def test_plan_words_are_read_back(design: PlanRequest) -> None:
    for text in ("t=8 p=2 d=32", "tp=4, pp=4, zero_stage=1, recompute=full", "--tensor-parallel = 2 zero=3"):
        plan = read_plan(text, design)
        assert read_plan(plan_words(plan), design) == plan


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty plan"), ("t=8 x=3", "no setting"), ("t=0", "out of range"), ("t=2,4", "no setting"),
        ("t=1:8", "one value"), ("t", "no setting"), ("t=8 tp=4", "given twice"),
        ("schedule=fast", "not one of"), ("zero=7", "0 to 3"),
    ],
)  # fmt: skip
def test_words_that_are_no_plan(text: str, words: str, design: PlanRequest) -> None:
    with pytest.raises(BadInput, match=words):
        read_plan(text, design)
