"""The patches on the real files of every release they claim: fixed where patched, broken where stock, and not fooled.

Each judgement is a pytest run of the patch's own tests (``patches/<engine>/<name>/tests``) on a folder of its own, in a
process of its own. Those tests execute the engine's text, which this process never does.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from packaging.version import Version

from graftwork.catalog.catalog import Catalog
from graftwork.errors import MissingFile, UnreachableError
from graftwork.names import rel_path, sha256_hex
from graftwork.patching.assess import Assessment, Engine
from graftwork.patching.edits import forward
from graftwork.patching.overlay import Overlay
from graftwork.patching.plan import plan
from graftwork.patching.states import State
from graftwork.trees.cache import Cache
from graftwork.trees.folder import FolderTree
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import RemoteWheelTree, WheelPin

pytestmark = pytest.mark.real
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is missing: the engine's functions are executed on the CPU (pip install torch)",
)

ROOT = Path(__file__).parents[2]
ROWS, ALLOC = "sglang/dsa-indexer-rows", "sglang/hicache-rocm-host-alloc"
BASELINE = "0.5.15.post1"

# Per release: sha256 of the cp311 x86_64 wheel, and of the RECORD in it.
RELEASES = json.loads((Path(__file__).parent / "releases.json").read_text())
NAMES = list(RELEASES)
WITH_ROWS = NAMES[NAMES.index("0.5.15") :]
WITH_ALLOC = NAMES[: NAMES.index("0.5.20")]
FIXED_ALLOC = NAMES[NAMES.index("0.5.20") :]

DSA = "sglang/srt/layers/attention"
INDEXER = f"{DSA}/dsa/dsa_indexer.py"
FILES = {
    ROWS: [
        INDEXER,
        f"{DSA}/dsa/dsa_indexer_metadata.py",
        f"{DSA}/dsa_backend.py",
        f"{DSA}/dsa/dsa_topk_backend.py",
        "sglang/jit_kernel/dsa/paged_mqa_logits.py",
        "sglang/kernels/ops/attention/dsa/paged_mqa_logits.py",
    ],
    ALLOC: ["sglang/srt/mem_cache/pool_host/common.py", "sglang/srt/mem_cache/memory_pool_host.py"],
}


@cache
def engine_files(name: str, version: str) -> dict[str, bytes]:
    """The files of a release that a patch's tests execute, as the pinned wheel has them."""
    pinned = RELEASES[version]
    filename = f"sglang-{version}-cp311-cp311-manylinux_2_34_x86_64.whl"
    pin = WheelPin("sglang", filename, sha256_hex(pinned["wheel"]), sha256_hex(pinned["record"]))
    found = {}
    try:
        with RemoteWheelTree(pin, Cache(), PackageIndex()) as tree:
            for path in ["sglang/_version.py", *FILES[name]]:
                try:
                    found[path] = tree.read(rel_path(path))
                except MissingFile:
                    continue  # each release keeps some of them elsewhere; the tests say so if all are missing
    except UnreachableError as error:
        pytest.skip(f"the package index is not reachable: {error}")
    return found


class Folder:
    """A tree on disk with the files of one release, for one patch."""

    def __init__(self, root: Path, name: str, version: str) -> None:
        self.root, self.name, self.version = root, name, version
        self.patch = Catalog(ROOT).patch(name)
        for path, data in engine_files(name, version).items():
            self.write(path, data)

    def write(self, path: str, data: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data)

    def assess(self) -> Assessment:
        """What graftwork says of the patch in this folder."""
        (found,) = self.plan().patches
        return found

    def plan(self):
        return plan(FolderTree(self.root), [self.patch], Engine(Version(self.version), "rocm"))

    def apply(self) -> Folder:
        """Write what graftwork's planner makes of it."""
        planned = self.plan()
        assert [(item.state, item.problems) for item in planned.patches] == [(State.PENDING, ())]
        assert planned.refusal() is None
        for change in planned.changes:
            assert change.new is not None
            self.write(change.path, change.new)
        return self

    def apply_earlier(self, revision: str) -> Folder:
        """Write an earlier revision of the patch instead."""
        (earlier,) = (one for one in self.patch.earlier if one.id == revision)
        over = Overlay(FolderTree(self.root))
        for edit in earlier.edits:
            forward(edit, self.patch.folder, over)
        for path, (_, new) in over.differing().items():
            assert new is not None
            self.write(path, new)
        return self

    def mutate(self, path: str, *swaps: tuple[str, str]) -> Folder:
        """Replace text that occurs once."""
        text = (self.root / path).read_text()
        for old, new in swaps:
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
            text = text.replace(old, new)
        self.write(path, text.encode())
        return self


