"""Whatever is in a catalog file, the answer is a struct or a CatalogError that names the file."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import TOY_PATCH, TOY_TARGET

from graftwork.catalog.patches import PatchFile
from graftwork.catalog.targets import Target
from graftwork.catalog.toml import load
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
