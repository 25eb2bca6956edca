"""Files that are not what they should be, folders that cannot be written: one sentence, nothing left."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from fuzz_kinds import outcome_of
from fuzz_oracle import assert_sentence, no_longer_than

from planner.catalog import load_cluster, load_model
from planner.catalog.files import MAX_FILE_BYTES
from planner.cli import main
from planner.errors import BadInput
from planner.frameworks.text_formats import plain_value
from planner.output import write_folder

MODEL = ["--model", "llama-3-8b", "--gpus", "8", "--global-batch", "64"]
COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "model": lambda path: ["estimate", "--model", path, "--gpus", "8"],
    "hardware": lambda path: ["estimate", "--model", "llama-3-8b", "--gpus", "8", "--hardware", path],
    "plan": lambda path: ["estimate", *MODEL, "--plan", path],
    "compare": lambda path: ["compare", path, path, *MODEL],
    "check": lambda path: ["check", path, "--no-search", *MODEL],
    "validate": lambda path: ["validate", path],
    "sweep state": lambda path: ["sweep", *MODEL[:2], "--gpus", "8", "--state", path],
}
"""How a file reaches the program."""
ENDINGS = {"model": ".json", "hardware": ".toml", "validate": ".jsonl", "check": ".sh"}
CONTENTS: dict[str, bytes] = {
    "binary": bytes(range(256)) * 4,
    "not UTF-8": b'{"model_type": "llama", "name": "caf\xe9"}',
    "nul": b"\x00" * 100,
    "deep": b'{"a":' * 20_000,
    "deep list": b"a = " + b"[" * 20_000,
    "byte order mark": b"\xef\xbb\xbf[",
}


def run(*words: str) -> tuple[int, str]:
    """Exit code and what stands on standard error; anything but an orderly exit fails."""
    with no_longer_than(60):
        result = CliRunner().invoke(main, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result.exit_code, result.stderr


def refused(words: list[str]) -> str:
    """The one sentence with which a command line is refused."""
    code, said = run(*words)
    assert code == 2, said
    sentence = said.strip().splitlines()[-1]
    assert_sentence(sentence)
    assert sentence.startswith("Error: ")
    return sentence


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in {"sweep state", "validate"}])
def test_files_of_nonsense_are_refused(command: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / f"file{ENDINGS.get(command, '.json')}"
    path.write_bytes(CONTENTS[content])
    sentence = refused(COMMANDS[command](str(path)))
    assert str(path) in sentence, f"the error does not say which file: {sentence}"


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in {"sweep state", "validate"}])
def test_empty_and_missing_files_are_refused(command: str, tmp_path: Path) -> None:
    path = tmp_path / f"file{ENDINGS.get(command, '.json')}"
    assert str(path) in refused(COMMANDS[command](str(path)))
    path.write_bytes(b"")
    refused(COMMANDS[command](str(path)))
    path.unlink()
    path.mkdir()
    refused(COMMANDS[command](str(path)))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_100_megabytes_is_not_read(command: str, tmp_path: Path) -> None:
    path = tmp_path / f"file{ENDINGS.get(command, '.json')}"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    assert "larger than" in refused(COMMANDS[command](str(path)))


@pytest.mark.parametrize("content", ["not UTF-8", "binary"])
def test_validate_refuses_what_is_not_text(content: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(CONTENTS[content])
    assert "UTF-8" in refused(COMMANDS["validate"](str(path)))


def test_validate_reports_every_line_that_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("{}\n[]\n{\n" + "[" * 20_000 + "\n" + "9" * 5000 + "\n")
    code, said = run("validate", str(path))
    assert (code, said) == (0, "")


def test_the_catalog_limit_is_far_above_any_configuration() -> None:
    assert 1_000_000 < MAX_FILE_BYTES < 100_000_000


# ---------------------------------------------------------------- files that name each other


def test_cyclic_bases_are_refused(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{one}.toml").write_text(f'base = "{tmp_path}/{other}.toml"\n')
    with pytest.raises(BadInput, match="leads back to itself"):
        load_cluster(tmp_path / "a.toml", 8)
    (tmp_path / "self.toml").write_text(f'base = "{tmp_path}/self.toml"\n')
    with pytest.raises(BadInput, match="leads back to itself"):
        load_cluster(tmp_path / "self.toml", 8)


def test_a_cycle_through_a_link_ends(tmp_path: Path) -> None:
    (tmp_path / "deeper").symlink_to(tmp_path)
    (tmp_path / "a.toml").write_text(f'base = "{tmp_path}/deeper/b.toml"\n')
    (tmp_path / "b.toml").write_text(f'base = "{tmp_path}/deeper/deeper/a.toml"\n')
    with pytest.raises(BadInput, match=r"leads back to itself|on top of each other"):
        load_cluster(tmp_path / "a.toml", 8)


def test_a_long_chain_of_bases_is_refused_and_a_short_one_read(tmp_path: Path) -> None:
    (tmp_path / "0.toml").write_text('base = "h100-sxm-80gb"\n')
    for number in range(1, 2000):
        (tmp_path / f"{number}.toml").write_text(f'base = "{tmp_path}/{number - 1}.toml"\n')
    assert load_cluster(tmp_path / "5.toml", 8).num_gpus == 8
    with pytest.raises(BadInput, match="on top of each other"):
        load_cluster(tmp_path / "1999.toml", 8)


# ---------------------------------------------------------------- where files are written


def launch(tmp_path: Path, out: Path, *more: str) -> list[str]:
    """Command line that writes launch files of a fixed plan."""
    plan = tmp_path / "plan.json"
    plan.write_text('{"tensor_parallel": 2, "data_parallel": 4, "num_microbatches": 16, "zero_stage": 1, '
                    '"shard_group_size": 4, "sequence_parallel": true}')  # fmt: skip
    return ["launch", *MODEL, "--plan", str(plan), "--out", str(out), *more]


def test_nothing_is_written_outside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert run(*launch(tmp_path, tmp_path / "out"))[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "plan.json", "scratch", "work"]
    assert not list(work.iterdir()) and not list(scratch.iterdir())
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")]


def test_files_are_not_replaced_without_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(*launch(tmp_path, out))[0] == 0
    script = next(out.glob("*.sh"))
    script.write_text("mine")
    assert "--force" in refused(launch(tmp_path, out))
    assert script.read_text() == "mine"
    assert run(*launch(tmp_path, out, "--force"))[0] == 0
    assert script.read_text() != "mine"


def test_a_file_in_the_way_of_the_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    assert "cannot write into" in refused(launch(tmp_path, tmp_path / "out"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
def test_a_read_only_folder_is_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir(mode=0o500)
    assert "Permission denied" in refused(launch(tmp_path, out))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("step", ["fdopen", "replace"])
def test_a_full_or_read_only_disk_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    def fail(*_arguments: object, **_named: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"planner.output.os.{step}", fail)
    with pytest.raises(BadInput, match=os.strerror(number)) as caught:
        write_folder(tmp_path / "out", {"a.sh": "text"})
    assert_sentence(caught.value)
    assert not list((tmp_path / "out").iterdir())


def test_names_that_no_file_system_takes_are_refused(tmp_path: Path) -> None:
    for name in ("x" * 5000, "a\x00b"):
        with pytest.raises(BadInput):
            load_model(f"{tmp_path}/{name}.toml")
        with pytest.raises(BadInput):
            write_folder(tmp_path / name, {"a": "b"})


@pytest.mark.parametrize("word", [">dim", "|x", "2026-99-99", "[", "*b", "!!python/name:os.system", "@x"])
def test_a_word_that_is_no_yaml_stays_a_word(word: str) -> None:
    assert plain_value(word) == word
    assert plain_value("12") == 12


@pytest.mark.parametrize(
    ("kind", "seed"), [("hardware TOML", 101188), ("launch files", 100825), ("launch files", 1050)]
)
def test_inputs_that_once_broke_it_stay_mended(kind: str, seed: int, tmp_path: Path) -> None:
    assert outcome_of(kind, seed, tmp_path) in {"answered", "refused"}


def test_numbers_of_thousands_of_digits_in_a_plan_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"data_parallel": ' + "9" * 5000 + "}")
    assert "digits" in refused(["compare", str(path), str(path), *MODEL])
    assert "digits" in refused(["estimate", *MODEL, "--plan", str(path)])


@pytest.mark.parametrize(
    "stages", ["7", '[{"chunk_layers": []}]', '[{"layers": "x"}]', '{"a": 1}', "[[1], [2]]"]
)
def test_stages_that_are_none_are_refused(stages: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(f'{{"data_parallel": 8, "num_microbatches": 8, "stages": {stages}}}')
    code, said = run("estimate", *MODEL, "--plan", str(path))
    assert code == 2 or stages == "[[1], [2]]", said  # entries that are no tables: the plain split


@pytest.mark.parametrize(
    ("line", "told"),
    [('group_gpus = " "', "group_gpus"), ("group_gpus = 1e300", "group_gpus"),
     ("group_gpus = 8\nis_torus = true", "torus_axes")],
)  # fmt: skip
def test_links_that_are_none_are_refused(line: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(
        f'base = "h100"\n[[links]]\nname = "x"\nsource = "x"\norigin = "assumed"\nbytes_per_s = 1e9\n'
        f"latency_s = 1e-6\n{line}\n"
    )
    with pytest.raises(BadInput, match=told) as caught:
        load_cluster(path, 8)
    assert_sentence(caught.value)


def test_gpus_of_thousands_of_digits_are_refused_by_check(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --bf16\n")
    for gpus in ("9" * 5000, "²", "1e9"):
        assert "--gpus" in refused(["check", str(script), "--no-search", "--model", "350m", "--gpus", gpus])


def test_a_state_that_cannot_be_written_is_told_before_the_first_search(tmp_path: Path) -> None:
    words = ["sweep", "--model", "350m", "--gpus", "8", "--state", str(tmp_path / "missing" / "state.jsonl")]
    assert "cannot write" in refused(words)


def test_options_that_no_question_of_a_sweep_takes_are_an_error() -> None:
    assert "--hbm" in refused(["sweep", "--model", "350m", "--gpus", "8", "--hbm", "much"])
