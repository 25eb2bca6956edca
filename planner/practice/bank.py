"""All questions: the 27 of the syllabus, the kinds that draw numbers, and choosing among them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from planner.errors import BadInput, did_you_mean
from planner.practice.kind import Entry, Kind
from planner.practice.question import LEVELS, TOPICS, Question
from planner.practice.topics import cases, context, data_parallel, mix, pipeline, sequence, tensor, zero

_MODULES = (data_parallel, zero, tensor, pipeline, sequence, context, mix, cases)
SYLLABUS: tuple[Entry, ...] = tuple(entry for module in _MODULES for entry in module.SYLLABUS)
KINDS: tuple[Kind, ...] = tuple(kind for module in _MODULES for kind in module.KINDS)

_ENTRY = {entry.ident: entry for entry in SYLLABUS}
_KIND = {kind.name: kind for kind in KINDS}
_SECTION = {title.split()[0]: topic for topic, title in TOPICS.items()}
MOST_QUESTIONS = 500
MOST_SEED = 10**9


def find(ident: str) -> Question:
    """Return the question of an identifier: ``12.1.1/2``, ``zero-state:7``, a follow-up ``zero-state:7+1``.

    Raises
    ------
    BadInput
        There is no such question.
    """
    name, _, follow = ident.strip().partition("+")
    base, _, seed = name.partition(":")
    if name in _ENTRY:
        question = _ENTRY[name].question()
    elif base in _KIND:
        if not (seed.isascii() and seed.isdigit() and int(seed) <= MOST_SEED):
            raise BadInput(f"question {ident!r}: say which numbers with a seed, for example {base}:1")
        question = _KIND[base].question(int(seed))
    else:
        known = [*_ENTRY, *_KIND]
        raise BadInput(
            f"there is no question {ident!r}{did_you_mean(base, known)}; practice --list shows them all"
        )
    if not follow:
        return question
    if not (follow.isascii() and follow.isdigit() and 1 <= int(follow) <= len(question.follow_ups)):
        raise BadInput(f"question {name} has {len(question.follow_ups)} follow-ups, so there is no +{follow}")
    return question.follow_ups[int(follow) - 1]


def read_topic(text: str) -> str:
    """Return the topic of a name (``zero``) or a section (``12.1.2``).

    Raises
    ------
    BadInput
        It is neither.
    """
    topic = _SECTION.get(text, text)
    if topic not in TOPICS:
        raise BadInput(f"topic {text!r} is not one of {', '.join(TOPICS)}{did_you_mean(text, TOPICS)}")
    return topic


def cards(topic: str | None = None, level: str | None = None) -> list[Entry | Kind]:
    """Syllabus entries and kinds of a topic and level, by section: what there is to practise."""
    if level is not None and level not in LEVELS:
        raise BadInput(f"level {level!r} is not one of {', '.join(LEVELS)}{did_you_mean(level, LEVELS)}")
    chosen = None if topic is None else read_topic(topic)
    found = [
        card
        for module in _MODULES
        for card in (*module.SYLLABUS, *module.KINDS)
        if chosen in (None, card.topic) and level in (None, card.level)
    ]
    if not found:
        raise BadInput(f"there are no questions on {chosen} at level {level}")
    return found


def name(card: Entry | Kind) -> str:
    """Name under which a card's progress is kept."""
    return card.ident if isinstance(card, Entry) else card.name


def ask(card: Entry | Kind, seed: int) -> Question:
    """Question of a card; the seed draws the numbers of a kind."""
    return card.question() if isinstance(card, Entry) else card.question(seed)


def choose(found: Sequence[Entry | Kind], count: int, seed: int) -> list[Question]:
    """Return ``count`` questions: each card once in a seeded order, then the kinds again with new numbers."""
    if not 1 <= count <= MOST_QUESTIONS:
        raise BadInput(f"count {count}: must be from 1 to {MOST_QUESTIONS}")
    if not 0 <= seed <= MOST_SEED:
        raise BadInput(f"seed {seed}: must be from 0 to {MOST_SEED}")
    order = list(found)
    Random(seed).shuffle(order)
    questions = [ask(card, seed) for card in order[:count]]
    kinds = [card for card in order if isinstance(card, Kind)]
    number = 0
    while kinds and len(questions) < count:
        turn, place = divmod(number, len(kinds))
        questions.append(kinds[place].question((seed + turn + 1) % (MOST_SEED + 1)))
        number += 1
    return questions
