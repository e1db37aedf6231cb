"""A small payload, and every Python of this host."""

from __future__ import annotations

import hashlib

import pytest

from graftwork.images.interpreters import Interpreter, find_interpreter
from graftwork.images.payload import PayloadFile, PayloadSpec
from graftwork.images.record import Base, Engine, Launch, Marker, Patch, Wheel
from graftwork.names import RelPath, TargetName

PATH = RelPath("sglang/srt/indexer.py")
PRISTINE = b"class Indexer:\n    def rows(self, q, k):\n        return len(q)\n"
PATCHED = b"class Indexer:\n    def rows(self, q, k):\n        _fewer = min(len(q), len(k))\n        return _fewer\n"
MINORS = ("3.10", "3.11", "3.12", "3.13")


@pytest.fixture
def spec() -> PayloadSpec:
    """Two files of a made-up engine, one patched and one new."""
    return PayloadSpec(
        target=TargetName("tiny"),
        engine=Engine("sglang", "1.2.3", "/sgl-workspace/sglang/python"),
        python="3.10",
        platform="linux/amd64",
        base=Base("example/base:1.2.3", "sha256:" + "1" * 64),
        wheel=Wheel("sglang-1.2.3-py3-none-any.whl", "2" * 64, "3" * 64),
        files={
            PATH: PayloadFile(PATCHED, 0o644, hashlib.sha256(PRISTINE).hexdigest(), ("sglang/rows",)),
            RelPath("sglang/srt/extra.txt"): PayloadFile(b"caf\xc3\xa9\n", 0o600, None, ("sglang/rows",)),
        },
        patches=(Patch("sglang/rows", "R2", "fewer rows", "pending", ["a/b#1"], [PATH]),),
        markers=(Marker("sglang/rows", PATH, "Indexer.rows", "local", "_fewer"),),
        epoch=1_700_000_000,
        launch=Launch(["--flag"], {"A": "1"}),
        env={"B": "2", "A": "1"},
        labels={"note": "für alle"},
    )


@pytest.fixture(params=MINORS)
def interpreter(request: pytest.FixtureRequest) -> Interpreter:
    """Each Python that graftwork supports, skipped where the host lacks it."""
    found = find_interpreter(request.param)
    if found is None:
        pytest.skip(f"this host has no working Python {request.param}")
    return found
