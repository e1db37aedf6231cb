"""The whole harness: every variant of every patch of some targets, each judged by the patch's own tests."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graftwork.errors import UsageError
from graftwork.harness.runner import Job, Run, run_all
from graftwork.harness.variants import Stage, Variant
from graftwork.harness.verdict import COUNTS, Verdict, judge


@dataclass(frozen=True)
class Row:
    """One judged variant. ``seconds`` is how long its tests took; 0 where there was nothing to run."""

    target: str
    patch: str
    variant: Variant
    verdict: Verdict
    seconds: float


@dataclass
class _Matrix:
    """The variants of one patch of one target, each with the key of its run ('' where there is nothing to run)."""

    target: str
    stage: Stage
    variants: list[tuple[Variant, str]] = field(default_factory=list)
    whole: bool = False

    def rows(self, results: dict[str, Run]) -> Iterator[Row]:
        for variant, key in self.variants:
            run = results.get(key)
            verdict = judge(variant, run)
            yield Row(self.target, self.stage.patch.id, variant, verdict, run.seconds if run else 0.0)


def prove(
    stages: Iterable[tuple[str, Stage]], *, at_once: int, limit: float = 300.0, preload: Iterable[str] = ()
) -> Iterator[Row]:
    """Judge every variant of the (target name, stage) pairs; rows come in that order, as soon as a patch is done.

    Tests of a patch on the same files of the same release are run once, for all targets. *limit* is in seconds.
    """
    waiting: deque[_Matrix] = deque()
    results: dict[str, Run] = {}
    for key, run in run_all(_jobs(stages, waiting, limit), at_once, preload):
        results[key] = run
        while waiting and waiting[0].whole and all(key in results for _, key in waiting[0].variants if key):
            yield from waiting.popleft().rows(results)
    for matrix in waiting:
        yield from matrix.rows(results)


def _jobs(stages: Iterable[tuple[str, Stage]], waiting: deque[_Matrix], limit: float) -> Iterator[tuple[str, Job]]:
    """The runs that are needed, each once; what they are for is left in *waiting*."""
    asked: set[str] = set()
    for target, stage in stages:
        matrix = _Matrix(target, stage)
        waiting.append(matrix)
        tests, engine = stage.patch.folder / "tests", stage.patch.engine
        version = str(stage.plan.engine.version)
        for variant in stage.variants():
            key = _key(stage.patch.id, version, variant) if variant.files else ""
            matrix.variants.append((variant, key))
            if key and key not in asked:
                asked.add(key)
                yield key, Job(tests, variant.files, engine, version, COUNTS[variant.sort], limit)
        matrix.whole = True


def _key(patch: str, version: str, variant: Variant) -> str:
    state = hashlib.sha256(repr((patch, version, sorted(COUNTS[variant.sort]))).encode())
    for path, data in sorted(variant.files.items()):
        state.update(f"{path}\0{hashlib.sha256(data).hexdigest()}\0".encode())
    return state.hexdigest()


def check_requirements(tests: Sequence[Path]) -> list[str]:
    """Which heavy modules to load before the tests. UsageError if there are no tests, or they could only be skipped.

    Tests that skip for want of torch prove nothing, so its absence is refused and not reported as a pass.
    """
    if importlib.util.find_spec("pytest") is None:
        raise UsageError("the tests of patches need pytest", hint="pip install 'graftwork[test]'")
    for folder in tests:
        if not any(folder.glob("test_*.py")):
            raise UsageError(f"{folder}: the patch has no tests (test_*.py)", hint="see CONTRIBUTING.md, step 7")
    if not any(_names_torch(file) for folder in tests for file in sorted(folder.glob("*.py"))):
        return []
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "the patches' tests run the engine's functions with torch, which is not installed",
            hint="pip install torch (a CPU build is enough), or: make revert-harness",
        )
    return ["torch"]


def _names_torch(file: Path) -> bool:
    """Whether a test file imports torch, by statement or by name (``pytest.importorskip``)."""
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
        if any(name == "torch" or name.startswith("torch.") for name in names):
            return True
    return False
