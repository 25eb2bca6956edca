"""Commands put together, by seed: plans handed from one to the next, sweeps, checks, answers, grades."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from click.testing import CliRunner
from fuzz_files import changed_file, launches, measured_rows
from fuzz_oracle import assert_figures, assert_sentence
from fuzz_questions import some_pins
from fuzz_solver import GOALS, assert_sound
from fuzz_values import NASTY_TEXT, json_text, mutated_text, mutated_tree
from small import small_request

from planner.catalog.pins import PIN_OPTIONS, parse_pin
from planner.cli import main
from planner.errors import BadInput
from planner.explain.answer import WITNESS_NOTE, answer, find
from planner.frameworks import FRAMEWORKS
from planner.frameworks.files import WRITERS
from planner.practice import bank
from planner.practice.grade import grade
from planner.practice.question import Design
from planner.report.json import answer_report, dumps
from planner.report.table import answer_text
from planner.spec.plan import Offload
from planner.sweep import Economy, Outcome, Scenario
from planner.sweep.execute import ask

EXIT_CODES = (0, 1, 2, 3, 4)
SETTLES = {0, 3}


def ran(words: Sequence[str]) -> tuple[int, str]:
    """Exit code and standard output of a command line; a refusal is ``BadInput`` with its one sentence."""
    result = CliRunner().invoke(main, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in EXIT_CODES, result.exit_code
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        said = result.stderr.strip().splitlines()[-1]
        assert said.startswith("Error: "), said
        raise BadInput(said)
    return result.exit_code, result.stdout


def report_of(words: Sequence[str]) -> Any:
    """What a command prints with ``--json``: figures that are finite and not negative."""
    _, text = ran([*words, "--json"])
    report = json.loads(text)
    assert_figures(report)
    return report


def _some(rng: random.Random, options: dict[str, tuple[str, ...]], chance: float = 0.35) -> list[str]:
    """Some of the options, each with one of its values, a few of them absurd."""
    words = []
    for name, values in options.items():
        if rng.random() < chance:
            words += [name, rng.choice(NASTY_TEXT) if rng.random() < 0.05 else rng.choice(values)]
    return words


PROBLEM: dict[str, tuple[str, ...]] = {
    "--hardware": ("h100", "a100", "b200", "mi300x", "v100", "tpu-v5p"),
    "--framework": tuple(FRAMEWORKS),
    "--precision": ("bf16", "fp8", "fp16", "bf16,fp8"),
    "--gpus-per-node": ("1", "3", "4", "8", "16"),
    "--domain-gpus": ("1", "2", "8", "72", "5"),
    "--domain-bandwidth": ("1GB/s", "450GB/s", "1e-9"),
    "--nic-bandwidth": ("0.1", "25GB/s", "1e12"),
    "--pod-gpus": ("1", "8", "32", "100"),
    "--oversubscription": ("1", "1.5", "7", "1e9"),
    "--hbm": ("1GB", "16GiB", "79.6GiB", "1e15"),
    "--hbm-reserve": ("0GB", "3GB", "70GB"),
    "--finetune": ("full", "lora", "qlora"),
    "--optimizer": ("adam", "adam-8bit", "sgd", "lion"),
    "--loss": ("whole", "chunked"),
    "--max-bubble": ("none", "0.01", "1e-9", "100"),
}
"""Options of the problem, the machine's overrides among them, with values that are odd but mean something."""


# ---------------------------------------------------------------- plans


def _parts(rng: random.Random, total: int, number: int) -> list[int]:
    """That many numbers that add up to the total."""
    cuts = sorted(rng.randrange(total + 1) for _ in range(number - 1))
    return [high - low for low, high in zip([0, *cuts], [*cuts, total], strict=True)]


