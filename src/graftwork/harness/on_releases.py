"""Each patch's own tests on every release where it applies: an anchor that matches is not yet a fix that works."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

from packaging.version import Version

from graftwork.errors import UsageError
from graftwork.harness.runner import Job, Run, run_all
from graftwork.harness.variants import Stage
from graftwork.patching.assess import Engine
from graftwork.patching.plan import plan
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.upstream.matrix import Question, cores
from graftwork.upstream.matrix_cells import Cell, OwnTests
from graftwork.upstream.releases import Release, open_release

Key = tuple[str, str]  # patch, version


def own_tests(
    question: Question, cells: Sequence[Cell], cache: Cache, index: PackageIndex, *, jobs: int = 0
) -> dict[Key, OwnTests]:
    """Run the tests for every cell that is ``pending``, *jobs* at a time (0: one for each core).

    This executes the engine's text, in processes of its own. UsageError where torch is missing, without which
    the tests would be skipped and look green.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "--run-tests needs torch: the tests of patches execute the engine's functions on the CPU",
            hint="install it (pip install torch), or leave --run-tests out",
        )
    wanted = {(cell.patch, cell.version) for cell in cells if cell.state == "pending"}
    runs = run_all(_jobs(question, wanted, cache, index), jobs or cores(), preload=["torch"])
    return {key: _verdict(run) for key, run in runs}


def _jobs(question: Question, wanted: set[Key], cache: Cache, index: PackageIndex) -> Iterator[tuple[Key, Job]]:
    for release in question.releases:
        here = [patch for patch in question.patches if (patch.id, str(release.version)) in wanted]
        if here:
            yield from _of_release(question, release, [patch.id for patch in here], cache, index)


def _of_release(
    question: Question, release: Release, names: Sequence[str], cache: Cache, index: PackageIndex
) -> Iterator[tuple[Key, Job]]:
    with open_release(release, cache, index) as tree:
        for patch in question.patches:
            if patch.id not in names:
                continue
            engine = Engine(Version(str(release.version)), question.platforms[patch.id])
            made = Stage(plan(tree, [patch], engine), tree, patch, ())
            everything_in = next(made.variants())
            version = str(release.version)
            yield (patch.id, version), Job(patch.folder / "tests", everything_in.files, release.project, version)


def _verdict(run: Run) -> OwnTests:
    """Everything that did not pass or skip is a failure, and so is a run in which nothing passed."""
    failed = {outcome.test: f"{outcome.error} ({outcome.kind})" for outcome in run.of("assertion", "engine", "broken")}
    passed = len(run.of("passed"))
    if run.trouble or not (passed or failed):
        failed["the run"] = run.trouble or "no test passed"
    return OwnTests(passed=passed, skipped=len(run.of("skipped")), failed=failed, seconds=run.seconds)
