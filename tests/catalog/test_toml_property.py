"""Whatever is in a catalog file, the answer is a struct or a CatalogError that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import TOY_PATCH, TOY_TARGET

from graftwork.catalog.patches import PatchFile
from graftwork.catalog.targets import Target
from graftwork.catalog.toml import load, toml_text, tomllib
from graftwork.errors import CatalogError

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def tries(file: Path, data: bytes, kind: type) -> None:
    file.write_bytes(data)
    try:
        load(file, kind)
    except CatalogError as error:
        assert str(file) in error.message


@quick
@given(data=st.binary(max_size=300))
def test_random_bytes(tmp_path: Path, data: bytes) -> None:
    tries(tmp_path / "x.toml", data, PatchFile)


@quick
@given(st.data())
def test_a_real_file_with_a_part_changed(tmp_path: Path, data: st.DataObject) -> None:
    text, kind = data.draw(st.sampled_from([(TOY_PATCH, PatchFile), (TOY_TARGET, Target)]))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    middle = data.draw(st.text(max_size=12))
    tries(tmp_path / "x.toml", (text[:start] + middle + text[end:]).encode("utf-8", "surrogatepass"), kind)


_SCALARS = st.text(max_size=20) | st.booleans() | st.integers(-(2**63), 2**63 - 1)
_ODD = st.sampled_from(['"""', "'''", "\r\n", "\\", "\n", '"', "'", "\x00", "\x7f", "\x85", "\t", "#", "= [", "a"])
_TEXTS = st.lists(_ODD, max_size=6).map("".join)
_PLAIN = st.dictionaries(st.text(max_size=5), _SCALARS | _TEXTS | st.lists(_SCALARS, max_size=3), max_size=4)
_TABLES = st.dictionaries(st.text(min_size=1, max_size=5), st.lists(_PLAIN, min_size=1, max_size=3), max_size=2)


@quick
@given(_PLAIN, _TABLES, _TABLES)
def test_what_is_written_reads_back(
    plain: dict[str, Any], tables: dict[str, list[dict[str, Any]]], inner: dict[str, Any]
) -> None:
    value = plain | {key: [row | inner for row in rows] for key, rows in tables.items()}
    assert tomllib.loads(toml_text(value)) == value
