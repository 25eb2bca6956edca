"""Asking every question of a sweep: in processes, with what is already known taken from the state file."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from planner.cost.words import plan_words
from planner.errors import BadInput, PlannerError
from planner.sweep.grid import Scenario
from planner.sweep.money import Economy

MAX_STATE_BYTES = 50_000_000
"""Ten thousand outcomes of 1 to 2 kB, with room."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The answer to one question. ``figures`` is empty where nothing fits; ``reason`` then says why."""

    key: str
    gpus: int
    hardware: str
    status: str
    plan: str = ""
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def ask(scenario: Scenario, economy: Economy, time_limit_s: float) -> Outcome:
    """Answer one question with one solver thread; a planner error becomes the outcome's reason."""
    from planner.solver import solve

    place: dict[str, Any] = {"key": scenario.key, "gpus": scenario.gpus, "hardware": scenario.hardware}
    try:
        request = scenario.question().request()
        result = solve(request, top=1, time_limit_s=time_limit_s, workers=1)
    except PlannerError as error:
        return Outcome(**place, status="refused", reason=str(error))
    if result.best is None:
        reasons = {"infeasible": "no legal plan fits", "time-limit": "no plan within the time limit"}
        return Outcome(**place, status=result.status, reason=reasons.get(result.status, result.status))
    best = result.best
    figures = {
        "step_time_s": best.step_time_s,
        "tokens_per_s": best.tokens_per_s_per_gpu * best.plan.num_gpus,
        "tokens_per_s_per_gpu": best.tokens_per_s_per_gpu,
        "mfu": best.mfu,
        "peak_memory_bytes": best.peak_memory_bytes,
        "global_batch": best.plan.global_batch,
        **economy.figures(best, request),
    }
    return Outcome(**place, status=result.status, plan=plan_words(best.plan), figures=figures)


def run(
    questions: Sequence[Scenario],
    economy: Economy,
    *,
    state: Path | None = None,
    time_limit_s: float = 60.0,
    processes: int | None = None,
    cluster: str | None = None,
) -> Iterator[Outcome]:
    """Yield every outcome as it is known, those of an earlier run first.

    Parameters
    ----------
    state
        JSON-lines file to which each outcome is appended; what it holds already is not asked again.
    processes
        Worker processes; one per core when None.
    cluster
        Address of a running Dask scheduler to spread the questions over, instead of local processes.
    """
    keys = {question.key for question in questions}
    known = {outcome.key: outcome for outcome in read_state(state) if outcome.key in keys}
    yield from known.values()
    open_questions = [question for question in questions if question.key not in known]
    if not open_questions:
        return
    if state is not None:
        _append(state, "")  # before the first search, not after it
    with _executor(processes, cluster) as executor:
        with _ctrl_c_waits():
            futures = [executor.submit(ask, question, economy, time_limit_s) for question in open_questions]
        for future in as_completed(futures):
            outcome = future.result()
            if state is not None:
                _append(state, json.dumps(asdict(outcome), allow_nan=False) + "\n")
            yield outcome


@contextmanager
def _executor(processes: int | None, cluster: str | None) -> Iterator[Executor]:
    """What answers the questions; it drops those that are open where the block ends early."""
    if cluster is not None:
        try:
            from distributed import Client
        except ImportError as error:
            raise BadInput("--cluster needs Dask: pip install 'plan-parallel[cluster]'") from error
        with Client(cluster) as client, client.get_executor() as executor:
            try:
                yield executor
            except BaseException:
                executor.shutdown(wait=False)
                raise
        return
    context = multiprocessing.get_context("spawn")
    workers = processes or os.cpu_count() or 1
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=context) as executor:
        try:
            yield executor
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block; processes that start in it never hear it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starting it would end the waiting
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def read_state(path: Path | None) -> list[Outcome]:
    """Read the outcomes of an earlier run; a last line cut short by an interruption is left out.

    Raises
    ------
    BadInput
        The file is there and is no sweep's state.
    """
    if path is None or not path.exists():
        return []
    outcomes = []
    lines = _state_lines(path)
    for number, line in enumerate(lines, 1):
        try:
            outcomes.append(_outcome(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            if number == len(lines):
                break
            raise BadInput(
                f"{path}:{number} is not a line of a sweep's state; give another --state"
            ) from error
    return outcomes


def _state_lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MAX_STATE_BYTES:
            raise BadInput(f"{path} is larger than {MAX_STATE_BYTES // 1_000_000} MB: no sweep's state is")
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from error


def _outcome(data: Any) -> Outcome:
    """Return one remembered outcome; ValueError or TypeError where a value is not one that ``ask`` gives."""
    outcome = Outcome(**data)
    texts = (outcome.key, outcome.hardware, outcome.status, outcome.plan, outcome.reason)
    if not all(isinstance(text, str) for text in texts) or not isinstance(outcome.gpus, int):
        raise TypeError("a text or the number of GPUs has another type")
    if not isinstance(outcome.figures, dict):
        raise TypeError("the figures are no table")
    for value in (outcome.gpus, *outcome.figures.values()):
        if value is not None and not _is_figure(value):
            raise ValueError("a figure is not a number from zero up")
    return outcome


def _is_figure(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from error
