"""``graftwork lint``: a whole patch passes, and each thing that is left out or private is named with file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import Workshop
from toys import TOY_PATCH, Toy, codemod, head, local

from graftwork.harness.lint import lint_patch, lint_sources
from graftwork.harness.lint_text import comment_blocks, private_names
from graftwork.patching.orders import problems
from graftwork.trees.folder import FolderTree

PATCH = TOY_PATCH
PATCH += '\n[[searched]]\nwhat = "rows"\nhow = "by hand"\ndate = "2026-11-30"\n'
PATCH += '\n[[evidence]]\nkind = "measured"\ntext = "it fails"\nsource = "tests/test_rows.py"\n'
README = "# toy/rows\n\nIt takes the smaller count.\n"
TEST = "def test_rows(engine_tree):\n    assert engine_tree\n"
FOLDER = "patches/toy/rows"


@pytest.fixture
def whole(toy: Toy) -> Toy:
    """The toy with a patch that lacks nothing."""
    toy.patch("rows", PATCH)
    toy.write(f"{FOLDER}/README.md", README)
    toy.write(f"{FOLDER}/tests/test_rows.py", TEST)
    assert lint_patch(toy.catalog, "toy/rows") == [] == lint_sources(toy.catalog)
    return toy


def rewrite(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert text.count(old) >= 1
        (folder / file).write_text(text.replace(old, new, 1))

    return change


def put(file: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_text(text) and None


LONG = '"""\n# a\n# b\n# c\n# d\n_toy_clip = 1\n"""'
CASES = {
    "todo": (rewrite("patch.toml", "too many rows", "TODO: say it"), "patch.toml:4: TODO is left"),
    "todo-in-test": (put("tests/test_rows.py", TEST + "# TODO\n"), "tests/test_rows.py:3: TODO is left"),
    "symptom": (rewrite("patch.toml", "too many rows", " "), "patch.toml:4: symptom says nothing"),
    "drop": (rewrite("patch.toml", "upstream takes the smaller one", " "), "patch.toml:6: drop_when says nothing"),
    "evidence": (rewrite("patch.toml", PATCH[PATCH.index("[[evidence]]") :], ""), "patch.toml:1: no [[evidence]]"),
    "source": (rewrite("patch.toml", "tests/test_rows.py", "tests/gone.py"), "tests/gone.py does not exist"),
    "references": (rewrite("patch.toml", PATCH[PATCH.index("[[searched]]") : PATCH.index("[[evidence]]")], ""),
                   "patch.toml:1: toy/rows has no upstream reference"),
    "after": (rewrite("patch.toml", "[[edit]]", 'after = ["toy/gone"]\n\n[[edit]]'), "comes after 'toy/gone'"),
    "readme": (rewrite("README.md", "# toy/rows", "# Rows"), "README.md:1: does not begin with '# toy/rows'"),
    "no-readme": (lambda folder: (folder / "README.md").unlink(), "README.md: missing"),
    "no-test": (lambda folder: (folder / "tests/test_rows.py").unlink(), "tests: no test"),
    "passive": (put("tests/test_rows.py", "import pytest\n\n\ndef test_rows():\n    pytest.skip('later')\n"),
                "tests/test_rows.py:4: test_rows cannot fail"),
    "not-python": (put("tests/test_rows.py", "def test_rows(:\n"), "tests/test_rows.py:1: not Python"),
    "broken": (rewrite("patch.toml", 'revision = "R2"', 'revison = "R2"'), "patch.toml"),
    "comment": (put("tests/conftest.py", "# a\n# b\n# c\n# d\n"), "tests/conftest.py:1: a comment of 4 lines"),
    "comment-in-edit": (rewrite("patch.toml", '"_toy_clip = count < rows"', LONG),
                        "a comment of 4 lines"),
    "path": (put("README.md", README + "Logs: /home/" + "me/logs\n"), "README.md:4: a private path: /home/" + "me"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), CASES.values(), ids=CASES)
def test_what_a_patch_lacks_is_named(whole: Toy, change: Callable[[Path], None], says: str) -> None:
    change(whole.root / FOLDER)
    found = [str(problem) for problem in lint_patch(whole.catalog, "toy/rows")]
    assert any(says in line for line in found), found
    assert all(line.startswith(FOLDER) for line in found)


