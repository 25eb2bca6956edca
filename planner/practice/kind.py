"""Where questions come from: kinds with numbers to draw, and the fixed questions of the syllabus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from planner.practice.question import Explanation, Key, Level, Question

Values = dict[str, Any]

CHANGED = {
    "blocking_s": "how long a checkpoint stops training", "c": "context ranks", "d": "data-parallel ranks",
    "free_gb": "GB that stay free", "g": "KV heads", "gpus": "GPUs",
    "gradient_bytes": "number format of the gradients", "layers": "layers",
    "limit": "most nodes a token goes to", "m": "micro-batches", "p": "pipeline ranks",
    "parameters_b": "parameters", "pick": "the plans", "problem": "model and cluster", "rank": "the rank",
    "rate_gb": "the rate", "row": "the system", "s": "sequence length", "split": "sequence parallelism",
    "stage": "ZeRO stage", "t": "tensor ranks", "tokens": "tokens", "v": "chunks a stage",
    "width": "number format",
}  # fmt: skip
"""What a follow-up changes, in words."""
MOST_DRAWS = 1000
"""Draws after which a kind's ``valid`` is taken to be impossible (a mistake in the kind)."""


@dataclass(frozen=True, kw_only=True)
class Body:
    """A question without its name."""

    text: str
    key: Key
    hint: str
    explanation: Explanation | None = None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A family of questions that differ in their numbers.

    Parameters
    ----------
    name
        First half of a question's identifier.
    build
        Body for one set of numbers; its parameters are the keys of ``domain``.
    domain
        Values that each number is drawn from.
    follow
        The number that the follow-up changes.
    valid
        Whether drawn numbers go together.
    """

    name: str
    title: str
    topic: str
    level: Level
    build: Callable[..., Body]
    domain: Mapping[str, Sequence[Any]]
    follow: str
    valid: Callable[[Values], bool] = lambda values: True

    def values(self, seed: int) -> tuple[Values, Values]:
        """Numbers of the question and of its follow-up; the same seed gives the same numbers anywhere."""
        random = Random(f"{self.name}:{seed}")
        for _ in range(MOST_DRAWS):
            drawn = {name: random.choice(list(options)) for name, options in self.domain.items()}
            others = [
                {**drawn, self.follow: other}
                for other in self.domain[self.follow]
                if other != drawn[self.follow] and self.valid({**drawn, self.follow: other})
            ]
            if self.valid(drawn) and others:
                return drawn, random.choice(others)
        raise AssertionError(f"{self.name}: no valid numbers in {MOST_DRAWS} draws")

    def question(self, seed: int) -> Question:
        """Return the question of one seed."""
        first, second = self.values(seed)
        change = f"One thing changes ({CHANGED[self.follow]})."
        return _question(
            f"{self.name}:{seed}", self.topic, self.level, (self.build(**first), self.build(**second)), change
        )


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One interview question of the chapter, in our words.

    ``build`` returns the question and its follow-ups.
    """

    ident: str
    title: str
    topic: str
    level: Level
    build: Callable[[], tuple[Body, ...]]

    def question(self) -> Question:
        """Return the question."""
        return _question(self.ident, self.topic, self.level, self.build(), "Follow-up.")


def _question(ident: str, topic: str, level: Level, bodies: Sequence[Body], lead: str) -> Question:
    follow_ups = tuple(
        Question(
            ident=f"{ident}+{number}",
            topic=topic,
            level=level,
            text=f"{lead} {body.text}",
            key=body.key,
            hint=body.hint,
            explanation=body.explanation,
        )
        for number, body in enumerate(bodies[1:], start=1)
    )
    first = bodies[0]
    return Question(
        ident=ident,
        topic=topic,
        level=level,
        text=first.text,
        key=first.key,
        hint=first.hint,
        explanation=first.explanation,
        follow_ups=follow_ups,
    )


def noted(body: Body, *, lead: str = "", **changes: str) -> Body:
    """Copy of a body with words put before its text and parts of its explanation changed."""
    explanation = body.explanation
    if explanation is not None:
        explanation = replace(explanation, **changes)
    return replace(body, text=lead + body.text, explanation=explanation)
