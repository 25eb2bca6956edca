"""One function a kind of input: make it from a seed, hand it in as a user would, look at what comes back.

Each returns ``answered`` or ``refused``; anything else that happens (an exception, a hang, a bad figure, an
error that is no sentence) is a finding.
"""

from __future__ import annotations

import json
import random
import sys
import tomllib
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

TESTS = Path(__file__).parent.parent
for name in ("frameworks", "."):
    if str(TESTS / name) not in sys.path:
        sys.path.append(str(TESTS / name))

from checker import faults, price_faults  # noqa: E402
from click.testing import CliRunner  # noqa: E402
from fuzz_oracle import (  # noqa: E402
    assert_cluster,
    assert_figures,
    assert_model,
    assert_priceable,
    assert_sentence,
    no_longer_than,
)
from fuzz_values import (  # noqa: E402
    NASTY,
    NASTY_TEXT,
    json_text,
    mutated_bytes,
    mutated_text,
    mutated_tree,
    toml_text,
)
from launch_plans import legal_plans  # noqa: E402

from planner.api import complete, plan_file  # noqa: E402
from planner.catalog import load_cluster, load_model  # noqa: E402
from planner.catalog.files import entries, folder  # noqa: E402
from planner.catalog.pins import OPTION_OF_FIELD, PIN_OPTIONS, parse_pin  # noqa: E402
from planner.cli import main  # noqa: E402
from planner.errors import BadInput, PlannerError  # noqa: E402
from planner.frameworks import FRAMEWORKS, load_framework  # noqa: E402
from planner.frameworks.files import WRITERS, read_files, to_plan, write  # noqa: E402
from planner.frameworks.lint import FORMATS, format_findings, lint, model_of  # noqa: E402
from planner.report.json import dumps, estimate_report  # noqa: E402
from planner.request import Question  # noqa: E402
from planner.solver.evaluate import evaluate  # noqa: E402
from planner.spec import Model, PlanRequest, Workload  # noqa: E402
from planner.sweep.execute import read_state  # noqa: E402
from planner.sweep.grid import scenarios  # noqa: E402
from planner.validate.compare import validate_file  # noqa: E402

Outcome = Literal["answered", "refused"]
Kind = Callable[[random.Random, Path], None]


def outcome_of(kind: str, seed: int, folder: Path) -> Outcome:
    """Run one generated input; raise whatever is a finding."""
    rng = random.Random(f"{kind}-{seed}")
    with no_longer_than(), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            KINDS[kind](rng, folder)
        except PlannerError as error:
            assert error.exit_code in (2, 3, 4)
            assert_sentence(error)
            return "refused"
    return "answered"


# ---------------------------------------------------------------- options


MODELS = ("llama-3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "7b", "100b", "350m")
SIZES = ("1", "2", "7", "8", "12", "64", "100", "1000", "4096", "1000000")


def _usual(rng: random.Random) -> dict[str, Any]:
    """Options that mostly make sense."""
    return {
        "model": rng.choice(MODELS),
        "gpus": rng.choice(SIZES),
        "hardware": rng.choice((None, "h100", "a100", "b200", "mi300x", "tpu-v5p", "v100")),
        "framework": rng.choice((None, *FRAMEWORKS)),
        "global_batch": rng.choice((None, "1", "64", "100", "64:256", "4Mtok", "1000000")),
        "seq_length": rng.choice((None, "1", "128", "4096", "10000000")),
        "precision": rng.choice((None, "bf16", "fp16", "fp8", "bf16,fp8")),
    }


OPTIONS = (
    "model", "gpus", "hardware", "gpus_per_node", "domain_gpus", "domain_bandwidth", "nic_bandwidth",
    "oversubscription", "pod_gpus", "global_batch", "seq_length", "precision", "framework", "goal",
    "step_time",
    "max_bubble", "hbm", "hbm_reserve",
)  # fmt: skip


def _pins(rng: random.Random, chance_nasty: float = 0.2) -> dict[str, str]:
    pins = {}
    for option in rng.sample(PIN_OPTIONS, rng.randrange(5)):
        good = rng.choice(option.choices or (("on", "off") if option.boolean else ("1", "2", "4", "8", "3")))
        pins[option.field] = rng.choice(NASTY_TEXT) if rng.random() < chance_nasty else good
    return pins


def options(rng: random.Random, _folder: Path) -> None:
    """Options of the command line and of the Python API: text and plain numbers."""
    said = _usual(rng)
    for name in rng.sample(OPTIONS, rng.randrange(4)):
        said[name] = rng.choice(NASTY_TEXT) if rng.random() < 0.8 else rng.choice((0, -1, 1.5, 1e30, 10**30))
    flags = {name: True for name in ("allow_idle", "robust", "allow_tp_across_nodes") if rng.random() < 0.3}
    request = Question(pins=_pins(rng), **said, **flags).request()
    for sentence in request.assumptions:
        assert_sentence(sentence)
    from planner.api import pinned_plan

    assert_priceable(request, pinned_plan(request))


def pins(rng: random.Random, _folder: Path) -> None:
    """Words of the pin grammar, joined at random."""
    option = rng.choice(PIN_OPTIONS)
    words = [*NASTY_TEXT, *option.choices, *("!" + word for word in option.choices), "2:8", "!3", "on", "1"]
    pin = parse_pin(
        option, rng.choice((",", ":", " ", "")).join(rng.choice(words) for _ in range(rng.randrange(5)))
    )
    assert pin.option.startswith(option.option)


def names(rng: random.Random, _folder: Path) -> None:
    """Names of models, hardware and frameworks: misspelt, decorated, empty."""
    kind = rng.randrange(3)
    known = (entries("models"), entries("hardware"), list(FRAMEWORKS))[kind]
    name = mutated_text(rng, rng.choice(known)) if rng.random() < 0.8 else str(rng.choice(NASTY))
    (load_model, lambda word: load_cluster(word, 8), load_framework)[kind](name)


# ---------------------------------------------------------------- files of models and hardware


@cache
def _configs() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((TESTS / "data" / "configs").glob("*.json"))]