def test_the_verb_names_all_problems_at_once(whole: Toy) -> None:
    workshop = Workshop(whole.root, "rows", {})
    assert workshop.ok("lint", "--no-orders")["problems"] == []
    put("README.md", "# wrong\n")(whole.root / FOLDER)
    put("tests/test_rows.py", "# TODO\n")(whole.root / FOLDER)
    done = workshop.run("lint", "--json")
    assert done.code == 8 and done.document["error"]["exit_code"] == 8
    assert len(done.document["problems"]) == 3 and done.document["orders"] == []
    assert {row["file"] for row in done.document["problems"]} == {
        f"{FOLDER}/{name}" for name in ("README.md", "tests", "tests/test_rows.py")
    }
    assert Workshop(whole.root, "gone", {}).refused(2, "lint").count("patches: toy/rows") == 1


def test_a_new_patch_is_refused_until_it_is_filled_in(whole: Toy) -> None:
    from cli.test_new_command import changed, new

    assert new(whole, changed("return True", "return False")).code == 0
    found = [str(problem) for problem in lint_patch(whole.catalog, "toy/made")]
    assert sum("TODO is left" in line for line in found) > 10
    assert any("no [[evidence]]" in line for line in found)


@pytest.mark.parametrize(
    "text",
    [
        "/home/" + "somebody/x",
        "cd /mnt/" + "models",
        "http://10.1.2" + ".3:8000",
        "192.168" + ".0.1",
        "ssh node7.cluster" + ".internal",
        "someone@" + "company.com",
        "see /nfs/" + "data",
    ],
)
def test_private_names(text: str) -> None:
    assert [line for line, _ in private_names(f"first\n{text}\n")] == [2]


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1 and 0.0.0.0, 192.0.2.1, version 10.0.0, 1.10.2.3.4",
        "a@example.com, git@github.com:o/r, x@y.invalid, pkg==1@sha256",
        "usr/share/home/x, $HOME/.cache, ~/x, registry.example:5000/sglang, /sgl-workspace/sglang",
        "self.internal(x), torch._C.internal_x",
    ],
)
def test_public_names(text: str) -> None:
    assert list(private_names(text)) == []


def test_comment_blocks_are_counted_by_tokens() -> None:
    long, short = "# 1\n# 2\n# 3\n# 4\n", "# 1\n# 2\n# 3\nx = 1\n# 4\n"
    assert [line for line, _ in comment_blocks(Path("a.py"), f"x = 1\n{long}")] == [2]
    assert not list(comment_blocks(Path("a.py"), short)) and not list(
        comment_blocks(Path("a.py"), f"x = '''\n{long}'''\n")
    )
    assert not list(comment_blocks(Path("a.py"), "x = 1  # 1\ny = 1  # 2\nz = 1  # 3\nw = 1  # 4\n"))
    assert [line for line, _ in comment_blocks(Path("run"), f"#!/bin/sh\n{long}")] == [2]


SECOND = head("toy/more") + codemod("small", "Pool.is_small", {"match": "return True", "before": "_more = 1"})
SECOND += local("Pool.is_small", "_more")


def orders(toy: Toy, first: str, second: str) -> list[str]:
    toy.patch("rows", first)
    toy.patch("more", second)
    patches = [toy.catalog.patch("toy/rows"), toy.catalog.patch("toy/more")]
    return [f"{patch.id}: {text}" for patch, text in problems(FolderTree(toy.tree), patches, toy.engine)]


def test_patches_that_do_not_touch_need_no_order(toy: Toy) -> None:
    assert orders(toy, TOY_PATCH, SECOND) == []
    needless = SECOND.replace("[[edit]]", 'after = ["toy/rows"]\n\n[[edit]]', 1)
    assert orders(toy, TOY_PATCH, needless) == ["toy/more: after toy/rows is needless: both orders make the same bytes"]


def test_an_order_that_matters_has_to_be_declared(toy: Toy) -> None:
    second = SECOND.replace('scope = "Pool.is_small"', 'scope = "Pool.take"').replace("Pool.is_small", "Pool.take")
    on_result = second.replace('"return True"', '"count = min(rows, padded)"')
    (found,) = orders(toy, TOY_PATCH, on_result)
    assert found.startswith("toy/more: behind nothing it is drifted") and "declare 'after'" in found
    after = on_result.replace("[[edit]]", 'after = ["toy/rows"]\n\n[[edit]]', 1)
    assert orders(toy, TOY_PATCH, after) == []
    beside = second.replace('"return True"', '"if self.is_small(): ..."')
    (found,) = orders(toy, TOY_PATCH, beside)
    assert "makes other bytes than in another order" in found
