"""Values that break programs, and changes of valid inputs: trees (JSON, TOML), text and bytes, by seed."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

NASTY: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 8, 1.5, -0.0, 0.1, 1e308, 1e-308, -1e30, 10**6, 10**9, 10**18, 10**40, 2**63,
    5000 * "9", True, False, None, "", " ", "abc", "8", "-8", "1e999", "nan", "none", "\x00", "ü" * 50,
    "../../etc/passwd",
    "$(touch owned)", "`id`", "'; rm -rf x; '", "a\nb", "\u202e", "x" * 5000, [], [0], [[]], [None, "a"], {},
    {"a": 1}, {"a": {"b": []}}, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
"""Zero, negative, huge, tiny, wrong type, empty, not a number, shell and path tricks."""
NASTY_TEXT: tuple[str, ...] = (
    "0", "-1", "1", "3", "1.5", "1e6", "1000000", "10000000", "1e309", "nan", "inf", "-inf", "", " ", "none",
    "abc", "8x", "0x10", "1_000", "٣", "8,", ",8", "8:4", "4:", ":", ":4", "!4", "not-4", "!", "1:8,!4",
    "4,4",
    "99999999999999999999", "9" * 5000, "1e-320", "80GB", "80gib", "-80GB", "0GB", "10s", "4Mtok", "0tok",
    "1:2:3", "True", "on", "off", "é", "\x00", "a\nb", "$(id)", "../x.toml", "/", ".", "~", "\\", "%s", "{}",
)  # fmt: skip
"""What people (and fuzzers) type behind an option."""
TOML_BREAKERS = (
    "[",
    "]]",
    "= 1",
    "a = ",
    '"',
    "'''",
    "\x00",
    "\ud7ff",
    "é = 1",
    "[[links]]",
    "a.b.c = {",
    "#",
    "nan",
)


def mutated_tree(rng: random.Random, tree: Any, times: int | None = None) -> Any:
    """A copy of nested dictionaries and lists with one to three changes."""
    tree = copy.deepcopy(tree)
    for _ in range(times if times is not None else rng.choice((1, 1, 1, 2, 3))):
        containers = [found for found in _containers(tree) if found]
        if containers:
            _change(rng, rng.choice(containers))
    return tree


def _containers(tree: Any) -> list[Any]:
    found: list[Any] = []
    if isinstance(tree, dict | list):
        found.append(tree)
        for value in tree.values() if isinstance(tree, dict) else tree:
            found += _containers(value)
    return found


def _change(rng: random.Random, holder: Any) -> None:
    key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    kind = rng.random()
    if kind < 0.35:
        holder[key] = copy.deepcopy(rng.choice(NASTY))
    elif kind < 0.65:
        holder[key] = _near(rng, holder[key])
    elif kind < 0.78:
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif kind < 0.88:
        holder[_typo(rng, str(key))] = holder.pop(key)
    elif kind < 0.94:
        other = rng.choice(list(holder))
        holder[key], holder[other] = holder[other], holder[key]
    else:
        holder[rng.choice(("extra", "num_layer", "Source", "x" * 300, "", "a.b"))] = rng.choice((1, "a", []))


def _near(rng: random.Random, value: Any) -> Any:
    """A value of the same type that is not the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(
            (value + 1, value - 1, value * 2, value * 3, value // 2, value * 1000, -value, value + 0.5)
        )
    if isinstance(value, float):
        return value * rng.choice((0.0, -1.0, 1e-6, 0.5, 2.0, 1e6, 1e30))
    if isinstance(value, str):
        return _typo(rng, value)
    return rng.choice(([value], str(value)[:200], None))


def _typo(rng: random.Random, word: str) -> str:
    at = rng.randrange(len(word) + 1)
    return rng.choice(
        (word[:at] + word[at + 1 :], word[:at] + "x" + word[at:], word.upper(), word + "s", word[::-1])
    )


def mutated_text(rng: random.Random, text: str) -> str:
    """Text with one to four lines or characters changed."""
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        kind = rng.randrange(9)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[at])
        elif kind == 2:
            lines[at] = _number_changed(rng, lines[at])
        elif kind == 3:
            lines[at] = _number_changed(rng, _number_changed(rng, lines[at]))
        elif kind == 4:
            place = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + rng.choice("\"'\\$(){}[]=:#,\t\x00é|&<>!*-") + lines[at][place:]
        elif kind == 5:
            lines[at] = _typo(rng, lines[at])
        elif kind == 6:
            lines = lines[: at + 1]
        elif kind == 7:
            lines[at] = rng.choice((*TOML_BREAKERS, *NASTY_TEXT))
        else:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        text = "\n".join(lines)
    return text


def _number_changed(rng: random.Random, line: str) -> str:
    """The line with its last word or number replaced."""
    head, separator, _ = line.rpartition(rng.choice((" ", "=", ":", '"')))
    return head + separator + rng.choice(NASTY_TEXT)


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes with a few flipped, cut or inserted; not UTF-8 more often than not."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 10))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0 and changed:
            changed[at - 1] = rng.randrange(256)
        elif kind == 1:
            changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 64))))
        elif kind == 2:
            del changed[at : at + rng.choice((1, 10, 1000))]
        else:
            changed = changed[: max(at, 1)] + changed
    return bytes(changed[:200_000])


def json_text(tree: Any) -> str:
    """JSON as sloppy tools write it: NaN and Infinity included."""
    return json.dumps(tree)


def toml_text(tree: dict[str, Any]) -> str:
    """TOML of nested dictionaries, with arrays of tables and inline tables; ``None`` is left out."""
    return "\n".join(_toml_lines(tree, "")) + "\n"


def _toml_lines(table: dict[str, Any], prefix: str) -> list[str]:
    plain, nested = [], []
    for key, value in table.items():
        name = _toml_key(key)
        if isinstance(value, dict):
            nested += [f"[{prefix}{name}]", *_toml_lines(value, f"{prefix}{name}.")]
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            for entry in value:
                nested += [f"[[{prefix}{name}]]", *_toml_lines(entry, f"{prefix}{name}.")]
        elif value is not None:
            plain.append(f"{name} = {_toml_value(value)}")
    return plain + nested


def _toml_key(key: Any) -> str:
    text = str(key)
    is_bare = text.isascii() and text.replace("_", "a").replace("-", "a").isalnum()
    return text if is_bare else json.dumps(text, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(entry) for entry in value if entry is not None) + "]"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None)
            + "}"
        )
    return json.dumps(str(value), ensure_ascii=False)
