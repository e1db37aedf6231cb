"""``graftwork status`` from end to end: GitHub and a package index in this process, a toy catalog, a real clone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tiny import Done, run_here
from toys import ROOT, TOY_SOURCE, Toy
from upstream.github_server import GitHubServer
from upstream.test_contained import patch_text
from upstream.test_ledger import reference
from upstream.toy_releases import PATCH, SOURCES, ToyIndex, toy_catalog, toy_index

from graftwork.trees.pipconf import PipSettings

PATH = "python/toy/pool.py"


class World:
    """A catalog with the toy patch, and the servers that its status is read from."""

    def __init__(self, toy: Toy, server: GitHubServer, index: ToyIndex) -> None:
        self.toy, self.server, self.index = toy, server, index
        self.environment = {
            "GRAFTWORK_CACHE": str(toy.root / "cache"),
            "GRAFTWORK_GITHUB_API": server.root,
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "GITHUB_TOKEN": "",
            "GH_TOKEN": "",
        }

    def status(self, *arguments: object) -> Done:
        """``graftwork status ARGUMENTS``; a fault of graftwork's own fails the test."""
        settings = PipSettings(index_url=self.index.url, retries=0)
        with patch("graftwork.trees.index.pip_settings", lambda: settings):
            return run_here(self.environment, "status", "--catalog", str(self.toy.root), *map(str, arguments))

    @property
    def evidence(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.toy.root / "patches/toy/rows/upstream.json").read_text())
        return found


BOTH = pytest.mark.parametrize("token", ["", "token"], ids=["rest", "graphql"])


@pytest.fixture
def token() -> str:
    return ""


@pytest.fixture
def world(token: str, tmp_path: Path, server: GitHubServer) -> Iterator[World]:
    """Release 1.3 has the fix of #7; #8 is open and touches an anchor; #9 is an issue."""
    toy = toy_catalog(tmp_path / "toy")
    toy.patch(
        "rows",
        PATCH + reference("superseding", "open", ref="o/r#7") + reference("same-class", "open", "issue", "o/r#9"),
    )
    fixed = patch_text(SOURCES["1.0"], SOURCES["1.3"])
    server.add(
        "o/r#7",
        state="merged",
        merged_at="2026-08-18T00:00:00Z",
        merge_commit="a" * 40,
        title="Take the smaller | one",
        files=[{"filename": PATH, "patch": fixed}],
    )
    near = patch_text(TOY_SOURCE, TOY_SOURCE.replace("count = rows", "count = rows * 2"))
    server.add("o/r#8", title="<b>bold</b> \x1b[31mred", files=[{"filename": PATH, "patch": near}])
    server.add("o/r#9", pull=False)
    with toy_index() as index:
        for version in ("1.2", "1.3", "1.4", "1.5"):
            index.remove(f"toy-{version}-py3-none-any.whl")
        found = World(toy, server, index)
        found.environment["GITHUB_TOKEN"] = token
        yield found


def with_fix(world: World) -> None:
    """Release 1.3 comes out."""
    from upstream.toy_releases import wheel

    world.index.add("toy-1.3-py3-none-any.whl", wheel("1.3", SOURCES["1.3"]))


@BOTH
def test_what_is_read_is_written_and_shown(world: World) -> None:
    done = world.status("--refresh")
    assert done.code == 0, done.err
    first, second = world.evidence["refs"]
    assert (first["ref"], first["state"], first["merged"]) == ("o/r#7", "merged", "2026-08-18")
    assert (second["ref"], second["kind"], second["state"]) == ("o/r#9", "issue", "open")
    (held,) = world.evidence["contained"]
    assert held["absent"] == ["0.8", "0.9", "1.0", "1.1"] and "first" not in held
    (collision,) = [item for item in world.evidence["collisions"] if item["anchor"] == "rows[1]"]
    assert (collision["ref"], collision["file"]) == ("o/r#8", "toy/pool.py")
    assert world.evidence["scans"][0]["version"] == "1.1"
    assert "o/r#8 is open and changes lines near rows[1]" in done.out and "\x1b" not in done.out + done.err