LAYERS = {"llama-3-8b": 32, "deepseek-v3": 61, "mixtral-8x7b": 32, "gpt3-175b": 96}
SCHEDULES = ("none", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v")


def _schedule(rng: random.Random, p: int, v: int) -> str:
    """A schedule, more often than not one that goes with so many ranks and chunks."""
    if rng.random() < 0.1:
        return rng.choice(SCHEDULES)
    if p == 1:
        return "none"
    return rng.choice(("interleaved", "zb-v", "dualpipe-v") if v > 1 else ("gpipe", "1f1b", "zb-h1", "zb-h2"))


def staged_plan(rng: random.Random, folder: Path) -> None:
    """``estimate --plan`` of a plan whose pipeline ranks hold any layers and recompute any of them."""
    model = rng.choice(list(LAYERS))
    p, v = rng.choice((1, 2, 3, 4, 8)), rng.choice((1, 1, 2, 3))
    total = LAYERS[model] + rng.choice((0, 0, 0, 0, 0, 0, 0, 1))
    parts = _parts(rng, max(total, 0), p * v)
    stages: list[dict[str, Any]] = []
    for rank in range(p):
        chunks = parts[rank * v : (rank + 1) * v]
        stages.append({"chunk_layers": chunks, "recompute_layers": rng.randrange(sum(chunks) + 2)})
    t, d = rng.choice((1, 2, 8)), rng.choice((1, 2, 3))
    plan: dict[str, Any] = {
        "tensor_parallel": t, "pipeline_parallel": p, "virtual_stages": v, "data_parallel": d,
        "schedule": _schedule(rng, p, v), "recompute": rng.choice(("none", "selective", "full")),
        "micro_batch": rng.choice((1, 2)), "num_microbatches": rng.choice((1, 3, 8, 16, 17, 1000)),
        "zero_stage": rng.choice((0, 1, 2, 3)), "shard_group_size": d, "sequence_parallel": t > 1,
        "offload": rng.choice(("none", "none", *get_args(Offload))), "stages": stages,
    }  # fmt: skip
    path = folder / "staged.json"
    path.write_text(json_text(mutated_tree(rng, plan) if rng.random() < 0.2 else plan), encoding="utf-8")
    asked = ["--model", model, "--gpus", str(t * p * d), "--framework", "any", *_some(rng, PROBLEM, 0.05)]
    batch = d * plan["micro_batch"] * plan["num_microbatches"]
    words = [*asked, "--global-batch", str(batch), "--seq-length", "2048", "--plan", str(path)]
    report = report_of(["estimate", *words])
    assert report["step_time_s"] > 0 and report["peak_memory_gb"] > 0


@cache
def _answers(number: int) -> tuple[tuple[str, ...], str]:
    """A question to the solver and what it printed as JSON, of which plans are handed on."""
    questions = (
        ("--model", "350m", "--gpus", "8", "--global-batch", "16", "--framework", "megatron"),
        ("--model", "1b", "--gpus", "6", "--global-batch", "24", "--framework", "torchtitan"),
        (
            "--model",
            "mixtral-8x7b",
            "--gpus",
            "8",
            "--global-batch",
            "16",
            "--seq-length",
            "1024",
            "--ep",
            "8",
            "--zero",
            "1",
            "--recompute",
            "none",
            "--micro-batch",
            "1",
        ),
    )
    _, text = ran(["plan", *questions[number], "--json", "--top", "3"])
    return questions[number], text


def handed_on(rng: random.Random, folder: Path) -> None:
    """What ``plan --json`` printed goes into another command, as it is or changed, with other options."""
    question, text = _answers(rng.randrange(3))
    is_changed = rng.random() < 0.6
    path = folder / "answer.json"
    path.write_text(json_text(mutated_tree(rng, json.loads(text))) if is_changed else text, encoding="utf-8")
    word, extra = f"{path}#{rng.choice((1, 2, 3))}", _some(rng, PROBLEM, 0.1)
    command = rng.choice(("estimate", "compare", "launch", "launch"))
    if command == "compare":
        json.loads(ran(["compare", word, str(path), *question, *extra, "--json"])[1])
    elif command == "launch":
        out = folder / f"run {rng.randrange(10**9)}"
        ran(["launch", "--plan", word, "--out", str(out), *question, *extra])
        files = [str(file) for file in out.iterdir() if file.suffix in (".sh", ".toml", ".yaml", ".json")]
        code, _ = ran(["check", *files, "--no-search", *question, *extra])
        assert code in SETTLES
    else:
        report = report_of(["estimate", "--plan", word, *question, *extra])
        if not is_changed and not extra:
            ranked = json.loads(text)["plans"][int(word[-1]) - 1]
            assert report["step_time_s"] == ranked["step_time_s"], "another price for the same plan"


def compared(rng: random.Random, folder: Path) -> None:
    """``compare`` of two files, plans as JSON and launch files, changed or not, under machine options."""
    number = rng.randrange(3)
    words = [_a_plan(rng, folder / name, number) for name in ("first", "second")]
    pins = [part for field, text in some_pins(rng).items() for part in (_option_of(field), text)]
    words += [*_answers(number)[0], *(pins if rng.random() < 0.2 else [])]
    code, text = ran(["compare", *words, *_some(rng, PROBLEM, 0.05), "--json"])
    assert code == 0
    json.loads(text)


def _a_plan(rng: random.Random, folder: Path, number: int) -> str:
    """A file that says a plan: printed by the program, or of some framework; seldom anything else."""
    folder.mkdir(exist_ok=True)
    kind = rng.random()
    if kind < 0.15:
        word = changed_file(rng, folder)
        return "missing" if word.isdigit() else word  # a rank needs a search
    if kind < 0.8:
        name, tree = "plan.json", json.loads(_answers(number)[1])
        text = json_text(mutated_tree(rng, tree) if rng.random() < 0.5 else tree)
    else:
        files, _ = rng.choice(launches(rng.choice(WRITERS)))
        name, text = rng.choice(list(files.items()))
    path = folder / name
    changed = mutated_text(rng, text) if rng.random() < 0.1 else text
    path.write_text(changed, encoding="utf-8", errors="replace")
    return str(path)


def _option_of(field: str) -> str:
    return next(option.option for option in PIN_OPTIONS if option.field == field)


# ---------------------------------------------------------------- files of others


def mixed_launch_files(rng: random.Random, folder: Path) -> None:
    """``check`` of files of two frameworks together, changed, under each other's names, in every format."""
    named: dict[str, str] = {}
    for share, framework in zip((1.0, 0.3), rng.sample(list(WRITERS), 2), strict=True):
        files, _ = rng.choice(launches(framework))
        named |= {name: text for name, text in files.items() if rng.random() < share * 0.8}
    if not named:
        raise BadInput("no file")
    if rng.random() < 0.3:
        names, texts = list(named), list(named.values())
        rng.shuffle(texts)
        named = dict(zip(names, texts, strict=True))
    place = folder / f"mixed {rng.randrange(10**9)}"
    place.mkdir()
    for name, text in named.items():
        changed = mutated_text(rng, text) if rng.random() < 0.2 else text
        (place / name).write_text(changed, encoding="utf-8", errors="replace")
    words = ["check", *(str(place / name) for name in named), "--no-search"]
    words += _some(rng, {"--model": ("llama-3-8b", "350m"), "--gpus": ("8", "64")}, 0.8)
    words += _some(rng, PROBLEM, 0.05)
    words += ["--format", rng.choice(("text", "json", "json", "github"))]
    code, text = ran(words)
    assert code in SETTLES
    if words[-1] == "json":
        json.loads(text)


def damaged_runs(rng: random.Random, folder: Path) -> None:
    """``validate``, as a table and as JSON, of rows with characters lost, lines joined and keys swapped."""
    rows = [json_text(row) for row in rng.sample(measured_rows(), rng.randrange(1, 4))]
    text = mutated_text(rng, rng.choice(("\n", "\n\n", "\r\n", " ")).join(rows))
    path = folder / "damaged.jsonl"
    path.write_text(text, encoding="utf-8", errors="replace")
    if rng.random() < 0.5:
        _, shown = ran(["validate", str(path)])
        assert shown.strip()
    else:
        _, shown = ran(["validate", str(path), "--json"])
        json.loads(shown)


# ---------------------------------------------------------------- many questions at once


def _one_by_one(questions: Sequence[Scenario], economy: Economy, **_named: Any) -> Iterator[Outcome]:
    for question in questions:
        outcome = ask(question, economy, 0.3)
        assert_sentence(outcome.reason or "found")
        yield outcome


def swept(rng: random.Random, folder: Path) -> None:
    """``sweep`` over small sizes with the options of money and failures, in this process."""
    words = ["sweep", "--model", rng.choice(("350m", "1b")), "--gpus", rng.choice(("1:4", "2,3", "1:1", "8"))]
    words += ["--seq-length", "256", "--global-batch", rng.choice(("8", "12"))]
    words += ["--hardware", rng.choice(("h100", "h100,a100", "v100", "nonsense,h100"))]
    words += _some(
        rng,
        {"--tokens": ("15T", "1", "1e30"), "--price": ("0", "2.5", "1e300"), "--mtbf": ("50kh", "1s", "1e9s"),
         "--restart": ("10min", "0s", "1e9s"), "--storage": ("2000", "1e-9", "1e30")},
    )  # fmt: skip
    csv, html = folder / f"{rng.randrange(10**9)}.csv", folder / f"{rng.randrange(10**9)}.html"
    words += rng.choice(([], [], ["--csv", str(csv)], ["--html", str(html)], ["--csv", str(folder)]))
    with patch("planner.sweep.run", _one_by_one):
        if rng.random() < 0.5:
            ran(words)
        else:
            report_of(words)


def answers(rng: random.Random, _folder: Path) -> None:
    """Whole answers to toy questions, plans or why there are none, in words and as JSON."""
    request = small_request(rng.randrange(10**6))
    options = {option.field: option for option in PIN_OPTIONS}
    pins = tuple(parse_pin(options[field], text) for field, text in some_pins(rng, 0.0).items())
    update = {"pins": pins, "goal": rng.choice(GOALS), "allow_idle": rng.random() < 0.2,
              "max_bubble": rng.choice((None, 0.25, 1e-6))}  # fmt: skip
    request = request.model_copy(update=update)
    result = find(request, rng.choice((1, 3)), rng.choice((0.05, 1.0)), 1)
    known = result if WITNESS_NOTE not in result.notes else replace(result, gap_pct=0.0)
    assert_sound(known, request)
    found = answer(request, result, full=rng.random() < 0.1, what_if=rng.random() < 0.1, seconds=0.2)
    for reason in found.reasons:
        assert_sentence(reason.sentence)
    if found.conflict is not None:
        for member in found.conflict.members:
            assert_sentence(member.sentence)
        for change in found.conflict.relaxations:
            assert_sentence(change.change)
    dumps(answer_report(found))
    assert answer_text(found).strip()


# ---------------------------------------------------------------- practice


@cache
def _questions() -> list[Any]:
    """Every question of the syllabus and a few of every kind; plans to find take a search and stay out."""
    idents = [entry.ident for entry in bank.SYLLABUS]
    idents += [f"{kind.name}:{seed}" for kind in bank.KINDS for seed in (1, 7)]
    found = [bank.find(ident) for ident in idents]
    found += [follow for question in found for follow in question.follow_ups]
    return [question for question in found if not isinstance(question.key, Design)]


UNITS = (
    "",
    "%",
    " GB",
    "GiB",
    " MB",
    " TB",
    " ms",
    "s",
    " us",
    " h",
    " days",
    "x",
    " GB/s",
    " TFLOP/s",
    "e3",
)


def graded(rng: random.Random, _folder: Path) -> None:
    """Answers to questions: numbers near and far with right and wrong units, letters, nonsense."""
    question = rng.choice(_questions())
    value = getattr(question.key, "value", 1.0)
    makers: tuple[Callable[[], str], ...] = (
        lambda: f"{value * rng.choice((1, 1.001, 2, 8, 1000, -1, 0.5, 1e-30, 1e30)):g}{rng.choice(UNITS)}",
        lambda: f"{rng.uniform(0, 1e6):.3f}{rng.choice(UNITS)}",
        lambda: rng.choice(("a", "b)", "C", " d ", "e", "ab")),
        lambda: rng.choice(NASTY_TEXT),
        lambda: f"{rng.choice(NASTY_TEXT)}{rng.choice(UNITS)}",
    )
    found = grade(question, rng.choice(makers)())
    assert 0 <= found.score <= 1 and found.right == (found.score == 1)
    assert_sentence(found.message)
