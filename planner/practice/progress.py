"""Progress: one JSON file in the user's data folder, and when each card is due again (FSRS)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsrs import Card, Rating, Scheduler

from planner.errors import BadInput
from planner.output import write_file

VERSION = 1
_SCHEDULER = Scheduler(enable_fuzzing=False)


def default_path() -> Path:
    """Progress file: ``plan-parallel/practice.json`` in ``$XDG_DATA_HOME`` or ``~/.local/share``."""
    home = os.environ.get("XDG_DATA_HOME", "")
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "share"
    return base / "plan-parallel" / "practice.json"


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


@dataclass
class Record:
    """What is known of one card."""

    card: Card
    asked: int = 0
    right: int = 0


@dataclass
class Progress:
    """All cards. ``notice`` says what happened on opening (a damaged file set aside)."""

    path: Path
    records: dict[str, Record] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    notice: str = ""
    clock: Callable[[], datetime] = now

    @classmethod
    def open(cls, path: Path | None = None, clock: Callable[[], datetime] = now) -> Progress:
        """Read the file; a damaged one is renamed beside its place, never overwritten.

        Raises
        ------
        BadInput
            The file was written by a newer version, or cannot be read or renamed.
        """
        progress = cls(path or default_path(), clock=clock)
        try:
            text = progress.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return progress
        except UnicodeDecodeError:
            progress._set_aside()
            return progress
        except OSError as error:
            raise BadInput(f"cannot read {progress.path}: {error.strerror or error}") from error
        try:
            progress._load(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
            progress.records, progress.history = {}, []
            progress._set_aside()
        return progress

    def _load(self, data: dict[str, Any]) -> None:
        if isinstance(data, dict) and isinstance(data.get("version"), int) and data["version"] > VERSION:
            raise BadInput(f"{self.path} was written by a newer plan-parallel; update, or move it away")
        for name, saved in data["cards"].items():
            self.records[name] = _record_of(saved)
        self.history = [dict(entry) for entry in data["history"]]
        if any(
            not isinstance(entry["id"], str) or type(entry["right"]) is not bool for entry in self.history
        ):
            raise ValueError("an answer without a question or a grade")

    def _set_aside(self) -> None:
        stamp = self.clock().strftime("%Y%m%dT%H%M%S")
        target = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        number = 1
        while target.exists():
            number += 1
            target = self.path.with_name(f"{self.path.name}.damaged-{stamp}-{number}")
        try:
            self.path.rename(target)
        except OSError as error:
            raise BadInput(
                f"{self.path} is damaged and cannot be set aside: {error.strerror or error}"
            ) from error
        self.notice = f"{self.path} was damaged; it is kept as {target}, and progress starts anew."

    def record(self, ident: str, name: str, right: bool, helped: bool) -> None:
        """Note one answer and when the card is due again.

        Parameters
        ----------
        helped
            The hint was seen or an earlier try was wrong: right, but harder than it should be.

        Raises
        ------
        BadInput
            The file cannot be written.
        """
        rating = Rating.Again if not right else Rating.Hard if helped else Rating.Good
        at = self.clock()
        record = self.records.setdefault(name, Record(Card(card_id=len(self.records) + 1, due=at)))
        record.card, _ = _SCHEDULER.review_card(record.card, rating, at)
        record.asked += 1
        record.right += right
        self.history.append(
            {
                "id": ident,
                "card": name,
                "right": right,
                "helped": helped,
                "at": at.isoformat(timespec="seconds"),
            }
        )
        self._save()

    def _save(self) -> None:
        cards = {
            name: {"asked": record.asked, "right": record.right, "schedule": record.card.to_dict()}
            for name, record in self.records.items()
        }
        data = {"version": VERSION, "cards": cards, "history": self.history}
        write_file(self.path, json.dumps(data, indent=1) + "\n", force=True)

    def is_due(self, name: str) -> bool:
        """Whether a card was asked before and is due again."""
        return name in self.records and self.records[name].card.due <= self.clock()

    def in_order(self, names: list[str]) -> list[str]:
        """Cards that are due (longest overdue first), then new ones, then the rest by when they are due."""
        far = datetime.max.replace(tzinfo=UTC)

        def place(name: str) -> tuple[int, datetime]:
            due = self.records[name].card.due if name in self.records else far
            return (0 if self.is_due(name) else 1 if name not in self.records else 2), due

        return sorted(names, key=place)


def _record_of(saved: dict[str, Any]) -> Record:
    """One card as it was saved; ``ValueError`` and the like where it could not be asked again."""
    card, asked, right = Card.from_dict(saved["schedule"]), saved["asked"], saved["right"]
    if type(asked) is not int or type(right) is not int or not 0 <= right <= asked:
        raise ValueError("counts of answers that cannot be")
    times = [card.due] if card.last_review is None else [card.due, card.last_review]
    if any(time.tzinfo is None or time.astimezone(UTC) != time for time in times):
        raise ValueError("a time without a zone")
    for rating in Rating:
        again, _ = _SCHEDULER.review_card(card, rating, times[-1])
        if not (again.stability or 0) > 0 or not 1 <= (again.difficulty or 0) <= 10:
            raise ValueError("a card that cannot be scheduled")
        Card.from_dict(json.loads(json.dumps(again.to_dict(), allow_nan=False)))
    return Record(card, asked, right)
