"""Files of the engines' real wheels, read in parts and checked against pinned hashes; without an index, a skip."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from graftwork.errors import UnreachableError
from graftwork.names import rel_path, sha256_hex
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import RemoteWheelTree, WheelPin

_SGLANG = json.loads((Path(__file__).parent / "real" / "releases.json").read_text())
_VLLM = {
    "0.24.0": {
        "wheel": "2d2831aeba311292250df0132dbc4d8e9f42c654536eaec48e6fe58acb1822cf",
        "record": "faedfff053a871980816cea1bc6b20aea1108b8fb2e951047c196a6548e9e6c5",
    }
}
_NAMES = {
    "sglang": "sglang-{}-cp311-cp311-manylinux_2_34_x86_64.whl",
    "vllm": "vllm-{}-cp38-abi3-manylinux_2_28_x86_64.whl",
}


def wheel_pin(engine: str, version: str) -> WheelPin:
    """The pin of one release: sha256 of the wheel and of the RECORD in it."""
    pinned = {"sglang": _SGLANG, "vllm": _VLLM}[engine][version]
    name = _NAMES[engine].format(version)
    return WheelPin(engine, name, sha256_hex(pinned["wheel"]), sha256_hex(pinned["record"]))


@cache
def wheel_file(engine: str, version: str, path: str) -> bytes:
    """One file of a release. MissingFile if the release has none there."""
    try:
        with RemoteWheelTree(wheel_pin(engine, version), Cache(), PackageIndex()) as tree:
            return tree.read(rel_path(path))
    except UnreachableError as error:
        pytest.skip(f"the package index is not reachable: {error}")
