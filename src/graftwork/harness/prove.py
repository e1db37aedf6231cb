"""The whole harness: every variant of every patch of some targets, each judged by the patch's own tests."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
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
class _Runs:
    """Tests of a patch on the same files of the same release are run once, for all targets."""

    stages: Iterable[tuple[str, Stage]]
    limit: float
    variants: list[tuple[str, str, Variant, str]] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def jobs(self) -> Iterator[tuple[str, Job]]:
        for target, stage in self.stages:
            version = str(stage.plan.engine.version)
            for variant in stage.variants():
                key = _key(stage.patch.id, version, variant) if variant.files else ""
                self.variants.append((target, stage.patch.id, variant, key))
                if key and key not in self.asked:
                    self.asked.add(key)
                    tests, engine = stage.patch.folder / "tests", stage.patch.id.partition("/")[0]
                    yield key, Job(tests, variant.files, engine, version, COUNTS[variant.sort], self.limit)


def prove(
    stages: Iterable[tuple[str, Stage]],
    *,
    at_once: int,
    limit: float = 300.0,
    preload: Iterable[str] = (),
    told: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """Judge every variant of the (target name, stage) pairs, in order. *told* hears how many runs are done."""
    runs = _Runs(stages, limit)
    results: dict[str, Run] = {}
    for key, run in run_all(runs.jobs(), at_once, preload):
        results[key] = run
        told(len(results))
    rows = []
    for target, patch, variant, key in runs.variants:
        run_of = results.get(key)
        rows.append(Row(target, patch, variant, judge(variant, run_of), run_of.seconds if run_of else 0.0))
    return rows


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