@dataclass
class Verdict:
    """Test id (``function[case]``) to the failure's message, for the tests that failed; the others by outcome."""

    failed: dict[str, str]
    passed: set[str]
    skipped: set[str]

    def failing(self, function: str) -> set[str]:
        """The cases of one test function that failed."""
        return {case.partition("[")[2].rstrip("]") for case in self.failed if case.partition("[")[0] == function}

    def cases(self, function: str) -> set[str]:
        ran = [*self.failed, *self.passed]
        return {case.partition("[")[2].rstrip("]") for case in ran if case.partition("[")[0] == function}


@cache
def warm_processes() -> ForkServerContext:
    """Processes that begin with torch imported: that is most of the time of a run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "hypothesis", "pytest", "graftwork.harness.isolate"])
    return context


def judge(folder: Folder, select: str = "") -> Verdict:
    """Run the patch's tests on *folder* in a process of their own; *select* is pytest's ``-k``."""
    report = folder.root / "report.xml"
    arguments = ["-q", "--tb=line", "-p", "graftwork.harness.plugin", f"--engine-tree={folder.root}", "-k", select]
    arguments += ["-p", "no:cacheprovider", f"--junitxml={report}", f"--rootdir={ROOT}", "-c", f"{ROOT}/pyproject.toml"]
    process = warm_processes().Process(target=pytest.main, args=([*arguments, f"{ROOT}/patches/{folder.name}/tests"],))
    process.start()
    process.join()
    assert report.is_file(), f"pytest made no report (exit code {process.exitcode})"
    verdict = Verdict({}, set(), set())
    for case in ET.parse(report).iter("testcase"):
        name = case.attrib["name"]
        assert case.find("error") is None, ET.tostring(case, "unicode")
        failure = case.find("failure")
        if failure is not None:
            verdict.failed[name] = failure.attrib["message"]
        else:
            (verdict.passed if case.find("skipped") is None else verdict.skipped).add(name)
    return verdict


DEFECTS = (
    "Failed: the defect: ",
    "RuntimeError: Expected lengths.size(0) == B",
    "RuntimeError: Expected index [",
    "AssertionError",
    "assert ",
    "Failed: DID NOT RAISE",
)


def assert_by_defect(verdict: Verdict) -> None:
    """Every failure is the defect's own, none is a test that could not run."""
    strange = {case: why for case, why in verdict.failed.items() if not why.startswith(DEFECTS)}
    assert not strange


def unequal(cases: set[str], *directions: str) -> set[str]:
    return {case for case in cases if case.startswith(directions)}


@needs_torch
@pytest.mark.parametrize("version", WITH_ROWS)
def test_rows_patched(tmp_path, version):
    verdict = judge(Folder(tmp_path, ROWS, version).apply())
    assert verdict.failed == {}
    assert len(verdict.passed) > 70
    masks = {case for case in verdict.skipped if case.startswith("test_forced_tokens")}
    assert verdict.skipped == masks
    assert bool(masks) == (Version(version) < Version("0.5.16"))


@needs_torch
@pytest.mark.parametrize("version", WITH_ROWS)
def test_rows_stock(tmp_path, version):
    verdict = judge(Folder(tmp_path, ROWS, version), "not any_row_counts")
    assert_by_defect(verdict)
    for function in ("test_values_and_rows", "test_forced_tokens"):
        assert verdict.failing(function) == unequal(verdict.cases(function), "trim", "clip")
    assert len(verdict.failing("test_values_and_rows")) == 11
    assert not verdict.failing("test_other_backend_keeps_its_own_rows")


@needs_torch
@pytest.mark.parametrize("version", [WITH_ROWS[0], BASELINE, "0.5.16", WITH_ROWS[-1]])
def test_rows_earlier_revision_fails_the_clip_cases_and_no_other(tmp_path, version):
    folder = Folder(tmp_path, ROWS, version).apply_earlier("P1V2")
    assert folder.assess().state is State.OUTDATED
    verdict = judge(folder, "test_values_and_rows or test_forced_tokens")
    assert_by_defect(verdict)
    for function in ("test_values_and_rows", "test_forced_tokens"):
        assert verdict.failing(function) == unequal(verdict.cases(function), "clip")
    assert len(verdict.failing("test_values_and_rows")) == 5


