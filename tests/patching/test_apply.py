"""Apply, upgrade and revert in a folder: all or nothing at any instant, and the way back is exact."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from toys import OLD, TOY_PATCH, TOY_SOURCE, WITH_OLD, Toy

from graftwork.errors import GraftworkError, PinError, StateError, TreeError, UsageError
from graftwork.patching import pycache
from graftwork.patching.apply import apply, revert
from graftwork.patching.plan import Plan
from graftwork.patching.transaction import STATE, Store, Write
from graftwork.trees.folder import FolderTree, open_folder

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


def tree(toy: Toy) -> FolderTree:
    return open_folder(toy.tree, "toy")


def do(toy: Toy, upgrade: bool = False) -> Plan:
    return apply(tree(toy), "t", toy.patches, toy.engine, lambda plan: {"files": len(plan.patched)}, upgrade=upgrade)


def undo(toy: Toy, pristine: Callable[[str], bytes | None] = lambda path: TOY_SOURCE.encode()) -> list[str]:
    return revert(tree(toy), "t", toy.patches, toy.engine, pristine)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def many(toy: Toy) -> None:
    """A patch of several files, one of them new, so that half of it could be written."""
    text = TOY_PATCH
    for name in ("a", "b"):
        toy.write(f"tree/toy/{name}.py", f"VALUE = 1  # {name}\n")
        text += f'\n[[edit]]\nid = "{name}"\nkind = "anchor"\nfile = "toy/{name}.py"\n'
        text += '[[edit.hunk]]\nfind = "VALUE = 1"\nreplace = "VALUE = 2"\n'
    toy.write("patches/toy/rows/new/inner/c.py", "VALUE = 3\n")
    text += '\n[[edit]]\nid = "c"\nkind = "file"\npath = "toy/added"\nsource = "new"\n'
    toy.patch("rows", text)


def test_apply_twice_then_revert(toy: Toy) -> None:
    many(toy)
    before = snapshot(toy.tree)
    toy.pool.chmod(0o640)
    assert {c.path for c in do(toy).changes} == {"toy/pool.py", "toy/a.py", "toy/b.py", "toy/added/inner/c.py"}
    assert toy.pool.stat().st_mode & 0o777 == 0o640
    patched = snapshot(toy.tree)
    assert do(toy).changes == () and snapshot(toy.tree) == patched
    assert sorted(undo(toy)) == ["toy/a.py", "toy/added/inner/c.py", "toy/b.py", "toy/pool.py"]
    assert snapshot(toy.tree) == before
    assert not (toy.tree / STATE).exists() and not (toy.tree / "toy/added").exists()
    assert undo(toy) == []


def test_a_refused_plan_writes_nothing(toy: Toy) -> None:
    many(toy)
    toy.write("tree/toy/b.py", "VALUE = 9\n")
    before = snapshot(toy.tree)
    assert isinstance(do(toy).refusal(), StateError)
    assert snapshot(toy.tree) == before


def test_hard_links_and_symlinks_keep_their_other_ends(toy: Toy, tmp_path: Path) -> None:
    os.link(toy.pool, tmp_path / "cache.py")
    real = toy.write("tree/toy/real/pool.py", TOY_SOURCE)
    do(toy)
    assert (tmp_path / "cache.py").read_text() == TOY_SOURCE, "a package manager's cache must not change"
    undo(toy)
    toy.pool.unlink()
    toy.pool.symlink_to("real/pool.py")
    do(toy)
    assert toy.pool.is_symlink() and "_toy_clip" in real.read_text()


def test_upgrade_takes_the_old_revision_out(toy: Toy) -> None:
    toy.write("patches/toy/rows/old.toml", OLD)
    toy.patch("rows", WITH_OLD)
    toy.pool.write_text(TOY_SOURCE.replace("        count = rows", "        _toy_old = 1\n        count = rows"))
    before = snapshot(toy.tree)
    assert isinstance(do(toy).refusal(), StateError) and snapshot(toy.tree) == before
    assert do(toy, upgrade=True).refusal() is None
    assert "_toy_old" not in toy.pool.read_text() and "_toy_clip" in toy.pool.read_text()
    undo(toy)
    assert toy.pool.read_text() == TOY_SOURCE


def test_upgrade_by_the_recorded_plan_even_if_the_old_text_is_unknown(toy: Toy) -> None:
    toy.patch("rows", TOY_PATCH.replace("_toy_clip", "_toy_old").replace('"R2"', '"R1"'))
    do(toy)
    assert "_toy_old = count < rows" in toy.pool.read_text()
    toy.write("patches/toy/rows/old.toml", OLD)
    toy.patch("rows", WITH_OLD)
    assert do(toy, upgrade=True).refusal() is None
    assert "_toy_old" not in toy.pool.read_text()
    undo(toy)
    assert toy.pool.read_text() == TOY_SOURCE


def test_revert_without_a_record_needs_the_wheel_to_agree(toy: Toy) -> None:
    do(toy)
    shutil.rmtree(toy.tree / STATE)
    patched = snapshot(toy.tree)
    with pytest.raises(PinError, match="the pinned wheel's is"):
        undo(toy, lambda path: b"another file\n")
    assert snapshot(toy.tree) == patched
    assert undo(toy) == ["toy/pool.py"]
    assert toy.pool.read_text() == TOY_SOURCE


def test_revert_refuses_a_file_that_was_changed_since(toy: Toy) -> None:
    many(toy)
    do(toy)
    toy.write("tree/toy/a.py", "VALUE = 5\n")
    before = snapshot(toy.tree / "toy")
    with pytest.raises(StateError, match=r"toy/a\.py: changed since it was patched"):
        undo(toy)
    assert snapshot(toy.tree / "toy") == before


def test_another_target_in_the_tree(toy: Toy) -> None:
    do(toy)
    toy.patch(
        "rows",
        TOY_PATCH + '\n[[edit]]\nid = "i"\nkind = "anchor"\nfile = "toy/pool.py"\n'
        '[[edit.hunk]]\nfind = "LIMIT = 10"\nreplace = "LIMIT = 11"\n',
    )
    with pytest.raises(UsageError, match="carries target t"):
        revert(tree(toy), "u", toy.patches, toy.engine, lambda path: None)


def test_a_damaged_record_or_kept_copy(toy: Toy) -> None:
    do(toy)
    for blob in (toy.tree / STATE / "blobs").iterdir():
        blob.write_text("spoiled")
    with pytest.raises(StateError, match="is spoiled"):
        undo(toy)
    (toy.tree / STATE / "applied.json").write_text("{}")
    with pytest.raises(TreeError, match="cannot be read"):
        undo(toy)


def test_a_file_that_changed_after_planning(toy: Toy) -> None:
    store = Store(tree(toy))
    with store.locked(), pytest.raises(TreeError, match="changed since it was planned"):
        store.commit([Write("toy/pool.py", b"not what is there", b"new")], None)
    assert toy.pool.read_text() == TOY_SOURCE


def test_two_writers(toy: Toy) -> None:
    with Store(tree(toy)).locked(), pytest.raises(TreeError, match="another graftwork is writing"):
        do(toy)


@pytest.mark.parametrize("fails", range(1, 4))
def test_a_disk_that_fills_up_puts_everything_back(toy: Toy, monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    many(toy)
    before = snapshot(toy.tree / "toy")
    real, calls = Path.replace, []

    def full(self: Path, target: Path) -> Path:
        if STATE not in Path(target).parts:
            calls.append(target)
            if len(calls) == fails:
                raise OSError(28, "No space left on device", str(target))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(TreeError, match="No space left"):
        do(toy)
    assert snapshot(toy.tree / "toy") == before
    monkeypatch.undo()
    assert do(toy).refusal() is None


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Toy]:
    """A toy in memory where there is such a place: hundreds of runs, each with its syncs."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield Toy(tmp_path / "toy")
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Toy(Path(folder) / "toy")