def test_a_release_with_the_fix_is_found(world: World) -> None:
    with_fix(world)
    assert world.status("--refresh", "--quiet").code == 0
    (held,) = world.evidence["contained"]
    assert (held["first"], held["present"]) == ("1.3", ["1.3"])
    assert "collisions" not in world.evidence  # the patch is obsolete in the newest release: nothing to lose there


@BOTH
def test_offline_says_the_same_and_asks_nobody(world: World) -> None:
    world.status("--refresh")
    before = world.evidence
    asked = len(world.server.log)
    world.index.asked()
    done = world.status("--offline", "--json")
    assert done.code == 0, done.err
    assert len(world.server.log) == asked and world.index.asked() == []
    after = world.evidence
    assert after["refs"][0].pop("method") == "GitHub API, from the cache" and before["refs"][0].pop("method")
    assert after["refs"][0] == before["refs"][0] and after["contained"] == before["contained"]
    assert after["scans"][0]["as_of"] == before["scans"][0]["as_of"]


def test_offline_without_a_cache_changes_nothing(world: World) -> None:
    done = world.status("--offline")
    assert done.code == 6 and "not in the cache" in done.err
    assert "refs" not in world.evidence


@BOTH
def test_a_second_run_costs_no_bodies(world: World) -> None:
    world.status("--refresh")
    mark = len(world.server.log)
    world.status("--refresh")
    statuses = {asked.status for asked in world.server.log[mark:] if asked.method == "GET"}
    assert statuses <= {304}


def test_check_and_propose(world: World) -> None:
    with_fix(world)
    world.status("--refresh", "--quiet")
    world.toy.target(lambda text: text.replace('version = "1.0"', 'version = "1.3"').replace("toy-1.0-", "toy-1.3-"))
    day = world.evidence["refs"][0]["as_of"]
    done = world.status("--check", "--propose", "--json", "--today", day)
    assert done.code == 8
    found = done.document
    assert [problem["kind"] for problem in found["problems"]] == ["contradiction", "contained"]
    assert found["error"]["exit_code"] == 8
    diffs = [item["diff"] for item in found["proposals"]]
    assert '+assumes = "merged"' in diffs[0] and '-patches = ["toy/rows"]' in diffs[1]
    assert "smaller_of" not in found["proposals"][1]["add"]  # the patch has its precondition already


def test_check_after_thirty_days(world: World) -> None:
    world.toy.patch("rows", PATCH + reference("superseding", "merged", ref="o/r#7"))
    world.status("--refresh", "--ledger", "--quiet")
    day = world.evidence["refs"][0]["as_of"]
    assert world.status("--check", "--today", day).code == 0
    done = world.status("--check", "--today", f"{int(day[:4]) + 1}{day[4:]}")
    assert (
        done.code == 8
        and "evidence holds for 30" in done.out + done.err
        and "next: graftwork status --propose" in done.err
    )


def test_the_ledger_follows_the_evidence(world: World) -> None:
    assert world.status("--refresh", "--ledger").code == 0
    file = world.toy.root / "patch.upstream.status.md"
    assert "Take the smaller &#124; one" in file.read_text() and "<b>" not in file.read_text()
    assert world.status("--ledger-check").code == 0
    file.write_text(file.read_text().replace("merged", "open"))
    done = world.status("--ledger-check", "--json")
    assert done.code == 8 and "patch.upstream.status.md:" in done.document["error"]["message"]
    assert world.status("--ledger", "--quiet").code == 0 and world.status("--ledger-check").code == 0


@BOTH
def test_a_limit_keeps_what_is_known(world: World) -> None:
    world.status("--refresh")
    before = world.evidence
    world.server.limit = 0
    done = world.status("--refresh")
    assert done.code == 6 and "limit on requests is used up" in done.err and "stays as it was" in done.err
    assert world.evidence == before