@cache
def _tomls(kind: str) -> list[dict[str, Any]]:
    return [tomllib.loads(path.read_text()) for path in sorted(folder(kind).glob("*.toml"))]


@cache
def _ordinary() -> Model:
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
    assert_cluster(load_cluster(path, rng.choice((None, 8, 64))), _ordinary())


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
    assert_cluster(load_cluster(path, rng.choice((None, 8, 64))), _ordinary())


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


# ---------------------------------------------------------------- launch files


@cache
def _launches(framework: str) -> list[tuple[dict[str, str], PlanRequest]]:
    """Valid file sets of one framework with their requests."""
    return [(write(plan, request), request) for plan, request in legal_plans(framework, 12)]


def launch_files(rng: random.Random, _folder: Path) -> None:
    """Launch files of every framework with lines, values and characters changed: read, priced and checked."""
    files, request = rng.choice(_launches(rng.choice(WRITERS)))
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


# ---------------------------------------------------------------- measured runs, plans, sweeps


@cache
def _rows() -> list[dict[str, Any]]:
    names = ("calibration.jsonl", "sweep_calibration.jsonl", "sequence_parallel_paper.jsonl")
    lines = [line for name in names for line in (TESTS / "data" / "measured" / name).read_text().splitlines()]
    return [json.loads(line) for line in lines]


def measured_runs(rng: random.Random, folder: Path) -> None:
    """Lines of measured runs for ``validate``, some of them wrong; none may vanish."""
    lines = [json_text(mutated_tree(rng, row)) for row in rng.sample(_rows(), rng.randrange(1, 4))]
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
        model=_ordinary(),
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


def sweep_grid(rng: random.Random, _folder: Path) -> None:
    """Sizes and accelerators of a sweep."""
    gpus = rng.choice(("64:8192", "64,96", *NASTY_TEXT)) + rng.choice(("", "", ",", ":", "8"))
    hardware = rng.choice(("h100", "h100,b200", *NASTY_TEXT))
    for asked in scenarios(gpus, hardware, {"model": "llama-3-8b", **_pins(rng)}):
        assert asked.gpus >= 1


# ---------------------------------------------------------------- commands and the solver


def _file(rng: random.Random, folder: Path) -> str:
    """A file of some kind, changed; or a path that leads nowhere."""
    makers: list[tuple[str, Callable[[], str]]] = [
        ("plan.json", lambda: json_text(mutated_tree(rng, _report()))),
        ("config.json", lambda: json_text(mutated_tree(rng, rng.choice(_configs())))),
        ("machine.toml", lambda: toml_text(mutated_tree(rng, rng.choice(_tomls("hardware"))))),
        ("model.toml", lambda: toml_text(mutated_tree(rng, rng.choice(_tomls("models"))))),
        ("runs.jsonl", lambda: json_text(mutated_tree(rng, rng.choice(_rows())))),
        ("run.sh", lambda: mutated_text(rng, next(iter(_launches("megatron")[0][0].values())))),
    ]
    name, text = rng.choice(makers)
    path = folder / name
    path.write_text(text(), encoding="utf-8", errors="replace")
    return (
        str(path)
        if rng.random() < 0.8
        else rng.choice(("", "/dev/null", "missing.json", str(folder), "1", "0"))
    )


