"""Settings out of bash: words with lines, variables, arrays, continuations and quotes, nothing executed.

Only what launch scripts use is understood: assignments, arrays (``A=(...)``, ``A+=(...)``), ``$A``, ``${A}``,
``${A:-default}``, ``${A[@]}`` and whole-number arithmetic. Of an ``if`` the branch is read that the script's
variables choose, and all of them where they do not say.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from planner.frameworks.launch import Found
from planner.frameworks.shell_if import Branches, decide

_ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*|\d)(\+?)=")
_REFERENCE = re.compile(
    r"\$\{([A-Za-z_]\w*|\d)(?:\[[@*]\])?(?::?[-=]((?:[^${}]|\$\{[^{}]*\}|\$)*))?\}|\$([A-Za-z_]\w*|\d)"
)
"""A variable or one of the script's own arguments (``$1``)."""
_ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_EXPR = re.compile(r"\$\(\s*expr\s+([^()]*)\)")
_FLAG = re.compile(r"^--[A-Za-z][\w.:-]*(=.*)?$", re.DOTALL)
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True, slots=True)
class Word:
    """One shell word, quotes removed; ``quoted`` when any part was quoted."""

    text: str
    line: int
    quoted: bool = False
    single: bool = False
    """Single-quoted as a whole: nothing in it is expanded."""
    branch: int = 0
    """Line of the branch of an ``if`` that it stands in where nothing decides the branch, else 0."""


@dataclass
class _Scanner:
    """Cuts a script into words; a newline that ends a command is a word of its own."""

    source: str
    at: int = 0
    line: int = 1
    words: list[Word] = field(default_factory=list)

    def run(self) -> list[Word]:
        while self.at < len(self.source):
            char = self.source[self.at]
            if self.source.startswith("\\\n", self.at):
                self._skip(2)
            elif char == "\n" or char in "();|&":
                self.words.append(Word(char, self.line))
                self._skip(1)
            elif char.isspace():
                self._skip(1)
            elif char == "#":
                self._skip(len(self.source[self.at :].split("\n", 1)[0]))
            else:
                self._word()
        return self.words

    def _skip(self, count: int) -> str:
        taken = self.source[self.at : self.at + count]
        self.line += taken.count("\n")
        self.at += len(taken)
        return taken

    def _word(self) -> None:
        parts, line, quoted, start = [], self.line, False, self.at
        while self.at < len(self.source) and not self._ends_word():
            char = self.source[self.at]
            if char in "'\"":
                quoted = True
                parts.append(self._quoted(char))
            elif char == "\\":
                escaped = self._skip(2)[1:]
                parts.append("" if escaped == "\n" else escaped)
            elif char == "$" and self.source[self.at : self.at + 2] in {"$(", "${"}:
                parts.append(self._bracketed())
            else:
                parts.append(self._skip(1))
        raw = self.source[start : self.at]
        self.words.append(Word("".join(parts), line, quoted, raw.startswith("'") and raw.endswith("'")))

    def _ends_word(self) -> bool:
        char = self.source[self.at]
        return char.isspace() or char in ";|&()"

    def _quoted(self, quote: str) -> str:
        self._skip(1)
        parts = []
        while self.at < len(self.source) and self.source[self.at] != quote:
            if (
                quote == '"'
                and self.source[self.at] == "\\"
                and self.source[self.at + 1 : self.at + 2] in '"\\$`'
            ):
                self._skip(1)
            parts.append(self._skip(1))
        self._skip(1)
        return "".join(parts)

    def _bracketed(self) -> str:
        opening = self.source[self.at + 1]
        closing, depth, start = {"(": ")", "{": "}"}[opening], 0, self.at
        while self.at < len(self.source):
            char = self._skip(1)
            depth += (char == opening) - (char == closing)
            if char == closing and depth == 0:
                break
        return self.source[start : self.at]


