"""The layer's bytes: deterministic, readable by others, and nothing unsafe in them."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.errors import UsageError
from graftwork.images.layer import Entry, Kind, build_layer, stored_gzip

LONG = "d" * 120 + "/" + "f" * 120


def members(*entries: Entry, mtime: int = 7) -> list[tarfile.TarInfo]:
    layer = build_layer(entries, mtime=mtime)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer.blob))) as archive:
        return archive.getmembers()


@given(st.binary(max_size=300), st.sampled_from([1, 500]))
def test_stored_gzip_is_gzip(data: bytes, times: int) -> None:
    assert gzip.decompress(stored_gzip(data * times)) == data * times


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 131070, 131071])
def test_stored_gzip_at_block_borders(size: int) -> None:
    assert gzip.decompress(stored_gzip(b"x" * size)) == b"x" * size


def test_digests() -> None:
    layer = build_layer([Entry("a", data=b"1")], mtime=0)
    assert layer.digest == "sha256:" + hashlib.sha256(layer.blob).hexdigest()
    assert layer.diff_id == "sha256:" + hashlib.sha256(gzip.decompress(layer.blob)).hexdigest()
    assert layer.size == len(layer.blob)


def test_parents_come_first_and_belong_to_root() -> None:
    found = members(Entry("a/b/c", data=b"1", uid=5), Entry("a-b", mode=0o600))
    assert [(m.name, m.isdir(), m.mode, m.uid, m.mtime) for m in found] == [
        ("a", True, 0o755, 0, 7),
        ("a/b", True, 0o755, 0, 7),
        ("a/b/c", False, 0o644, 5, 7),
        ("a-b", False, 0o600, 0, 7),
    ]
    assert all(m.uname == m.gname == "" for m in found)


def test_a_given_folder_keeps_its_mode() -> None:
    assert members(Entry("a/b"), Entry("a", Kind.FOLDER, mode=0o700, gid=3))[0].mode == 0o700


def test_white_outs() -> None:
    assert [m.name for m in members(Entry("x", Kind.WHITEOUT), Entry("a/y", Kind.WHITEOUT))] == [
        ".wh.x",
        "a",
        "a/.wh.y",
    ]


def test_long_and_foreign_names() -> None:
    assert [m.name for m in members(Entry(LONG), Entry("é/ü"))][-2:] == ["é", "é/ü"]
    assert LONG in [m.name for m in members(Entry(LONG))]


def test_order_of_entries_does_not_matter() -> None:
    entries = [Entry("b/x", data=b"1"), Entry("a"), Entry("b/.x"), Entry("b", Kind.FOLDER, mode=0o711)]
    assert build_layer(entries, mtime=1) == build_layer(entries[::-1], mtime=1)


def test_every_field_is_in_the_bytes() -> None:
    base = Entry("a", data=b"1")
    others = [
        Entry("b", data=b"1"),
        Entry("a", data=b"2"),
        Entry("a", data=b"1", mode=0o600),
        Entry("a", data=b"1", uid=1),
    ]
    digests = {build_layer([entry], mtime=1).digest for entry in [base, *others]} | {
        build_layer([base], mtime=2).digest
    }
    assert len(digests) == 6


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([Entry("../a")], "not a path inside"),
        ([Entry("/a")], "not a path inside"),
        ([Entry("a\ud800")], "cannot hold this path"),
        ([Entry("a"), Entry("a")], "two entries for a"),
        ([Entry("a"), Entry("a", Kind.WHITEOUT)], "two entries for a"),
        ([Entry("a"), Entry("a/b")], "a/b lies under a"),
        ([Entry("a", Kind.WHITEOUT), Entry("a/b")], "a/b lies under a"),
        ([Entry("x/.wh.a")], "mean a white-out"),
        ([Entry("a", Kind.FOLDER, b"1")], "a folder has no content"),
        ([Entry("a", mode=0o100644)], "not permission bits"),
    ],
)
def test_unsafe_entries_are_refused(entries: list[Entry], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build_layer(entries, mtime=0)
