"""Merged pull requests decided on the real wheels of twelve releases.

The diffs of the real pull requests cannot be had without the network: they are made here from two releases' own text,
cut down to one change, and served by the GitHub of the tests. The releases are judged by that text alone.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version
from upstream.github_server import GitHubServer

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.seen import Contained, UpstreamFile
from graftwork.errors import UnreachableError
from graftwork.names import RelPath, sha256_hex
from graftwork.patching import regions
from graftwork.patching.assess import Engine
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import RemoteWheelTree, WheelPin
from graftwork.trees.tree import Tree
from graftwork.upstream.answers import Answers
from graftwork.upstream.github import GitHub
from graftwork.upstream.places import places
from graftwork.upstream.status import Refresh

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
RELEASES = json.loads((Path(__file__).parent / "releases.json").read_text())
COMMON = "sglang/srt/mem_cache/pool_host/common.py"
INDEXER = "sglang/srt/layers/attention/dsa/dsa_indexer.py"
ALLOC, ROWS = "sglang/hicache-rocm-host-alloc", "sglang/dsa-indexer-rows"
FIX = "sgl-project/sglang#35233"


@pytest.fixture(scope="module")
def releases() -> Iterator[list[tuple[Version, Tree]]]:
    """All twelve, oldest first."""
    with ExitStack() as stack:
        found: list[tuple[Version, Tree]] = []
        index = PackageIndex()
        for version, pinned in RELEASES.items():
            name = f"sglang-{version}-cp311-cp311-manylinux_2_34_x86_64.whl"
            pin = WheelPin("sglang", name, sha256_hex(pinned["wheel"]), sha256_hex(pinned["record"]))
            found.append((Version(version), stack.enter_context(RemoteWheelTree(pin, Cache(), index))))
        yield found


def text(releases: list[tuple[Version, Tree]], version: str, path: str) -> str:
    try:
        return dict(releases)[Version(version)].read(RelPath(path)).decode()
    except UnreachableError as error:
        pytest.skip(f"the package index is not reachable: {error}")


def with_definition(old: str, new: str, name: str) -> str:
    """*old* with the function *name* of *new* put before the definition or assignment that comes after it there."""
    (region,) = regions.find(regions.parsed(new, "new"), new, name)
    lines = new.split("\n")
    added = lines[region.first - 1 : region.last]
    following = next(line for line in lines[region.last :] if line.strip() and not line.startswith((" ", ")", "#")))
    rows = old.split("\n")
    at = next((n for n, line in enumerate(rows) if line == following), len(rows))
    return "\n".join([*rows[:at], *added, "", "", *rows[at:]])


def hunks(old: str, new: str) -> str:
    return "\n".join(list(difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm=""))[2:])


@cache
def catalog() -> Catalog:
    return Catalog(ROOT)


def refreshed(
    server: GitHubServer, releases: list[tuple[Version, Tree]], cache: Path, *patches: str
) -> dict[str, UpstreamFile]:
    """A reading of the patches' upstream; references that a test does not care for are missing there."""
    github = GitHub(Answers(Cache(cache)), root=server.root, token="t")
    named = [catalog().patch(name) for name in patches]
    job = Refresh(named, github, lambda engine: releases, dict.fromkeys(patches, "rocm"))
    found = job.run()
    assert not job.failed
    return found


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    found = GitHubServer()
    yield found
    found.close()


def test_the_fix_of_the_host_allocator_is_in_0_5_20_and_later(
    server: GitHubServer, releases: list[tuple[Version, Tree]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    before, after = text(releases, "0.5.19", COMMON), text(releases, "0.5.20", COMMON)
    change = hunks(before, with_definition(before, after, "make_kernel_ptr_table"))
    made = {"filename": f"python/{COMMON}", "patch": change}
    facts = {"state": "merged", "merged_at": "2026-08-18T00:00:00Z", "merge_commit": "a" * 40}
    server.add(FIX, files=[made, {"filename": "docs/x.md", "patch": "@@ -1 +1 @@\n-a\n+b"}], **facts)
    (found,) = refreshed(server, releases, tmp_path, ALLOC)[ALLOC].contained
    assert isinstance(found, Contained) and found.ref == FIX
    names = list(RELEASES)
    assert found.first == "0.5.20"
    assert found.present == names[names.index("0.5.20") :]
    assert not found.partly and set(found.absent + found.unknown) == set(names[: names.index("0.5.20")])
    assert "0.5.19" in found.absent


def test_a_change_that_no_release_has_is_in_none(
    server: GitHubServer, releases: list[tuple[Version, Tree]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The title and the merge say that it is in; the text of the releases does not."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    before = text(releases, "0.5.19", COMMON)
    other = before.replace("import logging\n", "import logging\nimport a_module_that_nobody_has_written_yet\n", 1)
    made = {"filename": f"python/{COMMON}", "patch": hunks(before, other)}
    facts = {"state": "merged", "merged_at": "2026-08-18T00:00:00Z", "merge_commit": "b" * 40}
    server.add(FIX, title="in v0.5.20", files=[made], **facts)
    (found,) = refreshed(server, releases, tmp_path, ALLOC)[ALLOC].contained
    assert not found.first and not found.present and "0.5.20" in found.absent + found.unknown


def test_an_open_change_of_the_dispatch_threatens_our_anchor(
    server: GitHubServer, releases: list[tuple[Version, Tree]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the newest release: a change at the aiter dispatch is found, one at the end of the file is not."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    newest, tree = releases[-1]
    now = text(releases, str(newest), INDEXER)
    patch = catalog().patch(ROWS)
    anchors = {place.name: place for place in places(patch, tree, Engine(newest, "rocm"))}
    assert len(anchors) == 6
    place = anchors["rows[1]"]
    lines = now.split("\n")
    assert "is_aiter()" in lines[place.first - 1]
    near = "\n".join([*lines[: place.first - 1], "            # dispatch", *lines[place.first - 1 :]])
    server.add("sgl-project/sglang#90001", files=[{"filename": f"python/{INDEXER}", "patch": hunks(now, near)}])
    far = hunks(now, now + "\n# the end\n")
    server.add("sgl-project/sglang#90002", files=[{"filename": f"python/{INDEXER}", "patch": far}])
    server.add("sgl-project/sglang#90003", files=[{"filename": f"test/{INDEXER}", "patch": hunks(now, near)}])
    found = refreshed(server, releases, tmp_path, ROWS)[ROWS]
    assert {(item.ref, item.anchor) for item in found.collisions} >= {("sgl-project/sglang#90001", "rows[1]")}
    assert {item.ref for item in found.collisions} == {"sgl-project/sglang#90001"}
    assert (found.scans[0].version, found.scans[0].open, found.scans[0].looked_at) == (str(newest), 3, 3)
