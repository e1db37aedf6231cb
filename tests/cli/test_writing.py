"""The files that verbs write: whole or as they were, and refused before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from toys import Toy

from graftwork.cli import writing
from graftwork.errors import TreeError


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "page.html"
    writing.write(file, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TreeError, match=r"page.html: cannot be written: No space left"):
        writing.write(file, b"new")
    assert file.read_bytes() == b"old" and list(tmp_path.iterdir()) == [file]


def test_a_pipe_and_a_link_are_written_into(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writing.write(pipe, b"page")
    assert os.read(reader, 10) == b"page" and pipe.is_fifo()
    os.close(reader)
    link.symlink_to("real")
    writing.write(link, b"page")
    assert link.is_symlink() and (tmp_path / "real").read_bytes() == b"page"


def test_folders_are_made_only_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "one/two.toml"
    with pytest.raises(TreeError, match="cannot be written"):
        writing.write(file, b"x")
    writing.write(file, b"x", folders=True)
    assert file.read_bytes() == b"x"


@pytest.mark.parametrize("place", ["no/such/page.html", "folder"])
def test_an_output_that_cannot_be_written_is_told_before_the_work(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(TreeError, match="cannot be written"):
        writing.check(tmp_path / place)
    writing.check(tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_report_and_matrix_look_at_their_output_first(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    from graftwork.cli import matrix, report

    def no_work(*_: object, **__: object) -> None:
        pytest.fail("the releases were read first")

    monkeypatch.setattr(matrix, "matrices", no_work)
    monkeypatch.setattr(report, "matrices", no_work)
    for command, option in ((report.command, "--out"), (matrix.command, "--html")):
        arguments = ["--catalog", str(toy.root), option, "/dev/null/page.html"]
        with pytest.raises(TreeError, match="cannot be written"):
            CliRunner().invoke(command, arguments, catch_exceptions=False)
