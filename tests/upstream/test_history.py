"""Histories made with real git: merged, squashed, reverted, landed again, picked to a release branch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.version import Version
from toys import TOY_SOURCE
from upstream.test_contained import FIXED

from graftwork.catalog.seen import Contained
from graftwork.errors import UsageError
from graftwork.names import RelPath
from graftwork.upstream.history import History, TagTree

pytest.importorskip("git", reason="GitPython is not installed")
if shutil.which("git") is None:
    pytest.skip("git is not installed", allow_module_level=True)

REF = "o/r#7"
FILE = "python/toy/pool.py"
PAGE = "\n\nSETTINGS = 1\n"


class Clone:
    """A repository whose main branch has the toy engine; every commit has its own fixed time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "-q", "-b", "main")
        self.count = 0
        self.commit("start", TOY_SOURCE)
        self.tag("0.9")

    def git(self, *args: str) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        who = {f"GIT_{role}_{what}": "x@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        when = f"{1_700_000_000 + 60 * getattr(self, 'count', 0)} +0000"
        env = clean | who | {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "GIT_CONFIG_GLOBAL": os.devnull}
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", "-c", "merge.conflictStyle=merge", *args],
            cwd=self.root,
            env=env | {"GIT_CONFIG_NOSYSTEM": "1"},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def commit(self, message: str, text: str) -> str:
        self.count += 1
        (self.root / FILE).parent.mkdir(parents=True, exist_ok=True)
        (self.root / FILE).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def text(self) -> str:
        return (self.root / FILE).read_text()

    def tag(self, version: str) -> None:
        self.git("tag", f"v{version}")

    def revert(self, sha: str, *options: str) -> str:
        self.count += 1
        self.git("revert", "--no-edit", *options, sha)
        return self.git("rev-parse", "HEAD")

    def contained(self, sha: str) -> Contained:
        return History(self.root).contained(REF, sha, "toy", "2026-10-01")

    def events(self, sha: str, version: str) -> list[str]:
        history = History(self.root)
        return [event.what for event in history.events(REF, history.repo.commit(sha), history.tags[Version(version)])]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone")


def test_a_squash(clone: Clone) -> None:
    sha = clone.commit("Take the smaller one (#7)", FIXED)
    clone.tag("1.0")
    found = clone.contained(sha)
    assert (found.first, found.present, found.absent, found.note) == ("1.0", ["1.0"], ["0.9"], "")


def test_the_first_commit_of_all(clone: Clone) -> None:
    sha = clone.git("rev-parse", "HEAD")
    clone.commit("more", TOY_SOURCE + PAGE)
    clone.tag("1.0")
    assert clone.contained(sha).present == ["0.9", "1.0"]
    assert clone.events(sha, "1.0") == ["landed"]


def test_git_is_asked_about_a_change_once(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    sha = clone.commit("Take the smaller one (#7)", FIXED)
    for version in ("1.0", "1.1", "1.2"):
        clone.tag(version)
    asked: list[str] = []
    diff, ids = History._diff, History._patch_ids
    monkeypatch.setattr(History, "_diff", lambda *args, **more: (asked.append("diff"), diff(*args, **more))[1])
    monkeypatch.setattr(History, "_patch_ids", lambda *args: (asked.append("log"), ids(*args))[1])
    assert clone.contained(sha).present == ["1.0", "1.1", "1.2"]
    assert asked == ["diff", "diff", "log"]


def test_a_merge_of_two_commits(clone: Clone) -> None:
    clone.git("checkout", "-q", "-b", "topic")
    half = TOY_SOURCE.replace("count = rows", "count = smaller_of(rows, padded)")
    clone.commit("use it", half)
    clone.commit("define it", FIXED)
    clone.git("checkout", "-q", "main")
    clone.commit("meanwhile", TOY_SOURCE + PAGE)
    clone.tag("1.0")
    clone.count += 1
    clone.git("merge", "-q", "--no-ff", "-m", "Merge pull request #7", "topic")
    sha = clone.git("rev-parse", "HEAD")
    clone.tag("1.1")
    found = clone.contained(sha)
    assert (found.present, found.absent) == (["1.1"], ["0.9", "1.0"])
    assert clone.events(sha, "1.1") == ["landed"]


def test_reverted_and_landed_again(clone: Clone) -> None:
    sha = clone.commit("Take the smaller one (#7)", FIXED)
    clone.tag("1.0")
    back = clone.revert(sha)
    clone.tag("1.1")
    clone.revert(back)
    clone.tag("1.2")
    found = clone.contained(sha)
    assert (found.first, found.present, found.absent) == ("1.0", ["1.0", "1.2"], ["0.9", "1.1"])
    assert clone.events(sha, "1.1") == ["landed", "reverted"]
    assert clone.events(sha, "1.2") == ["landed", "reverted", "landed again"]
    assert f"1.1: reverted as {back[:12]}" in found.note


def test_a_merge_that_is_reverted(clone: Clone) -> None:
    clone.git("checkout", "-q", "-b", "topic")
    clone.commit("all of it", FIXED)
    clone.git("checkout", "-q", "main")
    clone.count += 1
    clone.git("merge", "-q", "--no-ff", "-m", "Merge pull request #7", "topic")
    sha = clone.git("rev-parse", "HEAD")
    clone.tag("1.0")
    clone.revert(sha, "-m", "1")
    clone.tag("1.1")
    found = clone.contained(sha)
    assert (found.present, found.absent) == (["1.0"], ["0.9", "1.1"])


def test_a_revert_by_hand_that_does_not_say_so(clone: Clone) -> None:
    sha = clone.commit("Take the smaller one (#7)", FIXED)
    clone.tag("1.0")
    clone.commit("Simplify the pool", TOY_SOURCE)
    clone.tag("1.1")
    assert clone.contained(sha).absent == ["0.9", "1.1"]
    assert clone.events(sha, "1.1") == ["landed", "reverted"]


def test_landed_again_by_a_new_commit_with_the_same_change(clone: Clone) -> None:
    sha = clone.commit("Take the smaller one (#7)", FIXED)
    clone.revert(sha)
    clone.tag("1.0")
    clone.commit("Another try", FIXED)
    clone.tag("1.1")
    found = clone.contained(sha)
    assert (found.first, found.absent) == ("1.1", ["0.9", "1.0"])
    assert clone.events(sha, "1.1") == ["landed", "reverted", "landed again"]


@pytest.mark.parametrize("option", ["-x", "-e"], ids=["says where from", "same patch-id"])
def test_picked_to_a_release_branch(clone: Clone, option: str) -> None:
    clone.git("branch", "release")
    clone.commit("meanwhile", TOY_SOURCE + PAGE)
    sha = clone.commit("Take the smaller one", FIXED + PAGE)
    clone.tag("1.1")
    clone.git("checkout", "-q", "release")
    clone.tag("1.0")
    clone.count += 1
    clone.git("-c", "core.editor=true", "cherry-pick", option, sha)
    clone.tag("1.0.1")
    found = clone.contained(sha)
    assert (found.first, found.present, found.absent) == ("1.0.1", ["1.0.1", "1.1"], ["0.9", "1.0"])
    assert clone.events(sha, "1.0.1") == ["picked"]
    assert "1.0.1: picked as" in found.note


def test_picked_with_changes_and_known_by_its_number(clone: Clone) -> None:
    clone.git("branch", "release")
    sha = clone.commit("Take the smaller one (#7)", FIXED)
    clone.git("checkout", "-q", "release")
    clone.commit("[release] Take the smaller one (#7) (#9)", FIXED.replace("one, other", "first, second"))
    clone.tag("1.0.1")
    assert clone.events(sha, "1.0.1") == ["picked"]
    found = clone.contained(sha)
    assert found.present == ["1.0.1"] and found.note.startswith("1.0.1: picked as ")


def test_picked_by_half(clone: Clone) -> None:
    clone.git("branch", "release")
    sha = clone.commit("Take the smaller one (#7)", FIXED)
    clone.git("checkout", "-q", "release")
    clone.commit("[release] Part of it (#7)", TOY_SOURCE.replace("count = rows", "count = smaller_of(rows, padded)"))
    clone.tag("1.0.1")
    found = clone.contained(sha)
    assert found.partly == ["1.0.1"] and "1 of 2 places; by its history it is in" in found.note


def test_a_pick_that_is_reverted_on_its_branch(clone: Clone) -> None:
    clone.git("branch", "release")
    sha = clone.commit("Take the smaller one (#7)", FIXED)
    clone.git("checkout", "-q", "release")
    clone.count += 1
    clone.git("cherry-pick", "-x", sha)
    picked = clone.git("rev-parse", "HEAD")
    clone.tag("1.0.1")
    clone.revert(picked)
    clone.tag("1.0.2")
    found = clone.contained(sha)
    assert (found.present, found.absent) == (["1.0.1"], ["0.9", "1.0.2"])
    assert clone.events(sha, "1.0.2") == ["picked", "reverted"]


def test_the_number_of_another_change_is_not_its_own(clone: Clone) -> None:
    clone.git("branch", "release")
    sha = clone.commit("Take the smaller one (#7)", FIXED)
    clone.git("checkout", "-q", "release")
    clone.commit("Something else (#77)", TOY_SOURCE + PAGE)
    clone.commit('Revert "Take the smaller one (#7)"', TOY_SOURCE)
    clone.tag("1.0.1")
    assert clone.events(sha, "1.0.1") == []
    assert clone.contained(sha).absent == ["0.9", "1.0.1"]


def test_the_text_decides_where_history_says_otherwise(clone: Clone) -> None:
    """Squashed into another commit on a branch: no history tells of it."""
    clone.git("branch", "release")
    sha = clone.commit("Take the smaller one (#7)", FIXED)
    clone.git("checkout", "-q", "release")
    clone.commit("Many things at once", FIXED + PAGE)
    clone.tag("1.0.1")
    found = clone.contained(sha)
    assert found.present == ["1.0.1"] and "2 of 2 places; by its history it is not in" in found.note


def test_a_change_outside_the_package_is_decided_by_history(clone: Clone) -> None:
    (clone.root / "csrc").mkdir()
    (clone.root / "csrc/kernel.cu").write_text("one\n")
    sha = clone.commit("A kernel (#7)", TOY_SOURCE)
    clone.tag("1.0")
    found = clone.contained(sha)
    assert (found.present, found.absent) == (["1.0"], ["0.9"]) and "by history only" in found.note


def test_only_tags_that_are_versions_count(clone: Clone) -> None:
    clone.git("tag", "nightly")
    clone.git("tag", "gateway-v0.3.1")
    clone.git("tag", "1.0")
    blob = clone.git("rev-parse", f"HEAD:{FILE}")
    clone.git("tag", "v2.0", blob)
    assert [str(version) for version in History(clone.root).tags] == ["0.9", "1.0"]


def test_a_tag_is_a_tree(clone: Clone) -> None:
    history = History(clone.root)
    tree = TagTree(history.tags[Version("0.9")], "tag 0.9")
    assert tree.read(RelPath("toy/pool.py")) == TOY_SOURCE.encode()
    assert list(tree.paths()) == ["toy/pool.py"]
    assert not tree.exists(RelPath("toy/none.py")) and not tree.exists(RelPath("toy"))
    with pytest.raises(FileNotFoundError):
        tree.read(RelPath("toy/none.py"))


def test_what_the_clone_lacks_is_said(clone: Clone, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not have f{40}, the merge of o/r#7") as caught:
        clone.contained("f" * 40)
    assert "Fetch" in caught.value.hint
    (tmp_path / "plain").mkdir()
    for folder in (tmp_path / "plain", tmp_path / "none"):
        with pytest.raises(UsageError, match="not a git repository"):
            History(folder)
