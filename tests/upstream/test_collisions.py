"""Open pull requests near the anchors of a patch: found by path and lines, whatever their titles say."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import TOY_SOURCE, Toy, head
from upstream.conftest import Client
from upstream.github_server import GitHubServer
from upstream.test_contained import patch_text

from graftwork.catalog.seen import Collision
from graftwork.errors import UnreachableError
from graftwork.trees.folder import FolderTree
from graftwork.upstream.collisions import Found, scan
from graftwork.upstream.github import GitHub
from graftwork.upstream.limits import RateLimitError
from graftwork.upstream.places import Place, places

FILLER = "".join(f"SETTING_{n} = {n}\n" for n in range(60))
SOURCE = TOY_SOURCE + "\n\n" + FILLER
PATH = "python/toy/pool.py"


@pytest.fixture
def tree(toy: Toy) -> FolderTree:
    toy.write("tree/toy/pool.py", SOURCE)
    return FolderTree(toy.tree)


@pytest.fixture
def anchors(toy: Toy, tree: FolderTree) -> dict[str, list[Place]]:
    return {patch.id: places(patch, tree, toy.engine) for patch in toy.patches}


@pytest.fixture(params=["", "token"], ids=["rest", "graphql"])
def github(request: pytest.FixtureRequest, client: Client) -> GitHub:
    return client(token=request.param)


def propose(server: GitHubServer, number: int, new: str, path: str = PATH, old: str = SOURCE, **facts: object) -> None:
    server.add(f"o/r#{number}", files=[{"filename": path, "patch": patch_text(old, new)}], **facts)


def run(github: GitHub, anchors: dict[str, list[Place]], tree: FolderTree) -> Found:
    return scan(github, "o/r", "toy", anchors, tree, "1.0")


def threatened(found: Found) -> set[tuple[str, str]]:
    return {(item.ref, item.anchor) for item in found.collisions["toy/rows"]}


def test_the_places_of_a_codemod(anchors: dict[str, list[Place]]) -> None:
    lines = SOURCE.split("\n")
    first, second = anchors["toy/rows"]
    assert (first.name, lines[first.first - 1 : first.last]) == ("rows[1]", ["        count = rows"])
    assert (second.name, lines[second.first - 1 : second.last]) == ("rows[2]", ["        if self.is_small():"])


def test_the_places_of_the_other_kinds(toy: Toy, tree: FolderTree) -> None:
    text = """
    [[edit]]
    id = "exact"
    kind = "anchor"
    file = "toy/pool.py"
    scope = "Pool"
    [[edit.hunk]]
    find = "        # how many rows\\n        count = rows\\n"
    replace = "        count = 1\\n"
    [[edit]]
    id = "cut"
    kind = "diff"
    source = "x.diff"
    [[edit]]
    id = "new"
    kind = "file"
    path = "toy/new.py"
    source = "new.py"
    [[marker]]
    file = "toy/new.py"
    kind = "name"
    value = "x"
    """
    toy.patch("rows", head("toy/rows") + text)
    toy.write("patches/toy/rows/new.py", "x = 1\n")
    hunk = "@@ -34,3 +34,3 @@\n \n-SETTING_0 = 0\n+SETTING_0 = 9\n SETTING_1 = 1\n"
    toy.write("patches/toy/rows/x.diff", f"--- a/toy/pool.py\n+++ b/toy/pool.py\n{hunk}")
    found = {place.name: place for place in places(toy.patches[0], tree, toy.engine)}
    lines = SOURCE.split("\n")
    exact, cut = found["exact[1]"], found["cut[1]"]
    assert lines[exact.first - 1 : exact.last] == ["        # how many rows", "        count = rows"]
    assert lines[cut.first - 1 : cut.last] == ["", "SETTING_0 = 0", "SETTING_1 = 1"]
    assert (found["new"].file, found["new"].text) == ("toy/new.py", ())


def test_a_change_next_to_an_anchor(
    server: GitHubServer, github: GitHub, anchors: dict[str, list[Place]], tree: FolderTree
) -> None:
    propose(server, 1, SOURCE.replace("# how many rows", "# the rows there are"), title="docs: a typo", base="next")
    found = run(github, anchors, tree)
    assert threatened(found) == {("o/r#1", "rows[1]"), ("o/r#1", "rows[2]")}
    item = found.collisions["toy/rows"][0]
    line = SOURCE.split("\n").index("        # how many rows") + 1
    assert item == Collision(
        ref="o/r#1",
        title="docs: a typo",
        anchor="rows[1]",
        file="toy/pool.py",
        ours=(line + 1, line + 1),
        theirs=(line, line),
        base="next",
        updated="2026-09-02",
    )
    assert (found.scan.open, found.scan.looked_at, found.scan.version) == (1, 1, "1.0")


def test_changes_elsewhere_are_no_collision(
    server: GitHubServer, github: GitHub, anchors: dict[str, list[Place]], tree: FolderTree
) -> None:
    propose(server, 1, SOURCE.replace("SETTING_40 = 40", "SETTING_40 = 41"))
    propose(server, 2, SOURCE.replace("count = rows", "count = 1"), path="test/pool.py")
    propose(server, 3, SOURCE.replace("count = rows", "count = 1"), state="closed")
    server.add("o/r#4", pull=False)
    found = run(github, anchors, tree)
    assert threatened(found) == set()
    assert found.scan.open == found.scan.looked_at == 2


def test_the_same_lines_further_down_in_their_branch(
    server: GitHubServer, github: GitHub, anchors: dict[str, list[Place]], tree: FolderTree
) -> None:
    """Line numbers of a branch that has grown say nothing; the text does."""
    grown = FILLER + SOURCE
    propose(server, 1, grown.replace("count = rows", "count = len(rows)"), old=grown)
    near = FILLER.replace("SETTING_12 = 12", "SETTING_12 = 13") + SOURCE
    propose(server, 2, near, old=grown)
    assert threatened(run(github, anchors, tree)) == {("o/r#1", "rows[1]"), ("o/r#1", "rows[2]")}


def test_code_that_is_not_in_the_release(
    server: GitHubServer, github: GitHub, anchors: dict[str, list[Place]], tree: FolderTree
) -> None:
    """The branch has rewritten what is around: an anchor's own line beside the change tells, or line numbers."""
    moved = FILLER + SOURCE.replace("        # how many rows\n", "        self.log(rows)\n        self.log(padded)\n")
    propose(server, 1, moved.replace("self.log(padded)", "self.log(padded, rows)"), old=moved)
    rest = SOURCE.replace("        return kernel(count, padded, wide=True)", "        self.log(9)\n        return 9")
    propose(server, 2, rest.replace("self.log(9)", "self.log(8)"), old=rest)
    propose(server, 3, (FILLER + rest).replace("self.log(9)", "self.log(8)"), old=FILLER + rest)
    wanted = {("o/r#1", "rows[1]"), ("o/r#1", "rows[2]"), ("o/r#2", "rows[2]")}
    assert threatened(run(github, anchors, tree)) == wanted


