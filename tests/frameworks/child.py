"""A framework in a process of its own, asked and answering in lines of JSON: both ends of the line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

LONGEST_S = 1500.0
"""Time for all questions together."""


def ask(program: str, questions: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What a program of this folder answers to every question, in order."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(program))],
        input="".join(json.dumps(question) + "\n" for question in questions),
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(questions), done.stderr[-3000:]
    return found


def serve(answer: Callable[[dict[str, Any]], Any], prepare: Callable[[], object]) -> None:
    """Answer every line of the input; what the framework has to say meanwhile is not shown."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    prepare()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line)), default=str), flush=True)