def killed(toy: Toy, action: Callable[[], object], instant: int) -> bool:
    """Run *action* in a child that kills itself at its *instant*-th file operation; False if it got to the end."""
    child = os.fork()
    if child == 0:
        count = [0]

        def hook(event: str, args: tuple[object, ...]) -> None:
            if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.chown"):
                count[0] += 1
                if count[0] == instant:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            action()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("backwards", [False, True], ids=["apply", "revert"])
def test_killed_at_every_instant(quick: Toy, backwards: bool) -> None:
    """At each file operation in turn: the next run finishes or starts over, never a mixture."""
    toy = quick
    many(toy)
    pristine = snapshot(toy.tree / "toy")
    do(toy)
    patched = snapshot(toy.tree / "toy")
    instant = 0
    while True:
        (do if backwards else undo)(toy)
        assert snapshot(toy.tree / "toy") == (patched if backwards else pristine)
        instant += 1
        if not killed(toy, lambda: (undo if backwards else do)(toy), instant):
            break
        assert snapshot_now(toy) in ("pristine", "patched", "between")
        (undo if backwards else do)(toy)
        assert snapshot(toy.tree / "toy") == (pristine if backwards else patched), f"instant {instant}"
        (do if backwards else undo)(toy)
    assert instant > 20


def snapshot_now(toy: Toy) -> str:
    """What a killed run left: a mixture is allowed only while the journal says that it will be finished."""
    store = Store(tree(toy))
    done = [("_toy_clip" in toy.pool.read_text()), "VALUE = 2" in (toy.tree / "toy/a.py").read_text()]
    if store.interrupted:
        return "between"
    assert len(set(done)) == 1
    return "patched" if done[0] else "pristine"