def test_a_file_without_a_diff_threatens_every_anchor_in_it(
    server: GitHubServer, github: GitHub, anchors: dict[str, list[Place]], tree: FolderTree
) -> None:
    server.add("o/r#1", files=[{"filename": PATH, "status": "renamed"}])
    assert threatened(run(github, anchors, tree)) == {("o/r#1", "rows[1]"), ("o/r#1", "rows[2]")}


def test_every_page_of_pull_requests_and_of_files(
    server: GitHubServer, github: GitHub, anchors: dict[str, list[Place]], tree: FolderTree
) -> None:
    other = {"filename": "docs/a.md", "patch": "@@ -1 +1 @@\n-a\n+b"}
    hit = {"filename": PATH, "patch": patch_text(SOURCE, SOURCE.replace("count = rows", "count = 2"))}
    for number in range(1, 6):
        server.add(f"o/r#{number}", files=[other] * 4 + ([hit] if number == 1 else []))
    found = run(github, anchors, tree)
    assert {ref for ref, _ in threatened(found)} == {"o/r#1"}
    assert (found.scan.open, found.scan.looked_at) == (5, 5)


def test_with_a_token_only_changes_of_our_files_are_read(
    server: GitHubServer, client: Client, anchors: dict[str, list[Place]], tree: FolderTree
) -> None:
    propose(server, 1, SOURCE.replace("count = rows", "count = 2"))
    propose(server, 2, "x = 1\n", path="docs/a.md", old="x = 2\n")
    run(client(token="t"), anchors, tree)
    assert [path for path in server.paths() if path != "/graphql"] == ["/repos/o/r/pulls/1/files?per_page=100"]


def test_a_limit_ends_the_scan_and_the_next_one_goes_on(
    server: GitHubServer, client: Client, anchors: dict[str, list[Place]], tree: FolderTree
) -> None:
    server.per_page = 100
    for number in range(1, 6):
        propose(server, number, SOURCE.replace("count = rows", f"count = {number}"), head=f"sha{number}")
    server.limit = 3
    found = run(client(), anchors, tree)
    assert (found.scan.open, found.scan.looked_at) == (5, 2) and "ended by the rate limit" in found.scan.method
    assert len({ref for ref, _ in threatened(found)}) == 2
    server.limit = 4
    found = run(client(), anchors, tree)
    assert (found.scan.looked_at, len({ref for ref, _ in threatened(found)})) == (5, 5)


def test_a_limit_before_anything_was_looked_at_is_an_error(
    server: GitHubServer, client: Client, anchors: dict[str, list[Place]], tree: FolderTree
) -> None:
    server.add("o/r#1")
    server.limit = 0
    with pytest.raises(RateLimitError):
        run(client(), anchors, tree)


def test_a_repository_that_is_gone_is_an_error(
    server: GitHubServer, github: GitHub, anchors: dict[str, list[Place]], tree: FolderTree
) -> None:
    with pytest.raises(UnreachableError, match="o/r"):
        run(github, anchors, tree)


def test_a_new_file_of_ours_that_upstream_adds(
    server: GitHubServer, github: GitHub, tree: FolderTree, tmp_path: Path
) -> None:
    server.add("o/r#1", files=[{"filename": "python/toy/new.py", "patch": "@@ -0,0 +1,2 @@\n+a\n+b"}])
    found = run(github, {"toy/rows": [Place("new", "toy/new.py", "", 1, 1, ())]}, tree)
    assert threatened(found) == {("o/r#1", "new")}
