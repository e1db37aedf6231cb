from __future__ import annotations

import os
from pathlib import Path

import pytest

from graftwork.errors import MissingFile, TreeError
from graftwork.names import RelPath, rel_path
from graftwork.trees.folder import FolderTree, open_folder

RUN = rel_path("eng/run.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("eng/__init__.py", "eng/run.py", "eng/sub/deep.py", ".git/config", "eng/.graftwork/journal"):
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode() + b"\r\n")
    return tmp_path / "root"


def test_reads_bytes_as_they_are(root: Path) -> None:
    tree = FolderTree(root)
    assert tree.read(RUN) == b"eng/run.py\r\n"
    assert tree.exists(RUN)
    assert not tree.exists(rel_path("eng/sub"))
    assert tree.real(RUN) == (root / "eng/run.py").resolve()


def test_paths_leave_out_git_and_our_own_journal(root: Path) -> None:
    assert sorted(FolderTree(root).paths()) == ["eng/__init__.py", "eng/run.py", "eng/sub/deep.py"]


def test_missing_file(root: Path) -> None:
    with pytest.raises(MissingFile, match=r"eng/none\.py"):
        FolderTree(root).read(rel_path("eng/none.py"))
    with pytest.raises(MissingFile):
        FolderTree(root).read(rel_path("eng/run.py/below"))


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "eng/../../x", "eng//run.py", "eng\\run.py", ""])
def test_paths_that_leave_the_tree(root: Path, path: str) -> None:
    with pytest.raises(TreeError, match="not a path inside the tree"):
        FolderTree(root).read(RelPath(path))


def test_link_inside_is_followed(root: Path) -> None:
    (root / "eng/alias.py").symlink_to("run.py")
    (root / "eng/linked").symlink_to("sub")
    tree = FolderTree(root)
    assert tree.read(rel_path("eng/alias.py")) == b"eng/run.py\r\n"
    assert tree.read(rel_path("eng/linked/deep.py")) == b"eng/sub/deep.py\r\n"
    assert tree.real(rel_path("eng/alias.py")).name == "run.py"
    assert "eng/alias.py" in set(tree.paths())
    assert "eng/linked/deep.py" not in set(tree.paths())


@pytest.mark.parametrize("how", ["file", "folder", "chain", "dangling"])
def test_link_that_leaves_the_root_names_link_and_destination(root: Path, tmp_path: Path, how: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text("x")
    link, path = root / "eng/out", "eng/out"
    if how == "file":
        link.symlink_to(outside / "secret.py")
    elif how == "dangling":
        link.symlink_to(outside / "none.py")
    else:
        link.symlink_to(outside)
        path = "eng/out/secret.py"
        if how == "chain":
            (root / "eng/first").symlink_to("out")
            path = "eng/first/secret.py"
    tree = FolderTree(root)
    for act in (tree.read, tree.exists, tree.real):
        with pytest.raises(TreeError, match="outside the tree") as caught:
            act(rel_path(path))
        assert str(outside) in caught.value.message
        assert str(root / "eng") in caught.value.message
    assert not any(listed.startswith(("eng/out", "eng/first")) for listed in tree.paths())


def test_link_loop(root: Path) -> None:
    (root / "eng/a").symlink_to("b")
    (root / "eng/b").symlink_to("a")
    tree = FolderTree(root)
    assert not tree.exists(rel_path("eng/a"))
    with pytest.raises(TreeError):
        tree.read(rel_path("eng/a"))
    assert "eng/a" not in set(tree.paths())


def test_fifo_is_refused_without_hanging(root: Path) -> None:
    os.mkfifo(root / "eng/pipe.py")
    tree = FolderTree(root)
    with pytest.raises(TreeError, match="not a regular file"):
        tree.read(rel_path("eng/pipe.py"))
    assert not tree.exists(rel_path("eng/pipe.py"))
    assert "eng/pipe.py" not in set(tree.paths())


def test_folder_in_place_of_a_file(root: Path) -> None:
    with pytest.raises(TreeError, match="not a regular file"):
        FolderTree(root).read(rel_path("eng/sub"))


def test_open_folder_above_the_package(root: Path) -> None:
    tree = open_folder(root, "eng")
    assert tree.read(RUN) == b"eng/run.py\r\n"
    assert tree.origin == str(root)


def test_open_source_checkout(root: Path) -> None:
    checkout = root.parent / "checkout"
    (checkout / "eng" / "docs").mkdir(parents=True)
    (checkout / "python").mkdir()
    root.joinpath("eng").rename(checkout / "python" / "eng")
    tree = open_folder(checkout, "eng")
    assert tree.root == (checkout / "python").resolve()
    assert tree.read(RUN) == b"eng/run.py\r\n"


def test_open_folder_that_is_the_package_itself(root: Path) -> None:
    with pytest.raises(TreeError, match="holds no package 'eng'") as caught:
        open_folder(root / "eng", "eng")
    assert str(root) in caught.value.hint


@pytest.mark.parametrize(
    ("name", "says"), [("none", "no such folder"), ("file.whl", "is a wheel"), ("file", "not a folder")]
)
def test_open_what_is_no_folder(tmp_path: Path, name: str, says: str) -> None:
    if name != "none":
        (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(TreeError, match=says) as caught:
        open_folder(tmp_path / name, "eng")
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_package_that_is_a_link_out_of_the_folder(root: Path, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "eng").symlink_to(root / "eng")
    with pytest.raises(TreeError, match="outside the tree"):
        open_folder(tmp_path / "venv", "eng")


def test_name_too_long_is_no_traceback(root: Path) -> None:
    path = rel_path("eng/" + "n" * 300)
    with pytest.raises(TreeError, match="cannot be read"):
        FolderTree(root).read(path)
