"""Each patch's own tests on every release where it applies: an anchor that matches is not yet a fix that works."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

from graftwork.errors import UsageError
from graftwork.harness.runner import Job, Run, run_all
from graftwork.harness.variants import Stage
from graftwork.patching.assess import Engine
from graftwork.patching.plan import plan
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.upstream.matrix import Question, Traffic, cores
from graftwork.upstream.matrix_cells import Cell, OwnTests
from graftwork.upstream.releases import open_release

Key = tuple[str, str]  # patch, version


def own_tests(
    question: Question, cells: Sequence[Cell], cache: Cache, index: PackageIndex, *, jobs: int = 0
) -> tuple[dict[Key, OwnTests], Traffic]:
    """Run the tests for every cell that is ``pending``, *jobs* at a time (0: one for each core).

    Also returns what reading the files that only tests read has cost.

    This executes the engine's text, in processes of its own. UsageError where torch is missing, without which
    the tests would be skipped and look green.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "--run-tests needs torch: the tests of patches execute the engine's functions on the CPU",
            hint="install it (pip install torch), or leave --run-tests out",
        )
    wanted = {(cell.patch, cell.version) for cell in cells if cell.state == "pending"}
    costs: list[Traffic] = []
    runs = run_all(_jobs(question, wanted, cache, index, costs), jobs or cores(), preload=["torch"])
    verdicts = {key: _verdict(run) for key, run in runs}
    return verdicts, Traffic(sum(cost.moved_bytes for cost in costs), sum(cost.requests for cost in costs))


def _jobs(
    question: Question, wanted: set[Key], cache: Cache, index: PackageIndex, costs: list[Traffic]
) -> Iterator[tuple[Key, Job]]:
    for release in question.releases:
        version = str(release.version)
        here = [patch for patch in question.patches if (patch.id, version) in wanted]
        if not here:
            continue
        with open_release(release, cache, index) as tree:
            for patch in here:
                engine = Engine(release.version, question.platforms[patch.id])
                everything_in = next(Stage(plan(tree, [patch], engine), tree, patch, ()).variants())
                yield (patch.id, version), Job(patch.folder / "tests", everything_in.files, release.project, version)
            costs.append(Traffic(tree.moved_bytes, tree.requests))


def _verdict(run: Run) -> OwnTests:
    """Everything that did not pass or skip is a failure, and so is a run in which nothing passed."""
    failed = {outcome.test: f"{outcome.error} ({outcome.kind})" for outcome in run.of("assertion", "engine", "broken")}
    passed = len(run.of("passed"))
    if run.trouble or not (passed or failed):
        failed["the run"] = run.trouble or "no test passed"
    return OwnTests(passed=passed, skipped=len(run.of("skipped")), failed=failed, seconds=run.seconds)
