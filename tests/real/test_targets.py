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
from graftwork.images.record import parse_record
from graftwork.names import rel_path, sha256_hex
from graftwork.oci.layout import read_layout
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import WheelPin, open_wheel

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
TARGETS = ["rocm-gfx950", "rocm-gfx942", "rocm-gfx950-next"]
INDEXER = "sglang/srt/layers/attention/dsa/dsa_indexer.py"
COMMON = "sglang/srt/mem_cache/pool_host/common.py"
PAIR = ("sglang/dsa-indexer-rows", "sglang/hicache-rocm-host-alloc")


def graftwork(*args: str | Path, at: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """The command, with the catalog in the folder *at*."""
    command = [sys.executable, "-c", "from graftwork.cli.main import run; run()", *map(str, args)]
    return subprocess.run(command, cwd=at, env={**os.environ, **env}, capture_output=True, text=True, check=False)


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


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog in which rocm-gfx950 has two patches: what is tried many times need not plan all of them."""
    root = tmp_path_factory.mktemp("pair")
    (root / "deploy/docker/targets").mkdir(parents=True)
    for name in ("patches", "deploy/docker/locks"):
        (root / name).symlink_to(ROOT / name)
    text = (ROOT / "deploy/docker/targets/rocm-gfx950.toml").read_text()
    head, _, tail = text.partition("patches = [")
    listed = "".join(f'  "{name}",\n' for name in PAIR)
    (root / "deploy/docker/targets/rocm-gfx950.toml").write_text(
        f"{head}patches = [\n{listed}]{tail.partition(']')[2]}"
    )
    return root


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.fixture
def tree(pristine: dict[str, Path], tmp_path: Path) -> Path:
    """The files of rocm-gfx950 that the two patches touch, and the version."""
    for path in (INDEXER, COMMON, "sglang/_version.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pristine["rocm-gfx950"] / path, tmp_path / path)
    return tmp_path


TOUCHED = {"rocm-gfx950": 9, "rocm-gfx942": 6, "rocm-gfx950-next": 2}


@pytest.mark.parametrize("target", TARGETS)
def test_apply_twice_verify_revert(pristine: dict[str, Path], tmp_path: Path, target: str) -> None:
    folder = tmp_path / "tree"
    shutil.copytree(pristine[target], folder)
    first = graftwork("apply", target, "--tree", folder)
    assert first.returncode == 0 and f"applied: {TOUCHED[target]} files written" in first.stdout
    again = graftwork("apply", target, "--tree", folder)
    assert again.returncode == 0 and "nothing to do" in again.stdout
    assert graftwork("verify", target, "--tree", folder).returncode == 0
    assert graftwork("revert", target, "--tree", folder).returncode == 0
    assert snapshot(folder) == snapshot(pristine[target])


def test_a_source_checkout(tree: Path, pair: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    checkout = tmp_path_factory.mktemp("checkout")
    shutil.copytree(tree, checkout / "python")
    assert graftwork("apply", "rocm-gfx950", "--tree", checkout, at=pair).returncode == 0
    assert "_p1v2_rows" in (checkout / "python" / INDEXER).read_text()


def refuses(pair: Path, tree: Path, code: int, *says: str, state: str) -> None:
    """An apply ends with *code*, says each text, gives the state in JSON, and writes nothing."""
    before = snapshot(tree)
    shown = graftwork("apply", "rocm-gfx950", "--tree", tree, at=pair)
    assert shown.returncode == code, shown.stdout + shown.stderr
    for text in (*says, "nothing was written", "next:"):
        assert text in shown.stdout + shown.stderr
    document = json.loads(graftwork("plan", "rocm-gfx950", "--tree", tree, "--json", at=pair).stdout)
    assert document["patches"][0]["state"] == state and document["error"]["exit_code"] == code
    assert snapshot(tree) == before
    assert graftwork("verify", "rocm-gfx950", "--tree", tree, at=pair).returncode == code


def edit(tree: Path, old: str, new: str, path: str = INDEXER) -> None:
    text = (tree / path).read_text()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    (tree / path).write_text(text.replace(old, new))


TOPK = "topk_result = metadata.topk_transform(logits, self.index_topk)"
RESTORE = "if not _is_hip and q_offset < q_fp8.shape[0]:"


def test_an_anchored_line_changed(tree: Path, pair: Path) -> None:
    edit(tree, RESTORE, "if _is_cuda and q_offset < q_fp8.shape[0]:")
    refuses(
        pair,
        tree,
        3,
        "anchor not found: if not _is_hip and $short: ...",
        f"nearest candidate, {INDEXER}:",
        state="drifted",
    )


def test_an_anchored_line_twice(tree: Path, pair: Path) -> None:
    edit(tree, f"        {TOPK}\n", f"        {TOPK}\n        {TOPK}\n")
    refuses(pair, tree, 3, "anchor is ambiguous", "matches 2 times", state="drifted")


def test_a_hunks_result_deleted(tree: Path, pair: Path) -> None:
    assert graftwork("apply", "rocm-gfx950", "--tree", tree, at=pair).returncode == 0
    edit(tree, "q_fp8[:_p1v2_rows],", "q_fp8,")
    refuses(pair, tree, 3, "in the tree: rows[1], rows[3]", "rows[2]", state="partial")


def test_the_older_revision(tree: Path, pair: Path) -> None:
    from graftwork.patching.edits import forward
    from graftwork.patching.overlay import Overlay
    from graftwork.trees.folder import FolderTree

    stock = snapshot(tree)
    patch = Catalog(ROOT).patch("sglang/dsa-indexer-rows")
    over = Overlay(FolderTree(tree))
    for old in patch.earlier[0].edits:
        forward(old, patch.folder, over)
    (tree / INDEXER).write_bytes(over.changed[INDEXER] or b"")
    refuses(pair, tree, 3, "revision P1V2 is in the tree, this is P1V3", "--upgrade", state="outdated")
    assert graftwork("apply", "rocm-gfx950", "--tree", tree, "--upgrade", at=pair).returncode == 0
    assert graftwork("verify", "rocm-gfx950", "--tree", tree, at=pair).returncode == 0
    assert graftwork("revert", "rocm-gfx950", "--tree", tree, at=pair).returncode == 0
    assert snapshot(tree) == stock


def test_the_markers_in_dead_code(tree: Path, pair: Path) -> None:
    edit(tree, f"        {TOPK}\n", f"        if False:\n            _p1v2_trim = _p1v2_rows = 0\n        {TOPK}\n")
    refuses(pair, tree, 3, "the logic is not the patch's", state="partial")


def test_a_stale_pyc(tree: Path, pair: Path) -> None:
    """The trap: same size, same second, and the old code in the cache that Python trusts."""
    source = tree / INDEXER
    assert graftwork("apply", "rocm-gfx950", "--tree", tree, at=pair).returncode == 0
    good = source.read_text()
    source.write_text(good.replace("min(q_offset, q_fp8.shape[0])", "max(q_offset, q_fp8.shape[0])"))
    os.utime(source, (1_700_000_000,) * 2)
    pyc = Path(py_compile.compile(str(source), doraise=True) or "")
    source.write_text(good)
    os.utime(source, (1_700_000_000,) * 2)
    caught = graftwork("verify", "rocm-gfx950", "--tree", tree, at=pair)
    assert caught.returncode == 4 and pyc.name in caught.stderr and "next:" in caught.stderr
    pyc.unlink()
    assert graftwork("verify", "rocm-gfx950", "--tree", tree, at=pair).returncode == 0


def test_60_kills_of_the_real_apply(tree: Path, pair: Path) -> None:
    """SIGKILL at random instants of the real apply; the next run leaves pristine or patched, nothing else."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as memory:
        shutil.copytree(tree, memory, dirs_exist_ok=True)
        _kill(Path(memory), pair, 60)


def _kill(tree: Path, pair: Path, wanted: int) -> None:
    """Until *wanted* were killed on the way. The instants follow what the machine needs, however fast it is now."""
    for module in ("graftwork.cli.apply", "graftwork.images.from_plan", "graftwork.patching.codemod"):
        importlib.import_module(module)  # the children are forked warm
    stock = snapshot(tree)
    assert graftwork("apply", "rocm-gfx950", "--tree", tree, at=pair).returncode == 0
    patched = {path: data for path, data in snapshot(tree).items() if not path.startswith(".graftwork")}
    assert graftwork("revert", "rocm-gfx950", "--tree", tree, at=pair).returncode == 0
    argv = sys.argv
    sys.argv = ["graftwork", "apply", "rocm-gfx950", "--tree", str(tree), "--catalog", str(pair), "--quiet"]
    chance = random.Random(1)
    try:
        began = time.monotonic()
        assert _kill_one(tree, stock, patched, 600) is False, "left alone, it gets to its end"
        longest, killed = (time.monotonic() - began) / 2, 0
        while killed < wanted:
            got = _kill_one(tree, stock, patched, chance.uniform(0, longest))
            killed, longest = killed + got, longest * (1.02 if got else 0.8)
    finally:
        sys.argv = argv


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


def test_a_tree_that_has_the_allocator_fixed(tree: Path, pair: Path) -> None:
    """The upstream function stands in it: obsolete by the precondition, although the anchor matches."""
    with (tree / COMMON).open("a") as file:
        file.write("\n\ndef make_kernel_ptr_table(buffers): ...\n")
    shown = graftwork("apply", "rocm-gfx950", "--tree", tree, at=pair)
    assert shown.returncode == 7 and "defines make_kernel_ptr_table" in shown.stdout
    assert "_p1v2_rows" not in (tree / INDEXER).read_text()


LAUNCH = {
    "rocm-gfx950": "SGLANG_DSA_FUSE_TOPK=0",
    "rocm-gfx942": """SGLANG_DSA_FUSE_TOPK=0 --json-model-override-args '{"index_share_for_mtp_iteration":false}'""",
    "rocm-gfx950-next": "SGLANG_DSA_FUSE_TOPK=0",
}


@pytest.mark.parametrize("target", TARGETS)
def test_what_must_be_passed_at_launch_is_in_record_and_label(target: str, tmp_path: Path) -> None:
    """On gfx942 it stands in for the vote, which that target does not carry: without it the image is not complete."""
    made = built(target, tmp_path)
    record = parse_record(made["beside"]["record.json"], "record.json")
    labels = read_layout(tmp_path / target / "oci", target).config.config.labels
    assert record.launch.words() == labels["graftwork.launch"] == LAUNCH[target]
    assert ("sglang/draft-graph-dp-vote" in labels["graftwork.patches"]) is (target == "rocm-gfx950")
    assert {patch.state for patch in record.patches} == {"applied"}