def test_200_kills_at_random_instants(quick: Toy) -> None:
    toy = quick
    many(toy)
    do(toy)
    patched = snapshot(toy.tree / "toy")
    undo(toy)
    pristine = snapshot(toy.tree / "toy")
    chance = random.Random(0)
    ended = 0
    for _ in range(200):
        child = os.fork()
        if child == 0:
            try:
                do(toy)
            finally:
                os._exit(0)
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        ended += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert do(toy).refusal() is None
        assert snapshot(toy.tree / "toy") == patched
        undo(toy)
        assert snapshot(toy.tree / "toy") == pristine
    assert ended > 20, "the children must really have been killed"


def pyc_of(source: Path, tag: str = f"cpython-{MINOR.replace('.', '')}") -> Path:
    return source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc"


def test_stale_bytecode_goes_with_the_source(toy: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(prefix))
    beside = [pyc_of(toy.pool, tag) for tag in ("cpython-39", "cpython-39.opt-1", "cpython-310.opt-2")]
    far = prefix / toy.pool.parent.relative_to("/") / "pool.cpython-39.pyc"
    keep = pyc_of(toy.pool.with_name("pool_other.py"), "cpython-39")
    for pyc in (*beside, far, keep):
        pyc.parent.mkdir(parents=True, exist_ok=True)
        pyc.write_bytes(b"stale")
    do(toy)
    assert not any(pyc.exists() for pyc in (*beside, far)) and keep.exists()


def test_a_hash_checked_pyc_for_this_python_only(toy: Toy) -> None:
    do(toy)
    assert not pyc_of(toy.pool).exists(), "the tree does not say which Python it belongs to"
    undo(toy)
    py_compile.compile(str(toy.pool), doraise=True)
    do(toy)
    header = pyc_of(toy.pool).read_bytes()[:16]
    assert header[:4] == importlib.util.MAGIC_NUMBER and header[4:8] == b"\x03\0\0\0"
    assert header[8:] == importlib.util.source_hash(toy.pool.read_bytes())
    undo(toy)
    assert not pyc_of(toy.pool).parent.exists()


@pytest.mark.parametrize(
    ("path", "minor"),
    [
        ("/venv/lib/python3.12/site-packages/x.py", "3.12"),
        ("/opt/x.py", None),
    ],
)
def test_the_python_that_a_folder_belongs_to(path: str, minor: str | None) -> None:
    assert pycache.minor_of(Path(path)) == minor


def test_the_record_names_hashes(toy: Toy) -> None:
    do(toy)
    kept = json.loads((toy.tree / STATE / "applied.json").read_text())
    assert kept["target"] == "t" and kept["record"] == {"files": 1}
    (row,) = kept["files"]
    assert row["path"] == "toy/pool.py" and row["pristine"] != row["patched"]


def test_a_tree_that_cannot_be_written(toy: Toy) -> None:
    if os.geteuid() == 0:
        (toy.tree / STATE).write_text("a file where the folder should be")
    else:
        toy.tree.chmod(0o555)
    with pytest.raises(GraftworkError) as caught:
        do(toy)
    assert caught.value.exit_code == 2
