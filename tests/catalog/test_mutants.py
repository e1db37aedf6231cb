"""mutants.toml and inert hunks: what is refused, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from proving import MUTANTS, Proving

from graftwork.errors import CatalogError

BREACHES = {
    "two of one name": ('id = "one-less"', 'id = "always-padded"', "two mutants are called 'always-padded'"),
    "another file": (
        'file = "toy/pool.py"\n[[mutant.edit.hunk]]\nfind',
        'file = "toy/other.py"\n[[mutant.edit.hunk]]\nfind',
        "toy/other.py is not a file of toy/rows",
    ),
    "another engine": (
        'file = "toy/pool.py"\n[[mutant.edit.hunk]]\nfind',
        'file = "other/pool.py"\n[[mutant.edit.hunk]]\nfind',
        "not in the engine's package",
    ),
    "inert": ('becomes = "padded"', 'becomes = "padded"\ninert = "no"', "inert has no meaning here"),
    "not Python": ('match = "min(rows, padded)"', 'match = "min(rows,"', "not a Python snippet"),
    "a new file": ('kind = "anchor"', 'kind = "file"', "'file'"),
    "no reason": ('why = "off by one"\n', "", "missing key `why`"),
    "a version": ('why = "off by one"\n', 'why = "off by one"\nversions = "1 and up"\n', "1 and up"),
    "an unknown key": ('why = "off by one"\n', 'why = "off by one"\nreason = ""\n', "unknown key `reason`"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_names_file_and_line(tmp_path: Path, name: str) -> None:
    old, new, says = BREACHES[name]
    toy = Proving(tmp_path)
    assert MUTANTS.count(old) == 1
    toy.write("patches/toy/rows/mutants.toml", MUTANTS.replace(old, new))
    with pytest.raises(CatalogError, match=r"mutants\.toml:\d+: ") as refused:
        toy.catalog.mutants(toy.patches[0])
    assert says in refused.value.message


def test_the_check_of_the_whole_catalog_reads_mutants(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    toy.write("patches/toy/rows/mutants.toml", "")
    with pytest.raises(CatalogError, match=r"mutants\.toml"):
        toy.catalog.mutants(toy.patches[0])


def test_a_patch_needs_no_mutants(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    (toy.root / "patches/toy/rows/mutants.toml").unlink()
    assert toy.catalog.mutants(toy.patches[0]) == []


def test_a_hunk_that_changes_nothing_cannot_be_inert(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    absent = '[[edit.hunk]]\nmatch = "no_such(...)"\nabsent = true\ninert = "it changes nothing"\n'
    toy.change("patches/toy/rows/patch.toml", "[[marker]]", f"{absent}\n[[marker]]")
    with pytest.raises(CatalogError, match=r"patch\.toml:\d+: a hunk with absent changes nothing"):
        toy.catalog.patch("toy/rows")


def test_what_tests_read_is_in_the_engine(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    toy.change("patches/toy/rows/patch.toml", "[[edit]]", 'reads = ["other/file.py"]\n\n[[edit]]')
    with pytest.raises(CatalogError, match="not in the engine's package"):
        toy.catalog.patch("toy/rows")
