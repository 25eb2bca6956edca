"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.output import write_file, write_folder


def test_writes_and_leaves_nothing_else(tmp_path: Path) -> None:
    paths = write_folder(tmp_path / "new", {"a.txt": "one\n", "run.sh": "#!/bin/sh\n"})
    assert [path.read_text() for path in paths] == ["one\n", "#!/bin/sh\n"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.txt", "run.sh"]
    assert (tmp_path / "new" / "run.sh").stat().st_mode & 0o100


def test_does_not_replace_without_force(tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    write_file(path, "old")
    with pytest.raises(BadInput, match="exists; give --force"):
        write_file(path, "new")
    assert path.read_text() == "old"
    write_file(path, "new", force=True)
    assert path.read_text() == "new"


def test_writes_nothing_when_one_target_exists(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("old")
    with pytest.raises(BadInput):
        write_folder(tmp_path, {"a": "1", "b": "2"})
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside"])
def test_stays_inside_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="outside"):
        write_folder(tmp_path / "in", {name: "x"})


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write into"):
        write_folder(tmp_path / "file" / "sub", {"a": "1"})
