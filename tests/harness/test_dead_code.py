"""Markers in dead code: found in the compiled text, while what the text does stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from graftwork.catalog.patches import Marker
from graftwork.harness.dead_code import plant
from graftwork.patching import markers
from graftwork.patching.overlay import Overlay
from graftwork.trees.folder import FolderTree

SOURCE = '''\
"""A module."""
from __future__ import annotations

import functools

SEEN = []


class Pool:
    """Only a docstring and methods."""

    def take(self, rows):
        """Take rows."""
        return rows + 1

    def one(self): return 1; rows = 2

    def words(self):
        """Nothing else."""

    @functools.lru_cache
    def outer(self, rows):
        @functools.cache
        def inner():
            return rows * 2

        return inner()


class Empty: """Nothing."""
'''

PLACES = [
    "<module>",
    "Pool.take",
    "Pool.one",
    "Pool.words",
    "Pool.outer",
    "Pool.outer.inner",
    "Pool.outer.<locals>.inner",
]
MISSING = ["helper", "Pool.helper", "Pool.helper.inner", "Other.method"]
VALUES = {
    "local": "_dead_local",
    "name": "_dead_name",
    "attribute": "dead_attribute",
    "constant": 'it\'s dead \n"code"',
}


def over(tmp_path: Path, source: str | None = SOURCE) -> Overlay:
    (tmp_path / "toy").mkdir()
    if source is not None:
        (tmp_path / "toy/pool.py").write_bytes(source.encode())
    return Overlay(FolderTree(tmp_path))


def ran(text: str) -> list[object]:
    """What the functions of the text give."""
    names: dict[str, object] = {}
    exec(compile(text, "pool.py", "exec"), names)
    pool = names["Pool"]()  # type: ignore[operator]
    return [pool.take(1), pool.one(), pool.words(), pool.outer(4), names["SEEN"]]


def marker(kind: str, function: str) -> Marker:
    return Marker(file="toy/pool.py", kind=kind, value=VALUES[kind], function=function)  # type: ignore[arg-type]


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(
    ("kind", "function"),  # a module has no locals: see test_a_local_of_a_module_has_no_place
    [(kind, place) for kind in VALUES for place in (*PLACES, *MISSING) if (kind, place) != ("local", "<module>")],
)
def test_a_marker_is_planted_and_does_nothing(tmp_path: Path, kind: str, function: str, newline: str) -> None:
    here, wanted = over(tmp_path, SOURCE.replace("\n", newline)), marker(kind, function)
    assert not markers.present(wanted, here)
    plant([wanted], here)
    assert markers.present(wanted, here)
    text = here.text_of("toy/pool.py")
    assert text and ran(text) == ran(SOURCE)
    assert text.count("\n") == text.count(newline)


def test_several_markers_share_a_function(tmp_path: Path) -> None:
    here, wanted = over(tmp_path), [marker(kind, "Pool.take") for kind in VALUES]
    plant(wanted, here)
    assert all(markers.present(each, here) for each in wanted)


def test_a_file_that_only_the_patch_brings_is_made(tmp_path: Path) -> None:
    here, wanted = over(tmp_path, None), marker("name", "helper")
    plant([wanted], here)
    assert markers.present(wanted, here)


def test_a_local_of_a_module_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no place in dead code of <module>"):
        plant([marker("local", "<module>")], over(tmp_path))