AITER_IF = "        if self.paged_mqa_logits_backend.is_aiter():\n"
MIN = "min(q_offset, q_fp8.shape[0])"
TRIM, CLIP = "_p1v2_trim = _p1v2_rows < q_fp8.shape[0]", "_p1v2_clip = _p1v2_aiter and _p1v2_rows < q_offset"
KE = "ke_offset=metadata.get_seqlens_expanded()[:_p1v2_rows] if _p1v2_clip else None"
MASK = "seqlens_32[:_p1v2_rows] if _p1v2_clip else seqlens_32"
MUTANTS = {
    "swapped": ([(TRIM, CLIP.replace("clip", "trim")), (CLIP, TRIM.replace("trim", "clip"))], "trim-5-of-8"),
    "larger-count": ([(MIN, MIN.replace("min", "max"))], "trim-5-of-8"),
    "one-row-less": ([(MIN, f"max(0, {MIN} - 1)")], "equal-page1"),
    "one-row-more": ([(MIN, f"{MIN} + 1")], "equal-page1"),
    "no-trim-to-nothing": ([(f"{MIN} if _p1v2_aiter", f"{MIN} if _p1v2_aiter and q_offset")], "trim-to-nothing-idle"),
    "never-clips": ([(KE, "ke_offset=None")], "clip-2-to-1-idle"),
    "last-rows-for-the-first": ([(KE, KE.replace("[:_p1v2_rows]", "[-_p1v2_rows:]"))], "clip-4-to-3"),
    "never-restores": ([("(not _is_hip or _p1v2_trim)", "not _is_hip")], "trim-5-of-8"),
}


@needs_torch
@pytest.mark.parametrize(("swaps", "caught"), MUTANTS.values(), ids=MUTANTS)
def test_rows_mutant_of_the_values_is_caught(tmp_path, swaps, caught):
    folder = Folder(tmp_path, ROWS, BASELINE).apply().mutate(INDEXER, *swaps)
    assert caught in judge(folder, "test_values_and_rows").failing("test_values_and_rows")


@needs_torch
def test_rows_markers_in_dead_code_are_not_the_fix(tmp_path):
    dead = "        _p1v2_rows = q_fp8.shape[0]\n        _p1v2_trim = False\n"
    folder = Folder(tmp_path, ROWS, BASELINE).mutate(INDEXER, (AITER_IF, dead + AITER_IF))
    assert folder.assess().state in (State.PARTIAL, State.DRIFTED, State.OUTDATED)
    verdict = judge(folder, "test_values_and_rows")
    assert verdict.failing("test_values_and_rows") == unequal(verdict.cases("test_values_and_rows"), "trim", "clip")


@needs_torch
def test_rows_bound_in_the_branch_fail_on_other_backends(tmp_path):
    folder = Folder(tmp_path, ROWS, BASELINE).apply()
    text = (folder.root / INDEXER).read_text()
    start, branch = text.index("        _p1v2_aiter = "), text.index(AITER_IF)
    bindings = "".join(f"    {line}" for line in text[start:branch].splitlines(keepends=True))
    folder.write(INDEXER, (text[:start] + AITER_IF + bindings + text[branch + len(AITER_IF) :]).encode())
    verdict = judge(folder, "test_values_and_rows or test_other_backend_keeps_its_own_rows")
    assert verdict.failing("test_values_and_rows") == set()
    assert verdict.failing("test_other_backend_keeps_its_own_rows") >= {"equal-deepgemm", "equal-cutedsl"}


@needs_torch
def test_rows_without_the_clip_of_the_mask_fail_with_forced_tokens(tmp_path):
    folder = Folder(tmp_path, ROWS, "0.5.16").apply().mutate(INDEXER, (MASK, "seqlens_32"))
    verdict = judge(folder, "test_values_and_rows or test_forced_tokens")
    assert verdict.failing("test_values_and_rows") == set()
    assert verdict.failing("test_forced_tokens") == unequal(verdict.cases("test_forced_tokens"), "clip")


