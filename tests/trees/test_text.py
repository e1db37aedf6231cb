from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.errors import TreeError
from graftwork.names import rel_path
from graftwork.trees.folder import FolderTree
from graftwork.trees.text import decode, text_of


def test_line_endings_stay(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes("a = 'é'\r\nb = 1\rc = 2\n".encode())
    assert text_of(FolderTree(tmp_path), rel_path("a.py")) == "a = 'é'\r\nb = 1\rc = 2\n"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"ok = 1\nbad = '\xe9'\n", "offset 14"),
        (b"\xef\xbb\xbfx = 1\n", "byte order mark"),
        (b"x = 1\n\0\n", "NUL byte at offset 6"),
        (b"# -*- coding: latin-1 -*-\nx = 1\n", "encoding 'latin-1'"),
        (b"#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\n", "encoding 'cp1252'"),
    ],
)
def test_refused_with_path_and_offset(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "a.py").write_bytes(data)
    with pytest.raises(TreeError, match=says) as caught:
        text_of(FolderTree(tmp_path), rel_path("a.py"))
    assert "a.py" in caught.value.message


@pytest.mark.parametrize(
    "data",
    [b"# coding: UTF-8\n", b"# -*- coding: utf_8 -*-\n", b"x = 1\n# coding: latin-1\n", b"\n\n# coding: latin-1\n"],
)
def test_harmless_declarations(data: bytes) -> None:
    assert decode(data, "a.py").encode() == data


@given(st.binary(max_size=200))
def test_any_bytes_are_the_same_text_or_a_tree_error(data: bytes) -> None:
    try:
        assert decode(data, "a.py").encode() == data
    except TreeError as error:
        assert error.message.startswith("a.py: ")
