"""Questions are complete, unambiguous and reproducible; no known mistake passes for right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from planner.errors import BadInput
from planner.practice import bank
from planner.practice.bank import KINDS, SYLLABUS, cards, choose, find
from planner.practice.grade import diagnose, grade
from planner.practice.kind import CHANGED
from planner.practice.plan_text import read_plan
from planner.practice.quantity import model_of
from planner.practice.question import LEVELS, TOPICS, Choice, Design, Numeric, Question, numeric
from planner.practice.setting import plan_request
from planner.practice.topics.mix import _PROBLEMS
from planner.rules import check
from planner.solver.evaluate import evaluate

SEEDS = range(0, 300, 3)
CHOICE_SEEDS = range(4)


def with_follow_ups(question: Question) -> Iterator[Question]:
    yield question
    yield from question.follow_ups


def drawn(seeds: range = SEEDS) -> Iterator[Question]:
    """Syllabus and numeric kinds over many seeds."""
    for entry in SYLLABUS:
        yield from with_follow_ups(entry.question())
    for kind in KINDS:
        if isinstance(kind.question(0).key, Numeric):
            for seed in seeds:
                yield from with_follow_ups(kind.question(seed))


def test_the_syllabus_has_the_27_questions_of_the_eight_sections() -> None:
    per_section = Counter(entry.ident.split("/")[0] for entry in SYLLABUS)
    assert per_section == {
        "12.1.1": 4, "12.1.2": 4, "12.2.1": 4, "12.2.2": 3, "12.3.1": 3, "12.3.2": 3,
        "12.4.1": 3, "12.4.2": 3,
    }  # fmt: skip
    assert all(TOPICS[entry.topic].startswith(entry.ident.split("/")[0] + " ") for entry in SYLLABUS)


def test_every_topic_and_level_has_kinds() -> None:
    assert {kind.topic for kind in KINDS} == set(TOPICS)
    assert {kind.level for kind in KINDS} == set(LEVELS)
    names = [bank.name(card) for card in (*SYLLABUS, *KINDS)]
    assert len(set(names)) == len(names)


def test_a_tolerance_is_narrow_and_no_known_mistake_passes() -> None:
    for question in drawn():
        key = question.key
        if not isinstance(key, Numeric):
            continue
        assert 0 <= key.tolerance <= 0.02
        assert key.admits(key.value)
        for mistake in key.mistakes:
            assert not key.admits(mistake.value), (question.ident, mistake)
            assert diagnose(key, mistake.value), question.ident


def test_gigabytes_and_gibibytes_are_told_apart() -> None:
    for question in drawn():
        key = question.key
        if isinstance(key, Numeric) and key.unit in ("GB", "MB"):
            factor = 2**30 / 1e9 if key.unit == "GB" else 2**20 / 1e6
            assert not key.admits(key.value / factor) and not key.admits(key.value * factor), question.ident


def test_the_shown_answer_is_graded_as_right() -> None:
    for question in drawn(range(60)):
        if isinstance(question.key, Numeric):
            assert grade(question, question.key.shown).right, (question.ident, question.key.shown)


def test_almost_every_question_knows_a_mistake() -> None:
    for kind in KINDS:
        if isinstance(kind.question(0).key, Numeric):
            known = [len(kind.question(seed).key.mistakes) for seed in SEEDS]
            assert sum(count >= 1 for count in known) >= 0.95 * len(known), kind.name


def test_texts_are_whole() -> None:
    for question in drawn(range(3)):
        assert (
            question.text.count("?") >= 1
            or isinstance(question.key, Choice | Design)
            or "Count" in question.text
        )
        assert question.hint and not re.search(r"[{}]|nan|inf\b|None", question.text + question.hint)
        if question.explanation is not None:
            assert question.explanation.formula and question.explanation.intuition
            assert not re.search(r"[{}]|\bnan\b|None", question.explanation.substitution)


def test_the_same_seed_gives_the_same_question() -> None:
    for kind in KINDS:
        assert kind.question(11) == kind.question(11)
    assert len({kind.question(seed).text for seed in range(20) for kind in KINDS[:1]}) > 10


@pytest.mark.parametrize("seed", CHOICE_SEEDS)
def test_exactly_one_offered_plan_is_illegal(seed: int) -> None:
    for question in with_follow_ups(find(f"illegal-plan:{seed}")):
        assert isinstance(question.key, Choice)
        request = plan_request(*_PROBLEMS[next(name for name in _PROBLEMS if name in question.text)])
        plans = [read_plan(option.text, request) for option in question.key.options]
        broken = [index for index, plan in enumerate(plans) if check(plan, request)]
        assert broken == [question.key.right]
        assert len({option.text for option in question.key.options}) == 4


@pytest.mark.parametrize("seed", CHOICE_SEEDS)
def test_the_fastest_offered_plan_is_clearly_fastest(seed: int) -> None:
    for question in with_follow_ups(find(f"fastest-plan:{seed}")):
        assert isinstance(question.key, Choice)
        request = plan_request(*_PROBLEMS[next(name for name in _PROBLEMS if name in question.text)])
        priced = [evaluate(read_plan(option.text, request), request) for option in question.key.options]
        times = [estimate.step_time_s for estimate in priced]
        assert all(estimate.is_legal for estimate in priced)
        best = times.pop(question.key.right)
        assert min(times) > 1.07 * best


def test_choices_have_distinct_options_and_reasons() -> None:
    for entry in SYLLABUS:
        key = entry.question().key
        if isinstance(key, Choice):
            assert len({option.text for option in key.options}) == len(key.options)
            assert all(option.why for option in key.options)
            assert 0 <= key.right < len(key.options)


def test_choices_of_the_syllabus() -> None:
    # Activations do not depend on the ZeRO stage: 34 x 4096 x 5120 x 40 = 28.52 GB.
    activations, exact = find("12.1.2/3").key, find("12.3.2/3").key
    assert isinstance(activations, Choice) and isinstance(exact, Choice)
    assert activations.options[activations.right].text == "28.52 GB: unchanged"
    assert "up to rounding" in exact.options[exact.right].text


@pytest.mark.parametrize(
    ("ident", "words"),
    [
        ("nonsense", "no question 'nonsense'"),
        ("zero-stat:1", "did you mean 'zero-state'"),
        ("zero-state", "zero-state:1"),
        ("zero-state:-1", "seed"),
        ("zero-state:1+9", "1 follow-ups"),
        ("12.1.1/9", "no question"),
    ],
)
def test_unknown_questions_are_refused(ident: str, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        find(ident)


def test_follow_ups_can_be_found() -> None:
    assert find("zero-state:3+1") == find("zero-state:3").follow_ups[0]
    assert find("zero-state:3+1").card == "zero-state"


def test_cards_are_filtered_by_topic_section_and_level() -> None:
    assert cards("12.1.2") == cards("zero")
    assert {card.level for card in cards(level="staff")} == {"staff"}
    with pytest.raises(BadInput, match="did you mean 'pipeline'"):
        cards("pipelin")
    with pytest.raises(BadInput, match="level 'junior'"):
        cards(level="junior")


def test_choosing_asks_every_card_once_before_new_numbers() -> None:
    found = cards("zero")
    asked = choose(found, len(found) + 6, seed=5)
    assert len({question.card for question in asked[: len(found)]}) == len(found)
    assert len({question.ident for question in asked}) == len(asked)
    assert [question.ident for question in asked] == [q.ident for q in choose(found, len(found) + 6, seed=5)]
    with pytest.raises(BadInput, match="count 0"):
        choose(found, 0, 1)


@pytest.mark.parametrize(
    ("ident", "printed"),
    [
        ("all-reduce-time:1", "200 GB/s"),
        ("12.2.1/1", "one all-reduce"),
        ("ffn-gemm:1", "30.7 TFLOP"),
        ("ffn-gemm:1", "32 ms"),
        ("tp-share:1", "10 %"),
        ("tp-step:1", "0.57 s"),
        ("bubble:1", "78 %"),
        ("12.2.2/2+1", "about 36 GB"),
        ("bubble-microbatches:1", "4 p"),
        ("sequence-saving:1", "62.4 GB"),
        ("activations:1", "34 s b h / t + 10 s b h"),
        ("12.3.2/1", "5.2 GB"),
        ("ring-time:1", "NVLink"),
        ("12.3.2/3", "bit-identical"),
        ("zigzag:1", "striping"),
        ("mix-state:1", "52.5 GB"),
        ("mix-sync:1", "175 ms"),
        ("step-compute:1", "200 to 250 ms"),
        ("12.4.1/1+1", "25 GB"),
        ("12.4.2/2", "c=8"),
        ("failures:1", "148"),
        ("12.4.2/3", "128"),
    ],
)
def test_where_the_chapter_slips_the_explanation_says_what_it_prints(ident: str, printed: str) -> None:
    explanation = find(ident).explanation
    assert explanation is not None
    assert printed in explanation.book


def test_the_largest_model_corrects_50b_only_where_it_is_printed() -> None:
    # 16 x 50 / 8 = 100 GB: only ZeRO-3 is meant.
    asked = [question for question in drawn(range(20)) if question.card == "zero-largest"]
    noted = {
        question.text for question in asked if question.explanation and "50B" in question.explanation.book
    }
    assert noted == {question.text for question in asked if "ZeRO-3" in question.text}


def test_the_published_405b_row_corrects_the_chapter() -> None:
    rows = {
        question.text: question.explanation for question in drawn(range(20)) if question.card == "read-table"
    }
    books = [explanation.book for text, explanation in rows.items() if explanation and "405B" in text]
    assert books and all("6.33 GB" in book and "16.8 M tokens" in book for book in books)


def test_follow_ups_say_in_words_what_changes() -> None:
    assert {kind.follow for kind in KINDS} == set(CHANGED)
    follow_up = find("tp-share:11").follow_ups[0]
    assert follow_up.text.startswith("One thing changes (the rate). A SwiGLU MLP")


def test_a_size_has_its_article() -> None:
    assert model_of(8) == "an 8B model"
    assert model_of(7.5, "A") == "A 7.5B model"


def test_mistakes_with_one_value_are_told_together() -> None:
    key = numeric(10.0, "GB", (5.0, "Half."), (20.0, "Twice."), (5.0, "One pass."))
    assert [mistake.diagnosis for mistake in key.mistakes] == ["Half. Or: One pass.", "Twice."]


def test_the_time_of_the_run_in_the_text_is_a_known_mistake() -> None:
    """54 days x 24 h / 419 = 3.093 h at 16,384 GPUs."""
    grade_of = grade(find("failures:11"), "3.093 h")
    assert "That is for 16,384 GPUs." in grade_of.message
