"""Files that a user hands in, by seed and changed: models, machines, launch files, runs, plans, states."""

from __future__ import annotations

import json
import random
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
for name in ("frameworks", "."):
    if str(TESTS / name) not in sys.path:
        sys.path.append(str(TESTS / name))

from fuzz_oracle import assert_cluster, assert_figures, assert_model, assert_priceable, assert_sentence  # noqa: E402
from fuzz_values import NASTY, json_text, mutated_bytes, mutated_text, mutated_tree, toml_text  # noqa: E402
from launch_plans import legal_plans  # noqa: E402

from planner.api import complete, plan_file  # noqa: E402
from planner.catalog import load_cluster, load_model  # noqa: E402
from planner.catalog.files import entries, folder  # noqa: E402
from planner.frameworks import load_framework  # noqa: E402
from planner.frameworks.files import WRITERS, read_files, to_plan, write  # noqa: E402
from planner.frameworks.lint import FORMATS, format_findings, lint, model_of  # noqa: E402
from planner.practice.progress import Progress  # noqa: E402
from planner.report.json import dumps, estimate_report  # noqa: E402
from planner.solver.evaluate import evaluate  # noqa: E402
from planner.spec import Model, PlanRequest, Workload  # noqa: E402
from planner.sweep.execute import read_state  # noqa: E402
from planner.validate.compare import validate_file  # noqa: E402


@cache
def _configs() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((TESTS / "data" / "configs").glob("*.json"))]


@cache
def _tomls(kind: str) -> list[dict[str, Any]]:
    return [tomllib.loads(path.read_text()) for path in sorted(folder(kind).glob("*.toml"))]


@cache
def ordinary_model() -> Model:
    return load_model("llama-3-8b")


def config_json(rng: random.Random, folder: Path) -> None:
    """A Hugging Face configuration with values changed, lost, misspelt or absurd."""
    tree = mutated_tree(rng, rng.choice(_configs()))
    path = folder / "config.json"
    path.write_text(
        mutated_text(rng, json_text(tree)) if rng.random() < 0.1 else json_text(tree), encoding="utf-8"
    )
    assert_model(load_model(path))


def model_toml(rng: random.Random, folder: Path) -> None:
    """A model file with values changed, lost, misspelt or absurd."""
    path = folder / "model.toml"
    text = toml_text(mutated_tree(rng, rng.choice(_tomls("models"))))
    path.write_text(mutated_text(rng, text) if rng.random() < 0.1 else text, encoding="utf-8")
    assert_model(load_model(path))


def hardware_toml(rng: random.Random, folder: Path) -> None:
    """A hardware file with values changed, lost, misspelt or absurd; with its own cluster keys."""
    tree = mutated_tree(rng, rng.choice(_tomls("hardware")))
    if rng.random() < 0.5:
        tree |= {"num_gpus": rng.choice((8, 64, *NASTY)), "reserved_hbm_bytes": rng.choice((0, 1e9, *NASTY))}
    path = folder / "machine.toml"
    text = toml_text(tree)
    path.write_text(mutated_text(rng, text) if rng.random() < 0.1 else text, encoding="utf-8")
    assert_cluster(load_cluster(path, rng.choice((None, 8, 64))), ordinary_model())


def hardware_base(rng: random.Random, folder: Path) -> None:
    """A small file on top of a catalog entry, as users write them."""
    tree: dict[str, Any] = {
        "base": rng.choice(entries("hardware")), "num_gpus": 64, "gpus_per_node": 4,
        "memory": {"hbm_bytes": 40e9},
        "links": [{"name": "network", "bytes_per_s": 25e9, "oversubscription": 2.0}],
        "borrow": {"collectives": "h100"}, "price": {"usd_per_gpu_hour": 2.0},
    }  # fmt: skip
    for name in rng.sample(list(tree), rng.randrange(4)):
        del tree[name]
    path = folder / "machine.toml"
    path.write_text(toml_text(mutated_tree(rng, tree)), encoding="utf-8")
    assert_cluster(load_cluster(path, rng.choice((None, 8, 64))), ordinary_model())


