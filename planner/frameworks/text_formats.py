"""Settings out of TOML, YAML, JSON and Python literals, each with the line on which it stands."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml

from planner.errors import BadInput
from planner.frameworks.launch import Found


def flatten(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of every leaf; lists are leaves."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from flatten(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, tree


def toml_settings(source: str, path: str) -> list[Found]:
    """Read TOML.

    Raises
    ------
    BadInput
        The text is no TOML.
    """
    try:
        tree = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path}: not TOML: {error}") from error
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(source.splitlines(), 1):
        header = re.match(r"\s*\[([^\[\]]+)\]", line)
        setting = re.match(r"""\s*["']?([\w.-]+)["']?\s*=""", line)
        if header:
            section = header.group(1).strip()
        elif setting:
            lines.setdefault(f"{section}.{setting.group(1)}".strip("."), number)
    return [Found(key, value, path, lines.get(key, 1)) for key, value in flatten(tree)]


def json_settings(source: str, path: str) -> list[Found]:
    """Read JSON.

    Raises
    ------
    BadInput
        The text is no JSON object.
    """
    try:
        tree = json.loads(source)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise BadInput(f"{path}: JSON nested too deeply") from error
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: a number of thousands of digits") from error
    if not isinstance(tree, dict):
        raise BadInput(f"{path}: a JSON object is expected, not {type(tree).__name__}")
    return [Found(key, value, path, _json_line(source, key)) for key, value in flatten(tree)]


def _json_line(source: str, key: str) -> int:
    """Line of a dotted key: its parts are looked up one after the other."""
    at = 0
    for part in key.split("."):
        match = re.compile(re.escape(json.dumps(part)) + r"\s*:").search(source, at)
        at = match.start() if match else at
    return source.count("\n", 0, at) + 1


def yaml_settings(source: str, path: str, refer: bool = True) -> list[Found]:
    """Read YAML with the safe loader; aliases are resolved, tags are refused.

    Parameters
    ----------
    refer
        Resolve references to other settings of the file. Without, ``with_references`` does, of all files.

    Raises
    ------
    BadInput
        The text is no YAML mapping.
    """
    try:
        node = yaml.compose(source, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(node, yaml.MappingNode):
        raise BadInput(f"{path}: a YAML mapping is expected")
    found = list(_leaves(node, path, ""))
    return with_references(found) if refer else found


def with_references(found: list[Found]) -> list[Found]:
    """Settings with those that refer to others resolved; of a setting given twice the last holds."""
    values = {entry.key: entry.value for entry in found}
    return [replace(entry, value=_referred(entry.value, values)) for entry in found]


_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
"""Another setting of the same file, as OmegaConf writes it: ``${variables.length}``."""


def _referred(value: Any, values: dict[str, Any]) -> Any:
    """The value, or the one of the setting that it refers to; references to references are followed."""
    for _ in range(8):
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None or match.group(1) not in values:
            break
        value = values[match.group(1)]
    return value


MERGE = "tag:yaml.org,2002:merge"


def _leaves(node: yaml.MappingNode, path: str, prefix: str) -> Iterator[Found]:
    """Leaves in order; those of merged mappings (``<<``) first, so that the mapping's own win."""
    merged = [value for key, value in node.value if key.tag == MERGE]
    for other in merged:
        for mapping in other.value if isinstance(other, yaml.SequenceNode) else [other]:
            if isinstance(mapping, yaml.MappingNode):
                yield from _leaves(mapping, path, prefix)
    for key_node, value_node in node.value:
        if key_node.tag == MERGE:
            continue
        key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
        if isinstance(value_node, yaml.MappingNode):
            yield from _leaves(value_node, path, key)
        else:
            yield Found(key, _plain(value_node, path), path, key_node.start_mark.line + 1)


def _plain(node: yaml.Node, path: str) -> Any:
    try:
        value = yaml.SafeLoader("").construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{path}:{node.start_mark.line + 1}: {' '.join(str(error).split())}") from error
    return _default(value) if isinstance(value, str) else value


_ENVIRONMENT = re.compile(r"\$\{(?:oc\.env:)?[A-Z]\w*[:,]-?([^{}]*)\}")
"""A variable of the environment with what stands in for it: ``${NAME:8}``, ``${oc.env:NAME,8}``."""


def _default(word: str) -> Any:
    """A text with the defaults of its environment variables, read again where it is nothing else."""
    text = _ENVIRONMENT.sub(lambda match: match.group(1), word)
    return word if text == word else plain_value(text)


def plain_value(word: str) -> Any:
    """The value of one word as YAML reads it; the word itself where it is no YAML (unresolved bash, say)."""
    try:
        return yaml.safe_load(word)
    except (yaml.YAMLError, ValueError, RecursionError):
        return word


def _parsed(source: str, path: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not Python: {error}") from error


def python_settings(source: str, path: str) -> list[Found]:
    """Read ``recipe.section.field = literal`` and ``call(field=literal)`` of a Python file, in order.

    Keys are dotted without the first name (``section.field``); a call's argument is a key by itself.
    Nothing is executed.

    Raises
    ------
    BadInput
        The text is no Python.
    """
    found: list[Found] = []
    for node in ast.walk(_parsed(source, path)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            found += _literal(ast.unparse(node.targets[0]).partition(".")[2], node.value, path)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            found += _literal(node.arg, node.value, path)
    return sorted(found, key=lambda entry: entry.line)


def python_literals(source: str, path: str) -> list[Found]:
    """Read constants of a Python file that are assigned literals: ``NAME = {...}``; nothing is executed.

    A dictionary's keys become ``NAME.key``.

    Raises
    ------
    BadInput
        The text is no Python.
    """
    found: list[Found] = []
    for statement in _parsed(source, path).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found += _literal(statement.targets[0].id, statement.value, path)
    return found


def _literal(name: str, node: ast.expr, path: str) -> Iterator[Found]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield from _literal(f"{name}.{key.value!s}", value, path)
        return
    try:
        yield Found(name, ast.literal_eval(node), path, node.lineno)
    except (ValueError, TypeError):  # no literal, or a set of what has no hash
        return
