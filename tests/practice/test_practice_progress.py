"""The progress file: kept, scheduled, never lost."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.practice.progress import Progress, default_path

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "share" / "plan-parallel" / "practice.json"


def test_the_file_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "plan-parallel" / "practice.json"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local" / "share" / "plan-parallel" / "practice.json"
    # The base directory specification: a relative path is ignored.
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_path() == tmp_path / ".local" / "share" / "plan-parallel" / "practice.json"


def test_answers_survive_reopening(path: Path, clock: Clock) -> None:
    progress = Progress.open(path, clock)
    progress.record("zero-state:1", "zero-state", right=True, helped=False)
    progress.record("zero-state:2", "zero-state", right=False, helped=False)
    again = Progress.open(path, clock)
    record = again.records["zero-state"]
    assert (record.asked, record.right) == (2, 1)
    assert [entry["id"] for entry in again.history] == ["zero-state:1", "zero-state:2"]
    assert record.card == progress.records["zero-state"].card


def test_right_answers_are_due_later_than_wrong_ones(path: Path, clock: Clock) -> None:
    progress = Progress.open(path, clock)
    for _ in range(4):
        progress.record("a:1", "a", right=True, helped=False)
        progress.record("b:1", "b", right=False, helped=False)
        progress.record("c:1", "c", right=True, helped=True)
        clock.now += timedelta(days=3)
    due = {name: record.card.due for name, record in progress.records.items()}
    assert due["b"] < due["c"] < due["a"]
    assert due["a"] - START > timedelta(days=9)
    assert progress.is_due("b") and not progress.is_due("a")


def test_due_cards_come_first_then_new_ones_then_the_rest(path: Path, clock: Clock) -> None:
    progress = Progress.open(path, clock)
    progress.record("late:1", "late", right=False, helped=False)
    clock.now += timedelta(days=30)
    progress.record("fresh:1", "fresh", right=True, helped=False)
    assert progress.in_order(["fresh", "new", "late"]) == ["late", "new", "fresh"]


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"version": 1}',
        b'{"version": 1, "cards": [], "history": []}',
        b'{"version": 1, "cards": {"a": {"asked": 1, "right": 1, "schedule": {}}}, "history": []}',
        b'{"version": 1, "cards": {}, "history": [3]}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_kept_aside_and_said_so(path: Path, clock: Clock, damage: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    progress = Progress.open(path, clock)
    kept = path.with_name("practice.json.damaged-20260101T120000")
    assert kept.read_bytes() == damage
    assert str(kept) in progress.notice
    assert progress.records == {} and progress.history == []
    progress.record("a:1", "a", right=True, helped=False)
    assert Progress.open(path, clock).records["a"].asked == 1


def test_a_second_damaged_file_does_not_replace_the_first(path: Path, clock: Clock) -> None:
    path.parent.mkdir(parents=True)
    for text in ("one", "two"):
        path.write_text(text)
        Progress.open(path, clock)
    assert sorted(file.read_text() for file in path.parent.iterdir()) == ["one", "two"]


def test_a_newer_version_is_left_alone(path: Path, clock: Clock) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"version": 2, "cards": {}, "history": []}))
    with pytest.raises(BadInput, match="newer plan-parallel"):
        Progress.open(path, clock)
    assert [file.name for file in path.parent.iterdir()] == ["practice.json"]


def test_a_failed_write_leaves_the_old_file(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress.open(path, clock)
    progress.record("a:1", "a", right=True, helped=False)
    before = path.read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BadInput, match="No space left"):
        progress.record("a:2", "a", right=True, helped=False)
    assert path.read_text() == before
    assert [file.name for file in path.parent.iterdir()] == ["practice.json"]
