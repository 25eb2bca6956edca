"""The command: asking, grading from scripts, lists, exports, statistics."""

from __future__ import annotations

import csv
import io
import json
import os
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from planner.cli import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def practice(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(main, ["practice", *words], input=typed)


def test_a_session_asks_grades_explains_and_scores(home: Path) -> None:
    typed = "105 GB\nhint\n120 GB\nfollow\n29.5 GB\nscore\nnext\n"
    shown = practice("--id", "12.1.1/1", typed=typed)
    assert shown.exit_code == 0, shown.output
    for words in (
        "Question 1 of 1", "[12.1.1/1] 12.1.1", "within 2 %", "The gradients are missing", "Hint: Count "
        "bytes",
        "Right: 120 GB.", "Formula: state = ", "Why it matters:", "[12.1.1/1+1]", "In the book:",
        "Score: 1 of 2 right at the first try, 50 %.",
    ):  # fmt: skip
        assert words in shown.output, words
    saved = json.loads((home / "data" / "plan-parallel" / "practice.json").read_text())
    assert [entry["right"] for entry in saved["history"]] == [False, True]
    assert saved["cards"]["12.1.1/1"]["asked"] == 2


def test_unreadable_answers_do_not_count(home: Path) -> None:
    shown = practice("--id", "12.1.1/1", typed="lots\n3 s\n120\nquit\n")
    assert shown.output.count("(not counted)") == 2
    assert "Score: 1 of 1" in shown.output


def test_explaining_before_answering_counts_as_not_known(home: Path) -> None:
    shown = practice("--id", "12.1.1/1", typed="explain\n120\nquit\n")
    assert "This one is answered." in shown.output
    assert "Score: 0 of 1" in shown.output


def test_letters_of_options_are_answers_and_not_commands(home: Path) -> None:
    # An option is a letter up to d here; h and e stay commands.
    shown = practice("--id", "12.3.2/3", typed="e\nq\n")
    assert "Answer: b) exact in real arithmetic" in shown.output


def test_the_end_of_the_input_ends_the_session(home: Path) -> None:
    shown = practice("--topic", "zero", "--seed", "3", "--count", "3", typed="next\n")
    assert shown.exit_code == 0
    assert "Question 2 of 3" in shown.output and "Score: nothing answered yet." in shown.output


def test_a_session_without_a_seed_asks_due_cards_first(home: Path) -> None:
    for _ in range(2):
        shown = practice("--topic", "zero", "--count", "8", typed="explain\nquit\n")
        assert shown.exit_code == 0
    path = home / "data" / "plan-parallel" / "practice.json"
    saved = json.loads(path.read_text())
    first = saved["history"][0]["card"]
    saved["cards"][first]["schedule"]["due"] = "2020-01-01T00:00:00+00:00"
    path.write_text(json.dumps(saved))
    assert f"[{first}" in practice("--topic", "zero", "--count", "1", typed="quit\n").output


@pytest.mark.parametrize(("text", "code"), [("120 GB", 0), ("105 GB", 1), ("lots", 2), ("7 s", 2)])
def test_answers_from_scripts_have_exit_codes(home: Path, text: str, code: int) -> None:
    shown = practice("--id", "12.1.1/1", "--answer", text)
    assert shown.exit_code == code, shown.output
    assert ("Formula:" in shown.output) == (code < 2)


def test_an_answer_as_json(home: Path) -> None:
    shown = practice("--id", "12.2.2/1", "--answer", "78%", "--json")
    data = json.loads(shown.output)
    assert shown.exit_code == 1
    assert data["right"] is False and "not the utilisation" in data["message"]
    assert data["question"]["value"] == pytest.approx(32 / 39)
    assert data["question"]["explanation"]["formula"] == "m v / (m v + p - 1)"


def test_questions_as_json_keep_no_progress(home: Path) -> None:
    data = json.loads(practice("--topic", "pipeline", "--seed", "2", "--count", "3", "--json").output)
    assert len(data) == 3 and all(one["topic"] == "pipeline" for one in data)
    assert not (home / "data").exists()


def test_the_list_and_its_filters(home: Path) -> None:
    assert "62 cards" in practice("--list").output
    rows = json.loads(practice("--list", "--topic", "12.4.1", "--level", "staff", "--json").output)
    assert [row["id"] for row in rows] == ["12.4.1/1", "fastest-plan:SEED", "optimum:SEED"]


def test_statistics_count_by_topic(home: Path) -> None:
    practice("--id", "zero-state:1", "--answer", "1.5 GB")
    practice("--id", "zero-wire:1", "--answer", "7 GB")
    data = json.loads(practice("--stats", "--json").output)
    zero = next(row for row in data["topics"] if row["topic"] == "zero")
    assert (zero["seen"], zero["asked"], zero["right"]) == (2, 2, 1)
    assert "2 answers, 1 right" in practice("--stats").output


def test_a_damaged_file_is_reported(home: Path) -> None:
    path = home / "data" / "plan-parallel" / "practice.json"
    path.parent.mkdir(parents=True)
    path.write_text("{broken")
    shown = practice("--stats")
    assert shown.exit_code == 0
    assert "was damaged; it is kept as" in shown.output
    assert len(list(path.parent.glob("*.damaged-*"))) == 1


def test_no_progress_touches_no_file(home: Path) -> None:
    practice("--id", "12.1.1/1", "--answer", "120", "--no-progress")
    practice("--id", "12.1.1/1", "--no-progress", typed="120\n")
    assert not (home / "data").exists()


def test_a_progress_folder_that_is_no_folder_is_refused(home: Path) -> None:
    (home / "data").write_text("a file in the way")
    shown = practice("--id", "12.1.1/1", typed="120\n")
    assert shown.exit_code == 2
    assert "cannot read" in shown.output


def test_a_full_disk_is_said_once_and_the_session_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    shown = practice("--id", "12.1.1/1", typed="120\nfollow\n29.5\nquit\n")
    assert shown.exit_code == 0
    assert shown.output.count("Progress is not kept") == 1
    assert "Score: 2 of 2" in shown.output


class Tags(HTMLParser):
    """Counts open and closed tags, and anything that loads from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_export_to_html_is_well_formed_and_offline(home: Path) -> None:
    path = home / "quiz.html"
    shown = practice("--export", str(path), "--count", "12", "--seed", "4")
    assert shown.output == f"{path}: 12 questions\n"
    tags = Tags()
    tags.feed(path.read_text())
    assert tags.open == [] and tags.outside == [] and "script" not in tags.seen
    assert tags.seen.count("h2") == 12


def test_export_to_markdown_folds_the_answers(home: Path) -> None:
    path = home / "quiz.md"
    practice("--export", str(path), "--id", "12.1.1/1")
    text = path.read_text()
    assert text.startswith("# plan-parallel practice\n")
    assert text.count("<details>") == text.count("</details>") == 4
    assert "- **Answer:** 120 GB" in text


def test_export_to_anki_has_three_columns(home: Path) -> None:
    path = home / "anki.csv"
    practice("--export", str(path), "--topic", "context", "--count", "6", "--seed", "1")
    lines = path.read_text().split("\n")
    assert lines[:4] == ["#separator:Comma", "#html:true", "#columns:Front,Back,Tags", "#tags column:3"]
    rows = list(csv.reader(io.StringIO("\n".join(lines[4:]))))
    assert len(rows) >= 12 and all(len(row) == 3 and "<b>Answer:</b>" in row[1] for row in rows)


def test_export_replaces_only_when_told(home: Path) -> None:
    path = home / "quiz.md"
    path.write_text("mine")
    shown = practice("--export", str(path), "--count", "1")
    assert shown.exit_code == 2 and path.read_text() == "mine"
    assert practice("--export", str(path), "--count", "1", "--force").exit_code == 0
    assert path.read_text() != "mine"
    assert practice("--export", str(home / "quiz.pdf")).exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--answer", "3"), ("--list", "--stats"), ("--topic", "quantum"), ("--level", "junior"),
        ("--id", "nothing"), ("--id", "zero-state:1", "--seed", "2"), ("--count", "0"), ("--seed", "-1"),
    ],
)  # fmt: skip
def test_wrong_options_are_one_sentence(home: Path, words: tuple[str, ...]) -> None:
    shown = practice(*words)
    assert shown.exit_code == 2
    assert "Error: " in shown.output and "Traceback" not in shown.output