@needs_torch
def test_rows_check_that_only_asserts_is_caught(tmp_path):
    raises = "if _p1v2_aiter and topk_result.shape[0] != _p1v2_rows:\n            raise RuntimeError("
    asserts = "if __debug__ and _p1v2_aiter and topk_result.shape[0] != _p1v2_rows:\n            raise RuntimeError("
    folder = Folder(tmp_path, ROWS, BASELINE).apply().mutate(INDEXER, (raises, asserts))
    verdict = judge(folder, "wrong_rows")
    assert verdict.failing("test_wrong_rows_from_topk_are_refused") == verdict.cases(
        "test_wrong_rows_from_topk_are_refused"
    )


@needs_torch
def test_rows_metadata_cut_in_place_is_caught(tmp_path):
    cut = "ke_offset=_p1v2_clip and setattr(metadata.attn_metadata, 'dsa_seqlens_expanded', "
    cut += "metadata.get_seqlens_expanded()[:_p1v2_rows]) or None"
    folder = Folder(tmp_path, ROWS, BASELINE).apply().mutate(INDEXER, (KE, cut))
    verdict = judge(folder, "test_values_and_rows or shared_metadata")
    assert verdict.failing("test_values_and_rows") == set()
    assert verdict.failing("test_shared_metadata_stays_as_it_was") == unequal(
        verdict.cases("test_shared_metadata_stays_as_it_was"), "clip"
    )


@pytest.mark.parametrize("version", NAMES[: NAMES.index("0.5.15")])
def test_rows_before_the_backend_object_writes_nothing(tmp_path, version):
    planned = Folder(tmp_path, ROWS, version).plan()
    assert planned.changes == ()
    assert planned.patches[0].state is not State.PENDING


def alloc_file(version: str) -> str:
    return FILES[ALLOC][Version(version) < Version("0.5.14")]


@needs_torch
@pytest.mark.parametrize("version", WITH_ALLOC)
def test_alloc_patched(tmp_path, version):
    folder = Folder(tmp_path, ALLOC, version).apply()
    verdict = judge(folder)
    assert verdict.failed == {}
    assert len(verdict.passed) > 40
    assert bool(verdict.skipped) == (Version(version) < Version("0.5.19"))


@needs_torch
@pytest.mark.parametrize("version", WITH_ALLOC)
def test_alloc_stock(tmp_path, version):
    verdict = judge(Folder(tmp_path, ALLOC, version))
    assert_by_defect(verdict)
    pinned_in_stock = {"npu", "musa"}
    assert verdict.failing("test_rocm_pins_every_key") == verdict.cases("test_rocm_pins_every_key") - pinned_in_stock
    assert "test_each_bypassed_type_is_named_once" in verdict.failed
    assert not verdict.failing("test_other_platforms_are_as_they_were")


LAMBDA = "lambda: alloc_with_pin_memory if _rocm_pinned_host_pools else alloc_with_host_register"
REGISTER = "lambda: alloc_with_host_register"
ALLOC_MUTANTS = {
    "only-the-literal-key": (
        [(LAMBDA, REGISTER), ('"npu": alloc', '"cuda": alloc_with_pin_memory,\n        "npu": alloc')],
        "test_rocm_pins_every_key[device(cuda)]",
    ),
    "everywhere": ([(LAMBDA, "lambda: alloc_with_pin_memory")], "test_other_platforms_are_as_they_were[cuda-cuda]"),
    "markers-in-dead-code": ([(LAMBDA, REGISTER)], "test_rocm_pins_every_key[cuda]"),
    "silent": ([("    _rocm_warn_bypassed_allocator(allocator)\n", "")], "test_each_bypassed_type_is_named_once"),
    "warns-each-time": (
        [("    _rocm_bypassed_allocators.add(kind)\n", "")],
        "test_each_bypassed_type_is_named_once",
    ),
    "warns-of-none": (
        [("default = allocator is None or kind", "default = kind")],
        "test_the_default_allocator_is_not_worth_a_warning[none]",
    ),
}


@needs_torch
@pytest.mark.parametrize(("swaps", "caught"), ALLOC_MUTANTS.values(), ids=ALLOC_MUTANTS)
def test_alloc_mutant_is_caught(tmp_path, swaps, caught):
    folder = Folder(tmp_path, ALLOC, BASELINE).apply().mutate(alloc_file(BASELINE), *swaps)
    assert caught in judge(folder).failed


@pytest.mark.parametrize("version", FIXED_ALLOC)
def test_alloc_is_obsolete_where_upstream_resolves_the_address(tmp_path, version):
    planned = Folder(tmp_path, ALLOC, version).plan()
    assert planned.patches[0].state is State.OBSOLETE
    assert planned.changes == ()
