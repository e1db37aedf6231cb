"""The issue's scenarios on the real pinned wheels, with the command that a person types."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import py_compile
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from graftwork.catalog.catalog import Catalog, wheel_for
from graftwork.errors import UnreachableError
from graftwork.names import rel_path, sha256_hex
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import WheelPin, open_wheel

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
TARGETS = ["rocm-gfx950", "rocm-gfx942"]
INDEXER = "sglang/srt/layers/attention/dsa/dsa_indexer.py"
COMMON = "sglang/srt/mem_cache/pool_host/common.py"


def graftwork(*args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from graftwork.cli.main import run; run()", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each target's whole pinned wheel, unpacked through graftwork's own checked reading."""
    found = {}
    for name in TARGETS:
        catalog = Catalog(ROOT)
        target = catalog.target(name)
        pin = wheel_for(target)
        lock = {wheel.sha256: wheel.record_sha256 for wheel in catalog.lock(target).wheels}
        wanted = WheelPin(target.engine, pin.file, sha256_hex(pin.sha256), sha256_hex(lock[pin.sha256]))
        root = tmp_path_factory.mktemp(name)
        try:
            with open_wheel(wanted, Cache(), PackageIndex(), whole=True) as wheel:
                for path in wheel.paths():
                    if path.endswith(".py"):
                        (root / path).parent.mkdir(parents=True, exist_ok=True)
                        (root / path).write_bytes(wheel.read(rel_path(path)))
        except UnreachableError as error:
            pytest.skip(f"the package index is not reachable: {error}")
        found[name] = root
    return found


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.fixture
def tree(pristine: dict[str, Path], tmp_path: Path) -> Path:
    """The files of rocm-gfx950 that its patches touch, and the version."""
    for path in (INDEXER, COMMON, "sglang/_version.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pristine["rocm-gfx950"] / path, tmp_path / path)
    return tmp_path


@pytest.mark.parametrize("target", TARGETS)
def test_apply_twice_verify_revert(pristine: dict[str, Path], tmp_path: Path, target: str) -> None:
    folder = tmp_path / "tree"
    shutil.copytree(pristine[target], folder)
    first = graftwork("apply", target, "--tree", folder)
    assert first.returncode == 0 and "applied: 2 files written" in first.stdout
    again = graftwork("apply", target, "--tree", folder)
    assert again.returncode == 0 and "nothing to do" in again.stdout
    assert graftwork("verify", target, "--tree", folder).returncode == 0
    assert graftwork("revert", target, "--tree", folder).returncode == 0
    assert snapshot(folder) == snapshot(pristine[target])


def test_a_source_checkout(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    checkout = tmp_path_factory.mktemp("checkout")
    shutil.copytree(tree, checkout / "python")
    assert graftwork("apply", "rocm-gfx950", "--tree", checkout).returncode == 0
    assert "_p1v2_rows" in (checkout / "python" / INDEXER).read_text()


def refuses(tree: Path, code: int, *says: str, state: str, verb: str = "apply") -> None:
    """The verb ends with *code*, says each text, gives the state in JSON, and writes nothing."""
    before = snapshot(tree)
    shown = graftwork(verb, "rocm-gfx950", "--tree", tree)
    assert shown.returncode == code, shown.stdout + shown.stderr
    for text in (*says, "nothing was written", "next:"):
        assert text in shown.stdout + shown.stderr
    document = json.loads(graftwork("plan", "rocm-gfx950", "--tree", tree, "--json").stdout)
    assert document["patches"][0]["state"] == state and document["refused"]["exit_code"] == code
    assert snapshot(tree) == before
    assert graftwork("verify", "rocm-gfx950", "--tree", tree).returncode == code


def edit(tree: Path, old: str, new: str, path: str = INDEXER) -> None:
    text = (tree / path).read_text()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    (tree / path).write_text(text.replace(old, new))


TOPK = "topk_result = metadata.topk_transform(logits, self.index_topk)"
RESTORE = "if not _is_hip and q_offset < q_fp8.shape[0]:"


def test_an_anchored_line_changed(tree: Path) -> None:
    edit(tree, RESTORE, "if _is_cuda and q_offset < q_fp8.shape[0]:")
    refuses(
        tree, 3, "anchor not found: if not _is_hip and $short: ...", f"nearest candidate, {INDEXER}:", state="drifted"
    )


def test_an_anchored_line_twice(tree: Path) -> None:
    edit(tree, f"        {TOPK}\n", f"        {TOPK}\n        {TOPK}\n")
    refuses(tree, 3, "anchor is ambiguous", "matches 2 times", state="drifted")


def test_a_hunks_result_deleted(tree: Path) -> None:
    assert graftwork("apply", "rocm-gfx950", "--tree", tree).returncode == 0
    edit(tree, "q_fp8[:_p1v2_rows],", "q_fp8,")
    refuses(tree, 3, "in the tree: rows[1], rows[3]", "rows[2]", state="partial")


def test_the_older_revision(tree: Path) -> None:
    from graftwork.patching.edits import forward
    from graftwork.patching.overlay import Overlay
    from graftwork.trees.folder import FolderTree

    stock = snapshot(tree)
    patch = Catalog(ROOT).patch("sglang/dsa-indexer-rows")
    over = Overlay(FolderTree(tree))
    for old in patch.earlier[0].edits:
        forward(old, patch.folder, over)
    (tree / INDEXER).write_bytes(over.changed[INDEXER] or b"")
    refuses(tree, 3, "revision P1V2 is in the tree, this is P1V3", "--upgrade", state="outdated")
    assert graftwork("apply", "rocm-gfx950", "--tree", tree, "--upgrade").returncode == 0
    assert graftwork("verify", "rocm-gfx950", "--tree", tree).returncode == 0
    assert graftwork("revert", "rocm-gfx950", "--tree", tree).returncode == 0
    assert snapshot(tree) == stock


def test_the_markers_in_dead_code(tree: Path) -> None:
    edit(tree, f"        {TOPK}\n", f"        if False:\n            _p1v2_trim = _p1v2_rows = 0\n        {TOPK}\n")
    refuses(tree, 3, "the logic is not the patch's", state="partial")


def test_a_stale_pyc(tree: Path) -> None:
    """The trap: same size, same second, and the old code in the cache that Python trusts."""
    source = tree / INDEXER
    assert graftwork("apply", "rocm-gfx950", "--tree", tree).returncode == 0
    good = source.read_text()
    source.write_text(good.replace("min(q_offset, q_fp8.shape[0])", "max(q_offset, q_fp8.shape[0])"))
    os.utime(source, (1_700_000_000,) * 2)
    pyc = Path(py_compile.compile(str(source), doraise=True) or "")
    source.write_text(good)
    os.utime(source, (1_700_000_000,) * 2)
    caught = graftwork("verify", "rocm-gfx950", "--tree", tree)
    assert caught.returncode == 4 and pyc.name in caught.stderr and "next:" in caught.stderr
    pyc.unlink()
    assert graftwork("verify", "rocm-gfx950", "--tree", tree).returncode == 0


def test_200_kills_of_the_real_apply(tree: Path) -> None:
    """SIGKILL at random instants of the real apply; the next run leaves pristine or patched, nothing else."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as memory:
        shutil.copytree(tree, memory, dirs_exist_ok=True)
        _kill_200(Path(memory))


def _kill_200(tree: Path) -> None:
    for module in ("graftwork.cli.apply", "graftwork.images.from_plan", "graftwork.patching.codemod"):
        importlib.import_module(module)  # the children are forked warm
    stock = snapshot(tree)
    assert graftwork("apply", "rocm-gfx950", "--tree", tree).returncode == 0
    patched = {path: data for path, data in snapshot(tree).items() if not path.startswith(".graftwork")}
    assert graftwork("revert", "rocm-gfx950", "--tree", tree).returncode == 0
    argv = sys.argv
    sys.argv = ["graftwork", "apply", "rocm-gfx950", "--tree", str(tree), "--catalog", str(ROOT), "--quiet"]
    chance = random.Random(1)
    try:
        began = time.monotonic()
        assert _kill_one(tree, stock, patched, 60) is False, "left alone, it gets to its end"
        whole = (time.monotonic() - began) / 2
        killed = sum(_kill_one(tree, stock, patched, chance.uniform(0, whole)) for _ in range(200))
    finally:
        sys.argv = argv
    assert killed > 40, f"only {killed} of 200 were killed on the way; one apply took {whole:.3f} s"


def _kill_one(tree: Path, stock: dict[str, bytes], patched: dict[str, bytes], instant: float) -> bool:
    """Start an apply, kill it *instant* seconds later if it still runs, apply again; whether it was killed."""
    first, deadline = _command(), time.monotonic() + instant
    while os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(first, signal.SIGKILL)
    killed = os.WIFSIGNALED(os.waitpid(first, 0)[1])
    assert os.waitpid(_command(), 0)[1] == 0
    assert {path: data for path, data in snapshot(tree).items() if not path.startswith(".graftwork")} == patched
    for path, data in stock.items():
        (tree / path).write_bytes(data)
    shutil.rmtree(tree / ".graftwork")
    return killed


def _command() -> int:
    """Run the command of ``sys.argv`` in a child that is already warm, as its main function does."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            from graftwork.cli.main import run

            with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
                run()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)
    return child


def test_ranged_reading_moves_under_a_megabyte(tmp_path: Path) -> None:
    shown = graftwork("plan", "rocm-gfx950", GRAFTWORK_CACHE=str(tmp_path))
    assert shown.returncode == 0
    (line,) = [line for line in shown.stdout.splitlines() if " moved in " in line]
    amount, unit = line.split(": ")[1].split()[:2]
    assert unit == "kB" and float(amount) < 1000
    again = graftwork("plan", "rocm-gfx950", GRAFTWORK_CACHE=str(tmp_path), PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert again.returncode == 0 and "all from the cache" in again.stdout


def built(target: str, dist: Path, *, python: str = sys.executable, umask: int = 0o022, **env: str) -> dict[str, Any]:
    """The JSON document of ``graftwork image``, and what was written beside the image."""
    command = [
        python,
        "-c",
        "from graftwork.cli.main import run; run()",
        "image",
        target,
        "--dist",
        str(dist),
        "--json",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=True, umask=umask
    )
    beside = {name: (dist / target / name).read_bytes() for name in ("record.json", "sbom.cdx.json", "provenance.json")}
    return {**json.loads(done.stdout), "beside": beside}


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_image_again_and_under_another_umask_zone_and_locale(tmp_path: Path, target: str) -> None:
    first = built(target, tmp_path / "a")
    again = built(target, tmp_path / "a")
    assert again["unchanged"] and again["digest"] == first["digest"]
    other = built(target, tmp_path / "b", umask=0o077, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    assert (other["digest"], other["beside"]) == (first["digest"], first["beside"])


def test_the_same_image_from_every_python(tmp_path: Path) -> None:
    others = sorted(ROOT.glob(".venv-3.*/bin/python"))
    if not others:
        pytest.skip("no environment of another Python here: make test-pythons makes them")
    first = built("rocm-gfx950", tmp_path / "a")
    for number, python in enumerate(others):
        other = built("rocm-gfx950", tmp_path / str(number), python=str(python))
        assert (other["digest"], other["beside"]) == (first["digest"], first["beside"]), python


@pytest.mark.parametrize("target", TARGETS)
def test_plan_of_releases_that_have_the_allocator_fixed(pristine: dict[str, Path], target: str, tmp_path: Path) -> None:
    """A tree in which the upstream function stands: obsolete by the precondition, although the anchor matches."""
    for path in (INDEXER, COMMON, "sglang/_version.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pristine[target] / path, tmp_path / path)
    with (tmp_path / COMMON).open("a") as file:
        file.write("\n\ndef make_kernel_ptr_table(buffers): ...\n")
    shown = graftwork("apply", target, "--tree", tmp_path)
    assert shown.returncode == 7 and "defines make_kernel_ptr_table" in shown.stdout
    assert "_p1v2_rows" not in (tmp_path / INDEXER).read_text()
