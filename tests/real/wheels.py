"""The pinned wheels of twelve releases as trees, for the tests in this folder. Only what is asked for is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graftwork.errors import UnreachableError
from graftwork.names import sha256_hex
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import RemoteWheelTree, WheelPin

# Per release: sha256 of the cp311 x86_64 wheel, and of the RECORD in it.
RELEASES = json.loads((Path(__file__).parent / "releases.json").read_text())
NAMES = list(RELEASES)


@contextmanager
def wheel(version: str) -> Iterator[RemoteWheelTree]:
    """The release's wheel; the test is skipped where no index can be reached and the cache does not have it."""
    pinned = RELEASES[version]
    filename = f"sglang-{version}-cp311-cp311-manylinux_2_34_x86_64.whl"
    pin = WheelPin("sglang", filename, sha256_hex(pinned["wheel"]), sha256_hex(pinned["record"]))
    try:
        with RemoteWheelTree(pin, Cache(), PackageIndex()) as tree:
            yield tree
    except UnreachableError as error:
        pytest.skip(f"the package index is not reachable: {error}")