def command_line(rng: random.Random, folder: Path) -> None:
    """Words behind ``plan-parallel`` for the commands that do not search."""
    words = {name: str(value) for name, value in _usual(rng).items() if value is not None}
    said = [part for name, value in words.items() for part in (f"--{name.replace('_', '-')}", value)]
    said += [part for field, text in _pins(rng).items() for part in (OPTION_OF_FIELD[field], text)]
    commands = {
        "estimate": [*said, *rng.choice(([], ["--plan", _file(rng, folder)]))],
        "compare": [_file(rng, folder), _file(rng, folder), *said],
        "check": [_file(rng, folder), "--no-search", *said],
        "launch": ["--plan", _file(rng, folder), *said],
        "validate": [_file(rng, folder)],
        "models": [], "hardware": [], "frameworks": [], "rules": [], "practice": [],
    }  # fmt: skip
    command = rng.choice(list(commands))
    chosen = [
        command,
        *commands[command],
        *rng.choice(([], ["--json"], ["--josn"], [rng.choice(NASTY_TEXT)])),
    ]
    if command == "practice":
        chosen += ["--no-progress", "--id", rng.choice(("12.1.1/2", "zero-state:7", *NASTY_TEXT))]
        chosen += ["--answer", rng.choice(("31.4 GB", "12.5%", *NASTY_TEXT))]
    if rng.random() < 0.3:
        chosen.insert(rng.randrange(len(chosen) + 1), rng.choice(NASTY_TEXT))
    if command == "compare" and any(word.isdigit() for word in chosen[1:3]):
        raise BadInput("a rank needs a search")
    result = CliRunner().invoke(main, chosen)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 1, 2, 3), result.exit_code
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        raise BadInput(result.stderr.strip().splitlines()[-1])


def solve_small(rng: random.Random, folder: Path) -> None:
    """Small questions to the solver, with pins that may contradict; the independent checker judges."""
    from planner.solver import solve

    said: dict[str, Any] = {
        "model": rng.choice(("350m", "1b", "7b", "mixtral-8x7b")),
        "gpus": rng.choice(("1", "2", "3", "8", "16", "24")),
        "hardware": rng.choice(("h100", "a100", "mi300x", "b200")), "framework": rng.choice(list(FRAMEWORKS)),
        "global_batch": rng.choice(("1", "8", "16", "30", "16:32")),
        "seq_length": rng.choice(("128", "2048", "8192")),
        "goal": rng.choice(("step-time", "step-time", "memory", "cost", "tokens-per-s")),
        "max_bubble": rng.choice(("0.25", "none", "1e-9")), "hbm": rng.choice((None, "16GB", "1GB", "200GB")),
    }  # fmt: skip
    request = Question(pins=_pins(rng, 0.0), **said, allow_idle=rng.random() < 0.3).request()
    result = solve(request, top=rng.choice((1, 3)), time_limit_s=8.0, workers=1)
    assert bool(result.plans) == (result.status in ("optimal", "feasible")), result.status
    for estimate in result.plans:
        assert not faults(estimate.plan, request), faults(estimate.plan, request)
        assert not price_faults(estimate.plan, request, estimate.step_time_s, estimate.peak_memory_bytes), (
            price_faults(estimate.plan, request, estimate.step_time_s, estimate.peak_memory_bytes)
        )
        assert_figures(json.loads(dumps(estimate_report(estimate))))
    if request.goal == "step-time":
        seconds = [estimate.step_time_s for estimate in result.plans]
        assert not seconds or seconds[0] <= min(seconds) * 1.0101, "a later plan is faster"


KINDS: dict[str, Kind] = {
    "options": options,
    "pins": pins,
    "names": names,
    "config.json": config_json,
    "model TOML": model_toml,
    "hardware TOML": hardware_toml,
    "hardware on a base": hardware_base,
    "bytes": binary,
    "launch files": launch_files,
    "measured runs": measured_runs,
    "plan JSON": plan_json,
    "sweep state": sweep_state,
    "sweep grid": sweep_grid,
    "command line": command_line,
    "solve": solve_small,
}
"""Kind of input to the function that makes and tries one."""