def test_runs_that_a_limit_ends_get_round(world: World) -> None:
    world.status("--refresh")
    day = world.evidence["refs"][0]["as_of"]
    old = json.dumps(world.evidence).replace(f'"as_of": "{day}"', '"as_of": "2020-01-01"')
    (world.toy.root / "patches/toy/rows/upstream.json").write_text(old)
    for wanted in ([day, "2020-01-01"], [day, day]):
        world.server.limit = 2  # one thread and, of #7, its files
        assert world.status("--refresh", "--quiet").code == 6
        assert [row["as_of"] for row in world.evidence["refs"]] == wanted


def test_a_scan_that_a_limit_ends_keeps_the_collisions_that_it_did_not_reach(world: World) -> None:
    world.toy.patch("rows", PATCH + reference("collision", "open", ref="o/r#8"))
    world.status("--refresh")
    before = world.evidence["collisions"]
    assert {item["ref"] for item in before} == {"o/r#8"}
    world.server.add("o/r#10", updated_at="2026-09-30T00:00:00Z", head="new", files=[])
    world.server.repositories["o/r"][8].head = "pushed to"
    world.server.limit = 4  # the thread, its files, the listing, the files of the newer pull request
    done = world.status("--refresh", "--quiet")
    assert done.code == 0 and world.evidence["collisions"] == before
    assert (world.evidence["scans"][0]["looked_at"], world.evidence["scans"][0]["open"]) == (1, 2)
    world.server.limit = None
    world.server.repositories["o/r"][8].state = "closed"
    world.status("--refresh", "--quiet")
    assert "collisions" not in world.evidence


def test_an_index_that_is_away_keeps_what_is_known(world: World) -> None:
    with_fix(world)
    world.status("--refresh")
    before = world.evidence
    world.server.repositories["o/r"][9].state = "closed"
    world.index.server.close()
    done = world.status("--refresh", "--json")
    assert done.code == 6 and done.document["error"]["exit_code"] == 6
    assert world.evidence["contained"] == before["contained"]
    assert world.evidence["refs"][1]["state"] == "closed"


def test_history_is_a_second_witness(world: World, tmp_path: Path) -> None:
    pytest.importorskip("git", reason="GitPython is not installed")
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    from upstream.test_history import Clone

    clone = Clone(tmp_path / "clone")
    sha = clone.commit("Take the smaller one (#7)", SOURCES["1.3"])
    clone.tag("1.3")
    world.server.repositories["o/r"][7].merge_commit = sha
    done = world.status("--refresh", "--history", clone.root)
    assert done.code == 0, done.err
    wheels, tags = sorted(world.evidence["contained"], key=lambda item: "tags" in item["method"])
    assert "first" not in wheels and (tags["first"], tags["absent"]) == ("1.3", ["0.9"])


def test_a_clone_without_the_merge_is_said(world: World, tmp_path: Path) -> None:
    pytest.importorskip("git", reason="GitPython is not installed")
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    from upstream.test_history import Clone

    done = world.status("--refresh", "--history", Clone(tmp_path / "clone").root)
    assert done.code == 2 and "the merge of o/r#7" in done.err
    assert world.evidence["contained"][0]["absent"] == ["0.8", "0.9", "1.0", "1.1"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--history", "."), "--history decides anew"),
        (("--ledger", "--ledger-check"), "only compares it"),
        (("--today", "soon"), "not a day"),
        (("nothing",), "no patch 'nothing'"),
    ],
)
def test_wrong_arguments(world: World, arguments: tuple[str, ...], says: str) -> None:
    done = world.status(*arguments)
    assert done.code == 2 and says in done.err


def test_the_script_works_on_its_own_checkout_from_any_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/upstream_status.py", "--json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "sglang/dsa-indexer-rows" in [row["patch"] for row in json.loads(done.stdout)["patches"]]


def test_every_reference_of_this_checkout_was_looked_at() -> None:
    from graftwork.catalog.catalog import Catalog

    for name in Catalog(ROOT).patch_ids:
        made = Catalog(ROOT).patch(name)
        unseen = [row.ref for row in made.spec.upstream if made.upstream.seen(row.ref) is None]
        assert not unseen, f"{name}: run graftwork status --refresh"