@dataclass
class Script:
    """A bash script after reading: its variables and the words that stand outside assignments."""

    words: list[Word] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    containers: set[str] = field(default_factory=set)
    """Variables that hold flags: read where they are filled, skipped where they are used."""
    fixed: set[str] = field(default_factory=set)
    """Variables declared ``readonly``: later assignments change nothing."""

    def expand(self, text: str) -> str:
        """Replace variables and arithmetic; what is not known stays as written."""
        for _ in range(8):
            after = _ARITHMETIC.sub(self._calculate, _REFERENCE.sub(self._value, text))
            after = _EXPR.sub(self._calculate, after.replace("\\*", "*")) if "expr" in after else after
            if after == text:
                break
            text = after
        return text

    def _value(self, match: re.Match[str]) -> str:
        name = match.group(1) or match.group(3)
        known = self.variables.get(name)
        default: str | None = match.group(2)
        if default is not None and re.fullmatch(r"\"[^\"]*\"|'[^']*'", default):
            default = default[1:-1]
        if known is not None:
            return known
        return match.group(0) if default is None else default

    def _calculate(self, match: re.Match[str]) -> str:
        inside = re.sub(
            r"[A-Za-z_]\w*", lambda name: self.variables.get(name.group(0), name.group(0)), match.group(1)
        )
        try:
            return str(_arithmetic(ast.parse(inside.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError):
            return match.group(0)


def _arithmetic(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        result: int = _OPERATORS[type(node.op)](_arithmetic(node.left), _arithmetic(node.right))
        return result
    raise ValueError("not whole-number arithmetic")


def read_script(source: str) -> Script:
    """Read a script: assignments are remembered, arguments stored in variables or arrays count as words."""
    script, branches = Script(), Branches()
    words = _Scanner(source).run()
    at = 0
    while at < len(words):
        word = words[at] = replace(words[at], branch=branches.branch)
        behind = _after_keyword(script, words, at, branches)
        match = _ASSIGNMENT.match(word.text)
        if behind is not None or branches.skipped:
            at = behind or at + 1
        elif match is None:
            is_program = at > 0 and re.fullmatch(r"-[a-z]*c", words[at - 1].text)
            script.words += _flag_words(word) if is_program and word.quoted else [word]
            at += 1
        elif at + 1 < len(words) and words[at + 1].text == "(" and word.text.endswith("="):
            at = _array(script, words, at)
        else:
            _scalar(script, word, match)
            if at > 0 and words[at - 1].text == "readonly":
                script.fixed.add(match.group(1))
            at += 1
    return script


def _after_keyword(script: Script, words: list[Word], at: int, branches: Branches) -> int | None:
    """Follow a word of an ``if`` statement and return the place behind it, None for other words."""
    word = words[at]
    begins = at == 0 or words[at - 1].text in {"\n", ";", "then", "else", "do", "{", "&", "|"}
    if word.quoted or not begins or word.text not in {"if", "elif", "else", "fi"}:
        return None
    if word.text == "fi":
        branches.leave()
        return at + 1
    rest = [] if word.text == "else" else range(at, len(words))
    end = next((i for i in rest if words[i].text == "then"), at)
    condition = [entry for entry in words[at + 1 : end] if entry.text not in {"\n", ";"}]
    said = [entry.text if entry.single else script.expand(entry.text) for entry in condition]
    verdict = True if word.text == "else" else decide(said)
    (branches.enter if word.text == "if" else branches.go_on)(verdict, word.line)
    return end + 1


def _array(script: Script, words: list[Word], at: int) -> int:
    """Take ``NAME=( ... )`` and return the place behind it."""
    match = _ASSIGNMENT.match(words[at].text)
    script.containers.add(match.group(1) if match else "")
    entries, branch = [], words[at].branch
    at += 2
    while at < len(words) and words[at].text != ")":
        if words[at].text != "\n":
            entries += [replace(entry, branch=branch) for entry in _flag_words(words[at])]
        at += 1
    script.words += [*entries, Word("\n", words[at - 1].line)]
    return at + 1


def _flag_words(word: Word) -> list[Word]:
    """Words of one in quotes that is cut where it is used: ``"--flag value"`` in an array, ``bash -c``."""
    if not re.search(r"(^|\s)--[A-Za-z]\S*(\s|$)", word.text):
        return [word]
    words = _Scanner(word.text, line=word.line).run()
    return [replace(entry, branch=word.branch) for entry in words if entry.text != "\n"]


def _scalar(script: Script, word: Word, match: re.Match[str]) -> None:
    """Take ``NAME=value``; a value that holds flags is cut into words where it stands."""
    name, value = match.group(1), word.text[match.end() :]
    if name in script.fixed:
        return
    inner = re.search(r"(^|\s)--[A-Za-z]", value)
    if inner is None:
        before = script.variables.get(name, "") if match.group(2) else ""
        script.variables[name] = before + (value if word.single else script.expand(value))
        return
    script.containers.add(name)
    scanner = _Scanner(value.replace("\\\n", "\n"), line=word.line)
    script.words += [replace(entry, branch=word.branch) for entry in scanner.run() if entry.text != "\n"]
    script.words.append(Word("\n", word.line))


def unset_variable(value: object) -> str | None:
    """Return the variable whose value is missing in a word that could not be expanded, None if none is."""
    match = _REFERENCE.search(str(value))
    return (match.group(1) or match.group(3)) if match else None


def read_flags(source: str, path: str) -> Iterator[Found]:
    """Yield every ``--flag value ...`` of a script with its line; a flag without value yields True.

    Several values become a list; numbers stay text. ``--flag=value`` works too.
    """
    script = read_script(source)
    flag: Word | None = None
    values: list[str] = []
    for word in [*_without_labels(script.words), Word("\n", 0)]:
        is_flag = not word.single and bool(_FLAG.match(word.text))
        if is_flag or _ends_command(word):
            if flag is not None:
                yield _found(script, flag, values, path)
            flag, values = (word if is_flag else None), []
        elif flag is not None and word.text not in {"(", ")"} and not _is_container(script, word):
            values.append(word.text if word.single else script.expand(word.text))


def _without_labels(words: list[Word]) -> list[Word]:
    """The words without ``--flag)`` labels of a ``case``, which are the script's own options."""
    labels: set[int] = set()
    for at, word in enumerate(words[1:], 1):
        if word.text == ")" and _FLAG.match(words[at - 1].text):
            start = at - 1
            while start >= 2 and words[start - 1].text == "|" and _FLAG.match(words[start - 2].text):
                start -= 2
            if start == 0 or words[start - 1].text in {"\n", ";"}:
                labels |= set(range(start, at + 1))
    return [word for at, word in enumerate(words) if at not in labels]


def _ends_command(word: Word) -> bool:
    return not word.quoted and bool(re.match(r"^([\n;|&]|\d?[<>]|.*\.py$)", word.text))


def _found(script: Script, flag: Word, values: list[str], path: str) -> Found:
    key, equals, attached = flag.text.partition("=")
    if equals:
        values = [script.expand(attached), *values]
    value: object = True if not values else values[0] if len(values) == 1 else list(values)
    return Found(key, value, path, flag.line, flag.branch)


def _is_container(script: Script, word: Word) -> bool:
    """Whether the word only inserts arguments that were read where their variable was filled."""
    match = _REFERENCE.fullmatch(word.text)
    return match is not None and ((match.group(1) or match.group(3)) in script.containers or "[" in word.text)


def read_pairs(source: str, path: str, key: str) -> Iterator[Found]:
    """Yield every ``key=value`` word of a script or a list, with its line; values are text.

    Parameters
    ----------
    key
        Pattern of the keys. Values end at a blank unless they are quoted or a list in brackets; variables
        that the script sets are put in.
    """
    pattern = re.compile(rf"(?:^|[\s\"'])\+{{0,2}}({key})=(\"[^\"]*\"|'[^']*'|\[[^\]]*\]|[^\s\\\"';|&)]+)")
    script = read_script(source)
    for number, line in enumerate(source.splitlines(), 1):
        if not line.lstrip().startswith(("#", "//")):
            for match in pattern.finditer(line):
                yield Found(match.group(1), script.expand(match.group(2)), path, number)
