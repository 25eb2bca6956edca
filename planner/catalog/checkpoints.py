"""Checkpoints that are trained further under a name of their own: the model whose shape they have."""

from __future__ import annotations

import re
from collections.abc import Callable

FAMILIES: tuple[tuple[str, str], ...] = (
    (r"^deepseek-r1-distill-qwen-(\d+(?:\.\d+)?b)$", r"qwen2.5-\1"),
    (r"^deepseek-r1-distill-llama-(\d+b)$", r"llama-3-\1"),
    (r"^qwen2\.5-(?:coder|math)-(\d+(?:\.\d+)?b)$", r"qwen2.5-\1"),
    (r"^qwen3-coder-30b-a3b$", "qwen3-30b-a3b"),
    (r"^qwq-32b$", "qwen2.5-32b"),
    (r"^vicuna-(7b|13b|33b)$", r"llama-\1"),
    (r"^llama-3\.1-(?:nemotron|tulu-3)-(8b|70b)$", r"llama-3-\1"),
    (r"^(?:zephyr|starling-lm|openchat)-7b.*$", "mistral-7b"),
    (r"^codellama-(7b|13b|70b)$", r"llama-2-\1"),
)
"""Name of a checkpoint and of the shape that its ``config.json`` has."""
UNTIED = re.compile(r"^deepseek-r1-distill-qwen-1\.5b$")
"""Checkpoints with a head of their own where the shape's is the embedding."""
OTHER_SHAPES = frozenset(
    {
        "audio", "coder", "draft", "eagle", "eagle3", "math", "mini", "minitron", "moe", "nano", "nemotron",
        "omni", "pruned", "vision", "vl",
    }
)  # fmt: skip
"""Words that a name has where the checkpoint is of another shape than the family in its name."""
_SIZE = re.compile(r"^(\d+x)?\d+(\.\d+)?b$")
_WORD = re.compile(r"^[a-z]{3,}[a-z\d.]*$")
_ENDING = re.compile(r"-(v\d+(\.\d+)*|instruct|python|hf|preview|\d{4}|16k|chat|sft|dpo|rlvr)$")


def base_of(name: str, is_known: Callable[[str], bool]) -> str | None:
    """Return the model whose shape a checkpoint has, None where its name says none.

    A family of derived checkpoints, or the longest run of the name's words that is a known model with its
    size: ``hermes-3-llama-3.1-8b`` is a ``llama-3.1-8b``.

    Parameters
    ----------
    name
        In the catalog's spelling: lower case, dashes, no organisation.
    """
    plain = name
    while (shorter := _ENDING.sub("", plain)) != plain:
        plain = shorter
    for pattern, base in FAMILIES:
        found = re.sub(pattern, base, plain)
        if found != plain and is_known(found):
            return found
    words = name.split("-")
    if OTHER_SHAPES & set(words):
        return None
    runs = [(stop - start, "-".join(words[start:stop])) for start, stop in _spans(words)]
    known = [run for run in runs if is_known(run[1])]
    return max(known, key=lambda run: run[0])[1] if known else None


def _spans(words: list[str]) -> list[tuple[int, int]]:
    """First and last word of every run that begins with a name and holds a size."""
    return [
        (start, stop)
        for start, word in enumerate(words)
        if _WORD.match(word)
        for stop in range(start + 1, len(words) + 1)
        if any(_SIZE.match(part) for part in words[start:stop])
    ]
