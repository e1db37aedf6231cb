"""``graftwork new``: from a change to a patch folder that plans, and that lint refuses until it is filled in."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tiny import Done, Workshop
from toys import TOY_SOURCE, Toy

from graftwork.patching.plan import plan
from graftwork.patching.report import file_diff
from graftwork.patching.states import State
from graftwork.trees.folder import FolderTree

POOL = "toy/pool.py"


def new(toy: Toy, diff: str, name: str = "toy/made", *more: str, form: str = "--from-diff") -> Done:
    file = toy.write("change.diff", diff)
    arguments = (form, file, "--tree", toy.tree, "--engine-version", "1.0", *more)
    return Workshop(toy.root, name, {}).run("new", *arguments)


def changed(old: str, new_text: str, path: str = f"python/{POOL}", source: str = TOY_SOURCE) -> str:
    assert source.count(old) == 1
    return file_diff(path, source.encode(), source.replace(old, new_text).encode())


def made(toy: Toy, name: str = "toy/made") -> dict[str, bytes | None]:
    """What planning the written patch makes of the tree."""
    planned = plan(FolderTree(toy.tree), [toy.catalog.patch(name)], toy.engine)
    assert [item.state for item in planned.patches] == [State.PENDING] and planned.refusal() is None
    return {change.path: change.new for change in planned.changes}


def test_the_folder_plans_to_the_bytes_of_the_change(toy: Toy) -> None:
    done = new(toy, changed("count = rows", "count = fewer = min(rows, padded)"))
    assert done.code == 0, done.err
    assert made(toy) == {POOL: TOY_SOURCE.replace("count = rows", "count = fewer = min(rows, padded)").encode()}
    spec = toy.catalog.patch("toy/made").spec
    assert [(edit.id, edit.scope) for edit in spec.edit] == [("take", "Pool.take")]
    assert [(marker.kind, marker.value, marker.function) for marker in spec.marker] == [("local", "fewer", "Pool.take")]
    assert spec.versions == "==1.0"
    assert not list(toy.root.glob(".new-*"))


def test_a_marker_is_added_where_the_change_has_none(toy: Toy) -> None:
    done = new(toy, changed("return True", "return False"))
    assert done.code == 0 and "added: the change leaves nothing of its own" in done.out
    text = TOY_SOURCE.replace("return True", "_graft_made = True\n        return False")
    assert made(toy) == {POOL: text.encode()}


def test_new_files_and_files_that_are_not_python(toy: Toy) -> None:
    toy.write("tree/toy/data.json", '{"a": 1}\n')
    diff = file_diff("python/toy/data.json", b'{"a": 1}\n', b'{"a": 2}\n')
    refused = new(toy, diff)
    assert refused.code == 2 and "changes no Python code" in refused.err
    diff += file_diff("python/toy/deep/more.py", None, b"def helper():\n    return 1\n")
    assert new(toy, diff).code == 0
    assert made(toy) == {"toy/data.json": b'{"a": 2}\n', "toy/deep/more.py": b"def helper():\n    return 1\n"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: file_diff(f"python/{POOL}", TOY_SOURCE.encode(), None), "deletes toy/pool.py"),
        (lambda: file_diff("test/x.py", b"a\n", b"b\n"), "changes no text of toy (outside it: test/x.py)"),
        (lambda: "nothing\n", "changes no text of toy"),
        (lambda: changed("count = rows", "count = (", f"python/{POOL}"), "does not compile"),
        (lambda: file_diff("python/toy/../x.py", None, b"a = 1\n"), "not a path inside the tree"),
        (lambda: "diff --git a/toy/a.py b/toy/b.py\nsimilarity index 100%\nrename from toy/a.py\nrename to toy/b.py\n",
         "renames toy/b.py"),
        (lambda: "diff --git a/toy/a.so b/toy/a.so\nindex 1..2\nBinary files a/toy/a.so and b/toy/a.so differ\n",
         "changes bytes that are no text in toy/a.so"),
        (lambda: "diff --git a/toy/a.png b/toy/a.png\nnew file mode 100644\nGIT binary patch\nliteral 3\nKcmZQz\n\n",
         "changes bytes that are no text in toy/a.png"),
        (lambda: file_diff("python/toy/a.py", b"a\n", b"b\n").replace("b/python/toy/a.py", '"b/python/toy/\\303.py"'),
         "git had to quote this name"),
        (lambda: file_diff("python/toy/__init__.py", b"", b"x = 1\n"), "is empty and would get text"),
    ],
)  # fmt: skip
def test_what_a_patch_cannot_do_is_refused_and_nothing_is_left(toy: Toy, change: object, says: str) -> None:
    done = new(toy, change())  # type: ignore[operator]
    assert done.code == 2 and says in done.err, done.err
    assert sorted(path.name for path in (toy.root / "patches/toy").iterdir()) == ["rows"]
    assert not list(toy.root.glob(".new-*"))


def test_every_hunk_that_does_not_fit_is_named(toy: Toy) -> None:
    other = TOY_SOURCE.replace("count = rows", "count = cows").replace("return True", "return 11")
    diff = file_diff(POOL, other.encode(), other.replace("cows", "sows").replace("return 11", "return 12").encode())
    done = new(toy, diff)
    assert done.code == 3 and done.err.count("nearest candidate, toy/pool.py:") == 2, done.err


def test_a_change_that_is_in_the_tree_is_needless(toy: Toy) -> None:
    toy.pool.write_text(TOY_SOURCE.replace("return True", "return False"))
    done = new(toy, changed("return True", "return False"))
    assert done.code == 7 and "all of it is in" in done.err


def test_a_hunk_at_its_own_line_needs_no_unique_context(toy: Toy) -> None:
    function = "def f():\n    a = 1\n    return a\n\n\n"
    toy.pool.write_text(function * 5)
    other = function.replace("    return a", "    return a.new_name")
    diff = file_diff(POOL, (function * 5).encode(), (function * 2 + other + function * 2).encode())
    (line,) = re.findall(r"^@@ -(\d+),", diff, re.M)
    assert new(toy, diff).code == 0
    assert made(toy) == {POOL: (function * 2 + "_graft_made = True\n" + other + function * 2).encode()}
    done = new(toy, diff.replace(f"@@ -{line},", f"@@ -{int(line) - 1},"), "toy/other")
    assert done.code == 3 and "occur 3 times" in done.err


def test_names_and_trees_that_are_wrong(toy: Toy) -> None:
    diff = changed("return True", "return False")
    assert "not a patch id" in new(toy, diff, "made").err
    assert "there is one already" in new(toy, diff, "toy/rows").err
    assert "--ref: not owner/repository#number" in new(toy, diff, "toy/made", "--ref", "12").err
    bare = Workshop(toy.root, "toy/made", {})
    assert "which toy is meant?" in bare.refused(2, "new", "--from-diff", toy.root / "change.diff")
    assert "give the change" in bare.refused(2, "new", "--tree", toy.tree)


def test_a_pull_request_of_several_commits(toy: Toy, tmp_path: Path) -> None:
    """As git makes the mail: the commits one after another, the later one on the result of the first."""
    repository = tmp_path / "upstream"

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
        command = ["git", "-C", str(repository), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    file = repository / "python" / POOL
    file.parent.mkdir(parents=True)
    file.write_text(TOY_SOURCE)
    git("init", "-q", ".")
    git("add", ".")
    git("commit", "-qm", "base")
    for old, text, subject in (
        ("count = rows", "count = first", "[Fix] Take the smaller count (#12)"),
        ("count = first", "first = min(rows, padded)\n        count = first", "Say it twice"),
    ):
        file.write_text(file.read_text().replace(old, text))
        (repository / "test.py").write_text(subject)
        git("add", ".")
        git("commit", "-qm", subject)
    mail = git("format-patch", "--stdout", "HEAD~2")
    done = new(toy, mail, "toy/made", "--ref", "example/toy#12", form="--from-pr")
    assert done.code == 0 and "left out  test.py" in done.out, done.err
    assert made(toy) == {POOL: file.read_bytes()}
    spec = toy.catalog.patch("toy/made").spec
    assert spec.title == "Take the smaller count" and spec.upstream[0].ref == "example/toy#12"
    assert "A <" not in (toy.root / "patches/toy/made/README.md").read_text()
