"""The patches' own tests on every toy release where the patch applies: run for real, and never silently green."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys import Toy
from upstream.toy_releases import ToyIndex, toy_catalog, toy_index

from graftwork.errors import UsageError
from graftwork.harness.on_releases import own_tests
from graftwork.trees.cache import Cache
from graftwork.upstream.matrix import Question, make_matrix
from graftwork.upstream.matrix_cells import OwnTests
from graftwork.upstream.releases import FirstUse, find_releases, in_range

GOOD = """
from graftwork.harness.isolate import load_class, read_engine_file

def take(tree):
    space = {"kernel": lambda count, padded, wide=False: [count, padded]}
    pool = load_class(read_engine_file(tree, "toy/pool.py"), "Pool", ["take", "is_small"], space)
    return pool().take(5, 3)

def test_the_smaller_count(engine_tree):
    assert take(engine_tree) == [3, 3]
"""
# Right on 1.0, and wrong on 1.1: the anchors match on both.
SPLIT = (
    GOOD
    + """
def test_only_old(engine_tree, engine_version):
    assert str(engine_version) == "1.0"
"""
)
NOTHING = "def helper(): ..."
SKIPS = "import pytest\n\ndef test_skips(engine_tree):\n    pytest.skip('no reason')\n"


@pytest.fixture
def index() -> Iterator[ToyIndex]:
    with toy_index() as found:
        yield found


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return toy_catalog(tmp_path / "toy")


def ran(toy: Toy, index: ToyIndex, text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, OwnTests]:
    """The verdict by version; toy tests need no torch, so its absence is hidden here."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    toy.write("patches/toy/rows/tests/test_toy.py", text)
    cache = Cache(toy.root / "cache")
    client, _ = index.client(cache)
    patches = tuple(toy.patches)
    releases = find_releases(client, "toy", {}, FirstUse(cache), in_range(">=0.9,<=1.3", patches))
    question = Question(patches, toy.catalog.platforms_of(patches), tuple(releases))
    made = make_matrix(question, cache, client, jobs=1)
    found, cost = own_tests(question, made.cells, cache, client, jobs=1)
    assert cost.moved_bytes > 0, "the file with the version is read for the tests alone"
    return {version: tests for (_, version), tests in found.items()}


def test_they_run_where_the_patch_applies_and_only_there(
    toy: Toy, index: ToyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ran(toy, index, GOOD, monkeypatch)
    assert {version: (tests.passed, tests.failed) for version, tests in found.items()} == {
        "1.0": (1, {}),
        "1.1": (1, {}),
    }


def test_an_anchor_that_matches_is_not_a_fix_that_works(
    toy: Toy, index: ToyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ran(toy, index, SPLIT, monkeypatch)
    assert not found["1.0"].failed
    (failure,) = found["1.1"].failed.items()
    assert failure[0].endswith("test_only_old") and "AssertionError" in failure[1]


@pytest.mark.parametrize("text", [NOTHING, SKIPS, "import nothing_of_this_name\n"])
def test_a_run_in_which_nothing_passes_is_a_failure(
    toy: Toy, index: ToyIndex, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    found = ran(toy, index, text, monkeypatch)
    assert set(found) == {"1.0", "1.1"}
    assert all(tests.failed and not tests.passed for tests in found.values())


def test_without_torch_it_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with toy_index() as index, pytest.raises(UsageError, match="needs torch"):
        own_tests(Question((), {}, ()), [], Cache(tmp_path), index.client(Cache(tmp_path))[0])
