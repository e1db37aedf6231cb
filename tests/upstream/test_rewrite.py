"""patch.toml changed in place: what stays keeps its words, and what is written reads back as it was meant."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec
import pytest
from toys import ROOT, TOY_PATCH

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.patches import Anchor, AnchorHunk, Marker, PatchFile, Revision
from graftwork.catalog.toml import tomllib
from graftwork.upstream.rewrite import rewritten

NEW = Anchor(id="rows", file="toy/pool.py", versions=">=2", hunk=[AnchorHunk(find="a\n", replace="b\n[[edit]]\n")])
MARKER = Marker(file="toy/pool.py", kind="local", value="_other", discriminates=["R2"])
TEXT = (
    TOY_PATCH.replace("[[edit]]", "# why it is so\n[[edit]]", 1)
    + '\n[[not_needed]]\nversions = "<1"\nreason = """\n[[edit]]\n"""\n'
)


def spec_of(text: str) -> PatchFile:
    return msgspec.convert(tomllib.loads(text), PatchFile)


def changed(text: str, **keys: Any) -> list[str]:
    old = spec_of(text)
    done = rewritten(text, old, msgspec.structs.replace(old, **keys))
    rows = difflib.unified_diff(text.splitlines(), done.splitlines(), n=0, lineterm="")
    return [row for row in rows if not row.startswith(("---", "+++", "@@"))]


def test_nothing_to_change_changes_nothing() -> None:
    assert changed(TEXT) == []


def test_keys_of_tables_and_of_the_top() -> None:
    spec = spec_of(TEXT)
    narrowed = msgspec.structs.replace(spec.edit[0], versions="<2")
    assert changed(TEXT, edit=[narrowed], revision="R3") == ['-revision = "R2"', '+revision = "R3"', '+versions = "<2"']
    assert changed(TEXT, versions=">=1") == ['+versions = ">=1"']
    marker = msgspec.structs.replace(spec.marker[0], discriminates=["R1"])
    assert changed(TEXT, marker=[marker]) == ['+discriminates = ["R1"]']


def test_tables_come_behind_those_of_their_array() -> None:
    spec = spec_of(TEXT)
    rows = changed(
        TEXT, edit=[*spec.edit, NEW], marker=[MARKER], earlier=[Revision(id="R1", edits="revisions/R1.toml")]
    )
    assert [row for row in rows if row.startswith("-")] == [
        '-function = "Pool.take"', '-kind = "local"', '-value = "_toy_clip"'
    ]  # fmt: skip
    assert [row for row in rows if row.startswith("+[[")] == [
        "+[[edit]]",
        "+[[edit.hunk]]",
        "+[[edit]]",
        "+[[earlier]]",
    ]


def test_a_table_can_go() -> None:
    spec = spec_of(TEXT)
    rows = changed(TEXT, edit=[NEW])
    assert "-# why it is so" in rows and spec.not_needed[0].reason == "[[edit]]\n"


@pytest.mark.parametrize("name", Catalog(ROOT).patch_ids)
def test_the_real_files(name: str) -> None:
    text = (ROOT / "patches" / name / "patch.toml").read_text()
    spec = spec_of(text)
    edits = [msgspec.structs.replace(edit, versions=f"{edit.versions},<99".lstrip(",")) for edit in spec.edit]
    assert len(changed(text, edit=edits)) == sum(2 if edit.versions else 1 for edit in spec.edit)
    assert not [row for row in changed(text, edit=[*spec.edit, NEW]) if row.startswith("-")]
