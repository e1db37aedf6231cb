"""Running a patch's tests on many small trees: one process for each, forked from one that has pytest loaded.

The engine's text is executed only in those processes, each in its own process group and with a time limit.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from graftwork.harness.outcomes import Kind, Outcome

K = TypeVar("K")
PRELOAD = [
    "graftwork.harness.preload",
    "pytest",
    "hypothesis",
    "graftwork.harness.outcomes",
    "graftwork.harness.isolate",
]


@dataclass(frozen=True)
class Job:
    """The tests in *tests* on a tree of *files* (path -> bytes) of release *version* of package *engine*.

    The run ends early at the first outcome of a kind in *enough*. *limit* is in seconds.
    """

    tests: Path
    files: Mapping[str, bytes] = field(repr=False)
    engine: str
    version: str
    enough: frozenset[Kind] = frozenset()
    limit: float = 300.0


@dataclass(frozen=True)
class Run:
    """What came of a job. ``trouble`` is why the tests did not run to their end ('' if they did)."""

    outcomes: tuple[Outcome, ...]
    trouble: str = ""
    seconds: float = 0.0

    def of(self, *kinds: Kind) -> list[Outcome]:
        """The outcomes of these kinds."""
        return [outcome for outcome in self.outcomes if outcome.kind in kinds]


@dataclass
class _Started(Generic[K]):
    key: K
    process: BaseProcess
    folder: Path
    began: float
    limit: float


def run_all(jobs: Iterable[tuple[K, Job]], at_once: int, preload: Iterable[str] = ()) -> Iterator[tuple[K, Run]]:
    """Run *jobs*, at most *at_once* of them together, and give each result as it comes. Jobs are drawn lazily."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *preload])
    waiting, running = iter(jobs), list[_Started[K]]()
    more = True
    # What a test left running may still write while it dies: that is no reason to fail.
    with tempfile.TemporaryDirectory(prefix="graftwork-prove-", ignore_cleanup_errors=True) as root:
        try:
            while more or running:
                while more and len(running) < at_once:
                    drawn = next(waiting, None)
                    more = drawn is not None
                    if drawn is not None:
                        running.append(_start(context.Process, *drawn, Path(root)))
                if running:
                    yield from _ended(running)
        finally:
            for each in running:
                _kill(each.process)


def _start(make: type[BaseProcess], key: K, job: Job, root: Path) -> _Started[K]:
    folder = Path(tempfile.mkdtemp(dir=root))
    process = make(target=_work, args=(job, folder))
    process.start()
    return _Started(key, process, folder, time.monotonic(), job.limit)


def _ended(running: list[_Started[K]]) -> Iterator[tuple[K, Run]]:
    """Wait until something ends or is over its limit; give it and take it out of *running*."""
    first = min(each.began + each.limit for each in running)
    connection.wait([each.process.sentinel for each in running], timeout=max(0.0, first - time.monotonic()))
    for each in list(running):
        seconds = time.monotonic() - each.began
        late = each.process.is_alive() and seconds >= each.limit
        if each.process.is_alive() and not late:
            continue
        _kill(each.process)
        running.remove(each)
        trouble = f"the tests did not end in {each.limit:.0f} s" if late else ""
        result = _result(each.folder, each.process.exitcode, trouble)
        shutil.rmtree(each.folder, ignore_errors=True)
        yield each.key, Run(*result, round(seconds, 3))


def _kill(process: BaseProcess) -> None:
    """End a process and what it started; it leads a process group of its own from its first step on."""
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _result(folder: Path, code: int | None, trouble: str) -> tuple[tuple[Outcome, ...], str]:
    from graftwork.harness.outcomes import Outcome

    file = folder / "result.json"
    if trouble or not file.is_file():
        output = folder / "output"
        said = output.read_text("utf-8", "replace").strip().splitlines()[-5:] if output.is_file() else []
        return (), " / ".join([trouble or f"the test process died (exit code {code})", *said])
    found = json.loads(file.read_text("utf-8"))
    return tuple(Outcome(**each) for each in found["outcomes"]), found["trouble"]


def _work(job: Job, folder: Path) -> None:
    """In the child: write the tree, run pytest on it, leave the result."""
    os.setsid()
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    tree, here = folder / "tree", folder / "here"
    here.mkdir()
    os.chdir(here)
    for path, data in job.files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(data)
    outcomes, trouble = _pytest(job, tree)
    text = json.dumps({"outcomes": [asdict(each) for each in outcomes], "trouble": trouble})
    (folder / "result.new").write_text(text, "utf-8")
    (folder / "result.new").rename(folder / "result.json")


def _pytest(job: Job, tree: Path) -> tuple[list[Outcome], str]:
    import pytest

    from graftwork.harness.outcomes import Recorder

    for name in [name for name in os.environ if name.startswith(("PYTEST_", "GRAFTWORK_"))]:
        del os.environ[name]
    os.environ |= {"GRAFTWORK_VERSION": job.version, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    if "torch" in sys.modules:  # loaded before the fork: the variable comes too late
        sys.modules["torch"].set_num_threads(1)
    sys.dont_write_bytecode = True
    _settle_hypothesis()
    gc.freeze()  # pytest collects garbage more than once, and all that was loaded before the fork is none
    recorder = Recorder(str(job.tests), str(tree), job.enough)
    arguments = ["-q", "--tb=native", "-c", os.devnull, f"--rootdir={job.tests.parent}", "--import-mode=importlib"]
    arguments += ["-p", "no:cacheprovider", "-p", "graftwork.harness.plugin", f"--engine={job.engine}"]
    arguments += [f"--engine-tree={tree}", str(job.tests)]
    code = int(pytest.main(arguments, plugins=[recorder]))
    return recorder.outcomes, _trouble(code, recorder.outcomes)


def _trouble(code: int, outcomes: list[Outcome]) -> str:
    """Why pytest did not come to its end; '' if it did, or if its outcomes say why not."""
    from pytest import ExitCode

    skipped_as_a_whole = code == ExitCode.NO_TESTS_COLLECTED and outcomes
    uncollected = any(outcome.kind == "broken" and outcome.phase == "collection" for outcome in outcomes)
    explained = skipped_as_a_whole or (code == ExitCode.INTERRUPTED and uncollected)
    if code in (ExitCode.OK, ExitCode.TESTS_FAILED) or explained:
        return ""
    names = {item.value: item.name.lower().replace("_", " ") for item in ExitCode}
    return f"pytest ended with exit code {code} ({names.get(code, 'a code of its own')})"


def _settle_hypothesis() -> None:
    """The same examples every time, no files, and no search for smaller ones: a failure is all that counts."""
    try:
        from hypothesis import HealthCheck, Phase, settings
    except ImportError:
        return
    settings.register_profile(
        "graftwork",
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("graftwork")