def binary(rng: random.Random, folder: Path) -> None:
    """Bytes where text is expected: every kind of file, some of them not UTF-8."""
    ending = rng.choice((".toml", ".json", ".jsonl"))
    source = rng.choice(sorted((TESTS / "data" / "configs").glob("*.json"))).read_bytes()
    data = rng.choice((b"", b"\xff\xfe\x00", rng.randbytes(500), mutated_bytes(rng, source)))
    path = folder / f"data{ending}"
    path.write_bytes(data)
    readers: list[Callable[[], object]] = [
        lambda: load_model(path),
        lambda: load_cluster(path.with_suffix(".toml"), 8),
        lambda: validate_file(path),
        lambda: plan_file(str(path), _asked()),
        lambda: read_state(path),
    ]
    path.with_suffix(".toml").write_bytes(data)
    rng.choice(readers)()


@cache
def launches(framework: str) -> list[tuple[dict[str, str], PlanRequest]]:
    """Valid file sets of one framework with their requests."""
    return [(write(plan, request), request) for plan, request in legal_plans(framework, 12)]


def launch_files(rng: random.Random, _folder: Path) -> None:
    """Launch files of every framework with lines, values and characters changed: read, priced and checked."""
    files, request = rng.choice(launches(rng.choice(WRITERS)))
    files = dict(files)
    for name in rng.sample(list(files), rng.randrange(1, len(files) + 1)):
        files[name] = mutated_text(rng, files[name])
    launch = read_files(files, rng.choice((None, None, None, *WRITERS)))
    model_of(launch)
    findings = lint(launch, request)
    for finding in findings:
        assert_sentence(finding.message)
        assert finding.path in files and finding.line >= 1, f"{finding} in {list(files)}"
    for style in FORMATS:
        format_findings(findings, style)
    assert_priceable(request, to_plan(launch, request))


@cache
def measured_rows() -> list[dict[str, Any]]:
    names = ("calibration.jsonl", "sweep_calibration.jsonl", "sequence_parallel_paper.jsonl")
    lines = [line for name in names for line in (TESTS / "data" / "measured" / name).read_text().splitlines()]
    return [json.loads(line) for line in lines]


def measured_runs(rng: random.Random, folder: Path) -> None:
    """Lines of measured runs for ``validate``, some of them wrong; none may vanish."""
    lines = [json_text(mutated_tree(rng, row)) for row in rng.sample(measured_rows(), rng.randrange(1, 4))]
    if rng.random() < 0.3:
        lines.insert(
            0, rng.choice(("{", "[]", "null", "NaN", '{"id": 1e999}', "[" * 5000, "9" * 5000, '"a"'))
        )
    path = folder / "runs.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    report = validate_file(path)
    assert len(report["rows"]) == len(lines)
    dumps(report)
    for row in report["rows"]:
        assert_figures({name: value for name, value in row.items() if name.startswith("predicted")})
        if row["skipped"] is not None:
            assert_sentence(row["skipped"])


@cache
def _asked() -> PlanRequest:
    return PlanRequest(
        model=ordinary_model(),
        cluster=load_cluster("h100-sxm-80gb", 16),
        workload=Workload(global_batch=64, seq_length=4096),
        framework=load_framework("megatron"),
    )


@cache
def _report() -> dict[str, Any]:
    settings = (
        {},
        {"tensor_parallel": 2, "pipeline_parallel": 4, "virtual_stages": 2},
        {"recompute": "full"},
    )
    rows = [estimate_report(evaluate(complete(said, _asked()), _asked())) for said in settings]
    return {"status": "optimal", "plans": json.loads(dumps(rows))}


