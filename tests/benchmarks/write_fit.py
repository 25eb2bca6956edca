"""Put fitted constants into ``hardware/*.toml`` and the framework profiles, each with where it comes from."""

from __future__ import annotations

import re
import textwrap
from importlib import import_module
from pathlib import Path

from priors import UNMEASURED_PARTS

from planner.catalog import load_accelerator
from planner.frameworks import _PROFILE_MODULES
from planner.spec.framework import TimeHabits

ROOT = Path(__file__).resolve().parents[2]
NOTE = "fitted on tests/data/measured/calibration.jsonl by tests/benchmarks/fit.py"
DIGITS = 3
FEWEST_ROWS = 3
"""Of a part, that its own clock rests on."""


def write_values(values: dict[tuple[str, str], float], rows: dict[str, int]) -> None:
    """Write every value to its owner's file.

    Parameters
    ----------
    values
        By owner (``hw:`` or ``fw:`` and a name) and constant.
    rows
        Rows that spoke for each owner; named in the source.
    """
    for (owner, name), value in values.items():
        kind, _, file = owner.partition(":")
        if kind == "hw" and (file in UNMEASURED_PARTS or rows.get(owner, 0) >= FEWEST_ROWS):
            told = "" if name in UNMEASURED_PARTS.get(file, ()) else f", {rows[owner]} rows"
            told = f"{NOTE}{told or ', shared by its generation (no rows of its own)'}"
            _write_hardware(ROOT / "hardware" / f"{file}.toml", name, value, told)
    for owner in {owner for owner, _ in values if owner.startswith("fw:")}:
        changed = {name: value for (place, name), value in values.items() if place == owner}
        _write_profile(owner.removeprefix("fw:"), changed, rows.get(owner, 0))


def _write_hardware(path: Path, constant: str, value: float, told: str) -> None:
    """Set ``sustained_fraction`` of one gemm table, or of every attention table, and say so in its source."""
    text = path.read_text()
    heading = r"\[attention\.\w+\]" if constant == "attention" else rf"\[{re.escape(constant)}\]"
    blocks = re.split(r"(?m)^(?=\[)", text)
    found = [index for index, block in enumerate(blocks) if re.match(heading, block)]
    for index in found:
        blocks[index] = _with_value(blocks[index], value, told)
    if not found:
        blocks[-1] = blocks[-1].rstrip("\n") + "\n"
        blocks += [_inherited(name, value, told) for name in _inherited_tables(path.stem, constant)]
    path.write_text("".join(blocks))


def _inherited_tables(part: str, constant: str) -> list[str]:
    """Tables that the part takes from the file it is based on."""
    if constant == "attention":
        return [f"attention.{kernel}" for kernel in load_accelerator(part).attention]
    return [constant]


def _inherited(table: str, value: float, told: str) -> str:
    return (
        f'\n[{table}]\nsource = "curve of the base part; sustained clock: {told}"\n'
        f'origin = "fitted"\nsustained_fraction = {round(value, DIGITS)}\n'
    )


def _with_value(block: str, value: float, told: str) -> str:
    line = f"sustained_fraction = {round(value, DIGITS)}"
    if "sustained_fraction" in block:
        block = re.sub(r"(?m)^sustained_fraction = .*$", line, block)
    else:
        block = block.rstrip("\n") + f"\n{line}\n\n"
    block = re.sub(r"; sustained clock[^\"]*", "", block)
    block = re.sub(r"; sustained/burst clock[^\"]*", "", block)
    return re.sub(r'(?m)^(source = "[^"]*)"', rf'\1; sustained clock: {told}"', block, count=1)


def _write_profile(framework: str, changed: dict[str, float], rows: int) -> None:
    """Put the new values into the profile's ``TIME = TimeHabits(...)``; all other lines stay.

    A profile that takes the shared values is left alone, and those are written where they stand.
    """
    module = import_module(f"planner.frameworks.{_PROFILE_MODULES[framework]}")
    path = Path(str(module.__file__))
    block = "TIME"
    if "\nTIME = TimeHabits(" not in path.read_text():
        if rows:
            raise ValueError(f"{framework} has {rows} rows now: give {path} a TIME = TimeHabits() of its own")
        block = "EAGER_TIME" if "EAGER_TIME" in path.read_text() else "TIME"
        path = ROOT / "planner" / "frameworks" / "shared_time.py"
    text = path.read_text()
    opening = f"\n{block} = TimeHabits("
    start = text.index(opening) + len(opening)
    end = _closing(text, start - 1)
    group = "PyTorch frameworks" if block == "EAGER_TIME" else "all frameworks"
    told = f"{rows} rows" if rows else f"the values shared by {group} (no rows of its own)"
    note = _comment(f"{', '.join(sorted(changed))}: {NOTE}, {told}.")
    body = _with_values(_without_note(text[start:end]), changed)
    path.write_text(text[:start] + "\n" + note + body + text[end:])


def _without_note(body: str) -> str:
    """The lines of a call without the comment that the last fit left at their beginning."""
    lines = body.strip("\n").split("\n")
    leading = next(
        (index for index, line in enumerate(lines) if not line.lstrip().startswith("#")), len(lines)
    )
    is_note = NOTE in " ".join(line.strip(" #") for line in lines[:leading])
    return "\n".join(lines[leading if is_note else 0 :]) + "\n"


def _with_values(body: str, changed: dict[str, float]) -> str:
    """The arguments of a call with new values: in place, or for a new one after those declared before it."""
    order = list(TimeHabits.model_fields)
    for name, value in changed.items():
        line = f"    {name}={_literal(value)},\n"
        body, found = re.subn(rf"(?m)^    {name}=.*,\n", line, body)
        if found:
            continue
        earlier = [match for match in re.finditer(r"(?m)^    (\w+)=.*,\n", body)
                   if order.index(match[1]) < order.index(name)]  # fmt: skip
        place = earlier[-1].end() if earlier else 0
        body = body[:place] + line + body[place:]
    return body


def _comment(text: str) -> str:
    lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
    return "".join(f"    # {line}\n" for line in lines)


def _literal(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return repr(round(value, 4)) if isinstance(value, float) else repr(value)


def _closing(text: str, opening: int) -> int:
    depth = 0
    for index in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise ValueError("unbalanced parentheses")
