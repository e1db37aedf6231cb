"""``graftwork export``: a commit that ``git am`` takes, without markers, on upstream's layout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tiny import Workshop
from toys import TOY_PATCH, TOY_SOURCE, Toy

from graftwork.catalog.patches import Marker
from graftwork.errors import StateError
from graftwork.upstream.strip import strip

PATH = "toy/pool.py"
OLD = "def f(x):\n    return x\n"
AM = ["-c", "user.name=Am", "-c", "user.email=am@example.com"]


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *AM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def checkout(folder: Path, path: str = PATH, text: str = TOY_SOURCE) -> Path:
    (folder / path).parent.mkdir(parents=True)
    (folder / path).write_text(text)
    git(folder, "init", "-q", ".")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "stock")
    return folder


@pytest.fixture
def workshop(toy: Toy) -> Workshop:
    who = {"GIT_AUTHOR_NAME": "W", "GIT_AUTHOR_EMAIL": "w@example.com"}
    who |= {"GIT_COMMITTER_NAME": "W", "GIT_COMMITTER_EMAIL": "w@example.com", "GIT_DIR": "/nonexistent"}
    return Workshop(toy.root, "rows", who)


def test_git_am_takes_it_and_no_marker_is_in_it(toy: Toy, workshop: Workshop, tmp_path: Path) -> None:
    out = tmp_path / "rows.patch"
    document = workshop.ok("export", "--tree", toy.tree, "--engine-version", "1.0", "--out", out)
    assert document["renamed"] == {"_toy_clip": "clip"} and document["paths"] == [PATH]
    assert document["mail"] == out.read_text()
    repository = checkout(tmp_path / "clone")
    git(repository, "am", "-q", str(out))
    text = (repository / PATH).read_text()
    assert "clip = count < rows" in text and "_toy_clip" not in text
    assert git(repository, "log", "-1", "--format=%s%n%an").split("\n")[:2] == ["Use the smaller count", "W"]
    assert "Symptom: too many rows" in git(repository, "log", "-1", "--format=%b")


def test_the_mail_alone_goes_to_stdout(toy: Toy, workshop: Workshop) -> None:
    done = workshop.run("export", "--tree", toy.tree, "--engine-version", "1.0")
    assert done.code == 0 and done.out.startswith("From 000000") and "renamed" in done.err
    quiet = workshop.run("export", "--tree", toy.tree, "--engine-version", "1.0", "--quiet")
    assert quiet.out.startswith("From 000000") and quiet.err == ""


def test_what_planning_refuses_is_not_exported(toy: Toy, workshop: Workshop) -> None:
    toy.pool.write_text(TOY_SOURCE.replace("count = rows", "count = cows"))
    assert "drifted" in workshop.refused(3, "export", "--tree", toy.tree, "--engine-version", "1.0")
    toy.pool.write_text(TOY_SOURCE)
    toy.patch(
        "rows",
        TOY_PATCH.replace(
            "[[edit]]", 'platforms = ["rocm"]\n\n[[not_needed]]\nversions = "1.0"\nreason = "r"\n\n[[edit]]', 1
        ).replace('"1.0"', '"==1.0"'),
    )
    assert "is not-needed" in workshop.refused(3, "export", "--tree", toy.tree, "--engine-version", "1.0")


def test_new_files_come_with_it(toy: Toy, workshop: Workshop, tmp_path: Path) -> None:
    toy.write("patches/toy/rows/more.py", "ANSWER = 42\n")
    toy.patch(
        "rows",
        TOY_PATCH.replace(
            "[[marker]]",
            '[[edit]]\nid = "more"\nkind = "file"\npath = "toy/more.py"\nsource = "more.py"\n\n[[marker]]',
            1,
        ),
    )
    out = tmp_path / "x.patch"
    workshop.ok("export", "--tree", toy.tree, "--engine-version", "1.0", "--out", out)
    repository = checkout(tmp_path / "clone")
    git(repository, "am", "-q", str(out))
    assert (repository / "toy/more.py").read_text() == "ANSWER = 42\n"


def mark(value: str, kind: str = "local", export: str = "", function: str = "f", file: str = PATH) -> Marker:
    return Marker(file=file, function=function, kind=kind, value=value, export=export)  # type: ignore[arg-type]


def stripped(new: str, *markers: Marker, old: str = OLD) -> str:
    return strip({PATH: old}, {PATH: new}, markers).texts[PATH]


def body(*lines: str) -> str:
    return "def f(x):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("new", "marker", "result"),
    [
        (body("_graft_x = True", "return -x"), mark("_graft_x"), body("return -x")),
        (body("x = width = x.shape", "return x"), mark("width"), body("x = x.shape", "return x")),
        (body("é = _a_b = x", "return é"), mark("_a_b"), body("é = x", "return é")),
        (body("_t_n = x()", "return x"), mark("_t_n"), body("n = x()", "return x")),  # a call may do something
        (body("_t_n = x", "return f'{_t_n}'"), mark("_t_n"), body("n = x", "return f'{n}'")),
        (body("_t_x = x", "return _t_x"), mark("_t_x"), body("x_ = x", "return x_")),  # there is an x
        (body("_t_min = x", "return _t_min"), mark("_t_min"), body("min_ = x", "return min_")),  # a builtin
        (body("_t_a = _t_b = x", "return _t_a, _t_b"), mark("_t_a"), body("a = b = x", "return a, b")),  # siblings
        (body("_t_n = x", "return _t_n"), mark("_t_n", export="count"), body("count = x", "return count")),
        (body("return x.seen"), mark("seen", "attribute"), body("return x.seen")),
        (body("log('a mark')"), mark("a mark", "constant", "said"), body("log('said')")),
    ],
)
def test_marks_are_taken_out(new: str, marker: Marker, result: str) -> None:
    assert stripped(new, marker) == result


def test_a_private_global_stays_private() -> None:
    new = "_rocm_pinned = True\n\n\ndef f(x):\n    return _rocm_pinned\n"
    assert stripped(new, mark("_rocm_pinned", "name", function="<module>")) == new.replace("_rocm_pinned", "_pinned")


def test_a_new_file_keeps_its_names() -> None:
    new = {"toy/new.py": "_hot_kv = 1\n\n\ndef f():\n    return _hot_kv\n"}
    done = strip({PATH: OLD}, new, [mark("_hot_kv", "name", function="<module>", file="toy/new.py")])
    assert done.texts == new and done.kept == ("_hot_kv",)


def test_a_name_that_two_files_share_is_renamed_in_both() -> None:
    new = {PATH: "def f(x):\n    x.seen = 1\n", "toy/b.py": "def g(x):\n    return x.seen\n"}
    done = strip({PATH: OLD, "toy/b.py": ""}, new, [mark("seen", "attribute", "done")])
    assert done.texts == {PATH: "def f(x):\n    x.done = 1\n", "toy/b.py": "def g(x):\n    return x.done\n"}


@pytest.mark.parametrize(
    ("new", "marker"),
    [
        ("def f(x):\n    _t_n = x\n    return _t_n, g\n", mark("_t_n", export="g")),
        ("def f(x):\n    log('a mark', 'a mark')\n", mark("a mark", "constant", "said")),
    ],
)
def test_a_name_that_cannot_be_had_is_refused(new: str, marker: Marker) -> None:
    with pytest.raises(StateError):
        stripped(new, marker)