def plan_json(rng: random.Random, folder: Path) -> None:
    """Plan files for ``estimate --plan`` and ``compare``: what ``--json`` prints, changed."""
    tree = rng.choice((_report(), _report()["plans"][1]))
    path = folder / "plan.json"
    text = json_text(mutated_tree(rng, tree))
    path.write_text(mutated_text(rng, text) if rng.random() < 0.1 else text, encoding="utf-8")
    rank = rng.choice(("", "#1", "#2", "#3", "#0", "#9", "#-1", "#x", "#", "##", "#" + "9" * 5000, "#²"))
    assert_priceable(_asked(), plan_file(f"{path}{rank}", _asked()))


def sweep_state(rng: random.Random, folder: Path) -> None:
    """The state file of an interrupted sweep, changed."""
    row = {"key": "0" * 16, "hardware": "h100", "gpus": 64, "status": "optimal", "plan": "t 1", "reason": "",
           "figures": {"step_time_s": 1.0, "mfu": 0.4, "tokens_per_s_per_gpu": 9.0}}  # fmt: skip
    lines = [json_text(mutated_tree(rng, row, rng.randrange(3))) for _ in range(rng.randrange(4))]
    path = folder / "state.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    for outcome in read_state(path):
        assert isinstance(outcome.key, str) and isinstance(outcome.gpus, int)
        assert isinstance(outcome.figures, dict)
        assert_figures(outcome.figures)


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@cache
def _practised(folder: Path) -> dict[str, Any]:
    """A progress file after a few answers."""
    progress = Progress.open(folder / "practised.json", lambda: NOON)
    for number in range(6):
        progress.record(f"card-{number % 3}:{number}", f"card-{number % 3}", bool(number % 2), number > 3)
    tree: dict[str, Any] = json.loads(progress.path.read_text(encoding="utf-8"))
    return tree


def progress_file(rng: random.Random, folder: Path) -> None:
    """The progress of practice, changed: what is lost is kept aside; asking goes on and is saved."""
    path = folder / "practice.json"
    text = json_text(mutated_tree(rng, _practised(folder)))
    text = mutated_text(rng, text) if rng.random() < 0.2 else text
    path.write_text(text, encoding="utf-8")
    progress = Progress.open(path, lambda: NOON)
    names = ["card-0", "card-1", "new", *progress.records]
    assert sorted(progress.in_order(names)) == sorted(names)
    if progress.notice:
        kept = Path(progress.notice.partition("kept as ")[2].partition(", and")[0])
        assert kept.read_text(encoding="utf-8") == text, "the damaged file was not kept"
        kept.unlink()
    for name in names:
        progress.record(f"{name}:1", name, right=rng.random() < 0.5, helped=False)
    again = Progress.open(path, lambda: NOON)
    assert not again.notice and again.records.keys() == progress.records.keys()
    for record in again.records.values():
        assert 0 <= record.right <= record.asked


def changed_file(rng: random.Random, folder: Path) -> str:
    """A file of some kind, changed; or a path that leads nowhere."""
    makers: list[tuple[str, Callable[[], str]]] = [
        ("plan.json", lambda: json_text(mutated_tree(rng, _report()))),
        ("config.json", lambda: json_text(mutated_tree(rng, rng.choice(_configs())))),
        ("machine.toml", lambda: toml_text(mutated_tree(rng, rng.choice(_tomls("hardware"))))),
        ("model.toml", lambda: toml_text(mutated_tree(rng, rng.choice(_tomls("models"))))),
        ("runs.jsonl", lambda: json_text(mutated_tree(rng, rng.choice(measured_rows())))),
        ("run.sh", lambda: mutated_text(rng, next(iter(launches("megatron")[0][0].values())))),
    ]
    name, text = rng.choice(makers)
    path = folder / name
    path.write_text(text(), encoding="utf-8", errors="replace")
    return (
        str(path)
        if rng.random() < 0.8
        else rng.choice(("", "/dev/null", "missing.json", str(folder), "1", "0"))
    )
